"""Fold events into a Response, a StepResult or a ChatResult.

=====================  ==============================================================================================
file                   contents
=====================  ==============================================================================================
``_stream_collector``  the state of a fold, and the results built from it
``_message``           the fold of one response: text, thinking with its signature, tool calls, other parts
``_step``              a step's tools and agents, and the messages that the step adds to the thread
``_unfold``            the reverse of a fold, from a state to events
``event_rules``        the rules for event streams, and where they are checked
``_event_faults``      a check that an event's fields have the right types
``unfinished``         the blocks and tool calls that are open when a stream is cut off
``parsed``             functions that put parsed answers into responses and results
=====================  ==============================================================================================

* A `StreamCollector` is immutable, and applying an event takes O(1) time.
* Successive states share a log of the message's events. Each state stores the number of events that it includes.
* Applying a second event to the same state copies the log.
* `executions` holds running tools and the states of agents. `summary` holds everything else, apart from the thread and
  the log.
* `fold_message` builds the message only when it is read.
* If there are complete calls that the client must run, the finish reasons ``stop``, ``other`` and None become
  ``tool_calls``.
* A malformed event changes nothing. Deltas are checked only when the message is built.
"""

from rxllm.collector._event_faults import event_fault
from rxllm.collector._message import BLOCKS, DELTAS, BlockKey, block_key, fold_message
from rxllm.collector._step import (
    AWAITING_USER,
    FALLBACK,
    PAUSE,
    STEERED,
    VETOED,
    answer,
    halt_metadata,
    halted_by,
    innermost,
    is_hosted,
    is_incomplete,
    is_pending,
    is_server,
    is_unfinished,
    is_waiting,
    joined,
    nest,
    pending_calls,
    unnest,
)
from rxllm.collector._stream_collector import StreamCollector
from rxllm.collector.unfinished import Unfinished, with_partial_step

__all__ = [
    "AWAITING_USER",
    "BLOCKS",
    "DELTAS",
    "FALLBACK",
    "PAUSE",
    "STEERED",
    "VETOED",
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
    "is_hosted",
    "is_incomplete",
    "is_pending",
    "is_server",
    "is_unfinished",
    "is_waiting",
    "joined",
    "nest",
    "pending_calls",
    "unnest",
    "with_partial_step",
]
