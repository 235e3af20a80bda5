"""Check text while it arrives, and hold events back until the text before them has passed.

===========  ============================================  ====================================================
a part       until                                         events behind it
===========  ============================================  ====================================================
open         its sentence, or its block, ends              wait
complete     fewer than `AT_ONCE` checks run               wait
in check     its verdict                                   wait
passed                                                     are released, in order
tripped      the parts before it have passed               are dropped; an error ends the stream
late         `max_lag` seconds                             ``fail``: as tripped; ``release``: released nevertheless
===========  ============================================  ====================================================

The source is disposed at the first trip, even if earlier parts are still being checked. With ``release`` a trip ends
the stream at once, and the end of a response ends its late checks. One loop, `_drain`, does everything that may call
foreign code, one step after another and without the lock, whichever thread brings an event, a verdict or the time.
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
from rxllm.operators._guard_parts import Check, Checks, GuardParts, GuardSettings
from rxllm.runtime import Hold, Stream, check_late, clock, conclude, fail, paced, stopwatch
from rxllm.values import StreamError
from rxllm.values.argument_checks import call_fault, check_function, check_instance, check_seconds, is_count
from rxllm.values.argument_checks import check as check_argument

MOST = 1024
"""How many events wait before the source has to."""

_ENDS = (MessageCompleted, ErrorEvent, StepCompleted, ChatCompleted)


class _Waiting(msgspec.Struct):
    """An event, or a function to call in its place, that waits for the first `parts` parts, at most until `due`."""

    item: Event | Callable[[], None]
    parts: int
    due: float


class Guarding(abc.DisposableBase):
    """One subscription."""

    def __init__(
        self, settings: GuardSettings, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None
    ) -> None:
        self._check = settings.check
        self._max_lag = settings.max_lag
        self._may_release = settings.on_late == "release"
        self._observer = observer
        self._scheduler = scheduler
        self._lock = RLock()
        self._parts = GuardParts(settings.every, settings.thinking)
        self._checks = Checks(settings)
        self._queue: deque[_Waiting] = deque()
        self._shown = 0  # parts that have been released, checked or not
        self._unfinished = Unfinished()
        self._begun = False  # an event has been released
        self._failure: BaseException | None = None
        self._draining = False
        self._ended = False
        self._gate = Hold(is_full=lambda: len(self._queue) >= MOST, before_tools=self._before_tools)
        self._source = SingleAssignmentDisposable()
        self._timer = SerialDisposable()
        self._armed = math.inf  # when the timer fires
        self._time = 0.0
        self._now = float if settings.max_lag is None else stopwatch(scheduler)  # float() is 0.0

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._source.disposable = paced(source, self._gate).subscribe(
            self._on_next, self._fail, self._on_completed, scheduler=self._scheduler
        )
        return self

    def dispose(self) -> None:
        with self._lock:
            self._ended = True
            self._queue.clear()
            checks = self._checks.clear()
        self._source.dispose()
        self._timer.dispose()
        for check in checks:
            check.subscription.dispose()

    # What comes

    def _on_next(self, event: Event) -> None:
        try:
            with self._lock:
                if self._ended or self._checks.tripped:
                    return
                for item, parts in self._parts.feed(event):
                    self._wait(item, parts)
        except Exception as error:  # it is not an event
            self._fail(error)
        else:
            self._drain()

    def _on_completed(self) -> None:
        self._last(self._complete)

    def _before_tools(self, start: Callable[[], None]) -> None:
        # Called by ``run_tools`` upstream, whose context the tools need.
        self._last(partial(copy_context().run, start))

    def _last(self, item: Callable[[], None]) -> None:
        """Call `item` after what has come so far."""
        with self._lock:
            self._parts.close()
            self._wait(item, self._parts.count)
        self._drain()

    def _wait(self, item: Event | Callable[[], None], parts: int) -> None:
        due = self._now() + (self._max_lag or 0.0) if self._may_release else math.inf
        self._queue.append(_Waiting(item, parts, due))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error
        self._source.dispose()
        self._drain()

    def _judge(self, check: Check, error: BaseException | None) -> None:
        """Take the verdict of `check`, or its error."""
        if error is None or isinstance(error, StreamError):
            self._end_check(check, error)
            self._drain()
        else:
            self._fail(error)

    def _end_check(self, check: Check, error: StreamError | None = None) -> None:
        with self._lock:
            if not self._checks.end(check, error):
                return
        check.subscription.dispose()
        if error is not None:
            self._source.dispose()

    # What follows from it

    def _drain(self) -> None:
        with self._lock:
            if self._draining:
                return
            self._draining = True
        while (step := self._next()) is not None:
            try:
                step()
            except BaseException as error:  # the subscriber's: whoever calls may not deliver it
                self.dispose()
                fail(self._observer, error)

    def _next(self) -> Callable[[], None] | None:
        """Return what to do next; None if there is nothing, and then the drain is over."""
        with self._lock:
            self._time = max(self._time, self._now())
            self._advance()
            step = None if self._ended else self._failing() or self._releasing() or self._cutting() or self._checking()
            if step is None:
                self._draining = False
                self._arm()
            return step

    def _advance(self) -> None:
        self._checks.add(self._parts.take())
        if len(self._queue) >= MOST and not len(self._checks):
            self._parts.close()  # only its end can make room
            self._checks.add(self._parts.take())

    def _failing(self) -> Callable[[], None] | None:
        return None if self._failure is None else partial(self._raise, self._failure)

    def _releasing(self) -> Callable[[], None] | None:
        if not self._queue:
            return None
        waiting = self._queue[0]
        if waiting.parts > self._checks.passed and (self._checks.tripped or waiting.due > self._time):
            return None
        self._shown = max(self._shown, waiting.parts)
        self._queue.popleft()
        return partial(self._release, waiting)

    def _cutting(self) -> Callable[[], None] | None:
        error = self._checks.error(in_order=not self._may_release) if self._checks.tripped else None
        return None if error is None else partial(self._cut, error)

    def _checking(self) -> Callable[[], None] | None:
        if (check := self._checks.next()) is not None:
            return partial(self._start_check, check)
        old = self._checks.in_the_way(self._shown)
        return None if old is None else partial(self._end_check, old)

    def _release(self, waiting: _Waiting) -> None:
        item = waiting.item
        if self._may_release and (callable(item) or isinstance(item, _ENDS)):
            for check in self._checks.up_to(waiting.parts):  # their response is over
                self._end_check(check)
        if callable(item):
            item()
            return
        self._begun = True
        self._unfinished.see(item)
        self._observer.on_next(item)
        if len(self._queue) == MOST // 2:
            self._gate.open()

    def _start_check(self, check: Check) -> None:
        if self._max_lag is not None and not self._may_release:
            check.due = self._now() + self._max_lag
        check.start(self._judge, self._scheduler)

    # Its ends

    def _complete(self) -> None:
        self.dispose()
        conclude(self._observer)

    def _raise(self, error: BaseException) -> None:
        self.dispose()
        fail(self._observer, error)

    def _cut(self, error: StreamError) -> None:
        self.dispose()
        if self._begun:
            conclude(self._observer, [*self._unfinished.close(), ErrorEvent(error)])
        else:
            fail(self._observer, error)

    # Its time

    def _arm(self) -> None:
        due = min(self._checks.due, self._queue[0].due if self._queue else math.inf)
        if due < self._armed and not self._ended:
            self._armed = due
            wait = max(due - self._time, 0.0)
            self._timer.disposable = clock(self._scheduler).schedule_relative(wait, self._wake)

    def _wake(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        with self._lock:
            self._time = max(self._now(), self._armed)  # a clock may be a little slower than its timer
            self._armed = math.inf
            late = self._checks.late(self._time)
        for check in late:
            self._end_check(check, check_late(self._check, self._max_lag or 0.0))
        self._drain()


def guard(
    check: Callable[[str], Any] | Callable[[str, str], Any],
    every: Literal["sentence"] | int = "sentence",
    max_lag: float | None = None,
    on_late: Literal["fail", "release"] = "fail",
    *,
    thinking: bool = True,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Check each sentence while it arrives, release what has passed, and end the stream at one that has not.

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

    ``check(text)`` gets each part of the answer once: a sentence (of at most 1,024 characters), or, if `every` is a
    number, so many characters; the end of a block ends a part. A check that takes two arguments, ``check(text,
    before)``, also gets the 2,048 characters of the answer in front of it. It returns its verdict, an awaitable of it,
    or a stream, such as a small model's, whose last item it is:

    ==========================  ==================================================================
    None, True, no item         the text has passed, and is released
    False, the reason as text   ``StreamError("guard_tripped")``
    an exception, other values  ``StreamError("guard_failed")``
    nothing within `max_lag`    ``StreamError("guard_late")``, or the release of the text, see below
    ==========================  ==================================================================

    Completions, tool calls, usage and the end wait for the text before them, so the result has what was shown, and no
    more. Up to four checks run at once; what they find counts in the order of the text. At a trip the source is
    disposed, open blocks are completed, and an ``ErrorEvent`` ends the stream; before the first event it is
    ``on_error``. The error's metadata has the `guard`, the `reason` if there is one, and the `text`, cut to 80
    characters: do not show it. No tool of the step runs, whether the guard is an engine's operator or comes after
    ``stream``; what an engine's guard has stopped is not sent to the model again either. After ``stream`` it comes in
    front of what holds events back, such as `smooth`, `gate` and `share_folded`: tools do not wait for text that is on
    its way to the guard. An ``on_error`` of the source passes at once, without what waits.

    With ``on_late="fail"`` nothing unchecked is shown, and a check may take `max_lag` seconds; without a `max_lag` it
    takes as long as it likes, so give it a timeout of its own. With ``on_late="release"`` no event waits longer than
    `max_lag`. A late check can still end the stream, until its response is complete, or four newer ones run.

    Thinking is checked too, unless `thinking` is False. Raw frames, which repeat text before it is checked, are
    dropped. White space alone passes. Tool calls and their results are not checked: that is what ``approve`` is for.
    What agents write (``Nested``) is checked like the chat's own text, that of each agent by itself. A plain function
    is called on the call's loop and must not block it. While 1,024 events wait, the source waits too.
    For the user's input see ``rxllm.alongside``.

    Raises ``ValidationError("invalid_option")`` for wrong arguments, and for ``on_late="release"`` without a `max_lag`.
    """
    check_function("check", check)
    sees_before = call_fault(check, "") is not None
    fits = not sees_before or call_fault(check, "", "") is None
    check_argument("check", check, fits, "a function of a text, or of a text and the text before it")
    check_argument("every", every, every == "sentence" or is_count(every), "'sentence' or a whole number of characters")
    check_argument("on_late", on_late, on_late in ("fail", "release"), "'fail' or 'release'")
    if max_lag is not None or on_late == "release":
        check_seconds("max_lag", max_lag)
    check_instance("thinking", thinking, bool, "True or False")
    settings = GuardSettings(check, sees_before, every, max_lag, on_late, thinking)
    return operate(lambda source, observer, scheduler: Guarding(settings, observer, scheduler).start(source))
