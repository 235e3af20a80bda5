"""The fold: event by event to a Response, a StepResult or a ChatResult.

A `StreamCollector` is an immutable value, and each event costs O(1): what belongs to the current message is appended to
a log that successive states share, each with its own length (a fork copies); everything else is in `rest`, which most
events leave alone. What was said is put together only when somebody asks, by `fold_message`.

The finish reason is derived: complete client calls turn ``stop``, ``other`` and None into ``tool_calls``; ``length``,
``content_filter`` and ``error`` win over calls.

A malformed event (``TextDelta(None)``) leaves the state as it is. Deltas are too many to be looked at one by one: those
that are malformed are found when what was said is put together.
"""

from rxllm.collector._answer import (
    AWAITING_USER,
    PAUSE,
    answer,
    halt_metadata,
    is_incomplete,
    is_server,
    is_unfinished,
)
from rxllm.collector._faults import adapter_fault, event_fault
from rxllm.collector._message import fold_message
from rxllm.collector._state import StreamCollector
from rxllm.collector._unfinished import Unfinished

__all__ = [
    "AWAITING_USER",
    "PAUSE",
    "StreamCollector",
    "Unfinished",
    "adapter_fault",
    "answer",
    "event_fault",
    "fold_message",
    "halt_metadata",
    "is_incomplete",
    "is_server",
    "is_unfinished",
]
