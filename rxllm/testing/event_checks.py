"""Helpers that create events, check them, and cut bytes into chunks."""

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
    """Cut `data` at `places`, and return the chunks.

    >>> cut(b"hello", 1, 3)
    [b'h', b'el', b'lo']

    If a place is 0 or the length of `data`, or is given more than once, some chunks are empty. Raises ``ValueError`` if
    a place is outside `data`.
    """
    if any(not 0 <= place <= len(data) for place in places):
        raise ValueError(f"every position must be between 0 and {len(data)}, but the positions are {sorted(places)}")
    return [data[start:end] for start, end in pairwise((0, *sorted(places), len(data)))]


def chunkings(data: bytes, *, cuts: int | None = None, seed: int = 0) -> Iterator[list[bytes]]:
    """Yield `data`, cut into chunks in many different ways.

    >>> for chunks in chunkings(b"hi!"):
    ...     print(chunks)
    [b'hi!']
    [b'h', b'i', b'!']
    [b'', b'h', b'', b'i', b'', b'!', b'']
    [b'h', b'i!']
    [b'hi', b'!']

    A decoder must give the same result for every list of chunks. By default, there is about one list for each byte of
    `data`. If the data is long, pass `cuts` to get only two lists. The first has all of `data` in one chunk. The second
    is cut at `cuts` random places. The same `data`, `cuts` and `seed` always give the same places.
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
    """Yield the first half of `frame`, and then copies of the full frame, each with one value wrong or missing."""
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
    """Return the events that an adapter would emit for one response.

    >>> for event in events("Hel", "lo", thinking="hm"):
    ...     print(event)
    MessageStarted(message=Message('assistant', ''))
    ThinkingDelta(delta='hm', id='block_0')
    ThinkingCompleted(text='hm', signature=None, provider_data=None, id='block_0')
    TextDelta(delta='Hel', id='block_1')
    TextDelta(delta='lo', id='block_1')
    TextCompleted(text='Hello', id='block_1')
    MessageCompleted(message=Message('assistant', 'Hello'), finish_reason='stop', raw_finish_reason=None, metadata={})

    `pieces` make up one turn of a `Fake` script, and may be in any order. Delays take no time. `thinking` precedes the
    pieces. `tool_calls`, `usage` and `finish_reason` follow the pieces. A `thinking` string becomes a single delta. If
    the response begins with an exception, the exception is raised. Any later exception becomes an ``ErrorEvent``.

    Raises ``ValidationError("invalid_option")`` if `Fake` does not accept a piece.
    """
    thoughts = (thinking,) if isinstance(thinking, str) else thinking
    script = [*(("thinking", thought) for thought in thoughts), *pieces, *tool_calls]
    script += [usage] if usage is not None else []
    script += [("finish", finish_reason)] if finish_reason is not None else []
    return played(Fake(script=script).stream(Request(), Call()))


def played(source: Observable[T]) -> list[T]:
    """Run `source` in virtual time, and return its items.

    If `source` fails, raise its error.
    """
    items: list[T] = []
    errors: list[Exception] = []
    scheduler = VirtualTimeScheduler(0.0)
    source.subscribe(items.append, errors.append, scheduler=scheduler)
    scheduler.start()
    if errors:
        raise errors[0]
    return items


def expect_lawful(events: Sequence[Any]) -> None:
    __tracebackhide__ = True
    error = observe(from_iterable(events).pipe(ops.verify())).error
    expect(error is None, str(error))


def expect_json(event: Any) -> None:
    """Raise ``AssertionError`` unless `event` survives a round trip through JSON."""
    __tracebackhide__ = True
    try:
        decoded = serializer.from_json(serializer.to_json(event), local_files=True)
    except LLMError as error:
        raise AssertionError(f"{clip(event)} cannot be written as JSON: {error}") from error
    expect(decoded == event, f"{clip(event)} is decoded as {clip(decoded)}")


def fold(events: Iterable[Event]) -> Response[Any]:
    return reduce(StreamCollector.apply_event, events, StreamCollector()).to_response()


def inconsistency(events: Iterable[Event]) -> str | None:
    """Return a description of the first event that contradicts earlier events, or None if no event does.

    A missing event is noticed only if a later event contradicts the events that are present. For example, if the start
    of a message is present, its ``MessageCompleted`` contradicts a block that has deltas but no completion. A
    ``ChatCompleted`` contradicts the earlier events if the completion of one of the chat's steps is missing.
    """
    checkers: dict[tuple[str, ...], _ChatChecker] = {}  # one checker for the chat, and one for each agent
    for event in events:
        path, inner = (event.path, event.event) if isinstance(event, ev.Nested) else ((), event)
        try:
            checkers.setdefault(path, _ChatChecker()).feed(inner)
        except BrokenRule as broken:
            rule, why = broken.args
            return f"{rule}: {why}, at {event}"
    return None


class _ChatChecker:
    def __init__(self) -> None:
        self._last_response: Any = None
        self._steps = 0
        self._begin_step()

    def _begin_step(self, *events: Event) -> None:
        self._events: list[Event] = [*events]
        self._open: dict[Any, list[str]] = {}  # the deltas of the open blocks, by kind and id
        self._closed: set[Any] = set()
        self._names: dict[str, str] = {}  # tool names, by tool call id

    def feed(self, event: Event) -> None:
        self._events.append(event)
        match event:
            case ev.MessageStarted() | ev.StepRestarted():
                self._begin_step(event)
            case ev.TextDelta() | ev.ThinkingDelta():
                self._add_delta(type(event), event.id, event.delta)
            case ev.ToolCallDelta():
                self._add_delta(type(event), event.id, event.arguments_delta)
            case ev.TextCompleted() | ev.ThinkingCompleted():
                check_text(event, self._close_block(BLOCKS[type(event)], event.id, event.text))
            case ev.ToolCallStarted() | ev.ToolExecutionStarted():
                check_name(event, self._names.setdefault(event.id, event.name))
            case ev.ToolCallCompleted():
                check_name(event, self._names.setdefault(event.id, event.name))
                check_arguments(event, self._close_block(ev.ToolCallDelta, event.id, event.raw_arguments))
            case ev.MessageCompleted():
                self._check_message(event)
            case ev.StepCompleted():
                self._check_step(event)
            case ev.ChatCompleted():
                self._check_chat(event)
            case _:
                pass

    def _add_delta(self, kind: type[Event], id: str | None, piece: str) -> None:
        key = block_key(kind, id, self._open)
        if key in self._closed:
            raise BrokenRule("block_closed", "a delta follows the completion of its block")
        self._open.setdefault(key, []).append(piece)

    def _close_block(self, kind: type[Event], id: str | None, text: str) -> list[str]:
        """Close the block, and return its deltas. If the block had no deltas, return `text` as its only delta."""
        key = block_key(kind, id, self._open)
        if key[1] is not None:
            self._closed.add(key)
        return self._open.pop(key, [text])

    def _check_message(self, event: ev.MessageCompleted) -> None:
        if self._open and any(isinstance(event, ev.MessageStarted) for event in self._events):
            raise BrokenRule("block_closed", f"a block of {next(iter(self._open))[0].__name__} events has no end")
        for events in (self._events, [] if self._open else without_deltas(self._events)):
            folded = fold_message(events)
            if events and (folded.content, folded.tool_calls) != (event.message.content, event.message.tool_calls):
                source = "the events" if events is self._events else "the events without deltas"
                why = (
                    f"{source} fold into a message with the content {folded.content!r} and the tool calls "
                    f"{folded.tool_calls}, but the message in the MessageCompleted event is different"
                )
                raise BrokenRule("message_folded", why)

    def _check_step(self, event: ev.StepCompleted) -> None:
        events, response = self._events[:-1], event.response
        self._begin_step()
        self._steps += 1
        self._last_response = response
        if not any(isinstance(event, ev.MessageStarted) for event in events):
            return
        folded = fold(events)
        if (folded.output_text, folded.tool_calls) != (response.output_text, response.tool_calls):
            raise BrokenRule("step_completed", f"the events fold into {folded}, but the step's response is {response}")

    def _check_chat(self, event: ev.ChatCompleted) -> None:
        result = event.unparsed or event.result
        final, steps = result.final_response, result.steps
        if self._steps < len(steps):
            raise BrokenRule("chat_completed", f"{self._steps} steps were completed, but the chat has {len(steps)}")
        if self._last_response is not None and final != self._last_response:
            why = f"the last step's response is {self._last_response}, but the chat's final response is {final}"
            raise BrokenRule("chat_completed", why)
