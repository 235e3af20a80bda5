"""An end to spending."""

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
from rxllm.operators._shared.fill_costs import raw_usage
from rxllm.runtime import Stream, conclude, current_assembly
from rxllm.values import Usage
from rxllm.values.arguments import invalid_option, is_positive

log = logging.getLogger("rxllm")

CHARACTERS_PER_TOKEN = 4

_HALT = {"halted_reason": "budget"}


def budget(tokens: int | None = None, usd: float | None = None) -> Callable[[Observable[Event]], Stream[Event]]:
    """End a response that has used more than so many tokens or dollars, and the chat that it is a step of.

    ::

        source              --start--H--e--l--l--o--!--usage--end--|
        budget(tokens=1)    --start--H--e--l--l-(Hell,end)|          (the end says length, and that it was the budget)

    >>> from rxllm import Engine, Fake, chat
    >>> engine = Engine(Fake(["Once ", "upon ", "a ", "time"]), operators=[budget(tokens=2)])
    >>> result = chat(engine, "A story?").run()
    >>> result.halted_reason, result.final_response.output_text, result.final_response.metadata["budget"]
    ('budget', 'Once upon ', {'tokens': 2, 'tokens_spent': 3})

    As an engine's operator it counts over the steps of a chat, and over each chat anew; in a pipe, over the response:
    put it there behind ``stream_generate``. What the provider says counts; until it says so, a token of the answer is
    taken to be four characters. What ``ops.restart`` makes void counts too, if that stands before. Inside a response
    the source is disposed, which closes its connection, what is open is closed, and ``MessageCompleted`` has the finish
    reason ``length``. A response that ends of itself is left as it is; if it asks for tools, they are run, and then the
    chat halts. The metadata ``"budget"`` of ``MessageCompleted``, and so of the response, has the limits and what was
    spent; a chat that would have gone on has the ``halted_reason`` ``"budget"``.

    Dollars are those of ``Usage.total_cost``: let ``ops.cost()`` stand before, unless the provider or ``rxllm.models``
    states them. They are known when a response ends. A cost that nobody knows keeps no limit: ``usd_spent`` is then
    None, and a warning is logged.

    Raises ``ValidationError("invalid_option")`` without a limit, and for one that is no number above 0.
    """
    if tokens is None and usd is None:
        raise invalid_option("tokens", "give this, or usd, or both")
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        raise invalid_option("tokens", f"must be None or at least 1, not {tokens!r}")
    if usd is not None and not is_positive(usd):
        raise invalid_option("usd", f"must be None or a number above 0, not {usd!r}")

    def operator(source: Observable[Event]) -> Stream[Event]:
        assembly = current_assembly.get()
        before = assembly.before if assembly is not None else Usage()

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Spending(tokens, usd, before, observer).start(source, scheduler)

        return Stream(subscribe)

    return operator


class _Spending:
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
        self._said = Usage()
        self._characters = 0  # of the answer, since the provider has last said what was used
        self._void = 0  # tokens of what a restart has made void
        self._void_usd = 0.0

    def _on_next(self, event: Event) -> None:
        if self._ended:
            return
        match event:
            case TextDelta(delta=said) | ThinkingDelta(delta=said) | ToolCallDelta(arguments_delta=said):
                self._characters += len(said)
                self._seen.append(event)
                self._observer.on_next(event)
                if self._tokens is not None and not self._ended and self._tokens_spent() > self._tokens:
                    self._cut()
                return
            case UsageUpdated(usage=usage):
                self._said, self._characters = usage, 0
            case RawChunk():
                if event.kind == "usage" and (usage := raw_usage(event.data)) is not None:
                    self._said, self._characters = usage, 0
                self._observer.on_next(event)
                return
            case MessageStarted():
                self._seen.clear()
            case StepRestarted():
                self._void += self._response_tokens()
                self._void_usd += self._said.total_cost or 0.0
                self._said, self._characters = Usage(), 0
                self._seen.clear()
            case MessageCompleted():
                event = self._signed(event)
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
        told = {"budget": self._told(), **_HALT}
        conclude(self._observer, [*closing, MessageCompleted(message, "length", metadata=told)])

    def _signed(self, event: MessageCompleted) -> MessageCompleted:
        """The end with what was spent, and the halt if that is too much and the chat would go on."""
        told = self._told()
        if self._usd is not None and told["usd_spent"] is None:
            log.warning("the cost of a response is not known, and no budget in dollars can be kept")
        halt = _HALT if self._is_over(told) and self._goes_on(event) else {}
        spent = {**event.metadata.get("budget", {}), **told}  # there may be another budget
        return msgspec.structs.replace(event, metadata={**event.metadata, "budget": spent, **halt})

    def _goes_on(self, end: MessageCompleted) -> bool:
        state = StreamCollector()
        for event in (*self._seen, end):
            state = state.apply_event(event)
        return is_unfinished(state.to_response())

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if self._tokens is not None:
            told |= {"tokens": self._tokens, "tokens_spent": self._tokens_spent()}
        if self._usd is not None:
            told |= {"usd": self._usd, "usd_spent": self._usd_spent()}
        return told

    def _is_over(self, told: dict[str, Any]) -> bool:
        return any((told.get(f"{limit}_spent") or 0) > told[limit] for limit in ("tokens", "usd") if limit in told)

    def _tokens_spent(self) -> int:
        return self._before.total + self._void + self._response_tokens()

    def _response_tokens(self) -> int:
        return self._said.total - (-self._characters // CHARACTERS_PER_TOKEN)

    def _usd_spent(self) -> float | None:
        now = self._said.total_cost
        return None if now is None else (self._before.total_cost or 0.0) + self._void_usd + now
