"""How a call runs: streams, their loop, their sockets, their pace, their keys, their retries."""

from rxllm.runtime._assembly import Assembly, assembling, current_assembly
from rxllm.runtime._attempts import Plan, attempting, is_prelude
from rxllm.runtime._back_pressure import Gate, current_gate
from rxllm.runtime._clock import LoopScheduler, clock, stopwatch
from rxllm.runtime._http_clients import CONNECT_SECONDS, Clients
from rxllm.runtime._http_fetch import Answer, Asker, fetched
from rxllm.runtime._http_stream import Decoder, Exchange, http_stream
from rxllm.runtime._http_transports import transport_error
from rxllm.runtime._iterate import AsyncItems, Items, to_async_iter, to_iter
from rxllm.runtime._portal import call_context, call_loop, running_loop
from rxllm.runtime._pump import Pump, from_async_iter, pumped
from rxllm.runtime._retry import Retry, RetryPolicy, policy, retrying
from rxllm.runtime._run import run
from rxllm.runtime._stream import Stream
from rxllm.runtime._threads import daemon_threads, in_thread
from rxllm.runtime._timeouts import Timeouts
from rxllm.runtime._unhandled import conclude, fail, report_unheard

__all__ = [
    "CONNECT_SECONDS",
    "Answer",
    "Asker",
    "Assembly",
    "AsyncItems",
    "Clients",
    "Decoder",
    "Exchange",
    "Gate",
    "Items",
    "LoopScheduler",
    "Plan",
    "Pump",
    "Retry",
    "RetryPolicy",
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
    "daemon_threads",
    "fail",
    "fetched",
    "from_async_iter",
    "http_stream",
    "in_thread",
    "is_prelude",
    "policy",
    "pumped",
    "report_unheard",
    "retrying",
    "run",
    "running_loop",
    "stopwatch",
    "to_async_iter",
    "to_iter",
    "transport_error",
]
