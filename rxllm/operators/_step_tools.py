"""The tools of one step: how many run at once, when their events are emitted, and how journals record early starts.

A tool's events are emitted as follows:

=======================  ================================================  =============================================
event                    before the response has ended (an early start)    after the response has ended
=======================  ================================================  =============================================
start, progress,         at once                                           at once
an agent's events
end of the tool          at once, or as soon as the call's arguments are   at once
                         complete; if the tool fails or halts while the
                         arguments are incomplete, the response ends
outcome, except a halt   when the response has ended, in the order of      at once
                         the calls
a halt                   when all tools have ended, in the order of the    when all tools have ended, in the order of
                         calls                                             the calls
=======================  ================================================  =============================================

If a response is discarded, none of its calls or results reach the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from reactivex import Observable, abc, empty, from_iterable

from rxllm.collector import StreamCollector, Unfinished, fold_message
from rxllm.events import (
    Event,
    MessageCompleted,
    Nested,
    ToolCallCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
)
from rxllm.operators._argument_feed import ArgumentFeed
from rxllm.runtime import Bounded, Deferred, EagerJournal, Scope
from rxllm.tools import ToolSettings, execution, failed, idempotency_key, is_halting
from rxllm.values import Request, Thread, Tool, ToolCall, ToolError, request_key

_AT_ONCE = (ToolExecutionStarted, ToolProgress, Nested, ToolExecutionCompleted)

MOST_KEPT = 64
"""The most calls of a response that start early in a journaled stream. For each, all of the response so far is kept."""

INTERRUPTED = "interrupted"
"""The raw finish reason of a response that was cut off because the process died, after tools had started early."""


class StepTools(abc.DisposableBase):
    """Runs the tool calls of one step. Each call runs once. After `void`, a call with the same id counts as new.

    ``deliver(event)`` emits an event. ``veto(call)`` is called when a tool fails or halts before the model has
    finished writing the tool's call. ``done()`` is called once the response and all tools have ended. ``fail(error)``
    is called if the caller's code is at fault.
    """

    def __init__(
        self,
        settings: ToolSettings,
        thread: Thread,
        scope: Scope,
        scheduler: abc.SchedulerBase | None,
        deliver: Callable[[Event], None],
        veto: Callable[[ToolCall], None],
        done: Callable[[], None],
        fail: Callable[[Any], None],
    ) -> None:
        self._settings, self._thread, self._scope, self._scheduler = settings, thread, scope, scheduler
        self._deliver, self._veto, self._done, self._fail = deliver, veto, done, fail
        self._begin()

    def _begin(self) -> None:
        self._calls: list[ToolCall] = []  # in the order in which they were added
        self._known: set[str] = set()
        self._running: dict[str, ToolCall] = {}
        self._outcomes: dict[str, list[Event]] = {}
        self._feeds: dict[str, ArgumentFeed] = {}
        self._incomplete: set[str] = set()  # the calls that the model is still writing
        self._stopped: set[str] = set()  # the incomplete calls of a response that was ended by a veto
        self._halts: dict[str, Event] = {}
        self._order: dict[str, int] | None = None  # each call's place in the response, once the response has ended
        self._queue = _Queue()
        self._bounded = Bounded(
            self._queue, self._settings.concurrency, self._receive, self._end, self._finish, self._fail
        )
        self._bounded.is_open = True

    def add(self, tool: Tool, call: ToolCall, feed: ArgumentFeed | None = None) -> bool:
        """Add a call to the calls that have not started yet. Return False if the call has already been added.

        `feed` supplies arguments that the model is still writing. A call with a `feed` is incomplete until `complete`
        is called for it.
        """
        if call.id in self._known:
            return False
        if feed is not None:
            self._feeds[call.id] = feed
            self._incomplete.add(call.id)
        self._known.add(call.id)
        self._calls.append(call)
        self._queue.sources.append(self._execution(tool, call, feed))
        return True

    def _execution(self, tool: Tool, call: ToolCall, feed: ArgumentFeed | None) -> Observable[Event]:
        events = execution(tool, call, self._settings, self._thread, self._scope, feed=feed)
        return events if feed is None else Deferred(lambda: empty() if call.id in self._stopped else events)

    def complete(self, id: str, error: ToolError | None) -> None:
        """Mark the call `id` as complete, because the model has finished writing it.

        If the call's tool has already ended, emit its ``ToolExecutionCompleted``. Its result gives way to an `error` in
        the complete arguments.
        """
        self._incomplete.discard(id)
        outcomes = self._outcomes.get(id, [])
        if error is not None and len(outcomes) > 1:
            call = next(call for call in self._calls if call.id == id)
            outcomes[0], outcome = failed(error, call, self._settings)
            if is_halting(outcome):
                self._halts[id] = outcome
            outcomes[1:] = [] if is_halting(outcome) else [outcome]
        if outcomes and isinstance(outcomes[0], ToolExecutionCompleted):
            self._running.pop(id, None)
            self._deliver(outcomes.pop(0))

    def start(self) -> None:
        """Start the calls that have been added, up to the concurrency limit."""
        self._bounded.start(self._scheduler)

    def end_response(self, calls: Sequence[ToolCall]) -> None:
        """Emit the outcomes that were waiting for the end of the response. `calls` are the response's calls."""
        self._order = {call.id: place for place, call in enumerate(calls)}
        self._bounded.is_open = False
        for call in calls:
            for event in self._outcomes.pop(call.id, ()):
                self._deliver(event)

    def cut(self, vetoed: ToolCall, message: str) -> list[Event]:
        """After a veto, stop the other tools whose calls are incomplete, and discard their results.

        `vetoed` is the call whose tool has ended the response. Returns the ``ToolExecutionCompleted`` of that tool, and
        another one for each stopped tool that was running.
        """
        self._incomplete.discard(vetoed.id)
        self._running.pop(vetoed.id, None)
        return [self._outcomes[vetoed.id].pop(0), *self.stop_incomplete(message)]

    def stop_incomplete(self, message: str) -> list[Event]:
        """Stop the tools whose calls are incomplete, and discard their results.

        Returns one ``ToolExecutionCompleted`` for each stopped tool that was running.
        """
        ends: list[Event] = []
        for index, call in enumerate(self._calls):
            if call.id in self._incomplete and call.id not in self._stopped:
                self._stopped.add(call.id)
                self._bounded.stop(index)
                self._close_feed(call.id)
                self._outcomes.pop(call.id, None)
                if self._running.pop(call.id, None) is not None:
                    ends.append(_cancelled(call, message))
        return ends

    def void(self, message: str) -> list[Event]:
        """Stop all tools, and discard their results.

        Returns one ``ToolExecutionCompleted`` for each tool that was running.
        """
        running = list(self._running.values())
        if self._calls:
            self.dispose()
            self._begin()
        return [_cancelled(call, message) for call in running]

    def dispose(self) -> None:
        self._bounded.dispose()
        for id in list(self._feeds):
            self._close_feed(id)

    def _close_feed(self, id: str) -> None:
        if (feed := self._feeds.pop(id, None)) is not None:
            feed.close()

    def _receive(self, index: int, event: Event) -> None:
        call = self._calls[index]
        is_end = isinstance(event, ToolExecutionCompleted)
        is_incomplete = call.id in self._incomplete
        if isinstance(event, ToolExecutionStarted):
            self._running[call.id] = call
            if call.id in self._feeds:
                self._feeds[call.id].is_running = True
        elif is_end and not is_incomplete:
            self._running.pop(call.id, None)
        if is_halting(event):
            self._halts[call.id] = event
        elif self._order is not None or (isinstance(event, _AT_ONCE) and not (is_end and is_incomplete)):
            self._deliver(event)
        else:
            self._outcomes.setdefault(call.id, []).append(event)
        if is_incomplete and not isinstance(event, _AT_ONCE):
            end = self._outcomes[call.id][0]
            if is_halting(event) or (isinstance(end, ToolExecutionCompleted) and end.error is not None):
                self._veto(call)

    def _end(self, index: int, error: Exception | None) -> None:
        self._close_feed(self._calls[index].id)
        if error is not None:
            self._fail(error)

    def _finish(self) -> None:
        order = self._order or {}
        for id in sorted(self._halts.keys() & order.keys(), key=order.__getitem__):
            self._deliver(self._halts[id])
        self._done()


class _Queue(Iterator[Observable[Event]]):
    """The tools that have not started yet. Iteration ends when the queue is empty, and can resume after an append."""

    def __init__(self) -> None:
        self.sources = deque[Observable[Event]]()

    def __next__(self) -> Observable[Event]:
        if not self.sources:
            raise StopIteration
        return self.sources.popleft()


class EarlyRecord:
    """A journal's record of tools that start early, which keeps later runs from starting them again.

    A response is recorded when it ends. If the process died before that, the response would be lost, and the model
    would call the same tools again, with different ids. Therefore, before a tool starts early, the response so far is
    kept. A later run emits this part in place of the lost response. Tools that had finished do not run again. A
    tool that was interrupted runs again if it is idempotent. Otherwise, it waits for the caller's decision.

    Once the response itself has been recorded, the kept part is no longer used. The calls of a discarded response are
    voided.
    """

    def __init__(self, scope: Scope, thread: Thread, session_id: str | None) -> None:
        self._journal = scope.journal if isinstance(scope.journal, EagerJournal) else None
        self._scope, self._thread, self._session_id = scope, thread, session_id
        self._begun: list[str] = []
        self._discarded: list[str] = []
        self._is_kept = False
        self.is_possible = scope.journal is None or self._journal is not None
        """Whether tools may start early.

        False if the journal cannot record early starts, if it has kept `MOST_KEPT` of them, or if an earlier run has
        started tools of this step early.
        """

    def recall(self) -> Observable[Event] | None:
        """Return the last response that an earlier run kept.

        Return None if no response was kept, or if the response has been recorded since then.
        """
        if self._journal is None:
            return None
        key, last, is_used = recalled_key("eager", self._thread), None, False
        while (events := self._journal.recall(self._scope.path, key)) is not None:
            is_used, last, self.is_possible = events == last, events, False
        if not last:
            return None
        if not is_used:  # keeping it twice marks it as used
            self._journal.keep(self._scope.path, key, last)
        return from_iterable(last)

    def keep(self, call: ToolCall, state: StreamCollector) -> None:
        """Keep the response up to and including the completion of `call`.

        This must be called before the call's tool starts.
        """
        if self._journal is not None:
            self._void_discarded(self._journal)
            events = [*replace(state, executions={}).to_events(), *close_response(state, INTERRUPTED)]
            self._journal.keep(self._scope.path, recalled_key("eager", self._thread), events)
            self._begun.append(idempotency_key(call, self._thread, self._session_id, self._scope.tool_key))
            self._is_kept = True
            self.is_possible = self.is_possible and len(self._begun) < MOST_KEPT

    def discard(self) -> None:
        """Mark all of the response's calls as discarded."""
        self._discarded += self._begun
        self._begun.clear()

    def settle(self, *, is_used: bool) -> None:
        """Drop the kept copy of the response, because the response or its early end has been recorded.

        If `is_used` is False, the response's tool calls will not run, and those that started early are voided.
        """
        if self._journal is None or not self._is_kept:
            return
        self._is_kept = False
        if not is_used:
            self.discard()
        self._void_discarded(self._journal)
        self._journal.keep(self._scope.path, recalled_key("eager", self._thread), [])

    def _void_discarded(self, journal: EagerJournal) -> None:
        for key in self._discarded:
            journal.void(self._scope.path, key)
        self._discarded.clear()


def recalled_key(kind: str, thread: Thread) -> str:
    """Return the key under which a journal keeps events about the response to `thread`."""
    return f"{kind} {request_key(Request(thread.messages))}"


def close_response(state: StreamCollector, reason: str, vetoed: ToolCall | None = None) -> list[Event]:
    """Return the events that close the partial response, as if the model had written nothing more.

    The call `vetoed` keeps only the arguments that its tool received in full. `reason` is the raw finish reason.
    """
    unfinished = Unfinished()
    events = replace(state, executions={}).to_events()
    for event in events:
        unfinished.see(event)
    completions = unfinished.close()
    for place, event in enumerate(completions):
        if vetoed is not None and isinstance(event, ToolCallCompleted) and event.id == vetoed.id:
            metadata = {**event.metadata, "vetoed": True}
            completions[place] = replace(event, arguments=vetoed.arguments, metadata=metadata)
    return [*completions, MessageCompleted(fold_message([*events, *completions]), "tool_calls", reason)]


def _cancelled(call: ToolCall, message: str) -> ToolExecutionCompleted:
    error = ToolError("cancelled", message, tool_name=call.name, tool_call_id=call.id)
    return ToolExecutionCompleted(call.id, call.name, error=error)
