"""Streams and their readers, back-pressure, retries, races and budgets.

=========================================  ===========================================================================
files                                      contents
=========================================  ===========================================================================
``_stream``, ``_reading``                  the `Stream` class; ways to read a stream: ``run``, ``await`` and ``for``
``_stream_methods``, ``stream_arguments``  type hints for the reactivex methods of `Stream`; argument checks
``_pump``                                  the task that drives a subscription until it is disposed
``portal``, ``threads``, ``_clock``        event loops, threads and timers; how calls end when the interpreter exits
``back_pressure``, ``_held_back``          gates that make sources wait for readers; operators that hold items back
``_unhandled``, ``_guard_verdict``         errors that no subscriber has handled; the verdicts of the user's checks
``_retry``                                 retries, and the policy that controls them
``_concurrency``, ``_arriving``            bounded concurrency and limiters; a stream for each item of a source
``_race_hedge_merge``, ``_combining``      races, hedges and merges; ``zip`` and ``combine_latest``
``_scope``, ``_budget``                    the chat, step and tool call that a subscription belongs to; budgets
``context_variables``                      context variables for a call's event loop and reader
=========================================  ===========================================================================
"""

from rxllm.events import is_content, is_prelude
from rxllm.runtime._again import failure_behind
from rxllm.runtime._arriving import Arriving
from rxllm.runtime._budget import (
    Budget,
    ChatBudget,
    HoldsBudget,
    Reservation,
    Share,
    budget_passed,
    unpriced_call,
)
from rxllm.runtime._clock import LoopScheduler, clock, schedule_in, stopwatch, unpaced
from rxllm.runtime._combining import combine_latest, merge, zip
from rxllm.runtime._concurrency import Bounded, Limiter
from rxllm.runtime._guard_verdict import check_failed, check_late, result_of, verdict_error
from rxllm.runtime._held_back import Backlog, Hold, behind, noting_times, paced
from rxllm.runtime._pump import Pump, from_async_iter, pumped
from rxllm.runtime._race_hedge_merge import hedge, merge_labelled, race
from rxllm.runtime._reading import AsyncItems, Items, run, to_async_iter, to_iter
from rxllm.runtime._retry import OnRetry, Plan, Retry, RetryPolicy, attempting, policy, policy_argument, retrying
from rxllm.runtime._scope import (
    NO_SCOPE,
    Bookmark,
    EagerJournal,
    EngineCall,
    Journal,
    RecallingJournal,
    Scope,
    ScopedObserver,
    ToolRecord,
    applying_operators,
    current_engine_call,
    current_scope,
    engine_call,
    new_id,
    provider_name,
    scoped,
    tool_id,
    within,
)
from rxllm.runtime._stream import READ_TWICE, Deferred, Stream, call_of, returned_by
from rxllm.runtime._unhandled import conclude, fail, log_hidden, report_unheard, shorten_traceback, shown_frames
from rxllm.runtime.back_pressure import LIMIT, MAX_WAITING, Gate, read_by
from rxllm.runtime.context_variables import current_gate, current_place, subscriber_error
from rxllm.runtime.portal import call_context, call_loop, chosen_loop, running_loop
from rxllm.runtime.threads import daemon_threads, in_thread, off_loop

__all__ = [
    "LIMIT",
    "MAX_WAITING",
    "NO_SCOPE",
    "READ_TWICE",
    "Arriving",
    "AsyncItems",
    "Backlog",
    "Bookmark",
    "Bounded",
    "Budget",
    "ChatBudget",
    "Deferred",
    "EagerJournal",
    "EngineCall",
    "Gate",
    "Hold",
    "HoldsBudget",
    "Items",
    "Journal",
    "Limiter",
    "LoopScheduler",
    "OnRetry",
    "Plan",
    "Pump",
    "RecallingJournal",
    "Reservation",
    "Retry",
    "RetryPolicy",
    "Scope",
    "ScopedObserver",
    "Share",
    "Stream",
    "ToolRecord",
    "applying_operators",
    "attempting",
    "behind",
    "budget_passed",
    "call_context",
    "call_loop",
    "call_of",
    "check_failed",
    "check_late",
    "chosen_loop",
    "clock",
    "combine_latest",
    "conclude",
    "current_engine_call",
    "current_gate",
    "current_place",
    "current_scope",
    "daemon_threads",
    "engine_call",
    "fail",
    "failure_behind",
    "from_async_iter",
    "hedge",
    "in_thread",
    "is_content",
    "is_prelude",
    "log_hidden",
    "merge",
    "merge_labelled",
    "new_id",
    "noting_times",
    "off_loop",
    "paced",
    "policy",
    "policy_argument",
    "provider_name",
    "pumped",
    "race",
    "read_by",
    "report_unheard",
    "result_of",
    "retrying",
    "returned_by",
    "run",
    "running_loop",
    "schedule_in",
    "scoped",
    "shorten_traceback",
    "shown_frames",
    "stopwatch",
    "subscriber_error",
    "to_async_iter",
    "to_iter",
    "tool_id",
    "unpaced",
    "unpriced_call",
    "verdict_error",
    "within",
    "zip",
]
