"""React's `useChat` in a page without a screen, see `judges/ui_react.mjs`, over a socket to a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import rxllm
from rxllm import (
    AdapterError,
    ChatCompleted,
    ChatResult,
    Engine,
    Event,
    Fake,
    Stream,
    StreamError,
    ToolCall,
    Usage,
    web,
)
from rxllm import operators as ops
from rxllm.testing.loopback import DONE, Loopback, Reply, chat_chunk, chat_finish
from tests.closing import STALLED
from tests.judges import node
from tests.laws import scripts
from tests.runtime.support import model
from tests.waiting import pauses
from tests.web import clients
from tests.web.serving import serving
from tests.web.ui import assert_folds_equal, pay

pytestmark = pytest.mark.judges

USES = [("thinking", "Hm."), "I add.", ToolCall("a", "add", {"x": 1}), ToolCall("b", "raises", {}), Usage(1, 2)]
PAYS = ["I pay.", ToolCall("c1", "pay", {"amount": 5})]
MODELS: dict[str, Any] = {
    "tools": Fake(USES, ["Done.", Usage(3, 4)]),
    "error": Fake(["Hel", AdapterError("provider_unavailable", "https://secret")]),
    "restart": Engine(
        Fake(["Hel", StreamError("truncated")], ["Hello", Usage(1, 2)]), operators=[ops.restart({"base_delay": 0})]
    ),
    "approve-true": Fake(PAYS, ["Paid.", Usage(3, 4)]),
    "approve-false": Fake(PAYS, ["Not paid.", Usage(3, 4)]),
}


def gated(gate: threading.Event) -> Iterator[Any]:
    yield chat_chunk("abc")
    yield from pauses(gate.is_set)
    yield from (chat_chunk("def"), chat_finish(), DONE)


class Site:
    """The server of the page: a conversation for each act, and what was sent of it."""

    def __init__(self, models: dict[str, Any], finish: threading.Event) -> None:
        self.sent: dict[str, list[list[Event]]] = {}  # of each response
        self.models = models
        self._finish = finish
        self._stored: dict[str, ChatResult] = {}
        self._runs = web.Runs()
        chat = Route("/api/chat", self._chat, methods=["POST"])
        self.app = Starlette(routes=[chat, Route("/api/chat/{id}/stream", self._resume), Route("/finish", self._go_on)])

    async def _chat(self, request: Request) -> Response:
        body = await request.body()
        id = json.loads(body)["id"]
        incoming = web.from_ui(body, self._stored.get(id, ChatResult(rxllm.Thread((rxllm.system("Be brief."),)))))
        answers: Any = {"approvals": incoming.approvals, "results": incoming.results}
        tools = [pay, *scripts.TOOLS]
        stream = rxllm.stream_resume(self.models[id], incoming.thread, **answers, tools=tools, retry=False)
        kept = stream.pipe(ops.tap(lambda event: self._stored.update({id: event.result}), ChatCompleted))
        return self._response(id, self._runs.start(id, kept) if id == "reload" else kept)

    async def _resume(self, request: Request) -> Response:
        id = request.path_params["id"]
        stream = self._runs.watch(id)
        return self._response(id, stream) if stream else Response(status_code=204)

    def _response(self, id: str, stream: Stream[Event]) -> Any:
        sent: list[Event] = []
        self.sent.setdefault(id, []).append(sent)
        seen = stream.pipe(ops.errors_as_events(), web.for_client(), ops.tap(sent.append))
        return web.streaming_response(seen, "ui")

    async def _go_on(self, request: Request) -> Response:
        self._finish.set()
        return Response(status_code=204)


async def _played(site: Site) -> list[Any]:
    async with serving(site.app) as port:
        command = [node(), str(clients.JUDGES / "ui_react.mjs"), f"http://127.0.0.1:{port}/"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, err.decode()[-3000:]
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def played() -> tuple[dict[str, Any], dict[str, list[list[Event]]], list[str | None]]:
    """What the page shows after each act, what was sent, and who had closed the stopped call before the next one."""
    clients.require("ui_react")
    finish = threading.Event()
    closed_by: list[str | None] = []

    def answer(_: Any) -> Reply:
        closed_by.append(stalled.connections[0].closed_by)
        return Reply(gated(finish))

    async def main() -> list[Any]:
        site.models |= {"stop": model(stalled), "reload": model(reloaded)}
        lines = await _played(site)
        assert [len(server.requests) for server in (stalled, reloaded)] == [1, 1]
        return lines

    site = Site(MODELS, finish)
    with Loopback(STALLED) as stalled, Loopback(answer) as reloaded:
        lines = asyncio.run(main())
    return {line["act"]: line for line in lines}, site.sent, closed_by


PAGES = {
    "tools": ["Hm.", "I add.", "add output-available", "raises output-error", "Done."],
    "error": ["Hel"],
    "restart": ["Hello"],
    "approve-true": ["I pay.", "pay output-available", "Paid."],
    "approve-false": ["I pay.", "pay output-denied", "Not paid."],
    "stop": ["abc"],
    "reload": ["abc"],  # the new page has no message of the user: a site that wants them sends them
    "reloaded": ["abcdef"],
}


@pytest.mark.judges
@pytest.mark.parametrize("act", PAGES)
def test_the_page_shows_it(act: str, played: Any) -> None:
    line = played[0][act]
    typed = [] if act.startswith("reload") else [f"Do {act}."]
    assert line["page"] == typed + PAGES[act]
    assert line["status"] == {"error": "error", "reload": "streaming"}.get(act, "ready")


@pytest.mark.parametrize("act", [*MODELS, "reloaded"])
def test_the_hook_folds_what_we_fold(act: str, played: Any) -> None:
    lines, sent, _ = played
    responses = sent[act] if act in MODELS else sent["reload"][1:]
    assert_folds_equal(lines[act], [event for events in responses for event in events], act)


def test_stop_closes_the_providers_connection(played: Any) -> None:
    assert played[2] == ["client"]
