"""An ASGI app behind a real server and a socket: hypercorn, on a loop and a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from hypercorn.asyncio import serve
from hypercorn.config import Config

from rxllm.web import openai_app
from tests.waiting import PATIENCE


class Served:
    """The server: its `url`, and how many `tasks` its loop has."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="served")
        self._started = threading.Event()

    @classmethod
    def of(cls, *engines: Any, **options: Any) -> Self:
        """Serve `engines` as the models "m0", "m1" and so on."""
        return cls(openai_app({f"m{i}": engine for i, engine in enumerate(engines)}, **options))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def tasks(self) -> int:
        """How many tasks there are on the loop, without those of connections that hypercorn keeps."""

        async def count() -> int:
            running: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
            codes = [getattr(task, "cr_code", None) for task in running]  # an async generator that is closed has none
            return sum(
                code is None or "hypercorn" not in code.co_filename or code.co_name == "_handle" for code in codes
            )

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result(PATIENCE)

    def call(self, act: Callable[[], object]) -> None:
        """Call `act` on the loop."""
        self._loop.call_soon_threadsafe(act)

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        config = Config()
        config.bind = [f"fd://{self._socket.detach()}"]
        config.loglevel = "CRITICAL"
        config.keep_alive_timeout = PATIENCE
        config.graceful_timeout = 0.2  # for what a test has left running
        await serve(self._app, config, shutdown_trigger=self._until_over)

    async def _until_over(self) -> None:
        self._started.set()  # it is called once the server listens
        await self._over.wait()
