"""An adapter under test, and the calls that rules and suites make to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from reactivex import Observable

from rxllm import operators as ops
from rxllm.adapters import HTTPAdapter, as_adapter
from rxllm.collector import fold_message
from rxllm.engine import Engine
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.pipelines import generate, stream_generate
from rxllm.runtime import Stream
from rxllm.testing._observe import Observed, observe
from rxllm.testing._rule_table import clip, expect, expect_same
from rxllm.testing._script import Served
from rxllm.testing._sent_rules import KEY, MESSAGES, OPTIONS, TEMPERATURE, TOOLS
from rxllm.testing.loopback import Request as Sent
from rxllm.values import Call, LLMError, Request, Response


def says_something(events: Iterable[Event]) -> bool:
    """Whether there is text, thinking, a part or a tool call in `events`."""
    message = fold_message(events)
    return bool(message.parts or message.tool_calls)


@dataclass(frozen=True)
class AdapterRun:
    """An adapter, and the one call that is made again and again, which has to end in so many `seconds`."""

    engine: Engine
    request: Any
    options: dict[str, Any]
    seconds: float

    def stream(self, request: Any = None, **options: Any) -> Stream[Event]:
        request = self.request if request is None else request
        return stream_generate(self.engine, request, **{**self.options, **options})

    def bare(self) -> Stream[Event]:
        """What the adapter itself emits, with nothing around it."""
        return Stream.of(as_adapter(self.engine.adapter).stream(*self.received))

    def observe(self, source: Observable[Any], **options: Any) -> Observed:
        return observe(source, seconds=self.seconds, **options)

    def decode(self, chunks: list[bytes]) -> list[Event]:
        """The events of these reads, by a new decoder of the adapter's."""
        decoder = self.engine.adapter.decoder(self.received[0])
        try:
            return [*(event for chunk in chunks for event in decoder.feed(chunk)), *decoder.close()]
        except Exception as error:
            raise AssertionError(f"fed with {clip(b''.join(chunks))} it raised {error!r}") from error

    @cached_property
    def observed(self) -> Observed:
        """The call as it goes without anything special."""
        return self.observe(self.stream())

    def expect_as_before(self, which: str, observed: Observed) -> None:
        """Raise ``AssertionError`` if this call went another way than the one that is `observed` by itself."""
        __tracebackhide__ = True
        before, now = (
            [*self.way(call.events), *map(repr, call.errors), *["completed"] * call.completed]
            for call in (self.observed, observed)
        )
        expect_same(which, before, now)

    def way(self, events: list[Event]) -> list[Any]:
        """What the events of two calls have in common, whatever the model says in them."""
        kinds = [type(event).__name__ for event in events]
        return [*kinds[:1], *["content"] * says_something(events), *kinds[-1:]]

    @cached_property
    def received(self) -> tuple[Request, Call]:
        """What the adapter gets as its arguments."""
        received: list[tuple[Request, Call]] = []

        async def note(request: Request, call: Call) -> Any:
            received.append((request, call))
            yield TextDelta("")

        self.observe(stream_generate(replace(self.engine, adapter=note), self.request, **self.options))
        return received[0]

    @cached_property
    def sent(self) -> Sequence[Sent] | None:
        """What is sent for a request full of canaries; None if the adapter does not show it."""
        return self.sends()

    def sends(self, **changes: Any) -> Sequence[Sent] | None:
        """What is sent for that request with `changes`. Raises ``LLMError`` if it is refused."""
        if not isinstance(self.engine.adapter, HTTPAdapter):
            return None
        request, call = self.received
        fields = {"messages": MESSAGES, "tools": TOOLS, "temperature": TEMPERATURE, "options": OPTIONS, **changes}
        canaries = replace(request, **fields)
        built = self.engine.adapter.build(canaries, replace(call, api_key=KEY))
        return [Sent(built.method, str(built.url), dict(built.headers), built.read())]


@dataclass(frozen=True)
class ScriptedRun(AdapterRun):
    """An adapter whose service answers every call in the same way, and shows what it has seen."""

    served: Served

    def way(self, events: list[Event]) -> list[Any]:
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
        """The stream of one call, held to the rules of ``operators.verify``."""
        return self.stream(request, **options).pipe(ops.verify())

    def all_events(self, **options: Any) -> list[Event]:
        """The events of one call that does not raise; the last may be an error."""
        __tracebackhide__ = True
        return self.observe(self.verified(**options)).expect_events()

    def events(self, **options: Any) -> list[Event]:
        """The events of one call that does not fail."""
        __tracebackhide__ = True
        events = self.all_events(**options)
        if isinstance(events[-1], ErrorEvent):
            raise AssertionError(f"the stream broke off: {events[-1].error!r}") from events[-1].error
        return events

    def generate(self, **options: Any) -> Stream[Response[Any]]:
        return generate(self.engine, self.request, **{**self.options, **options})

    def answer(self, **options: Any) -> Response[Any]:
        """The response of one call that does not fail."""
        __tracebackhide__ = True
        response: Response[Any] = self.observe(self.generate(**options)).expect_events()[-1]
        expect(response.error is None, f"the answer broke off: {response.error!r}", response.error)
        return response
