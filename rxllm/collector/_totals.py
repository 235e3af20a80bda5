"""The part of a state that is not the log, and how events change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    RawChunk,
    UsageUpdated,
)
from rxllm.values import (
    ChatResult,
    FinishReason,
    LLMError,
    StepResult,
    StreamError,
    Usage,
)


class Rest(msgspec.Struct, frozen=True):
    """All of a state but the log.

    `error` and `metadata` outlive the step; `earlier` are those from before it, to which a restart goes back.
    """

    steps: tuple[StepResult, ...] = ()
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    error: LLMError | None = None
    metadata: Mapping[str, Any] = {}
    chat_result: ChatResult | None = None
    earlier: tuple[LLMError | None, Mapping[str, Any]] = (None, {})
    fresh: bool = False  # nothing folded since the last StepCompleted


def apply_to_rest(rest: Rest, event: Event) -> Rest:
    match event:
        case UsageUpdated(usage=usage):
            return msgspec.structs.replace(rest, usage=usage, fresh=False)
        case RawChunk(kind="usage", data=Mapping()):
            usage = Usage(**cast(Mapping[str, Any], event.data))
            return msgspec.structs.replace(rest, usage=usage, fresh=False)
        case ErrorEvent(error=error):
            return msgspec.structs.replace(rest, error=error, finish_reason="error", fresh=False)
        case ChatCompleted(result=result):
            return msgspec.structs.replace(rest, chat_result=result)
        case _:
            return rest


def complete(rest: Rest, event: MessageCompleted) -> Rest:
    return msgspec.structs.replace(
        rest,
        error=_failure(rest, event) if event.finish_reason == "error" else rest.error,
        # An error is not forgotten because the adapter goes on after it.
        finish_reason="error" if rest.finish_reason == "error" else event.finish_reason or rest.finish_reason,
        raw_finish_reason=event.raw_finish_reason or rest.raw_finish_reason,
        metadata={**rest.metadata, **event.metadata},
    )


def _failure(rest: Rest, event: MessageCompleted) -> LLMError:
    # An adapter that has no error to tell ends with the finish reason alone.
    if rest.finish_reason == "error" and rest.error is not None:
        return rest.error
    return StreamError("adapter_error", f"the answer ended with {event.raw_finish_reason or 'an error'}")


def next_step(rest: Rest, result: StepResult) -> Rest:
    return Rest(
        steps=(*rest.steps, result),
        error=rest.error,
        metadata=rest.metadata,
        chat_result=rest.chat_result,
        earlier=(rest.error, rest.metadata),
        fresh=True,
    )


def same_step(rest: Rest) -> Rest:
    error, metadata = rest.earlier
    return Rest(steps=rest.steps, error=error, metadata=metadata, chat_result=rest.chat_result, earlier=rest.earlier)
