"""How a call runs.

=============================================  ======================================================================
files                                          hold
=============================================  ======================================================================
``_stream``, ``_run``, ``_iterate``            the `Stream`, and the ways to read it: ``run``, ``await``, ``for``
``_stream_methods``, ``_stream_origin``        the types of reactivex's methods on it, and what it says before it runs
``_pump``                                      the task that drives a subscription, and what a dispose does to it
``_portal``, ``_thread_pool``, ``_clock``      the loop, the threads and the time of a call
``_back_pressure``, ``_paced``                 readers that are behind, and operators that hold items back
``_unhandled``, ``_verdict``, ``_endings``     errors that nobody handles, checks of the user's, what follows a dispose
``_interpreter_exit``                          what happens to calls at exit
``_http_...``, ``_idle_timeout``               requests and responses
``_timeouts``                                  default timeouts, and limits of a response
``_redact_secrets``                            keys, kept out of errors, URLs and logs
``_attempts``, ``_retry``                      attempts at a call, and when another follows
``_bounded``, ``_racing``, ``_merge_...``       several streams at once
``_scope``, ``_engine_call``                      what a subscription and an operator know of the call they belong to
``_budget``, ``_limiter``                      what calls may use together, and when they may begin
``_journal``                                   what is noted, so that a stream can be run again
``keys``, ``models``                           public modules: API keys, and the catalogue of models
=============================================  ======================================================================
"""

from rxllm.events import is_content, is_prelude
from rxllm.runtime._attempts import Plan, attempting
from rxllm.runtime._back_pressure import LIMIT, MAX_WAITING, Gate, current_gate, read_by
from rxllm.runtime._bounded import Bounded
from rxllm.runtime._budget import (
    Budget,
    ChatBudget,
    HoldsBudget,
    Reservation,
    budget_passed,
    budgets_of,
    unpriced_call,
)
from rxllm.runtime._clock import LoopScheduler, clock, stopwatch, unpaced
from rxllm.runtime._engine_call import EngineCall, applying_operators, current_engine_call, engine_call, provider_name
from rxllm.runtime._http_client_settings import aiohttp_client
from rxllm.runtime._http_clients import Clients
from rxllm.runtime._http_stream import Decoder, Exchange, http_stream
from rxllm.runtime._http_transport_choice import use_transport
from rxllm.runtime._http_transports import transport_error
from rxllm.runtime._iterate import AsyncItems, Items, to_async_iter, to_iter
from rxllm.runtime._journal import Journal, RecallingJournal, ToolRecord
from rxllm.runtime._limiter import Limiter
from rxllm.runtime._merge_labelled import merge_labelled
from rxllm.runtime._paced import Hold, behind, paced
from rxllm.runtime._portal import blocked_loops, call_context, call_loop, chosen_loop, running_loop
from rxllm.runtime._pump import Pump, from_async_iter, pumped
from rxllm.runtime._racing import hedge, race
from rxllm.runtime._retry import OnRetry, Retry, RetryPolicy, policy, policy_argument, retrying
from rxllm.runtime._run import run
from rxllm.runtime._scope import (
    NO_SCOPE,
    Question,
    Scope,
    ScopedObserver,
    Share,
    current_scope,
    new_id,
    scoped,
    tool_id,
    within,
)
from rxllm.runtime._stream import Stream, returned_by
from rxllm.runtime._thread_pool import daemon_threads, in_thread
from rxllm.runtime._timeouts import CONNECT_SECONDS, NO_TIMEOUTS, READ_SECONDS, WRITE_SECONDS, Timeouts
from rxllm.runtime._unhandled import conclude, fail, log_hidden, report_unheard, shorten_traceback, shown_frames
from rxllm.runtime._verdict import check_failed, check_late, result_of, verdict_error

__all__ = [
    "CONNECT_SECONDS",
    "LIMIT",
    "MAX_WAITING",
    "NO_SCOPE",
    "NO_TIMEOUTS",
    "READ_SECONDS",
    "WRITE_SECONDS",
    "AsyncItems",
    "Bounded",
    "Budget",
    "ChatBudget",
    "Clients",
    "Decoder",
    "EngineCall",
    "Exchange",
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
    "Question",
    "RecallingJournal",
    "Reservation",
    "Retry",
    "RetryPolicy",
    "Scope",
    "ScopedObserver",
    "Share",
    "Stream",
    "Timeouts",
    "ToolRecord",
    "aiohttp_client",
    "applying_operators",
    "attempting",
    "behind",
    "blocked_loops",
    "budget_passed",
    "budgets_of",
    "call_context",
    "call_loop",
    "check_failed",
    "check_late",
    "chosen_loop",
    "clock",
    "conclude",
    "current_engine_call",
    "current_gate",
    "current_scope",
    "daemon_threads",
    "engine_call",
    "fail",
    "from_async_iter",
    "hedge",
    "http_stream",
    "in_thread",
    "is_content",
    "is_prelude",
    "log_hidden",
    "merge_labelled",
    "new_id",
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
    "scoped",
    "shorten_traceback",
    "shown_frames",
    "stopwatch",
    "to_async_iter",
    "to_iter",
    "tool_id",
    "transport_error",
    "unpaced",
    "unpriced_call",
    "use_transport",
    "verdict_error",
    "within",
]
