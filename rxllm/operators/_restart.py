"""Begin again in the middle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from reactivex import Observable

from rxllm.collector import StreamCollector
from rxllm.events import Custom, Event, StepCompleted, StepRestarted
from rxllm.runtime import Retry, RetryPolicy, Stream, attempting, policy_argument
from rxllm.values import LLMError

log = logging.getLogger("rxllm")

ABANDONED = "step_abandoned"
"""The name of the `Custom` event before a ``StepRestarted``. Its `data` holds, as ``response``, what had been said."""


def restart(policy: Retry = "default") -> Callable[[Observable[Event]], Stream[Event]]:
    """A response that fails after its first content begins again, with a ``StepRestarted``.

    ::

        source       --start--H--X
        again        ---start--H--i--end--|
        restart()    --start--H---------(abandoned,restarted,start,H)--i--end--|

    >>> from rxllm import Fake, StepRestarted, generate, stream_generate, Engine, operators as ops
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> generate(Engine(torn, operators=[restart({"base_delay": 0})]), "Hi").run().output_text
    'Hello'
    >>> torn = Fake(["Hel", ("error", "timeout")], ["Hello"])
    >>> stream_generate(torn, "Hi").pipe(restart({"base_delay": 0}), ops.only(StepRestarted)).run()
    StepRestarted(reason='timeout', attempt=2)

    The source is subscribed again, which is a new request. Every fold forgets what came before a ``StepRestarted`` in
    its step, its usage included; a ``Custom("step_abandoned", {"response": ...})`` just before it keeps that aside.
    Both come with the first content of the new attempt: as long as there is none, what was said stands. `policy` is a
    `RetryPolicy`, or a mapping of its fields: how often, after how long, for which errors. What fails before the first
    content is left to retry, until there has been a restart; a failure that no other attempt follows is passed on.

    It is for one response: among an engine's operators, or behind ``stream_generate`` or ``stream_step``; after a
    ``StepCompleted`` nothing begins again. Strings cannot be taken back: ``text`` says what each attempt said.

    Raises ``ValidationError("invalid_option")`` for what is no policy.
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
        self._said: list[Event] = []  # by the attempt that runs
        self._standing: list[Event] | None = None  # by the latest that had content
        self._reason = ""

    def source(self, attempt: int) -> Observable[Event]:
        self._said = []
        return self._source.do_action(self._said.append)

    def again(self, error: Exception, attempt: int) -> float | None:
        if self._standing is None or not self._rules.allows(error, attempt):
            return None
        if any(isinstance(event, StepCompleted) for event in self._said):
            return None
        assert isinstance(error, LLMError)
        self._reason = error.reason
        seconds = self._rules.delay(error, attempt)
        log.warning("attempt %d failed on its way (%s); it begins again in %.1f s", attempt, error, seconds)
        return seconds

    def opens(self, attempt: int) -> Iterable[Event]:
        void, self._standing = self._standing, self._said
        if void is None:
            return ()
        data: dict[str, Any] = {"response": _folded(void)}
        return Custom(ABANDONED, data), StepRestarted(self._reason, attempt)


def _folded(events: list[Event]) -> Any:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()
