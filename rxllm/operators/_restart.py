"""Start a response again after its first content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Custom, Event, StepCompleted, StepRestarted
from rxllm.runtime import Retry, RetryPolicy, Stream, attempting, policy_argument
from rxllm.values import LLMError

log = logging.getLogger("rxllm")

ABANDONED = "step_abandoned"
"""The name of the `Custom` event before a ``StepRestarted``. Its `data` holds the abandoned ``response``."""


def restart(policy: Retry = "default") -> Callable[[Observable[Event]], Stream[Event]]:
    """Start a response that fails after its first content again, with a ``StepRestarted``.

    ::

        source       --start--H--X
        again                    ---start--H------------------------------i--end--|
        restart()    ---------(start,H)----(abandoned,restarted,start,H)--i--end--|

    >>> from rxllm import Fake, StepRestarted, generate, stream_generate, Engine, operators as ops
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> generate(Engine(torn, operators=[restart({"base_delay": 0})]), "Hi").run().output_text
    'Hello'
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> stream_generate(torn, "Hi").pipe(restart({"base_delay": 0}), ops.only(StepRestarted)).run()
    StepRestarted(reason='timeout', attempt=2)

    The source is subscribed again, which is a new request. Folds forget everything in the step before the
    ``StepRestarted``, including usage; the ``Custom("step_abandoned", {"response": ...})`` before it preserves that.
    Both are emitted with the first content of the new attempt; without any, the earlier content stands. `policy`, a
    `RetryPolicy` or a mapping of its fields, says how often, after how long and for which errors. Failures before the
    first content are left to retry until there has been a restart. The last failure is passed on.

    Use it for one response: in an engine's operators, or after ``stream_generate`` or ``stream_step``. After a
    ``StepCompleted`` nothing is restarted. ``ops.text`` emits the text of every attempt, for strings cannot be taken
    back.

    Raises ``ValidationError("invalid_option")`` for any other `policy`.
    """
    rules = policy_argument(policy)

    def operator(source: Observable[Event]) -> Stream[Event]:
        if rules.max_attempts <= 1:
            return Stream.of(source)
        return attempting(lambda: _Restarting(source, rules))

    return operator


class _Restarting:
    late = True

    def __init__(self, source: Observable[Event], rules: RetryPolicy) -> None:
        self._source = source
        self._rules = rules
        self._events: list[Event] = []  # of the current attempt
        self._standing: list[Event] | None = None  # of the latest attempt with content
        self._reason = ""

    def source(self, attempt: int) -> Observable[Event]:
        self._events = []
        return self._source.do_action(self._events.append)

    def again(self, error: Exception, attempt: int) -> float | None:
        if self._standing is None or not self._rules.allows(error, attempt):
            return None
        if any(isinstance(event, StepCompleted) for event in self._events):
            return None
        assert isinstance(error, LLMError)
        self._reason = error.reason
        seconds = self._rules.delay(error, attempt)
        log.warning("attempt %d failed after its first content (%s); restarting in %.1f s", attempt, error, seconds)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        abandoned, self._standing = self._standing, self._events
        if abandoned is None:
            return ()
        state = reduce(StreamCollector.apply_event, abandoned, StreamCollector())
        data: dict[str, Any] = {"response": state.to_response()}
        return Custom(ABANDONED, data), StepRestarted(self._reason, attempt)
