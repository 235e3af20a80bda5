"""Context variables that contain the `Place` and the `Reader` of a call.

The source of the call reads both variables. A scheduler could not carry the place and the reader, because retry, merge
and concat resubscribe on other threads.

===========================  ==========================================  ===============================================
field of `Place`             written by                                  read by
===========================  ==========================================  ===============================================
``loop``                     ``run()``, ``for`` and ``to_iter``, which   ``call_loop``, for each call and timer
                             set the portal's loop; ``call_context``,
                             which sets None
``is_read``                  ``run()``, ``for`` and ``to_iter`` on a     the pump and ``finally_result``, to prepare for
                             user's thread                               interpreter exit
``blocked_loops``            ``run()``, ``for`` and ``to_iter``, which   ``share_folded`` and ``rate_limited``, to avoid
                             add the loop that they block                deadlocks
``starts``                   ``subscribing``                             ``start_on``
``portal``, ``threads``      simulations                                 ``portal()``, ``daemon_threads()``
``engine``                   ``rxllm.testing.sandbox``                   ``Engine``
===========================  ==========================================  ===============================================

===========================  ==========================================  ===============================================
field of `Reader`            written by                                  read by
===========================  ==========================================  ===============================================
``gate``                     iterators, and operators that buffer items  sources, timers, and operators that hold items
                             with ``paced`` or ``behind``                back
``on_unhandled``             ``run()``, ``await`` and iterators          ``report_unheard``
``endings``                  ``run()``, ``await`` and iterators          ``finally_result``
``is_timed``                 ``noting_times``                            races, fallbacks, retries and reconnections
===========================  ==========================================  ===============================================

``_scope`` contains two more context variables. A model source starts a new scope, but keeps its place and its reader.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rxllm.runtime.back_pressure import Endings, Gate
    from rxllm.runtime.portal import Portal, Starts
    from rxllm.runtime.threads import DaemonThreads


class Place(msgspec.Struct, frozen=True):
    """The event loop of a subscription, and stand-ins for process-wide objects.

    `is_read` is True if one of the user's threads reads the stream. `blocked_loops` are loops on which nothing can run.
    """

    loop: AbstractEventLoop | None = None
    is_read: bool = False
    blocked_loops: frozenset[AbstractEventLoop] = frozenset()
    starts: Starts | None = None
    portal: Portal | None = None
    threads: DaemonThreads | None = None
    engine: Any = None


ErrorListener = Callable[[BaseException], bool]
"""A function that receives an unhandled error, and returns whether a reader is waiting for it."""


class Reader(msgspec.Struct, frozen=True):
    """The gate, the error listener and the `Endings` of a subscription.

    If `is_timed` is True, the times of attempts are recorded for the reader.
    """

    gate: Gate | None = None
    on_unhandled: ErrorListener | None = None
    endings: Endings | None = None
    is_timed: bool = False


NO_PLACE, NO_READER = Place(), Reader()

current_place: ContextVar[Place] = ContextVar("rxllm_place", default=NO_PLACE)
current_reader: ContextVar[Reader] = ContextVar("rxllm_reader", default=NO_READER)

subscriber_error: ContextVar[Exception | None] = ContextVar("rxllm_subscriber_error", default=None)
"""While a subscription is disposed of because its subscriber has raised an exception, that exception."""


def current_gate() -> Gate | None:
    """Return the gate of the current reader, or None if it has no gate."""
    return current_reader.get().gate
