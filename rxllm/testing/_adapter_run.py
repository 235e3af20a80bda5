"""Run an adapter against a scripted service, and check the requests that it sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from reactivex import Observable

from rxllm import operators as ops
from rxllm.adapters import HTTPAdapter, as_adapter
from rxllm.collector import fold_message
from rxllm.engine import Engine
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.pipelines import generate, stream_generate
from rxllm.runtime import Stream
from rxllm.testing._rules import Observed, clip, expect, expect_same, observe
from rxllm.testing.loopback import Request as Sent
from rxllm.values import (
    Call,
    FinishReason,
    Image,
    LLMError,
    Message,
    Request,
    Response,
    Tool,
    ToolCall,
    Usage,
    json_schema,
    system,
    tool_result,
    user,
)
from rxllm.values.responses import shorten

REQUEST_ID = "req-conformance"
"""The request id that a scripted service sends with a refusal."""

TEXTS = ("Two, ", "three ", "and five.")
CALLS = (ToolCall("call_a", "f", {"x": 1}), ToolCall("call_b", "f", {"x": 2}))
TOOL = Tool("f", "A tool.", {"type": "object", "properties": {"x": {"type": "integer"}}})
THOUGHTS = ("Let me ", "see.")
USAGE = Usage(11, 7)


@dataclass(frozen=True)
class Script:
    """Describes how a test suite's service answers a call.

    The service sends `thinking` and `texts` piece by piece, then `calls` and `usage`, and then ends the answer.
    `finish_reason` defaults to ``"tool_calls"`` if there are calls, and to ``"stop"`` otherwise. If there is an
    `error`, this error ends the answer, and the adapter must report it. If there is an `error` but no texts and no
    calls, the service refuses the call. If `stalls` is true, the service stops sending but never ends its answer.
    """

    texts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    error: LLMError | None = None
    stalls: bool = False
    thinking: tuple[str, ...] = ()
    usage: Usage | None = None
    finish_reason: FinishReason = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        if not self.finish_reason:
            object.__setattr__(self, "finish_reason", "tool_calls" if self.calls else "stop")

    @property
    def refuses(self) -> bool:
        """Whether the service fails before it sends anything."""
        return self.error is not None and not self.texts and not self.calls


@dataclass(frozen=True)
class Served:
    """An adapter, together with the running service that it calls.

    ``asked()`` returns how many calls the service has received. ``left()`` returns how many of those calls the client
    closed early. ``requests()`` returns the HTTP requests, like ``Loopback.requests``. If `requests` is None, the rules
    about requests are checked only for an ``HTTPAdapter``.
    """

    adapter: Any
    asked: Callable[[], int]
    left: Callable[[], int] = lambda: 0
    requests: Callable[[], Sequence[Sent]] | None = None


def missing(suite: object, hook: str) -> NoReturn:
    raise NotImplementedError(f"{type(suite).__name__} has no {hook}(): define it as the base class describes")


# The request that the adapter must send


SENT_RULES: dict[str, str] = {
    "sends_system": "the system prompt is sent",
    "sends_user": "the user's text is sent",
    "sends_assistant": "the model's earlier text is sent back",
    "sends_arguments": "the arguments of an earlier tool call are sent back",
    "sends_result": "a tool's result is sent",
    "sends_tool_name": "a tool's name is sent",
    "sends_tool_description": "a tool's description is sent",
    "sends_tool_schema": "a tool's schema is sent",
    "sends_call_id": "a tool's result includes the id of the call that it answers, if the call has an id",
    "sends_temperature": "temperature is sent as a JSON number",
    "sends_options": "options={...} are passed through",
    "sends_key": "the call's api_key is sent in a header or the URL, not in the body",
    "sends_max_tokens": "max_tokens is sent, or refused",
    "sends_stop": "stop is sent, or refused",
    "sends_tool_choice": "tool_choice is sent, or refused",
    "sends_response_format": "response_format is sent, or refused",
    "sends_picture": "a picture is sent, or refused",
    "hides_key": "the call's api_key is not in the URL, since URLs are logged",
}
"""Maps each rule about requests to its text."""

KEY = "sk-conformance-0123456789abcdef"
TEMPERATURE = 0.125


def canary(rule: str) -> str:
    """Return the word, such as ``canary_system``, that `rule` looks for in the request."""
    return rule.replace("sends_", "canary_")


CALL = ToolCall(canary("sends_call_id"), "f", {"x": canary("sends_arguments")})

MESSAGES = (
    system(canary("sends_system")),
    user(canary("sends_user")),
    Message("assistant", canary("sends_assistant"), tool_calls=(CALL,)),
    tool_result(CALL.id, canary("sends_result")),
)

SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "description": canary("sends_tool_schema")}}}

# No message contains the second tool's name, so the name appears only if the tools are sent.
TOOLS = (Tool("f", "A tool."), Tool(canary("sends_tool_name"), canary("sends_tool_description"), SCHEMA))

OPTIONS = {"canary": canary("sends_options")}


PICTURE = user("Look!", Image.from_base64("iVBORw0KGgpjYW5hcnk=", "image/png"))

# Wire formats differ, so these rules check only that the setting changes the request.
VARIATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sends_max_tokens": ({}, {"max_tokens": 4321}),
    "sends_stop": ({}, {"stop": (canary("sends_stop"),)}),
    "sends_tool_choice": ({}, {"tool_choice": canary("sends_tool_name")}),
    "sends_response_format": ({}, {"response_format": json_schema("canary", SCHEMA)}),
    "sends_picture": ({"messages": (*MESSAGES, user("Look!"))}, {"messages": (*MESSAGES, PICTURE)}),
}
"""Maps each rule to the fields of two requests: one without the setting and one with it."""


def expect_sent(rule: str, requests: Sequence[Sent]) -> None:
    __tracebackhide__ = True
    heads = " ".join(f"{request.path} {request.headers}" for request in requests)
    body = " ".join(request.body.decode(errors="replace") for request in requests)
    match rule:
        case "sends_key":
            names = sorted({name for request in requests for name in request.headers})
            expect(KEY in heads, f"the key is neither in the URL nor in the headers {', '.join(names)}")
            expect(KEY not in body, "the key is in the body")
        case "hides_key":
            expect(all(KEY not in request.path for request in requests), "the key is in the URL")
        case "sends_call_id":
            id = canary(rule)
            expect(body.count(id) != 1, "the call is sent with its id, and the result is sent without that id")
        case "sends_temperature":
            number = rf"[:,\[]\s*{TEMPERATURE}\s*[,}}\]]"
            expect(bool(re.search(number, body)), f"the number {TEMPERATURE} is not in {shorten(body, 120)}")
        case _:
            expect(canary(rule) in heads + body, f"{canary(rule)!r} is not in {shorten(body, 120)}")


# The adapter under test, and the calls it answers


def says_something(events: Iterable[Event]) -> bool:
    message = fold_message(events)
    return bool(message.parts or message.tool_calls)


@dataclass(frozen=True)
class AdapterRun:
    """An adapter, and the call that is used to test it."""

    engine: Engine
    request: Any
    options: dict[str, Any]
    seconds: float

    def stream(self, request: Any = None, **options: Any) -> Stream[Event]:
        request = self.request if request is None else request
        return stream_generate(self.engine, request, **{**self.options, **options})

    def bare(self) -> Stream[Event]:
        """Return the adapter's own stream, without rxllm's pipeline."""
        return Stream.of(as_adapter(self.engine.adapter).stream(*self.received))

    def observe(self, source: Observable[Any], **options: Any) -> Observed:
        return observe(source, seconds=self.seconds, **options)

    def decode(self, chunks: list[bytes]) -> list[Event]:
        decoder = self.engine.adapter.decoder(self.received[0])
        try:
            return [*(event for chunk in chunks for event in decoder.feed(chunk)), *decoder.close()]
        except Exception as error:
            raise AssertionError(f"given {clip(b''.join(chunks))}, it raised {error!r}") from error

    @cached_property
    def observed(self) -> Observed:
        """The outcome of the reference call, which is made only once."""
        return self.observe(self.stream())

    def expect_as_before(self, which: str, observed: Observed) -> None:
        """Raise ``AssertionError`` if `observed` differs from the outcome of the reference call."""
        __tracebackhide__ = True
        before, now = (
            [*self.comparable_facts(call.events), *map(repr, call.errors), *["completed"] * call.completed]
            for call in (self.observed, observed)
        )
        expect_same(which, before, now)

    def comparable_facts(self, events: list[Event]) -> list[Any]:
        """Return what must be the same in all calls. This excludes the wording, which a model may change each time."""
        kinds = [type(event).__name__ for event in events]
        return [*kinds[:1], *["content"] * says_something(events), *kinds[-1:]]

    @cached_property
    def received(self) -> tuple[Request, Call]:
        received: list[tuple[Request, Call]] = []

        async def note(request: Request, call: Call) -> Any:
            received.append((request, call))
            yield TextDelta("")

        self.observe(stream_generate(replace(self.engine, adapter=note), self.request, **self.options))
        return received[0]

    @cached_property
    def sent(self) -> Sequence[Sent] | None:
        """The HTTP requests that are sent for the canary request, or None if they cannot be observed."""
        return self.sends()

    def sends(self, **changes: Any) -> Sequence[Sent] | None:
        """Return the HTTP requests that are sent for the canary request after `changes` are made to it.

        Return None if the requests cannot be observed. If the adapter refuses the request, raise its ``LLMError``.
        """
        if not isinstance(self.engine.adapter, HTTPAdapter):
            return None
        request, call = self.received
        fields = {"messages": MESSAGES, "tools": TOOLS, "temperature": TEMPERATURE, "options": OPTIONS, **changes}
        canaries = replace(request, **fields)
        built = self.engine.adapter.build(canaries, replace(call, api_key=KEY))
        return [Sent(built.method, str(built.url), dict(built.headers), built.read())]


@dataclass(frozen=True)
class ScriptedRun(AdapterRun):
    """An adapter whose service gives every call the same answer."""

    served: Served

    def comparable_facts(self, events: list[Event]) -> list[Any]:
        return events

    def sends(self, **changes: Any) -> Sequence[Sent] | None:
        if self.served.requests is None:
            return super().sends(**changes)
        options: dict[str, Any] = {"tools": TOOLS, "temperature": TEMPERATURE, "options": OPTIONS, **changes}
        messages, before = options.pop("messages", MESSAGES), len(self.served.requests())
        observed = self.observe(stream_generate(self.engine, messages, **options, api_key=KEY))
        if isinstance(observed.error, LLMError) and changes:
            raise observed.error
        observed.expect_events()
        return self.served.requests()[before:]

    def verified(self, request: Any = None, **options: Any) -> Stream[Event]:
        return self.stream(request, **options).pipe(ops.verify())

    def all_events(self, **options: Any) -> list[Event]:
        """Return the events of a call. The last event may be an ``ErrorEvent``."""
        __tracebackhide__ = True
        return self.observe(self.verified(**options)).expect_events()

    def events(self, **options: Any) -> list[Event]:
        """Return the events of a call that must succeed."""
        __tracebackhide__ = True
        events = self.all_events(**options)
        if isinstance(events[-1], ErrorEvent):
            raise AssertionError(f"the stream failed: {events[-1].error!r}") from events[-1].error
        return events

    def generate(self, **options: Any) -> Stream[Response[Any]]:
        return generate(self.engine, self.request, **{**self.options, **options})

    def answer(self, **options: Any) -> Response[Any]:
        """Make a call that must succeed, and return its response."""
        __tracebackhide__ = True
        response: Response[Any] = self.observe(self.generate(**options)).expect_events()[-1]
        expect(response.error is None, f"the answer failed: {response.error!r}", response.error)
        return response
