"""s. How long the event loop stands still while browsers do their worst to ``web.chat``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

import rxllm
from rxllm import web
from tests.benchmarks.report import Effort, Table, progress

AIM = 0.1
"""The longest standstill that is accepted, in seconds."""

POSTS, GETS, PARTS = 20, 10, 15_000


def measure(effort: Effort) -> list[Table]:
    """Seconds of CPU time, so that other programs do not count: the longest time in which no other task ran."""
    progress("s. the longest standstill")
    longest = asyncio.run(_longest())
    table = Table("s", "The longest standstill of a loop under attack", ["", "cpu, s", "aim"])
    table.rows.append([f"{POSTS} posts of {PARTS} parts, {GETS} GETs", longest, AIM])
    return [table]


async def _longest() -> float:
    app = web.chat(rxllm.Fake(lambda request: "Hello"), rxllm.session.MemorySessions(), max_per_minute=10_000)
    for _ in range(2):
        await _post(app, _body("shared"))
    bodies = [_body(f"chat-{n % 10}") for n in range(POSTS)]
    longest, is_over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        before = time.process_time()
        while not is_over:
            await asyncio.sleep(0)
            now = time.process_time()
            longest, before = max(longest, now - before), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    calls: list[Coroutine[Any, Any, int]] = [_post(app, body) for body in bodies]
    calls += [_ask(app, "GET", "/api/chat/shared/stream") for _ in range(GETS)]
    await asyncio.gather(*calls)
    is_over = True
    await watching
    return longest


def _body(id: str) -> bytes:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}] * PARTS}
    return json.dumps({"id": id, "messages": [message], "trigger": "submit-message"}).encode()


async def _post(app: Any, body: bytes) -> int:
    return await _ask(app, "POST", "/api/chat", body)


async def _ask(app: Any, method: str, path: str, body: bytes = b"") -> int:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("127.0.0.1", 1)}
    scope |= {"http_version": "1.1", "query_string": b"", "root_path": ""}
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0

    async def receive() -> Any:
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status
