"""The clients of `web.chat`, under Node: `Chat` of the npm package `ai`, and `HttpAgent` of `@ag-ui/client`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import rxllm
from rxllm import AdapterError, web
from rxllm.session import MemorySessions
from tests.judges import absent, node
from tests.web.chats import PAYS, in_time, made, paid
from tests.web.chats import thread as stored
from tests.web.serving import serving
from tests.web.test_ui_stream import JUDGES, MODULES


@pytest.fixture(autouse=True)
def installed() -> None:
    if not (MODULES / "ai").is_dir():
        absent("ai", "npm ci --prefix tests")
    paid.clear()


async def seen_by(script: str, app: Any, *arguments: str, path: str = "/") -> list[Any]:
    async with serving(app) as port:
        command = [node(), str(JUDGES / script), f"http://127.0.0.1:{port}{path}", *arguments]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        try:
            async with asyncio.timeout(80):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, (err.decode()[-3000:], out)
    return [json.loads(line) for line in out.splitlines()]


def test_use_chat_approves_stops_and_goes_on() -> None:
    failure = AdapterError("provider_unavailable", "secret")
    app, store = made(PAYS, "Paid.", ["word ", ("delay", 30), "more"], ["Hel", failure])

    async def main() -> tuple[list[Any], list[list[str]]]:
        lines = await seen_by("ui_chat.mjs", app, path="/api/chat")
        return lines, [await stored(store, id) for id in store._saved]

    seen, threads = in_time(main())
    assert [line["status"] for line in seen] == ["ready", "ready", "ready", "error"]
    assert seen[0]["message"]["parts"][-1]["state"] == "approval-requested"
    assert seen[1]["message"]["parts"][-1]["text"] == "Paid."
    assert seen[3]["error"] == "adapter error: provider_unavailable"
    assert threads == [["Pay 5.", "", "paid 5", "Paid.", "Go on.", "word ", "Again.", "Hel"]]
    assert paid == [5]


def test_use_chat_returns_to_its_answer() -> None:
    async def main() -> tuple[list[Any], list[str]]:
        go, store = asyncio.Event(), MemorySessions()

        async def story(request: Any, call: Any) -> Any:
            yield rxllm.TextDelta("Once ")
            await go.wait()
            yield rxllm.TextDelta("upon.")

        async def release(request: Any) -> Response:
            go.set()
            return Response(status_code=204)

        app = web.chat(story, store, background=True)
        routes = [Route("/api/chat{rest:path}", app), Route("/go", release, methods=["POST"])]
        return await seen_by("chat.mjs", Starlette(routes=routes), "resume"), await stored(store, "c/1")

    lines, texts = in_time(main())
    begun, whole = ["A story!", "Once "], ["A story!", "Once upon."]
    assert [line["texts"] for line in lines] == [begun, whole, whole, [*whole, "More!", "Once upon."]]
    assert [line["status"] for line in lines] == ["streaming", "ready", "ready", "ready"]
    assert texts == [*whole, "More!", "Once upon."]


def test_an_ag_ui_agent_approves_and_goes_on() -> None:
    app, store = made(PAYS, "Paid.", "You are welcome.", protocol="ag-ui")
    lines = in_time(seen_by("chat.mjs", app, "agent"))
    assert [len(line["interrupts"]) for line in lines] == [1, 0, 0]
    assert lines[-1]["messages"] == [
        *(["user", "Pay 5."], ["assistant", ""], ["tool", "paid 5"], ["assistant", "Paid."]),
        *(["user", "Thanks."], ["assistant", "You are welcome."]),
    ]
    texts = ["Pay 5.", "", "paid 5", "Paid.", "Thanks.", "You are welcome."]
    assert asyncio.run(stored(store)) == texts
    assert paid == [5]
