"""What the rules of `assert_adapter` are asked about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from reactivex import from_iterable

from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.engine import Engine
from rxllm.events import Event, TextDelta
from rxllm.pipelines import stream_generate
from rxllm.runtime import Stream
from rxllm.testing._observe import Told, hear
from rxllm.testing._rule_table import clip, expect
from rxllm.testing._sent_rules import KEY, MESSAGES, OPTIONS, TEMPERATURE, TOOLS
from rxllm.testing.loopback import Request as Sent
from rxllm.values import Call, Request, user


@dataclass(frozen=True)
class Tried:
    """An adapter, and the one call that is made of it again and again, with `seconds` to end in."""

    engine: Engine
    request: Any
    options: dict[str, Any]
    seconds: float

    def stream(self, **more: Any) -> Stream[Event]:
        return stream_generate(self.engine, self.request, **{**self.options, **more})

    def hear(self, source: Stream[Event], **how: Any) -> Told:
        return hear(source, seconds=self.seconds, **how)

    @cached_property
    def told(self) -> Told:
        """One call, as it is."""
        return self.hear(self.stream())

    @cached_property
    def asked(self) -> tuple[Request, Call]:
        """What an adapter is asked."""
        seen: list[tuple[Request, Call]] = []

        async def note(request: Request, call: Call) -> Any:
            seen.append((request, call))
            yield TextDelta("")

        self.hear(stream_generate(replace(self.engine, adapter=note), self.request, **self.options))
        return seen[0]

    @cached_property
    def built(self) -> Sent:
        """What an adapter over HTTP would send for a request full of canaries."""
        request, call = self.asked
        asked = replace(request, messages=MESSAGES, tools=TOOLS, temperature=TEMPERATURE, options=OPTIONS)
        built = self.engine.adapter.build(asked, replace(call, api_key=KEY))
        return Sent(built.method, str(built.url), dict(built.headers), built.read())

    def bare(self) -> Stream[Event]:
        """What the adapter itself gives, with nothing around it."""
        return Stream.of(as_adapter(self.engine.adapter).stream(*self.asked))

    def decode(self, chunks: list[bytes]) -> list[Event]:
        decoder = self.engine.adapter.decoder(Request((user("Hi"),), model="m"))
        try:
            return [*(event for chunk in chunks for event in decoder.feed(chunk)), *decoder.close()]
        except Exception as error:
            raise AssertionError(f"fed with {clip(b''.join(chunks))} it raised {error!r}") from error


def shape(told: Told) -> tuple[str, ...]:
    """How a call went, whatever the model has said in it."""
    kinds = [type(event).__name__ for event in told.events]
    ends = [*map(repr, told.errors), *["completed"] * told.completed]
    return (*kinds[:1], *kinds[-1:], *ends)


def keep_the_law(told: Told) -> None:
    """Raises ``AssertionError`` unless ``operators.verify`` lets through all that was told."""
    error = hear(from_iterable(told.events).pipe(ops.verify())).error
    expect(error is None, str(error))
