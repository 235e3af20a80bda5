"""Which events are content, the model's own output: what retries, races, timeouts and telemetry wait for."""

from __future__ import annotations

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, RawChunk, UsageUpdated
from rxllm.values import ProviderPart

_NO_CONTENT = frozenset({MessageStarted, UsageUpdated, RawChunk, MessageCompleted, ErrorEvent})
"""The ends, and what a provider sends while its model is silent, unless it is a part of the message."""


def is_content(event: Event) -> bool:
    """Whether `event` is output of the model: it ends a silence, and is the first token."""
    return type(event) not in _NO_CONTENT or (isinstance(event, RawChunk) and isinstance(event.data, ProviderPart))


def is_prelude(event: Event) -> bool:
    """Whether a stream that has emitted `event` can still be asked again: the consumer has not seen anything to use.

    Frames that nothing is known about may be content, so that they are not a prelude.
    """
    return isinstance(event, MessageStarted | UsageUpdated) or (isinstance(event, RawChunk) and event.kind == "usage")
