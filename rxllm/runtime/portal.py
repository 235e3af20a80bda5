"""Choose the event loop for a call.

The portal is a daemon thread that runs a loop. It is for programs that do not run a loop themselves.

=============================================  ===================================================================
how the stream is used                         event loop of its call
=============================================  ===================================================================
``subscribe`` or ``await``, in a running loop  the running loop
``subscribe``, with no running loop            the portal's loop
an operator subscribes, on the thread that     the loop of the operator's subscriber
pushes items into the operator
``run()``, ``for`` and ``to_iter``             the portal's loop, because the calling thread blocks its own loop
=============================================  ===================================================================

The current `Place` contains the chosen loop; see ``context_variables``. When the interpreter exits, the portal waits
for the calls that are still running; see ``threads``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from typing import Any

from msgspec.structs import replace

from rxllm.runtime.context_variables import Place, current_place
from rxllm.runtime.threads import CLOSE_SECONDS, Drain, Live, daemon_threads, is_daemon_worker
from rxllm.values import EngineError

_guard = threading.Lock()
_portal: Portal | None = None
_parent_loops: list[asyncio.AbstractEventLoop] = []


def _forget() -> None:
    # A forked child must not use its parent's lock and portal.
    global _guard, _portal
    _parent_loops.extend([] if _portal is None else [_portal.loop])
    _guard, _portal = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Portal:
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        self.live = Live()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(daemon_threads())
        self.thread = threading.Thread(target=self._serve, name="rxllm-portal", daemon=True)
        self.thread.start()
        atexit.register(self._close)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._run():
            pass
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _run(self) -> bool:
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio stops the loop if a task raises one of these two exceptions.
            logging.getLogger("rxllm").error("a task on rxllm's loop raised %r", error, exc_info=error)
            return False
        return True

    def _close(self) -> None:
        if self is not _portal:  # this process was forked, and the portal belongs to its parent
            return
        drain = Drain(self.live)
        try:
            if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
                raise KeyboardInterrupt  # Ctrl-C ended the program, so it also ends the program's calls
            drain.wait(asyncio.run_coroutine_threadsafe(drain.run(), self.loop))
        except KeyboardInterrupt:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(drain.cancel(), self.loop).result(timeout=CLOSE_SECONDS)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=CLOSE_SECONDS)


def has_ended(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether `loop` is closed or belongs to the parent process."""
    return loop.is_closed() or loop in _parent_loops


def live_on(loop: asyncio.AbstractEventLoop) -> Live | None:
    """Return the calls and timers of the portal, or None if `loop` is not the portal's loop.

    When the interpreter exits, it waits only for these.
    """
    return _portal.live if _portal is not None and loop is _portal.loop else None


def portal() -> Portal:
    """Return the current portal. If there is none yet, start one."""
    global _portal
    if (stand_in := current_place.get().portal) is not None:
        return stand_in
    with _guard:
        if _portal is None:
            _portal = Portal()
    return _portal


def call_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop on which a call in this context runs."""
    return chosen_loop() or portal().loop


def chosen_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that is chosen for calls in this context, or None if they default to the portal's loop."""
    chosen = current_place.get().loop
    return chosen if chosen is not None else running_loop()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that is running in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def awaiting_loop() -> asyncio.AbstractEventLoop:
    """Return the running asyncio loop, on which a stream can be awaited.

    Raises ``EngineError("wrong_loop")`` if there is none, as is the case under trio.
    """
    if (loop := running_loop()) is not None:
        return loop
    fault = "a stream can be awaited only on an asyncio event loop, and none is running here (as under trio)"
    remedy = "in another thread: await trio.to_thread.run_sync(stream.run)"
    raise EngineError("wrong_loop", f"{fault}; write asyncio.run(main()), or read the stream {remedy}")


def call_context() -> contextvars.Context:
    """Return a copy of the current context. The copy leaves out any choice of an event loop."""
    context = contextvars.copy_context()
    place = context.get(current_place)
    if place is not None and place.loop is not None:
        context.run(current_place.set, replace(place, loop=None))
    return context


class Starts:
    """The functions to call once ``subscribe`` has returned."""

    def __init__(self) -> None:
        self.is_subscribing = True
        self.waiting: list[Callable[[], object]] = []

    def release(self) -> None:
        self.is_subscribing = False
        # Copies of the context keep this object alive, but they must not keep the functions alive.
        waiting, self.waiting = self.waiting, []
        for start in waiting:
            start()


def subscribing() -> contextlib.AbstractContextManager[None]:
    """Delay the start of calls on other loops until the ``with`` block ends.

    Otherwise, events could arrive before the subscriber has received the disposable.
    """
    place = current_place.get()
    outer = place.starts
    if (outer is not None and outer.is_subscribing) or (place.loop is None and running_loop() is not None):
        return _NOTHING_HELD  # the usual case in a pipe
    return _hold_starts(place)


_NOTHING_HELD = contextlib.nullcontext()


@contextlib.contextmanager
def _hold_starts(place: Place) -> Generator[None]:
    starts = Starts()
    token = current_place.set(replace(place, starts=starts))
    try:
        yield
    finally:
        current_place.reset(token)
        starts.release()


def start_on(
    loop: asyncio.AbstractEventLoop, fn: Callable[[], object], context: contextvars.Context | None = None
) -> None:
    context = context or contextvars.copy_context()
    starts = current_place.get().starts
    if starts is not None and starts.is_subscribing:
        starts.waiting.append(lambda: loop.call_soon_threadsafe(fn, context=context))
    else:
        loop.call_soon_threadsafe(fn, context=context)


@contextlib.contextmanager
def on_portal() -> Generator[Portal]:
    """Use the portal's loop for the calls that are made in the ``with`` block.

    Raises ``RuntimeError`` if the current thread is the portal's own.
    """
    chosen = portal()
    if threading.current_thread() is chosen.thread:
        raise RuntimeError("rxllm's own event loop cannot wait for its own calls; use 'await' or 'async for' instead")
    place, loop = current_place.get(), running_loop()
    is_read = place.is_read or not is_daemon_worker()
    blocked = place.blocked_loops if loop is None else place.blocked_loops | {loop}
    token = current_place.set(replace(place, loop=chosen.loop, is_read=is_read, blocked_loops=blocked))
    try:
        with subscribing():
            yield chosen
    finally:
        current_place.reset(token)


def warn_if_blocking(what: str, instead: str, *, stacklevel: int) -> None:
    """Warn if the caller is about to block this thread's running loop.

    `what` is the start of the warning, and `instead` is the code that the warning recommends.
    """
    if running_loop() is not None and not _in_notebook():
        message = f"{what} this thread's event loop until the stream ends; in a coroutine, write: {instead}"
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)


def _in_notebook() -> bool:
    # It is not enough to find these modules in `sys.modules`, because they may be imported outside notebooks too.
    ipython: Any = sys.modules.get("IPython")
    marimo: Any = sys.modules.get("marimo")
    in_ipython = ipython is not None and ipython.get_ipython() is not None
    return in_ipython or (marimo is not None and marimo.running_in_notebook())
