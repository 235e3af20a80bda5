"""Fold events, one by one, into a Response, a StepResult or a ChatResult.

=====================  ==============================================================================================
file                   holds
=====================  ==============================================================================================
``_stream_collector``  the state, and its results
``_message``           the fold of one response: text, thinking with its signature, tool calls, other parts
``_step``              the tools and agents of a step, and its new messages
``_unfold``            a state turned back into events
``event_rules``        the rules for event streams, and where they are checked
``_event_faults``      the types of the fields of single events
``unfinished``         the parts that a cut stream leaves open
``parsed``             parsed answers in responses and results
=====================  ==============================================================================================

A `StreamCollector` is an immutable value, and each event costs O(1): the events of the current message are appended to
a log that successive states share, each with its own length (a fork copies the log); running tools and the states of
agents are in `executions`; everything else is in `summary`, which most events do not change. `fold_message` builds
the message from the log only on request.

The finish reason is derived: if there are complete client-side calls, ``stop``, ``other`` and None become
``tool_calls``; ``length``, ``content_filter`` and ``error`` take precedence over calls.

A malformed event (``TextDelta(None)``) leaves the state unchanged. Deltas are too many to be checked one by one, so a
malformed delta is found when the message is built.
"""

from rxllm.collector._event_faults import event_fault
from rxllm.collector._message import BLOCKS, DELTAS, BlockKey, block_key, fold_message
from rxllm.collector._step import (
    AWAITING_USER,
    PAUSE,
    STEERED,
    answer,
    halt_metadata,
    halted_by,
    innermost,
    is_incomplete,
    is_server,
    is_unfinished,
    is_waiting,
    joined,
    nest,
    unnest,
)
from rxllm.collector._stream_collector import StreamCollector
from rxllm.collector.unfinished import Unfinished, with_partial_step

__all__ = [
    "AWAITING_USER",
    "BLOCKS",
    "DELTAS",
    "PAUSE",
    "STEERED",
    "BlockKey",
    "StreamCollector",
    "Unfinished",
    "answer",
    "block_key",
    "event_fault",
    "fold_message",
    "halt_metadata",
    "halted_by",
    "innermost",
    "is_incomplete",
    "is_server",
    "is_unfinished",
    "is_waiting",
    "joined",
    "nest",
    "unnest",
    "with_partial_step",
]
