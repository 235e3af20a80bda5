"""Limit what a response or a chat may use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import SingleAssignmentDisposable

from rxllm.collector import StreamCollector, Unfinished, fold_message, is_unfinished
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageUpdated,
)
from rxllm.operators._shared.costs import raw_usage
from rxllm.runtime import Stream, conclude, current_engine_call
from rxllm.values import Usage
from rxllm.values.argument_checks import check, check_count, invalid_option, is_positive

log = logging.getLogger("rxllm")

CHARACTERS_PER_TOKEN = 4

_HALT = {"halted_reason": "budget"}


def budget(tokens: int | None = None, usd: float | None = None) -> Callable[[Observable[Event]], Stream[Event]]:
    """Halt a chat before its next step once it has used so many tokens or dollars; cut a response over the tokens.

    ::

        source              --start--H--e--l--l--o--!--usage--end--|
        budget(tokens=1)    --start--H--e--l--l--(o,Hello,end)|         (finish reason length, metadata budget)

    >>> from rxllm import Engine, Fake, chat
    >>> engine = Engine(Fake(["Once ", "upon ", "a ", "time"]), operators=[budget(tokens=2)])
    >>> result = chat(engine, "A story?").run()
    >>> result.halted_reason, result.final_response.output_text, result.final_response.metadata["budget"]
    ('budget', 'Once upon ', {'tokens': 2, 'tokens_spent': 3})

    As an engine's operator it counts over the steps of each chat; in a pipe, after ``stream_generate``, over the
    response. The provider's usage counts; until it arrives, four characters of the answer are taken for a token. Events
    that an ``ops.restart`` before it makes void count too.

    Over the tokens inside a response, the source is disposed, which closes its connection, open blocks are completed,
    and ``MessageCompleted`` has the finish reason ``length``. A response that ends by itself stays as it is; if it
    calls tools, they run, and then the chat halts with the ``halted_reason`` ``"budget"``. The metadata ``"budget"``
    of ``MessageCompleted``, and so of the response, holds the limits and what was spent.

    Dollars are ``Usage.total_cost``, known when a response ends: put ``ops.cost()`` before, unless the provider or
    ``rxllm.models`` states them. An unknown cost breaks no limit: ``usd_spent`` is None, and a warning is logged.

    Raises ``ValidationError("invalid_option")`` without a limit, and for a limit that is not a number above 0.
    """
    if tokens is None and usd is None:
        raise invalid_option("tokens", "must be a number of tokens, unless usd is given")
    if tokens is not None:
        check_count("tokens", tokens)
    check("usd", usd, usd is None or is_positive(usd), "None or a number above 0")

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = current_engine_call.get()
        before = call.before if call is not None else Usage()
        return Stream(lambda observer, scheduler=None: _Budget(tokens, usd, before, observer).start(source, scheduler))

    return operator


class _Budget:
    def __init__(self, tokens: int | None, usd: float | None, before: Usage, observer: abc.ObserverBase[Event]) -> None:
        self._tokens = tokens
        self._usd = usd
        self._before = before
        self._observer = observer
        self._running = SingleAssignmentDisposable()
        self._seen: list[Event] = []
        self._ended = False
        self._begin()

    def start(self, source: Observable[Event], scheduler: abc.SchedulerBase | None) -> abc.DisposableBase:
        self._running.disposable = source.subscribe(
            self._on_next, self._observer.on_error, self._on_completed, scheduler=scheduler
        )
        return self._running

    def _begin(self) -> None:
        self._usage = Usage()
        self._characters = 0  # of the answer, since the provider's last usage
        self._void_tokens = 0  # spent before a restart
        self._void_usd = 0.0

    def _on_next(self, event: Event) -> None:
        if self._ended:
            return
        match event:
            case TextDelta(delta=text) | ThinkingDelta(delta=text) | ToolCallDelta(arguments_delta=text):
                self._characters += len(text)
                self._seen.append(event)
                self._observer.on_next(event)
                if self._tokens is not None and not self._ended and self._tokens_spent() > self._tokens:
                    self._cut()
                return
            case UsageUpdated(usage=usage):
                self._usage, self._characters = usage, 0
            case RawChunk():
                if event.kind == "usage" and (usage := raw_usage(event.data)) is not None:
                    self._usage, self._characters = usage, 0
                self._observer.on_next(event)
                return
            case MessageStarted():
                self._seen.clear()
            case StepRestarted():
                self._void_tokens += self._response_tokens()
                self._void_usd += self._usage.total_cost or 0.0
                self._usage, self._characters = Usage(), 0
                self._seen.clear()
            case MessageCompleted():
                event = self._with_spending(event)
                self._begin()
            case ErrorEvent():
                self._begin()
            case _:
                pass
        self._seen.append(event)
        self._observer.on_next(event)

    def _on_completed(self) -> None:
        if not self._ended:
            self._observer.on_completed()

    def _cut(self) -> None:
        self._ended = True
        self._running.dispose()
        unfinished = Unfinished()
        for event in self._seen:
            unfinished.see(event)
        closing = unfinished.close()
        message = fold_message([*self._seen, *closing])
        metadata = {"budget": self._spending(), **_HALT}
        conclude(self._observer, [*closing, MessageCompleted(message, "length", metadata=metadata)])

    def _with_spending(self, event: MessageCompleted) -> MessageCompleted:
        """Return the end with what was spent; it halts the chat if that is too much and the chat would continue."""
        spending = self._spending()
        if self._usd is not None and spending["usd_spent"] is None:
            log.warning(
                "budget(usd=%s) has no effect: the cost of the response is unknown; put ops.cost() before it", self._usd
            )
        halt = _HALT if self._is_over(spending) and self._continues(event) else {}
        spending = {**event.metadata.get("budget", {}), **spending}  # there may be another budget
        return msgspec.structs.replace(event, metadata={**event.metadata, "budget": spending, **halt})

    def _continues(self, end: MessageCompleted) -> bool:
        state = StreamCollector()
        for event in (*self._seen, end):
            state = state.apply_event(event)
        return is_unfinished(state.to_response())

    def _spending(self) -> dict[str, Any]:
        spending: dict[str, Any] = {}
        if self._tokens is not None:
            spending |= {"tokens": self._tokens, "tokens_spent": self._tokens_spent()}
        if self._usd is not None:
            spending |= {"usd": self._usd, "usd_spent": self._usd_spent()}
        return spending

    def _is_over(self, spending: dict[str, Any]) -> bool:
        limits = [limit for limit in ("tokens", "usd") if limit in spending]
        return any((spending[f"{limit}_spent"] or 0) > spending[limit] for limit in limits)

    def _tokens_spent(self) -> int:
        return self._before.total + self._void_tokens + self._response_tokens()

    def _response_tokens(self) -> int:
        return self._usage.total - (-self._characters // CHARACTERS_PER_TOKEN)

    def _usd_spent(self) -> float | None:
        cost = self._usage.total_cost
        return None if cost is None else (self._before.total_cost or 0.0) + self._void_usd + cost
