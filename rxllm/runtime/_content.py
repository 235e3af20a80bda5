"""Which events are content, the model's own output: what retries, races, timeouts and telemetry wait for."""

from __future__ import annotations

from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted, Nested, RawChunk, UsageUpdated
from rxllm.values import ProviderPart

_PINGS = frozenset({UsageUpdated, RawChunk})
"""What a provider sends while its model is silent, unless it is a part of the message."""

_NO_CONTENT = frozenset({MessageStarted, MessageCompleted, ErrorEvent, *_PINGS})


def is_content(event: Event) -> bool:
    """Whether `event` is output of the model: it ends a silence, and is the first token.

    An agent's work is output too, and so are the starts and ends of its responses; its provider's pings are not.
    """
    silent = _NO_CONTENT
    if type(event) is Nested:
        event, silent = event.event, _PINGS
    return type(event) not in silent or (isinstance(event, RawChunk) and isinstance(event.data, ProviderPart))


def is_prelude(event: Event) -> bool:
    """Whether a stream that has emitted `event` can still be asked again: the consumer has not seen anything to use.

    Frames that nothing is known about may be content, so that they are not a prelude.
    """
    return isinstance(event, MessageStarted | UsageUpdated) or (isinstance(event, RawChunk) and event.kind == "usage")
