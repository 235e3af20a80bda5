"""A server whose chats survive it: ``python -m tests.web.chat_server FOLDER URL LEASE``. It prints its port."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from rxllm import Engine, OpenAIChat, durable, tool, web


def endpoint(folder: Path, url: str, lease: float) -> tuple[web._chat.App, durable.Runs]:
    @tool
    def note(text: str) -> str:
        """Write a note."""
        with (folder / "notes").open("a") as file:
            file.write(f"{text}\n")
        return "noted"

    runs = durable.open_runs(folder / "runs.db", {}, lease=lease, flush_after=0.01)
    engine = Engine(OpenAIChat(base_url=url, api_key="k"), model="m", tools=[note], retry=False)
    return web.chat(engine, runs.sessions, runs=runs, system="Be brief."), runs


def main(folder: Path, url: str, lease: float) -> None:
    app, _ = endpoint(folder, url, lease)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
