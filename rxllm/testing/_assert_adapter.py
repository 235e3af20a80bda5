"""What every adapter keeps, as far as it can be seen without a script: the model may say what it likes.

A rule is a function of what is tried; it raises ``AssertionError``, whose text says how it is broken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from reactivex import from_iterable
from reactivex.scheduler import ImmediateScheduler

from rxllm import operators as ops
from rxllm.adapters import as_adapter
from rxllm.chunks import ChunkFeeder, StreamChunk, validate
from rxllm.collector import fold_message
from rxllm.engine import Engine, as_engine
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, RawChunk, TextDelta, UsageUpdated
from rxllm.pipelines import stream_generate
from rxllm.runtime import Stream, from_async_iter
from rxllm.testing._chunks import chunkings
from rxllm.testing._told import SECONDS, Told, assert_survives_json, hear, hear_all
from rxllm.values import Call, EngineError, LLMError, ProviderPart, Request, StreamError, Usage, ValidationError, user

ADAPTER_RULES: dict[str, str] = {
    "adapter": "it has stream(request, call), which gives an Observable, or is an async generator function",
    "answers": "the call succeeds, else nothing else can be seen",
    "typed_error": "an error is an LLMError",
    "error_event": "an error after the first event is an ErrorEvent",
    "says": "it says something: text, thinking, a part or a call",
    "understood": "each of its chunks is valid and means something",
    "usage": "nothing is counted below zero",
    "lawful": "the events keep the rules of operators.verify, with and without raw chunks",
    "json": "events survive JSON",
    "afresh": "a second subscription is a call of its own",
    "apart": "calls at the same time have nothing in common",
    "left": "a call that is left does not hurt the next one",
    "subscriber": "a subscriber's exception comes back, once",
    "scheduler": "it can be subscribed with a scheduler",
    "secret": "no key is in its repr or its events",
    "decoder": "its decoder bears any bytes, lawfully, and a stream without an end is truncated",
    "chunks": "its decoder gives the same events however the bytes are cut",
}
"""The rules of `assert_adapter`, by name, in the order in which they are checked."""

JUNK = (
    b"",
    b"\n\n",
    b"\xff\xfe\x00",
    b'data: {}\n\ndata: [1, null]\n\ndata: {"error": {"message": "no"}}\n\n',
    b"event: error\ndata: no\n\n",
    b'{"a": 1}\n[{"b": [{}]}',
    b'data: {"choices": [{"delta": {"content": 7}}]}\r\n\r\ndata: [DONE]',
)
"""What a decoder may meet when it talks to the wrong server."""


def assert_adapter(
    adapter: Any,
    request: Any = "Hi",
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
    **options: Any,
) -> None:
    """Check that `adapter` keeps all of `ADAPTER_RULES`; it is asked `request` about ten times.

    >>> from rxllm import Fake
    >>> assert_adapter(Fake("Hello"))

    It is whatever stands for an engine elsewhere: an adapter, an async generator function, an `Engine`, a model's name.
    `options` are those of ``stream_generate``. A call that takes longer than `seconds` is broken (`answers`). `only`
    names the rules to check, `without` those to leave out. How it refuses, times out and is cleaned up needs a service
    that does as it is told: see ``AdapterConformance``.

    Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError`` for a rule that is none.
    """
    if unknown := sorted({*(only or ()), *without} - set(ADAPTER_RULES)):
        raise ValueError(f"no such rule: {', '.join(unknown)}; there are {', '.join(ADAPTER_RULES)}")
    tried = _Tried(replace(as_engine(adapter), retry=False), request, options, seconds)
    tried.stream()  # raises for wrong options
    broken: list[str] = []
    for name, sentence in ADAPTER_RULES.items():
        if name in without or (only is not None and name not in only):
            continue
        try:
            _RULES[name](tried)
        except Exception as error:
            why = str(error) if isinstance(error, AssertionError) else f"it raised {error!r}"
            broken.append(f"{name}: {sentence}, but {why}")
            if name in ("adapter", "answers"):
                break
    if broken:
        raise AssertionError("\n".join(broken))


@dataclass(frozen=True)
class _Tried:
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

    def bare(self) -> Stream[Event]:
        """What the adapter itself gives, with nothing around it."""
        return Stream.of(as_adapter(self.engine.adapter).stream(*self.asked))

    def decode(self, chunks: list[bytes]) -> list[Event]:
        decoder = self.engine.adapter.decoder(Request((user("Hi"),), model="m"))
        try:
            return [*(event for chunk in chunks for event in decoder.feed(chunk)), *decoder.close()]
        except Exception as error:
            raise AssertionError(f"fed with {b''.join(chunks)!r} it raised {error!r}") from error


def _adapter(tried: _Tried) -> None:
    try:
        tried.bare()
    except EngineError as error:
        _expect(error.reason not in ("missing_adapter", "missing_stream_adapter"), error.message)


def _answers(tried: _Tried) -> None:
    told = tried.told
    # What is raised after an event, or is no LLMError, is a broken rule of its own.
    refused = isinstance(told.error, LLMError) and not told.events
    _expect(not refused, f"it refused: {told.error!r}")
    last = told.events[-1] if told.events else None
    _expect(not isinstance(last, ErrorEvent), f"it broke off: {last!r}")


def _typed_error(tried: _Tried) -> None:
    told = tried.told
    _expect(told.error is None or isinstance(told.error, LLMError), f"it raised {told.error!r}")


def _error_event(tried: _Tried) -> None:
    told = tried.told
    _expect(told.error is None or not told.events, f"after {len(told.events)} events it raised {told.error!r}")


def _says(tried: _Tried) -> None:
    events = tried.told.events
    message = fold_message(events)
    failed = tried.told.error is not None or any(isinstance(event, ErrorEvent) for event in events)
    _expect(failed or bool(message.parts or message.tool_calls), f"it said no more than {events!r}")


def _understood(tried: _Tried) -> None:
    function = tried.engine.adapter
    if not inspect.isasyncgenfunction(function):
        return
    request, call = tried.asked
    items = tried.hear(from_async_iter(lambda: function(request, call))).events
    feeder = ChunkFeeder(request.messages)
    for chunk in (item for item in items if isinstance(item, StreamChunk)):
        try:
            validate(chunk)
        except ValidationError as error:
            raise AssertionError(f"{chunk!r} is none: {error}") from error
        for event in feeder.feed(chunk):
            _expect(_is_meant(event) or _is_raw(chunk), f"{chunk!r} became no more than {event!r}")
    for event in feeder.close():
        _expect(_is_meant(event), f"there was no call for {event!r}")


def _is_meant(event: Event) -> bool:
    return not isinstance(event, RawChunk) or isinstance(event.data, ProviderPart)


def _is_raw(chunk: StreamChunk) -> bool:
    """Whether it is raw by its author's will."""
    return "stream_only?" in chunk.metadata or (chunk.type, *chunk.metadata) == ("meta", "provider_event")


def _usage(tried: _Tried) -> None:
    for event in tried.told.events:
        if isinstance(event, UsageUpdated):
            negative = {name: held for name, held in _counts(event.usage).items() if held < 0}
            _expect(not negative, f"it counted {negative}")


def _counts(usage: Usage) -> dict[str, float]:
    held = {spec.name: getattr(usage, spec.name) for spec in fields(usage)}
    return {name: count for name, count in {**held, **usage.extra}.items() if isinstance(count, int | float)}


def _lawful(tried: _Tried) -> None:
    _keep_the_law(tried.told)
    _keep_the_law(tried.hear(tried.stream(include_raw_chunks=True)))


def _json(tried: _Tried) -> None:
    for event in tried.told.events:
        if isinstance(event, EVENT_CLASSES):
            assert_survives_json(event)


def _afresh(tried: _Tried) -> None:
    stream = tried.bare()
    for number in ("first", "second"):
        told = tried.hear(stream)
        _expect(_shape(told) == _shape(tried.told), f"the {number} said {_shape(told)}, not {_shape(tried.told)}")


def _apart(tried: _Tried) -> None:
    stream = tried.bare()
    for told in hear_all([stream, stream], seconds=tried.seconds):
        _expect(_shape(told) == _shape(tried.told), f"one of two said {_shape(told)}, not {_shape(tried.told)}")


def _left(tried: _Tried) -> None:
    first = tried.hear(Stream.of(tried.stream().take(1)))
    _expect((len(first.events), first.completed) == (1, 1), f"take(1) was told {first}")
    told = tried.hear(tried.stream())
    _expect(_shape(told) == _shape(tried.told), f"the next one said {_shape(told)}, not {_shape(tried.told)}")


def _subscriber(tried: _Tried) -> None:
    failure = RuntimeError("the subscriber's own")

    def refuse(event: Event) -> None:
        raise failure

    told = tried.hear(tried.stream(), on_next=refuse)
    _expect(told.errors == [failure], f"it was told of {told.errors or 'none'}")
    _expect(len(told.events) == 1, f"{len(told.events) - 1} events came after it")


def _scheduler(tried: _Tried) -> None:
    told = tried.hear(tried.stream(), scheduler=ImmediateScheduler.singleton())
    _expect(_shape(told) == _shape(tried.told), f"it said {_shape(told)}, not {_shape(tried.told)}")


def _secret(tried: _Tried) -> None:
    adapter = tried.engine.adapter
    keys = (tried.options.get("api_key"), getattr(adapter, "_api_key", None))
    for key in (key for key in keys if isinstance(key, str) and key):
        _expect(key not in repr(adapter), "its repr shows it")
        _expect(key not in repr(tried.told), "an event or error shows it")


def _decoder(tried: _Tried) -> None:
    if not hasattr(tried.engine.adapter, "decoder"):
        return
    for junk in JUNK:
        _keep_the_law(Told(tried.decode([junk])))
    match tried.decode([]):
        case [*_, ErrorEvent(error=StreamError(reason="truncated"))]:
            pass
        case events:
            raise AssertionError(f"of nothing at all it made {events!r}")


def _chunks(tried: _Tried) -> None:
    if not hasattr(tried.engine.adapter, "decoder"):
        return
    for junk in JUNK:
        whole = tried.decode([junk])
        for chunks in chunkings(junk):
            events = tried.decode(chunks)
            _expect(events == whole, f"{chunks!r} gave {events!r}, and {junk!r} {whole!r}")


_RULES: dict[str, Callable[[_Tried], None]] = {
    "adapter": _adapter,
    "answers": _answers,
    "typed_error": _typed_error,
    "error_event": _error_event,
    "says": _says,
    "understood": _understood,
    "usage": _usage,
    "lawful": _lawful,
    "json": _json,
    "afresh": _afresh,
    "apart": _apart,
    "left": _left,
    "subscriber": _subscriber,
    "scheduler": _scheduler,
    "secret": _secret,
    "decoder": _decoder,
    "chunks": _chunks,
}


def _shape(told: Told) -> tuple[str, ...]:
    """How a call went, whatever the model has said in it."""
    kinds = [type(event).__name__ for event in told.events]
    ends = [*map(repr, told.errors), *["completed"] * told.completed]
    return (*kinds[:1], *kinds[-1:], *ends)


def _keep_the_law(told: Told) -> None:
    error = hear(from_iterable(told.events).pipe(ops.verify())).error
    _expect(error is None, str(error))


def _expect(condition: bool, why: str) -> None:
    if not condition:
        raise AssertionError(why)
