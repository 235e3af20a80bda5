"""Events as an adapter emits them, checks of events, and bytes cut into chunks as networks cut them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, TypeVar, cast

import msgspec
from reactivex import Observable, from_iterable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm import events as ev
from rxllm import operators as ops
from rxllm import serializer
from rxllm.adapters import Fake
from rxllm.collector import BLOCKS, StreamCollector, block_key, fold_message
from rxllm.collector.event_rules import (
    BrokenRule,
    check_arguments,
    check_name,
    check_text,
    without_deltas,
)
from rxllm.events import Event
from rxllm.testing._rules import clip, expect, observe
from rxllm.values import Call, LLMError, Request, Response, ToolCall, Usage

T = TypeVar("T")


def cut(data: bytes, *places: int) -> list[bytes]:
    """Return `data` in chunks that end at `places`; 0, the length, or a repeated place gives an empty chunk.

    >>> cut(b"hello", 1, 3)
    [b'h', b'el', b'lo']

    Raises ``ValueError`` for a place outside `data`.
    """
    if any(not 0 <= place <= len(data) for place in places):
        raise ValueError(f"the places {sorted(places)} do not all lie in {len(data)} bytes")
    return [data[start:end] for start, end in pairwise((0, *sorted(places), len(data)))]


def chunkings(data: bytes, *, cuts: int | None = None, seed: int = 0) -> Iterator[list[bytes]]:
    """Yield the ways to cut `data` that a decoder must read alike: whole, byte by byte, the same with empty chunks in
    between, and in two at every place.

    >>> for chunks in chunkings(b"hi!"):
    ...     print(chunks)
    [b'hi!']
    [b'h', b'i', b'!']
    [b'', b'h', b'', b'i', b'', b'!', b'']
    [b'h', b'i!']
    [b'hi', b'!']

    That is about one decoding for each byte. With `cuts`, for long data, there are only two ways: whole, and with that
    number of cuts at random places, which depend on `seed` alone.
    """
    yield [data]
    if cuts is not None:
        yield cut(data, *random.Random(seed).sample(range(len(data)), min(cuts, len(data))))
        return
    single = [data[place : place + 1] for place in range(len(data))]
    yield single
    yield [b"", *(chunk for byte in single for chunk in (byte, b""))]
    for place in range(1, len(data)):
        yield cut(data, place)


_WRONG: tuple[Any, ...] = (None, 7, "x", [1], {"x": 1})


def malformed(frame: bytes) -> Iterator[bytes]:
    """Yield `frame` cut in half, and with each value of its JSON object, if it has one, replaced or left out."""
    yield frame[: len(frame) // 2]
    begin, end = frame.find(b"{"), frame.rfind(b"}") + 1
    with contextlib.suppress(msgspec.DecodeError):
        for variant in _variants(msgspec.json.decode(frame[begin:end])):
            yield frame[:begin] + msgspec.json.encode(variant) + frame[end:]


def _variants(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        for name, entry in fields.items():
            yield {key: other for key, other in fields.items() if key != name}
            yield from ({**fields, name: wrong} for wrong in (*_WRONG, *_variants(entry)))
    elif isinstance(value, list):
        entries = cast(list[Any], value)
        for place, entry in enumerate(entries):
            yield from ([*entries[:place], wrong, *entries[place + 1 :]] for wrong in (*_WRONG, *_variants(entry)))


def events(
    *pieces: Any,
    thinking: str | Iterable[str] = (),
    tool_calls: Sequence[ToolCall] = (),
    usage: Usage | None = None,
    finish_reason: str | None = None,
) -> list[Event]:
    """Return the events of one response, as every adapter would emit them.

    >>> for event in events("Hel", "lo", thinking="hm"):
    ...     print(event)
    MessageStarted(message=Message('assistant', ''))
    ThinkingDelta(delta='hm', id='block_0')
    ThinkingCompleted(text='hm', signature=None, provider_data=None, id='block_0')
    TextDelta(delta='Hel', id='block_1')
    TextDelta(delta='lo', id='block_1')
    TextCompleted(text='Hello', id='block_1')
    MessageCompleted(message=Message('assistant', 'Hello'), finish_reason='stop', raw_finish_reason=None, metadata={})

    `pieces` are a turn in the script language of `Fake`, in any order; its delays take no time.
    The keywords are for the usual order: thinking (a string is one delta) before the pieces; calls, usage and finish
    reason after them. An exception as the first piece is raised; a later one becomes the ``ErrorEvent``.

    Raises ``ValidationError("invalid_option")`` for a piece that `Fake` does not know.
    """
    thoughts = (thinking,) if isinstance(thinking, str) else thinking
    script = [*(("thinking", thought) for thought in thoughts), *pieces, *tool_calls]
    script += [usage] if usage is not None else []
    script += [("finish", finish_reason)] if finish_reason is not None else []
    return played(Fake(script=script).stream(Request(), Call()))


def played(source: Observable[T]) -> list[T]:
    """Return all that `source` emits in virtual time; raise its error."""
    items: list[T] = []
    errors: list[Exception] = []
    scheduler = VirtualTimeScheduler(0.0)
    source.subscribe(items.append, errors.append, scheduler=scheduler)
    scheduler.start()
    if errors:
        raise errors[0]
    return items


def expect_lawful(events: Sequence[Any]) -> None:
    """Raise ``AssertionError`` unless ``operators.verify`` lets all events through."""
    __tracebackhide__ = True
    error = observe(from_iterable(events).pipe(ops.verify())).error
    expect(error is None, str(error))


def expect_json(event: Any) -> None:
    """Raise ``AssertionError`` if `event` has no JSON form, or comes back as another."""
    __tracebackhide__ = True
    try:
        decoded = serializer.from_json(serializer.to_json(event), local_files=True)
    except LLMError as error:
        raise AssertionError(f"{clip(event)} has no JSON form: {error}") from error
    expect(decoded == event, f"{clip(event)} came back as {clip(decoded)}")


def fold(events: Iterable[Event]) -> Response[Any]:
    """Return the response of the events."""
    return reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()


def inconsistency(events: Iterable[Event]) -> str | None:
    """Return how two of the events disagree (deltas, completions, message, step, chat); None if they agree.

    These are the ``event_rules`` of the events that are there: an operator may leave out any.
    """
    chats: dict[tuple[str, ...], _Step] = {}  # the chat and its agents, by path
    for event in events:
        path, inner = (event.path, event.event) if isinstance(event, ev.Nested) else ((), event)
        try:
            chats.setdefault(path, _Step()).feed(inner)
        except BrokenRule as broken:
            rule, why = broken.args
            return f"{rule}: {why}, at {event}"
    return None


class _Step:
    """The events of the current response."""

    def __init__(self) -> None:
        self._response: Any = None  # the last step's
        self._steps = 0
        self._begin()

    def _begin(self, *events: Event) -> None:
        self._events: list[Event] = [*events]
        self._open: dict[Any, list[str]] = {}  # the pieces of a block, by its kind and id
        self._closed: set[Any] = set()
        self._names: dict[str, str] = {}  # names of tools, by the ids of their calls

    def feed(self, event: Event) -> None:
        self._events.append(event)
        match event:
            case ev.MessageStarted() | ev.StepRestarted():
                self._begin(event)
            case ev.TextDelta() | ev.ThinkingDelta():
                self._delta(type(event), event.id, event.delta)
            case ev.ToolCallDelta():
                self._delta(type(event), event.id, event.arguments_delta)
            case ev.TextCompleted() | ev.ThinkingCompleted():
                check_text(event, self._complete(BLOCKS[type(event)], event.id, event.text))
            case ev.ToolCallStarted() | ev.ToolExecutionStarted():
                check_name(event, self._names.setdefault(event.id, event.name))
            case ev.ToolCallCompleted():
                check_name(event, self._names.setdefault(event.id, event.name))
                check_arguments(event, self._complete(ev.ToolCallDelta, event.id, event.raw_arguments))
            case ev.MessageCompleted():
                self._message(event)
            case ev.StepCompleted():
                self._step(event)
            case ev.ChatCompleted():
                self._chat(event)
            case _:
                pass

    def _delta(self, kind: type[Event], id: str | None, piece: str) -> None:
        key = block_key(kind, id, self._open)
        if key in self._closed:
            raise BrokenRule("block_closed", "a delta follows the completion of its block")
        self._open.setdefault(key, []).append(piece)

    def _complete(self, kind: type[Event], id: str | None, text: str) -> list[str]:
        """Return the deltas of a block that is complete; all its `text` if they were left out."""
        key = block_key(kind, id, self._open)
        if key[1] is not None:
            self._closed.add(key)
        return self._open.pop(key, [text])

    def _message(self, event: ev.MessageCompleted) -> None:
        if self._open and any(isinstance(event, ev.MessageStarted) for event in self._events):
            raise BrokenRule("block_closed", f"the block of a {next(iter(self._open))[0].__name__} has no completion")
        for events in (self._events, [] if self._open else without_deltas(self._events)):
            folded = fold_message(events)
            if events and (folded.content, folded.tool_calls) != (event.message.content, event.message.tool_calls):
                which = "the events" if events is self._events else "the events without deltas"
                why = f"{which} fold to {folded.content!r}, {folded.tool_calls} and the message is another"
                raise BrokenRule("message_folded", why)

    def _step(self, event: ev.StepCompleted) -> None:
        events, response = self._events[:-1], event.response
        self._begin()
        self._steps += 1
        self._response = response
        if not any(isinstance(event, ev.MessageStarted) for event in events):
            return
        folded = fold(events)
        if (folded.output_text, folded.tool_calls) != (response.output_text, response.tool_calls):
            raise BrokenRule("step_completed", f"the events fold to {folded} and the step's response is {response}")

    def _chat(self, event: ev.ChatCompleted) -> None:
        final, steps = event.result.final_response, event.result.steps
        if self._steps < len(steps):
            raise BrokenRule("chat_completed", f"there were {self._steps} steps, and the chat has {len(steps)}")
        if self._response is not None and final != self._response:
            why = f"the last step's response is {self._response} and the chat's final one {final}"
            raise BrokenRule("chat_completed", why)
