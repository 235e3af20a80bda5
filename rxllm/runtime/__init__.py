"""How a call runs: streams, their loop, their sockets, their pace, their keys, their retries."""

from rxllm.runtime._assembly import Assembly, assembling, current_assembly
from rxllm.runtime._attempts import Plan, attempting, is_prelude
from rxllm.runtime._bounded import Bounded
from rxllm.runtime._clients import CONNECT_SECONDS, Clients
from rxllm.runtime._clock import LoopScheduler, clock, stopwatch
from rxllm.runtime._conclude import conclude
from rxllm.runtime._http import Decoder, Exchange, http_stream
from rxllm.runtime._iterate import AsyncItems, Items, to_async_iter, to_iter
from rxllm.runtime._pacing import Gate, current_gate
from rxllm.runtime._portal import call_context, call_loop, running_loop
from rxllm.runtime._pump import Pump, from_async_iter, pumped
from rxllm.runtime._retry import OnRetry, Retry, RetryPolicy, policy, policy_argument, retrying
from rxllm.runtime._run import run
from rxllm.runtime._scope import NO_SCOPE, Question, Scope, current_scope, new_id, scoped, tool_id, within
from rxllm.runtime._stream import Stream
from rxllm.runtime._threads import daemon_threads, in_thread
from rxllm.runtime._timeouts import Timeouts
from rxllm.runtime._transport import transport_error
from rxllm.runtime._unheard import fail, report_unheard

__all__ = [
    "CONNECT_SECONDS",
    "NO_SCOPE",
    "Assembly",
    "AsyncItems",
    "Bounded",
    "Clients",
    "Decoder",
    "Exchange",
    "Gate",
    "Items",
    "LoopScheduler",
    "OnRetry",
    "Plan",
    "Pump",
    "Question",
    "Retry",
    "RetryPolicy",
    "Scope",
    "Stream",
    "Timeouts",
    "assembling",
    "attempting",
    "call_context",
    "call_loop",
    "clock",
    "conclude",
    "current_assembly",
    "current_gate",
    "current_scope",
    "daemon_threads",
    "fail",
    "from_async_iter",
    "http_stream",
    "in_thread",
    "is_prelude",
    "new_id",
    "policy",
    "policy_argument",
    "pumped",
    "report_unheard",
    "retrying",
    "run",
    "running_loop",
    "scoped",
    "stopwatch",
    "to_async_iter",
    "to_iter",
    "tool_id",
    "transport_error",
    "within",
]
