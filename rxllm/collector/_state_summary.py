"""The part of a state that is not the log, and how events change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rxllm.events import ChatCompleted, ErrorEvent, Event, MessageCompleted, RawChunk, UsageUpdated
from rxllm.values import ChatResult, FinishReason, LLMError, StepResult, StreamError, Usage


class Summary(msgspec.Struct, frozen=True):
    """Everything in a state except the log.

    `error` and `metadata` outlive the step; `earlier` are their values before the step, which a restart brings back.
    `past` are the events of the completed steps, unfolded, and those between two steps.
    """

    steps: tuple[StepResult, ...] = ()
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    error: LLMError | None = None
    metadata: Mapping[str, Any] = {}
    chat_result: ChatResult | None = None
    earlier: tuple[LLMError | None, Mapping[str, Any]] = (None, {})
    past: tuple[tuple[Event, ...], ...] = ()
    fresh: bool = False  # nothing was folded since the last StepCompleted


def apply_to_summary(summary: Summary, event: Event) -> Summary:
    match event:
        case UsageUpdated(usage=usage):
            return msgspec.structs.replace(summary, usage=usage, fresh=False)
        case RawChunk(kind="usage", data=Mapping()):
            usage = Usage(**cast(Mapping[str, Any], event.data))
            return msgspec.structs.replace(summary, usage=usage, fresh=False)
        case ErrorEvent(error=error):
            return msgspec.structs.replace(summary, error=error, finish_reason="error", fresh=False)
        case ChatCompleted(result=result):
            return msgspec.structs.replace(summary, chat_result=result)
        case _:
            return summary


def complete(summary: Summary, event: MessageCompleted) -> Summary:
    return msgspec.structs.replace(
        summary,
        error=_failure(summary, event) if event.finish_reason == "error" else summary.error,
        # An error stays, even if the adapter goes on after it.
        finish_reason="error" if summary.finish_reason == "error" else event.finish_reason or summary.finish_reason,
        raw_finish_reason=event.raw_finish_reason or summary.raw_finish_reason,
        metadata={**summary.metadata, **event.metadata},
    )


def _failure(summary: Summary, event: MessageCompleted) -> LLMError:
    # An adapter without an error of its own ends with the finish reason alone.
    if summary.finish_reason == "error" and summary.error is not None:
        return summary.error
    return StreamError("adapter_error", f"the answer ended with {event.raw_finish_reason or 'an error'}")


def next_step(summary: Summary, result: StepResult, events: tuple[Event, ...]) -> Summary:
    return Summary(
        steps=(*summary.steps, result),
        error=summary.error,
        metadata=summary.metadata,
        chat_result=summary.chat_result,
        earlier=(summary.error, summary.metadata),
        past=(*summary.past, events),
        fresh=True,
    )


def between_steps(summary: Summary, event: Event) -> Summary:
    return msgspec.structs.replace(summary, past=(*summary.past, (event,)))


def same_step(summary: Summary) -> Summary:
    error, metadata = summary.earlier
    return Summary(
        steps=summary.steps,
        error=error,
        metadata=metadata,
        chat_result=summary.chat_result,
        earlier=summary.earlier,
        past=summary.past,
    )
