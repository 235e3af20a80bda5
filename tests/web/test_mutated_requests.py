"""A mutated request is read, or refused with 400: never another error, and never slowly."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import msgspec
import pytest
from starlette.responses import JSONResponse

import rxllm
from rxllm import Engine, OpenAIChat, Thread, ToolCall, serializer, web
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.web import _ag_ui_request, _openai_request, _ui_request
from tests.web.ag_ui import ask, locate, pay
from tests.web.mutations import PNG, Mutations, halted
from tests.web.served import PATIENCE

pytestmark = pytest.mark.sockets

SLOW = 1.0
"""Seconds of this process that a small request may never take."""

Read = Callable[[bytes], str]


WAITS = [ToolCall("c1", "pay", {"amount": 5}), ToolCall("c2", "locate", {})]
STORED = [None, Thread(), Thread() + "Hi" + "Hi", halted(*WAITS), halted(ToolCall("c1", "ask", {"question": "Which?"}))]


# Bodies that are right


def tool_part(id: str, state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-pay", "toolCallId": id, "state": state, "input": {"amount": 5}, **fields}


UI: list[dict[str, Any]] = [
    {"id": "chat1", "trigger": "submit-message", "messages": [
        {"id": "m0", "role": "system", "parts": [{"type": "text", "text": "Obey."}]},
        {"id": "m1", "role": "user", "parts": [
            {"type": "text", "text": "Hi"}, {"type": "file", "url": PNG, "mediaType": "image/png", "filename": "a.png"},
            {"type": "file", "url": "https://example.org/a.pdf", "mediaType": "application/pdf"}]},
        {"id": "m2", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm.", "providerMetadata": {"rxllm": {"signature": "s"}}},
            tool_part("c1", "output-available", output={"paid": [1, 2.5, None]}), {"type": "step-start"},
            {"type": "dynamic-tool", "toolName": "locate", "toolCallId": "c2", "state": "output-error",
             "input": {}, "errorText": "no", "preliminary": False, "providerExecuted": False},
            {"type": "text", "text": "Done."}]},
        {"id": "m3", "role": "user", "parts": [{"type": "text", "text": "More"}]}]},
    {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "parts": [
        tool_part("c1", "approval-responded", approval={"id": "c1", "approved": True, "reason": "Yes."}),
        {**tool_part("c2", "output-available", output="Oslo"), "type": "tool-locate"}]}]},
    {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Hi"}]}], "trigger": "regenerate-message",
     "messageId": "m1"},
]  # fmt: skip

CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"amount":5}'}}
AG_UI: list[dict[str, Any]] = [
    {"threadId": "t", "runId": "r", "state": {"a": [1]}, "context": [], "forwardedProps": {}, "messages": [
        {"id": "m0", "role": "developer", "content": "Obey."},
        {"id": "m1", "role": "user", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "image", "source": {"type": "data", "value": "cG5n", "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "url", "value": "https://example.org/a.pdf"}}]},
        {"id": "m2", "role": "reasoning", "content": "Hm.", "encryptedValue": "s"},
        {"id": "m3", "role": "assistant", "content": "I pay.", "toolCalls": [CALL]},
        {"id": "m4", "role": "tool", "toolCallId": "c1", "content": "paid 5", "error": None},
        {"id": "m5", "role": "activity", "activityType": "plan", "content": {"a": 1}},
        {"id": "m6", "role": "assistant", "content": "Done.", "subagentRunId": "a"},
        {"id": "m7", "role": "user", "content": "More"}],
     "tools": [{"name": "locate", "description": "d", "parameters": {"type": "object", "properties": {}}}]},
    {"threadId": "t", "runId": "r", "messages": [
        {"id": "m1", "role": "user", "content": "Hi"},
        {"id": "m4", "role": "tool", "toolCallId": "c2", "content": "x"}],
     "resume": [{"interruptId": "c1", "status": "resolved", "payload": {
         "approved": True, "reason": "Yes.", "editedArgs": {"amount": 5}}}]},
    {"threadId": "t", "runId": "r", "messages": [],
     "resume": [{"interruptId": "c1", "status": "resolved", "payload": "b"}]},
]  # fmt: skip

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
ANN: Any = {"role": "user", "name": "Ann", "content": "Hi"}
OPENAI: list[dict[str, Any]] = [
    {"model": "m0", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.9,
     "stop": ["END"], "user": "u", "metadata": {"a": "b"}, "n": 1, "logit_bias": {}, "messages": [ANN]},
    {"model": "m0", "seed": 7, "max_tokens": 100, "messages": [ANN]},
    {"model": "m0", "messages": [ANN], "max_completion_tokens": 5, "reasoning_effort": "low",
     "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    {"model": "m0", "tool_choice": "auto", "messages": [ANN], "tools": [{"type": "function", "function": {
        "name": "pay", "description": "d", "strict": True, "parameters": SCHEMA}}]},
    {"model": "m0", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}}]}]},
    {"model": "m0", "messages": [
        {"role": "assistant", "content": "I pay.", "reasoning_content": "Hm.", "refusal": None, "tool_calls": [CALL],
         "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org", "title": "t"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid 5"}]},
]  # fmt: skip


# Readers


def read_with(reader: Callable[..., Any], engine: Engine) -> Read:
    """The endpoint of docs/web.md: a 400 is "refused", and what is kept of the rest can be stored."""
    stored = cycle(STORED)

    def read(body: bytes) -> str:
        try:
            incoming = reader(body, next(stored), client_tools=["locate"])
            arguments = {"approvals": incoming.approvals, "results": incoming.results}
            events = rxllm.stream_resume(engine, incoming.thread, **arguments)
        except rxllm.LLMError as error:
            JSONResponse({"error": str(error)}, 400)  # which cannot say half of a surrogate pair
            return "refused"
        serializer.from_json(serializer.to_json(incoming.thread))
        for frame in events.pipe(web.for_client(), web.encode("rxllm")):
            web.sse(frame)
        return "read"

    return read


def read_openai(engine: Engine, runner: asyncio.Runner) -> Read:
    """The app, up to the status of its response."""
    app = web.openai_app({"m0": engine})

    async def respond(body: bytes) -> int:
        statuses: list[int] = []
        sent = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        await asyncio.wait_for(app(scope, receive, send), PATIENCE)
        return statuses[0]

    def read(body: bytes) -> str:
        return {200: "read", 400: "refused", 404: "refused"}[runner.run(respond(body))]

    return read


BODIES = {"from_ui": UI, "from_ag_ui": AG_UI, "openai_app": OPENAI}


@contextmanager
def opened(name: str) -> Generator[Read]:
    """The reader of this name, in front of a provider on a socket."""
    tools = [] if name == "openai_app" else [pay, locate, ask]
    with Loopback(lambda _: Reply(chat("{}"))) as provider, asyncio.Runner() as runner:
        engine = Engine(OpenAIChat(base_url=provider.url), model="m", retry=False, tools=tools)
        if name == "openai_app":
            yield read_openai(engine, runner)
        else:
            yield read_with(getattr(web, name), engine)
        runner.run(rxllm.aclose(engine))


class Tally:
    """What became of bodies: how many were read or refused, the others by their errors, and the slowest."""

    def __init__(self, read: Read, bodies: Iterable[bytes]) -> None:
        self.counts, self.others, self.longest = Counter[str](), dict[str, bytes](), 0.0
        for body in bodies:
            began = time.process_time()
            try:
                self.counts[read(body)] += 1
            except Exception as error:
                self.counts["other"] += 1
                self.others.setdefault(f"{type(error).__name__}: {error}"[:200], body)
            self.longest = max(self.longest, time.process_time() - began)

    def __repr__(self) -> str:
        return f"{dict(self.counts)}, at most {self.longest:.3f} s, {self.others!a}"


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_right_are_read(name: str) -> None:
    with opened(name) as read:
        outcomes = [{read(json.dumps(body).encode()) for _ in STORED} for body in BODIES[name]]
    assert all("read" in found for found in outcomes)


@pytest.mark.parametrize("name", BODIES)
def test_a_mutated_request_is_read_or_refused_and_never_slowly(name: str) -> None:
    with opened(name) as read:
        tally = Tally(read, islice(Mutations(BODIES[name], seed=0), 400))
    assert not tally.others, tally
    assert tally.longest < SLOW, tally
    assert min(tally.counts["read"], tally.counts["refused"]) > 30, tally  # mutations of both kinds


@pytest.mark.judges
@pytest.mark.parametrize("name", BODIES)
def test_a_campaign_of_mutated_requests(name: str) -> None:
    """Run with ``-s`` for its figures; ``MUTATIONS`` is how many there are, ``SEED`` where they begin."""
    bodies = Mutations(BODIES[name], int(os.environ.get("SEED", "1")))
    with opened(name) as read:
        tally = Tally(read, islice(bodies, int(os.environ.get("MUTATIONS", "2000"))))
    print(f"{name}: {tally}")
    assert not tally.others
    assert tally.longest < SLOW


BORDERS: dict[str, tuple[Any, str, Any]] = {
    "from_ui": (_ui_request, "convert_to", lambda data, cls, *path: msgspec.convert(data, cls)),
    "from_ag_ui": (_ag_ui_request, "convert_to", lambda data, cls, *path: msgspec.convert(data, cls)),
    "openai_app": (_openai_request, "parse_json", lambda text, parse: parse(text)),
}


@pytest.mark.parametrize("name", BODIES)
def test_mutations_break_a_reader_without_its_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BORDERS[name])
    with opened(name) as read:
        tally = Tally(read, islice(Mutations(BODIES[name], seed=0), 100))
    assert tally.counts["other"] > 3, tally
