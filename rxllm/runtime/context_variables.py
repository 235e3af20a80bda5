"""A call's place and reader: two context variables that reach a source through any chain of operators.

A scheduler passed to ``subscribe`` instead would move the resubscriptions of retry, merge and concat to other threads.

===========================  ==========================================  ===============================================
field of `Place`             written by                                  read by
===========================  ==========================================  ===============================================
``loop``                     ``run()``, ``for`` and ``to_iter``: the     ``call_loop``, for each call and timer
                             portal's; ``call_context``: None
``is_read``                  the same, on a user's thread                the pump and ``finally_result``, for the exit
                                                                         of the interpreter
``blocked_loops``            the same, for the loop that they block      ``share_folded`` and ``rate_limited``, which
                                                                         would wait for themselves there
``starts``                   ``subscribing``                             ``start_on``
``portal``, ``threads``      a simulation                                ``portal()``, ``daemon_threads()``
``engine``                   ``rxllm.testing.sandbox``                   ``Engine.from_model``
===========================  ==========================================  ===============================================

===========================  ==========================================  ===============================================
field of `Reader`            written by                                  read by
===========================  ==========================================  ===============================================
``gate``                     iterators; operators that buffer, with      sources, timers, operators that hold back
                             ``paced`` and ``behind``
``on_unhandled``             ``run()``, ``await``, iterators             ``report_unheard``
``endings``                  the same                                    ``finally_result``
===========================  ==========================================  ===============================================

A call's scope is a third variable; see ``_scope``. A model source starts a new scope but keeps place and reader.
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
    """The event loop of a subscription, with the stand-ins for the process's own portal, threads and engine.

    `loop` is the chosen event loop, `is_read` is whether a user's thread waits for the subscription, and
    `blocked_loops` are the loops of the waiting threads, on which nothing runs until the subscription ends.
    """

    loop: AbstractEventLoop | None = None
    is_read: bool = False
    blocked_loops: frozenset[AbstractEventLoop] = frozenset()
    starts: Starts | None = None
    portal: Portal | None = None
    threads: DaemonThreads | None = None
    engine: Any = None


ErrorListener = Callable[[BaseException], bool]
"""Takes an error, and returns whether a reader still waits for it."""


class Reader(msgspec.Struct, frozen=True):
    """The reader of a subscription: its gate, its listener for unhandled errors, and its endings."""

    gate: Gate | None = None
    on_unhandled: ErrorListener | None = None
    endings: Endings | None = None


NO_PLACE, NO_READER = Place(), Reader()

current_place: ContextVar[Place] = ContextVar("rxllm_place", default=NO_PLACE)
current_reader: ContextVar[Reader] = ContextVar("rxllm_reader", default=NO_READER)


def current_gate() -> Gate | None:
    """Return the gate that a source waits for if it is subscribed to here."""
    return current_reader.get().gate
