"""Check text as it arrives, and hold events back until the text passes.

The text is cut into parts. Each part is in one of these states:

========  ======================================================  ======================================================
state     meaning                                                 events after the part
========  ======================================================  ======================================================
open      Its sentence or block has not ended.                    They wait.
complete  It has ended, but the maximum number of checks          They wait.
          (`AT_ONCE`) is already running.
checking  Its check is running.                                   They wait.
passed    Its check has accepted it.                              They are released in order.
tripped   Its check has rejected it.                              They are dropped. An error ends the stream once all
                                                                  earlier parts have passed.
late      It has no verdict after `max_lag` seconds.              With ``on_late="fail"``, they are dropped, as for a
                                                                  tripped part. With ``"release"``, they are released
                                                                  unchecked.
========  ======================================================  ======================================================

When a check rejects a part, the source is disposed, even if earlier parts are still being checked. With
``on_late="release"``, the stream also ends at once. A late check is stopped when the response that it checks ends.

Outside code, such as the check and the subscriber, is called only from `_drain`. `_drain` makes one such call at a
time, and does not hold the lock during the call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import RLock
from typing import Any, Literal

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import Unfinished
from rxllm.events import ChatCompleted, ErrorEvent, Event, MessageCompleted, StepCompleted
from rxllm.operators._event_operators import operate
from rxllm.operators._guard_parts import GuardParts, Part
from rxllm.operators._strings import TextOperator, for_strings_too
from rxllm.runtime import (
    Hold,
    check_failed,
    check_late,
    clock,
    conclude,
    fail,
    paced,
    result_of,
    stopwatch,
    verdict_error,
)
from rxllm.runtime.back_pressure import HELD_BACK
from rxllm.values import StreamError
from rxllm.values.argument_checks import call_fault, check_function, check_instance, check_seconds, is_count
from rxllm.values.argument_checks import check as check_argument
from rxllm.values.responses import shorten

AT_ONCE = 4
"""The maximum number of checks that run at once for a stream."""

_ENDS = (MessageCompleted, ErrorEvent, StepCompleted, ChatCompleted)

_SHOWN = 80
"""The maximum number of characters of rejected text in an error's metadata."""


def guard(
    check: Callable[[str], Any] | Callable[[str, str], Any],
    every: Literal["sentence"] | int = "sentence",
    max_lag: float | None = None,
    on_late: Literal["fail", "release"] = "fail",
    *,
    thinking: bool = True,
) -> TextOperator:
    """Check each sentence before releasing it.

    ::

        source         --start--A-B.--C-D.--call--end--|
        check          -----------(ok)--(no)
        guard(check)   --start----(AB.)-(error)|            (the connection is closed, no tool runs)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> def no_numbers(text): return "it names a number" if any(map(str.isdigit, text)) else None
    >>> model = Fake(["I know it. ", "The code ", "is 4711. ", "Use it!"])
    >>> response = stream_generate(model, "Hi").pipe(guard(no_numbers), ops.to_response()).run()
    >>> response.output_text, response.error.reason, response.error.message
    ('I know it. ', 'guard_tripped', "the guard 'no_numbers' tripped: it names a number")

    ``check(text)`` is called once for each part of the answer. A part is a sentence of at most 1,024 characters. If
    `every` is a number, a part has that many characters. The end of a block also ends a part. A check with two
    parameters also receives the text before the part, up to 2,048 characters. A check may be ``async``. It returns a
    verdict, or a stream whose last item is the verdict, such as a small model's answer.

    ===========================  ======================================================================================
    verdict                      effect
    ===========================  ======================================================================================
    None, True, no item          The text has passed and is released.
    False, or a reason as text   The stream ends with ``StreamError("guard_tripped")``.
    an exception, anything else  The stream ends with ``StreamError("guard_failed")``.
    nothing within `max_lag`     With ``on_late="fail"``, the stream ends with ``StreamError("guard_late")``. With
                                 ``"release"``, the text is released.
    ===========================  ======================================================================================

    All other events wait for the text before them, so the result's text is exactly what was shown. Up to four checks
    run at the same time. Their verdicts are applied in the order of the text. When a check rejects a part, the guard
    trips: the source is disposed, and an ``ErrorEvent`` ends the stream. If no event has been emitted yet, the stream
    ends with ``on_error`` instead. The error's metadata holds the guard's name (`guard`), the `reason` if any, and the
    rejected `text`. The text is cut to 80 characters. Do not show it to the user.

    After the guard has tripped, none of the step's tools run. Text that an engine's guard has stopped is never sent
    back to the model. After ``stream``, put the guard before operators that hold events back, such as `smooth` and
    `gate`. Otherwise, tools may run before the guard sees the text. An ``on_error`` from the source is passed on
    immediately, and waiting events are dropped.

    With ``on_late="fail"``, unchecked text is never shown. Without a `max_lag`, give the check its own timeout. With
    ``on_late="release"``, no event waits longer than `max_lag` seconds. A late check can still end the stream. A late
    check is stopped once the response that it checks is complete, or when four newer checks need to run.

    Thinking is checked too, unless `thinking` is False. Raw frames are dropped, because they repeat unchecked text.
    White space always passes. Tool calls and their results are not checked. Use ``approve`` for them. Each agent's text
    is checked separately. A check that is not ``async`` runs on the event loop, so it must not block. While 1,024
    events are waiting, the source waits too. To check the user's input, see ``rxllm.alongside``.

    Raises ``ValidationError("invalid_option")`` if an argument is invalid. ``on_late="release"`` requires `max_lag`.
    """
    check_function("check", check)
    sees_before = call_fault(check, "") is not None
    fits = not sees_before or call_fault(check, "", "") is None
    check_argument("check", check, fits, "a function that takes a string, or a string and the text that precedes it")
    check_argument("every", every, every == "sentence" or is_count(every), "'sentence' or a number of characters")
    check_argument("on_late", on_late, on_late in ("fail", "release"), "'fail' or 'release'")
    if max_lag is not None or on_late == "release":
        check_seconds("max_lag", max_lag)
    check_instance("thinking", thinking, bool, "True or False")
    settings = _Settings(check, sees_before, every, max_lag, on_late == "release", thinking)
    return for_strings_too(
        "guard", operate(lambda source, observer, scheduler: _Guard(settings, observer, scheduler).start(source))
    )


class _Settings(msgspec.Struct, frozen=True):
    check: Callable[..., Any]
    sees_before: bool
    every: Literal["sentence"] | int
    max_lag: float | None
    may_release: bool
    thinking: bool

    def verdict(self, part: Part) -> Any:
        return self.check(part.text, part.before) if self.sees_before else self.check(part.text)


class _Waiting(msgspec.Struct):
    item: Event | Callable[[], None]
    parts: int
    due: float


class _Check(msgspec.Struct, eq=False):
    part: Part
    is_done: bool
    due: float = math.inf
    error: StreamError | None = None
    subscription: SingleAssignmentDisposable = msgspec.field(default_factory=SingleAssignmentDisposable)


class _Guard(abc.DisposableBase):
    """One subscription to `guard`. Unlike a `Backlog`, it can make its source wait."""

    def __init__(
        self, settings: _Settings, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._settings = settings
        self._max_lag = settings.max_lag or 0.0
        self._may_release = settings.may_release
        self._parts = GuardParts(settings.every, settings.thinking)
        self._observer = observer
        self._scheduler = scheduler
        self._lock = RLock()
        self._queue: deque[_Waiting] = deque()
        self._checks: deque[_Check] = deque()  # One check per part. The first part has not passed yet.
        self._pending: deque[_Check] = deque()  # The checks that have not started yet.
        self._running: list[_Check] = []
        self._passed = 0  # The number of the last part that passed.
        self._released = 0  # The number of the last part that was released, checked or not.
        self._unfinished = Unfinished()
        self._has_begun = False  # whether an event has been released
        self._tripped = False
        self._failure: BaseException | None = None
        self._draining = False
        self._ended = False
        self._gate = Hold(is_full=lambda: len(self._queue) >= HELD_BACK, before_tools=self._before_tools)
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = math.inf  # when the timer fires
        self._time = 0.0
        self._now = float if settings.max_lag is None else stopwatch(scheduler)  # float() is always 0.0

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._source.disposable = paced(source, self._gate).subscribe(
            self._on_next, self._fail, self._on_completed, scheduler=self._scheduler
        )
        return self

    def dispose(self) -> None:
        with self._lock:
            self._ended = True
            checks = list(self._checks)
            for waiting in (self._queue, self._checks, self._pending, self._running):
                waiting.clear()
        self._source.dispose()
        self._timer.dispose()
        for check in checks:
            check.subscription.dispose()

    # The input: events, the end of the source, verdicts and the timer

    def _on_next(self, event: Event) -> None:
        try:
            with self._lock:
                if self._ended or self._tripped:
                    return
                for item, parts in self._parts.feed(event):
                    self._enqueue(item, parts)
        except Exception as error:  # the item is not an event
            self._fail(error)
        else:
            self._drain()

    def _on_completed(self) -> None:
        self._enqueue_last(self._complete)

    def _before_tools(self, start: Callable[[], None]) -> None:
        # Start the tools in the current context, whatever context the last check ends in.
        self._enqueue_last(partial(copy_context().run, start))

    def _enqueue_last(self, item: Callable[[], None]) -> None:
        with self._lock:
            self._parts.close()
            self._enqueue(item, self._parts.count)
        self._drain()

    def _enqueue(self, item: Event | Callable[[], None], parts: int) -> None:
        due = self._now() + self._max_lag if self._may_release else math.inf
        self._queue.append(_Waiting(item, parts, due))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._source.dispose()
        self._drain()

    def _end_check(self, check: _Check, error: StreamError | None = None) -> None:
        with self._lock:
            if check.is_done:
                return
            check.is_done = True
            if check in self._running:
                self._running.remove(check)
            if error is not None:
                error.metadata = {**error.metadata, "text": shorten(check.part.text, _SHOWN)}
                check.error, self._tripped = error, True
        check.subscription.dispose()
        if error is not None:
            self._source.dispose()

    def _arm(self) -> None:
        due = min((check.due for check in self._running), default=math.inf)
        if self._queue:
            due = min(due, self._queue[0].due)
        if due < self._armed and not self._ended:
            self._armed = due
            wait = max(due - self._time, 0.0)
            self._timer.disposable = clock(self._scheduler).schedule_relative(wait, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._time = max(self._now(), self._armed)  # The clock can be slightly behind the timer.
            self._armed = math.inf
            late = [check for check in self._running if check.due <= self._time]
        for check in late:
            self._end_check(check, check_late(self._settings.check, self._max_lag))
        self._drain()

    # The loop: one step after another

    def _drain(self) -> None:
        with self._lock:
            if self._draining:
                return
            self._draining = True
        while (step := self._next()) is not None:
            try:
                step()
            except BaseException as error:  # The subscriber raised this error, and our caller might not report it.
                self.dispose()
                fail(self._observer, error)

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._time = max(self._time, self._now())
            self._take_parts()
            if len(self._queue) >= HELD_BACK and not self._checks:
                self._parts.close()  # Close the open part, because nothing else can make room.
                self._take_parts()
            step = None if self._ended else self._step()
            if step is None:
                self._draining = False
                self._arm()
            return step

    def _take_parts(self) -> None:
        for part in self._parts.take():
            check = _Check(part, is_done=part.text.isspace())
            self._checks.append(check)
            self._pending.append(check)
        while self._checks and self._checks[0].is_done and self._checks[0].error is None:
            self._passed = self._checks.popleft().part.number

    def _step(self) -> Callable[[], None] | None:
        if self._failure is not None:
            return partial(self._raise, self._failure)
        if self._queue:
            waiting = self._queue[0]
            if waiting.parts <= self._passed or (waiting.due <= self._time and not self._tripped):
                self._released = max(self._released, waiting.parts)
                self._queue.popleft()
                return partial(self._release, waiting)
        if self._tripped:
            number, error = next((check.part.number, check.error) for check in self._checks if check.error is not None)
            # If unchecked text must not be released, wait until all earlier text has passed.
            return partial(self._cut, error) if self._may_release or number == self._checks[0].part.number else None
        while self._pending and self._pending[0].is_done:
            self._pending.popleft()
        if self._pending and len(self._running) < AT_ONCE:
            check = self._pending.popleft()
            self._running.append(check)
            return partial(self._start_check, check)
        if self._pending and self._running[0].part.number <= self._released:
            # Make room by ending a check that is no longer needed.
            return partial(self._end_check, self._running[0])
        return None

    def _release(self, waiting: _Waiting) -> None:
        item = waiting.item
        if self._may_release and (callable(item) or isinstance(item, _ENDS)):
            for check in [check for check in self._checks if check.part.number <= waiting.parts]:
                self._end_check(check)  # the response has ended, so this check is no longer needed
        if callable(item):
            item()
            return
        self._has_begun = True
        self._unfinished.see(item)
        self._observer.on_next(item)
        if len(self._queue) == HELD_BACK // 2:
            self._gate.open()

    def _start_check(self, check: _Check) -> None:
        verdict: Any = None

        def on_next(value: Any) -> None:
            nonlocal verdict
            verdict = value

        def on_error(error: BaseException) -> None:
            if isinstance(error, Exception):
                self._end_check(check, check_failed(self._settings.check, error))
                self._drain()
            else:
                self._fail(error)

        def on_completed() -> None:
            self._end_check(check, verdict_error(self._settings.check, verdict))
            self._drain()

        if self._settings.max_lag is not None and not self._may_release:
            check.due = self._now() + self._max_lag
        # Subscribe without a gate, because the source may be waiting for this check.
        result = paced(result_of(partial(self._settings.verdict, check.part)), None)
        check.subscription.disposable = result.subscribe(on_next, on_error, on_completed, scheduler=self._scheduler)

    def _complete(self) -> None:
        self.dispose()
        conclude(self._observer)

    def _raise(self, error: BaseException) -> None:
        self.dispose()
        fail(self._observer, error)

    def _cut(self, error: StreamError) -> None:
        self.dispose()
        if self._has_begun:
            conclude(self._observer, [*self._unfinished.close(), ErrorEvent(error)])
        else:
            fail(self._observer, error)
