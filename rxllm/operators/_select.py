"""Operators that select events or extract their contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from reactivex import Observable, abc

from rxllm.collector import BlockKey, block_key, innermost, is_pending, unnest
from rxllm.collector.parsed import unreadable
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.operators import _told_text as told
from rxllm.operators._event_operators import EVENTS, Feeder, extract, handle_each, not_an_event
from rxllm.runtime import Stream
from rxllm.values import ToolCall, Usage, ValidationError
from rxllm.values.argument_checks import check_classes, check_instance, invalid_option

E = TypeVar("E")
R = TypeVar("R")


def only(*types: type[E]) -> Callable[[Observable[Any]], Stream[E]]:
    """Keep only the items of the given classes.

    ::

        source              --start--delta--delta--end--|
        only(TextDelta)     ---------delta--delta-------|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> list(stream_generate(Fake("Hi"), "Hello").pipe(only(TextDelta)))
    [TextDelta(delta='Hi', id='block_0')]

    ``only(TextDelta)`` keeps only the chat's own text. An agent's events are wrapped in `Nested`. To get the agent's
    text, unwrap these events:

    >>> from reactivex import from_iterable
    >>> from rxllm import operators as ops
    >>> from rxllm.events import Nested
    >>> chat = from_iterable([TextDelta("Ask."), Nested(("c1",), TextDelta("Yes.")), Nested(("c2",), TextDelta("No."))])
    >>> list(chat.pipe(only(Nested)).filter(lambda nested: nested.path == ("c1",)).map(lambda nested: nested.event))
    [TextDelta(delta='Yes.', id=None)]

    Raises ``ValidationError("invalid_option")`` if no arguments are given or any of them is not a class.
    """
    if not types:
        raise invalid_option("types", "must include at least one class")
    check_classes("types", types)

    def keep(on_next: abc.OnNext[E], on_error: abc.OnError) -> abc.OnNext[Any]:
        def on_item(item: Any) -> None:
            if isinstance(item, types):
                on_next(item)

        return on_item

    return handle_each(keep, is_filter=True)


def filter_deltas(
    text: bool = True, tool: bool = True, thinking: bool = True
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Drop each kind of delta whose flag is False.

    ::

        source                        --H--i--Hi--|        (two deltas and their completion)
        filter_deltas(text=False)     --------Hi--|

    >>> from rxllm import Fake, stream_generate
    >>> quiet = stream_generate(Fake("Hi"), "Hello").pipe(filter_deltas(text=False))
    >>> [type(event).__name__ for event in quiet]
    ['MessageStarted', 'TextCompleted', 'MessageCompleted']

    Completed blocks still pass, so folds give the same results. Agents' deltas (``Nested``) are dropped too.

    Raises ``ValidationError("invalid_option")`` if a flag is not True or False.
    """
    for name, flag in ("text", text), ("tool", tool), ("thinking", thinking):
        check_instance(name, flag, bool, "True or False")
    flags = {TextDelta: text, ToolCallDelta: tool, ThinkingDelta: thinking}
    dropped = frozenset(cls for cls, passes in flags.items() if not passes)

    return _drop(dropped) if dropped else Stream.of


def include_raw_chunks(include: bool = False) -> Callable[[Observable[Event]], Stream[Event]]:
    """Drop all ``RawChunk`` events unless `include` is True.

    Agents' raw chunks are dropped too. A stream has raw chunks only if the call was made with
    ``include_raw_chunks=True``.

    ::

        source                   --raw--delta--raw--delta--|
        include_raw_chunks()     -------delta-------delta--|

    >>> from rxllm import Fake, stream_generate
    >>> fake = Fake([("raw_chunk", {"x": 1}), "Hi"])
    >>> stream_generate(fake, "Hello", include_raw_chunks=True).pipe(include_raw_chunks()).to_list().run()[1]
    TextDelta(delta='Hi', id='block_0')

    Raises ``ValidationError("invalid_option")`` if `include` is not True or False.
    """
    check_instance("include", include, bool, "True or False")
    return Stream.of if include else _drop(frozenset({RawChunk}))


def _drop(classes: frozenset[type[Event]]) -> Callable[[Observable[Event]], Stream[Event]]:
    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def handle(event: Event) -> None:
            raw = event.event if type(event) is Nested else event  # `innermost`, inlined for speed
            if type(raw) not in classes:
                on_next(event)

        return handle

    return handle_each(make_handler, is_filter=True)


def text() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the text as it arrives.

    ::

        source     --start--H--i--Hi--end--|
        text()     ---------H--i-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(text()))
    ['Hel', 'lo']

    An ``ErrorEvent`` becomes an ``on_error``. If a block's deltas were dropped, its whole text is emitted when it ends.
    For agents' text, see `only`.

    Emitted text cannot be taken back. If the answer starts over (``StepRestarted``, from ``.retry``, ``restart`` or
    ``fallback``), nothing is emitted while the new text repeats the old one. Where it differs, the stream ends with
    ``StreamError("restarted")``, so what was emitted is always the beginning of one answer. A fold such as `to_text`
    has only the new text, and no such error.
    """
    return extract("text", lambda: _NewPieces("text", TextDelta, TextCompleted), TextDelta, TextCompleted, *told.READ)


def thinking() -> Callable[[Observable[Event]], Stream[str]]:
    """Emit the thinking as it arrives.

    ::

        source         --start--hm--hm--Hi--end--|        (two of thinking, one of text)
        thinking()     ---------hm--hm-----------|

    >>> from rxllm import Fake, stream_generate
    >>> list(stream_generate(Fake([("thinking", "hm"), "Hi"]), "Hello").pipe(thinking()))
    ['hm']

    An ``ErrorEvent`` becomes an ``on_error``. If a block's deltas were dropped, its whole text is emitted when it ends.
    If the answer starts over, see `text`.
    """
    types = (ThinkingDelta, ThinkingCompleted)
    return extract("thinking", lambda: _NewPieces("thinking", *types), *types, *told.READ)


def tool_calls() -> Callable[[Observable[Event]], Stream[ToolCall]]:
    """Emit each completed tool call that the client must answer.

    ::

        source           --start--c1--{..}--c1.done--end--|
        tool_calls()     -------------------c1------------|

    >>> from rxllm import Fake, ToolCall, stream_generate
    >>> list(stream_generate(Fake(ToolCall("c1", "add", {"a": 1})), "Hi").pipe(tool_calls()))
    [add(a=1)]

    An ``ErrorEvent`` becomes an ``on_error``. Calls that were cut off are left out. So are agents' calls, which the
    agents answer themselves.
    """

    def read(event: Event) -> Iterable[ToolCall]:
        call = cast(ToolCallCompleted, event).tool_call
        return (call,) if is_pending(call) else ()

    return extract("tool_calls", lambda: read, ToolCallCompleted)


def usage() -> Callable[[Observable[Event]], Stream[Usage]]:
    """Emit the total usage of all steps whenever it changes.

    ::

        source      --start--3--5--step--start--4--|        (usage 3, then 5; 4 in the second step)
        usage()     ---------3--5---------------9--|

    >>> from rxllm import Fake, Usage, stream_generate
    >>> list(stream_generate(Fake(["Hi", Usage(3, 1)]), "Hello").pipe(usage()))
    [Usage(input_tokens=3, output_tokens=1)]

    An ``ErrorEvent`` becomes an ``on_error``. The total includes agents at any depth, even interrupted ones.
    """

    def changes() -> Callable[[Event], Iterable[Usage]]:
        total = _Total()
        last = Usage()

        def read(event: Event) -> Iterable[Usage]:
            nonlocal last
            if not isinstance(innermost(event), _COUNTED):
                return ()
            total.add(event)
            before, last = last, total.usage
            return (last,) if last != before else ()

        return read

    return extract("usage", changes, Nested, *_COUNTED)


_COUNTED = (UsageUpdated, StepCompleted, StepRestarted)


class _Total:
    def __init__(self) -> None:
        self._before = Usage()
        self._begin()

    def _begin(self) -> None:
        self._response = Usage()
        self._agents: defaultdict[str, _Total] = defaultdict(_Total)

    @property
    def usage(self) -> Usage:
        return sum((agent.usage for agent in self._agents.values()), self._before + self._response)

    def add(self, event: Event) -> None:
        match event:
            case UsageUpdated(usage=usage):
                self._response = usage
            case Nested():
                id, inner = unnest(event)
                self._agents[id].add(inner)
            case StepCompleted(result=result):
                self._response = result.response.usage
                self._before = self.usage
                self._begin()
            case StepRestarted():
                self._begin()
            case _:
                pass


class TextPieces:
    """Extracts text or thinking from deltas, or from a completed block that had no deltas."""

    def __init__(
        self, delta: type[TextDelta | ThinkingDelta], completed: type[TextCompleted | ThinkingCompleted]
    ) -> None:
        self._delta = delta
        self._completed = completed
        self._open: dict[BlockKey, None] = {}  # used as an ordered set

    def __call__(self, event: Event) -> Iterable[str]:
        if isinstance(event, self._delta):
            self._open.setdefault(block_key(self._delta, event.id, self._open))
            return (event.delta,) if event.delta else ()  # it is empty if the thinking is hidden
        if isinstance(event, self._completed):
            block = block_key(self._delta, event.id, self._open)
            if block not in self._open:
                return (event.text,) if event.text else ()
            del self._open[block]
        elif isinstance(event, StepRestarted):
            self._open.clear()
        return ()


class _NewPieces:
    """The pieces of the text, without those that a step repeats when it starts over."""

    def __init__(
        self, operator: str, delta: type[TextDelta | ThinkingDelta], completed: type[TextCompleted | ThinkingCompleted]
    ) -> None:
        self._pieces = TextPieces(delta, completed)
        self._told = told.ToldText(operator)
        self.close = self._told.close

    def __call__(self, event: Event) -> Iterable[str]:
        if type(event) in _BOUNDARIES:
            self._told.see(event)
        new: list[str] = []
        for piece in self._pieces(event):
            if text := self._told.unrepeated(piece):
                self._told.emit(text)
                new.append(text)
        return new


_BOUNDARIES = frozenset(told.READ)


class AnswerText(Generic[R]):
    """Feeds the text of each message, up to its first tool call, to a reader."""

    def __init__(self, name: str, make: Callable[[], Feeder[str, R]]) -> None:
        self._name = name
        self._make = make
        self._pieces = TextPieces(TextDelta, TextCompleted)
        self._reader: Feeder[str, R] | None = make()
        self._has_text = False
        self._end: MessageCompleted | None = None

    def feed(self, event: Event) -> Iterable[R]:
        if type(event) in _READ:
            return self._read(event)
        if type(event) not in EVENTS:
            raise not_an_event(self._name, event)
        return ()

    def _read(self, event: Event) -> Iterable[R]:
        match event:
            case ErrorEvent():
                raise event.error
            case MessageStarted() | StepRestarted():
                self._reader, self._has_text, self._end = self._make(), False, None
            case MessageCompleted():
                self._end = event
            case ToolCallStarted() if not event.metadata.get("server"):
                self._reader = None
            case _:
                pass
        for text in self._pieces(event):
            if self._reader is not None:
                self._has_text = self._has_text or bool(text.strip())
                yield from self._reader.feed(text)

    def close(self) -> Iterable[R]:
        if self._reader is None:
            return ()
        end = self._end
        try:
            if not self._has_text and end is not None and end.finish_reason in ("length", "content_filter"):
                raise ValidationError("invalid_output", "the answer is empty", metadata={"text": ""})
            return self._reader.close()
        except ValidationError as error:
            raise error if end is None else unreadable(error, end) from error.__cause__


_READ = frozenset(
    {ErrorEvent, MessageStarted, MessageCompleted, StepRestarted, ToolCallStarted, TextDelta, TextCompleted}
)
