"""Race event streams, hedge a stream, and merge streams with labels."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    StepCompleted,
    failure_of,
    is_prelude,
    shows_nothing,
)
from rxllm.runtime._clock import clock, stopwatch
from rxllm.runtime._concurrency import Bounded, serialized
from rxllm.runtime._scope import current_scope, within
from rxllm.runtime._stream import Stream
from rxllm.runtime._unhandled import conclude, fail
from rxllm.runtime.context_variables import current_reader
from rxllm.runtime.stream_arguments import check_streams
from rxllm.values import ChatResult, Labelled, Response
from rxllm.values.argument_checks import check, check_count, check_instance, invalid_option, is_positive, must_be
from rxllm.values.errors import as_llm_error

log = logging.getLogger("rxllm")
T = TypeVar("T")


_ENDS = frozenset({MessageCompleted, StepCompleted, ChatCompleted})


def race(*streams: Observable[Event]) -> Stream[Event]:
    """Emit the events of the stream that is first to produce content, and dispose of the others.

    ::

        a                --start----!
        b                ----start--B---------end--|
        race(a, b)       -----------(start,B)-end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> slow, quick = Fake([("delay", 0.05), "Well."]), Fake("Yes.")
    >>> race(stream_generate(slow, "Is it?"), stream_generate(quick, "Is it?")).pipe(ops.to_text()).run()
    'Yes.'

    Text, thinking, tool calls and other parts of an answer count as content; hidden thinking and the text of a refusal
    do not. If a stream fails, ends or refuses to answer before it has produced content, it drops out. If all streams
    drop out, the race ends in the same way as the last of them.

    The response or chat result has the metadata ``{"race": {"winner": k, "errors": (...)}}``, where the first stream is
    number 0. If the events are timed (see ``ops.timed``), the metadata also contains the times of the other streams.
    The usage does not include what the other streams used. In a pipe, write ``a.pipe(ops.race(b))``.

    Raises ``ValidationError("invalid_option")`` if there are no streams, or if one of them is not an Observable.
    """
    check_streams("streams", streams)
    return _race_sources("race", streams, [0.0] * len(streams))


def hedge(stream: Observable[Event], after: float) -> Stream[Event]:
    """Subscribe to `stream` a second time if it does not emit any content within `after` seconds.

    ::

        first time               --start------------!
        second time                        --start--H---------i--end--|
        hedge(stream, after=10)  -------------------(start,H)-i--end--|

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> answers = Fake([("delay", 5), "Late."], "In time.")                  # only the first call is slow
    >>> hedge(stream_generate(answers, "When?"), after=0.01).pipe(ops.to_text()).run()
    'In time.'

    The slower subscription is disposed. Every event except ``MessageStarted``, ``UsageUpdated`` and ``ErrorEvent``
    counts as content. If the first subscription fails before it has emitted content, the second one starts at once. A
    refusal is an answer like any other, because both subscriptions ask the same model the same question.
    ``MessageCompleted`` has the metadata ``{"hedge": {"winner": 0 or 1, "errors": (...)}}``. In a pipe, or to hedge
    every call of an engine, use ``ops.hedge``.

    Raises ``ValidationError("invalid_option")`` if `stream` is not an Observable, or if `after` is not positive.
    """
    check_instance("stream", stream, Observable, "an Observable")
    check("after", after, is_positive(after), "a positive number of seconds")
    return _race_sources("hedge", [stream] * 2, [0.0, after])


def _race_sources(name: str, sources: Sequence[Observable[Event]], delays: Sequence[float]) -> Stream[Event]:
    return Stream(lambda observer, scheduler=None: _Race(name, sources, delays, observer, scheduler).start())


class _Race:
    """Emits the events of the source that is first to produce content, and disposes of the others.

    Source k starts after ``delays[k]`` seconds, or once all running sources have dropped out. `name` is the metadata
    key for the outcome.

    If a source fails while others are left, its events are dropped. A `Backlog` would deliver these events, so this
    class does not use one.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[Observable[Event]],
        delays: Sequence[float],
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._name = name
        self._may_refuse = name == "race"
        self._sources = sources
        self._delays = delays
        self._observer = observer
        self._scheduler = scheduler
        self._scope = current_scope.get()
        self._guard = threading.Lock()  # held while deciding, but never while emitting
        self._entries: dict[int, SingleAssignmentDisposable] = {}  # the sources that are still in the race
        self._timers: dict[int, SingleAssignmentDisposable] = {}  # the sources that have not started yet
        self._winner: int | None = None
        self._delivering = False  # while this is True, new events must wait
        self._end: Callable[[], None] | None = None
        self._errors: list[str] = []
        self._is_timed = current_reader.get().is_timed
        self._seconds = stopwatch(scheduler)
        self._start = self._seconds()
        self._began: dict[int, float] = {}
        self._lost: dict[int, dict[str, Any]] = {}

    def start(self) -> abc.DisposableBase:
        subscriptions = CompositeDisposable()
        for index, delay in enumerate(self._delays):
            subscriptions.add(self._entries.setdefault(index, SingleAssignmentDisposable()))
            if delay:
                subscriptions.add(self._timers.setdefault(index, SingleAssignmentDisposable()))
        for index, timer in list(self._timers.items()):
            timer.disposable = clock(self._scheduler).schedule_relative(self._delays[index], self._begin_due, index)
        for index in [index for index, delay in enumerate(self._delays) if not delay]:
            self._begin(index)
        return subscriptions

    def _begin_due(self, scheduler: abc.SchedulerBase, index: Any) -> None:
        with self._guard:
            timer = self._timers.pop(index, None)
        if timer is not None:
            self._begin_safely(index)

    def _begin_safely(self, index: int) -> None:
        try:
            self._begin(index)
        except BaseException as error:  # no caller will pass the error to `on_error`
            fail(self._observer, error)

    def _begin(self, index: int) -> None:
        entry = self._entries.get(index)
        if entry is None:  # another source has won
            return
        waiting: deque[Event] = deque()
        self._began[index] = self._elapsed()

        def receive(event: Event) -> None:
            if self._winner == index:
                self._receive(event, waiting)
            elif index in self._entries:
                waiting.append(event)
                failure = failure_of(event)
                is_last = not isinstance(event, ErrorEvent) and len(self._entries) == 1
                if failure is not None and (self._may_refuse or isinstance(event, ErrorEvent)) and not is_last:
                    self._lose(index, failure, lambda: conclude(self._observer, waiting))
                elif not (shows_nothing(event) if self._may_refuse else is_prelude(event)):
                    self._win(index, waiting)

        def on_failure(error: Any) -> None:
            if self._winner == index or not isinstance(error, Exception):
                self._finish(lambda: self._observer.on_error(error))
            else:
                self._lose(index, error, lambda: self._observer.on_error(error))

        def complete() -> None:
            if self._winner == index:
                self._finish(self._observer.on_completed)
            else:
                self._lose(index, None, lambda: conclude(self._observer, waiting))

        with within(self._scope):  # `_begin` may run in the scope of another source that has just dropped out
            entry.disposable = self._sources[index].subscribe(receive, on_failure, complete, scheduler=self._scheduler)

    def _win(self, index: int, waiting: deque[Event]) -> None:
        with self._guard:
            if self._entries.pop(index, None) is None:
                return
            self._winner, self._delivering = index, True
            losers = [*self._timers.values(), *self._entries.values()]
            for loser in self._entries.keys() & self._began.keys():
                self._note_loss(loser)
            self._timers.clear()
            self._entries.clear()
        for loser in losers:
            loser.dispose()
        try:
            while waiting:
                self._pass(waiting.popleft())
        finally:
            self._delivering = False
        if self._end is not None:
            self._end()

    def _receive(self, event: Event, waiting: deque[Event]) -> None:
        if self._delivering:
            waiting.append(event)
        else:
            self._pass(event)

    def _finish(self, end: Callable[[], None]) -> None:
        if self._delivering:
            self._end = end
        else:
            end()

    def _pass(self, event: Event) -> None:
        if type(event) in _ENDS:
            assert self._winner is not None
            note: dict[str, Any] = {"winner": self._winner, "errors": tuple(self._errors)}
            if self._is_timed:
                lost = tuple(self._lost[index] for index in sorted(self._lost))
                note |= {"began": self._began[self._winner], "lost": lost}
            event = _add_note(event, {self._name: note})
        self._observer.on_next(event)

    def _lose(self, index: int, error: Exception | None, end: Callable[[], None]) -> None:
        reason, shown = (repr(error), str(error)) if error is not None else ("it sent no content",) * 2
        next_index: int | None = None
        with self._guard:
            if self._entries.pop(index, None) is None:  # the race has already been decided
                return
            if self._entries:
                self._errors.append(f"{index}: {reason}")
                self._note_loss(index, shown)
                next_index = self._take_next()
            last = not self._entries
        if last:
            end()
            return
        log.warning("%s: stream %d has dropped out: %s", self._name, index, reason)
        if next_index is not None:
            self._begin_safely(next_index)

    def _note_loss(self, index: int, error: str | None = None) -> None:
        began, ended = self._began[index], self._elapsed()
        self._lost[index] = {"name": f"stream {index}", "began": began, "ended": ended, "error": error}

    def _elapsed(self) -> float:
        return round(self._seconds() - self._start, 6)

    def _take_next(self) -> int | None:
        if self._timers.keys() != self._entries.keys():
            return None
        next_index = min(self._timers, key=self._delays.__getitem__)
        self._timers.pop(next_index).dispose()
        return next_index


def _add_note(event: Event, note: Mapping[str, Any]) -> Event:
    def annotate(response: Response[Any]) -> Response[Any]:
        return replace(response, metadata={**response.metadata, **note})

    def annotate_chat(chat: ChatResult) -> ChatResult:
        steps = tuple(replace(step, response=annotate(step.response)) for step in chat.steps)
        last = None if chat.final_response is None else annotate(chat.final_response)
        return replace(chat, steps=steps, final_response=last, metadata={**chat.metadata, **note})

    match event:
        case MessageCompleted():
            return msgspec.structs.replace(event, metadata={**event.metadata, **note})
        case StepCompleted(result=step):
            return StepCompleted(replace(step, response=annotate(step.response)))
        case ChatCompleted(result=result, unparsed=before):
            return ChatCompleted(annotate_chat(result), None if before is None else annotate_chat(before))
        case _:
            return event


def merge_labelled(
    streams: Mapping[str, Observable[T]] | None = None,
    *,
    concurrency: int | None = None,
    **labelled: Observable[T],
) -> Stream[Labelled[T | ErrorEvent]]:
    """Merge `streams`, and label each item with the name of its stream.

    ::

        a                                  --1--------2--|
        b                                  -----3--X
        merge_labelled({"a": a, "b": b})   --a1-b3-bX-a2-|        (bX: an ErrorEvent of b)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> answers = {name: stream_generate(Fake(name.upper()), "Hi").pipe(ops.text()) for name in ("ann", "bob")}
    >>> [(answer.label, answer.item) for answer in merge_labelled(answers)]
    [('ann', 'ANN'), ('bob', 'BOB')]

    As in ``dict``, streams can also be keyword arguments: ``merge_labelled(a=a, b=b)``.

    At most `concurrency` streams run at a time. By default, all streams run at the same time. If a stream fails, the
    failure becomes an ``ErrorEvent``, and the other streams continue. Items that have the same label keep their order.

    Raises ``ValidationError("invalid_option")`` if `streams` is empty, if a stream is not an Observable, or if
    `concurrency` is less than 1.
    """
    named = {**streams, **labelled} if isinstance(streams, Mapping) else streams or labelled
    _check_arguments(named, concurrency)
    labels = list(named)

    def subscribe(
        observer: abc.ObserverBase[Labelled[T | ErrorEvent]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        guard = threading.RLock()  # the observer must receive only one item at a time

        def pass_on(index: int, item: T | ErrorEvent) -> None:
            try:
                observer.on_next(Labelled(labels[index], item))
            except Exception as error:  # the subscriber raised it
                running.dispose()
                observer.on_error(error)

        def end(index: int, error: Exception | None) -> None:
            if error is not None:
                pass_on(index, ErrorEvent(as_llm_error(error)))

        limit = concurrency or len(labels)
        sources = (serialized(stream, guard) for stream in named.values())
        running = Bounded(sources, limit, pass_on, end, observer.on_completed, observer.on_error)
        with guard:
            running.start(scheduler)
        return running

    return Stream(subscribe)


def _check_arguments(streams: Mapping[str, object], concurrency: object) -> None:
    is_mapping = isinstance(streams, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
    check("streams", streams, is_mapping and bool(streams), "a non-empty mapping from labels to streams")
    for label, stream in streams.items():
        if not isinstance(stream, Observable):
            raise invalid_option(("streams", str(label)), must_be("an Observable", stream))
    if concurrency is not None:
        check_count("concurrency", concurrency)
