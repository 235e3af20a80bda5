"""Where calls run: the running loop if there is one, else the portal.

The portal is one daemon thread with one event loop, for callers that have none. ``run()``, ``for`` and ``to_iter``
choose it even where a loop runs, because they block that one. The choice is a context variable, so that it reaches the
source through any chain of operators and no scheduler has to be passed that would move resubscriptions to other
threads.

At interpreter exit the portal waits for the calls that are still live; Ctrl-C then cancels them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from typing import Any

from rxllm.runtime._threads import daemon_threads

_chosen: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("rxllm_loop", default=None)
_guard = threading.Lock()
_portal: Portal | None = None


def _forget() -> None:
    # A forked child has none of its parent's threads, and must not touch what they still use.
    global _guard, _portal
    _guard, _portal = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Portal:
    """A thread with a loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(daemon_threads())
        self.thread = threading.Thread(target=self._serve, name="rxllm-portal", daemon=True)
        self.thread.start()
        atexit.register(self._close)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _close(self) -> None:
        if self is not _portal:  # it is the parent's, and this a forked child
            return
        try:
            asyncio.run_coroutine_threadsafe(self._drain(cancel=False), self.loop).result()
        except KeyboardInterrupt:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._drain(cancel=True), self.loop).result(timeout=1)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=1)

    async def _drain(self, *, cancel: bool) -> None:
        this = asyncio.current_task()
        if this is not None:
            this.set_name(_DRAIN)
        timers = timers_of(self.loop)
        while (live := {task for task in asyncio.all_tasks() if task.get_name() != _DRAIN}) or timers:
            if cancel:
                for each in (*live, *timers):
                    each.cancel()
                timers.clear()
            await (asyncio.wait(live) if live else asyncio.sleep(_TICK))


_DRAIN = "rxllm-drain"
_TICK = 0.01
_timers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.TimerHandle]] = weakref.WeakKeyDictionary()


def timers_of(loop: asyncio.AbstractEventLoop) -> set[asyncio.TimerHandle]:
    """The waits on `loop` that are still to end; only touched there."""
    return _timers.setdefault(loop, set())


def portal() -> Portal:
    """The process's portal, made on first use."""
    global _portal
    with _guard:
        if _portal is None:
            _portal = Portal()
    return _portal


def call_loop() -> asyncio.AbstractEventLoop:
    """The loop that a call made here runs on."""
    chosen = _chosen.get()
    return chosen if chosen is not None else (running_loop() or portal().loop)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs on this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_context() -> contextvars.Context:
    """A copy of the caller's context for a task of its own; what it subscribes to runs on the task's loop."""
    context = contextvars.copy_context()
    context.run(_chosen.set, None)
    return context


class _Starts:
    """What waits for a subscription to be whole. It is `open` while that is being made."""

    def __init__(self) -> None:
        self.open = True
        self.waiting: list[Callable[[], object]] = []

    def release(self) -> None:
        self.open = False
        waiting, self.waiting = self.waiting, []  # contexts are copied: nothing must be kept alive by this
        for start in waiting:
            start()


_starts: contextvars.ContextVar[_Starts | None] = contextvars.ContextVar("rxllm_starts", default=None)


@contextlib.contextmanager
def subscribing() -> Generator[None]:
    """What is started inside on another thread's loop starts at the end.

    Otherwise the first events could come while the operators are still being subscribed, and ``take(1)`` would dispose
    a subscription that it has not been given yet.
    """
    outer = _starts.get()
    if (outer is not None and outer.open) or (_chosen.get() is None and running_loop() is not None):
        yield
        return
    starts = _Starts()
    token = _starts.set(starts)
    try:
        yield
    finally:
        _starts.reset(token)
        starts.release()


def start_on(
    loop: asyncio.AbstractEventLoop, fn: Callable[[], object], context: contextvars.Context | None = None
) -> None:
    """Call `fn` soon on `loop`, which runs on another thread."""
    context = context or contextvars.copy_context()
    starts = _starts.get()
    if starts is not None and starts.open:
        starts.waiting.append(lambda: loop.call_soon_threadsafe(fn, context=context))
    else:
        loop.call_soon_threadsafe(fn, context=context)


@contextlib.contextmanager
def on_portal() -> Generator[Portal]:
    """Calls made inside run on the portal. Raises ``RuntimeError`` on the portal's own thread, which cannot wait for
    itself.
    """
    chosen = portal()
    if threading.current_thread() is chosen.thread:
        raise RuntimeError("this would wait for itself: inside rxllm's own loop use await or async for instead")
    token = _chosen.set(chosen.loop)
    try:
        with subscribing():
            yield chosen
    finally:
        _chosen.reset(token)


def warn_if_blocking(what: str, instead: str, *, stacklevel: int) -> None:
    """Warn that `what` this thread's event loop, if one runs that is not a notebook's; see ``warnings.warn``."""
    if running_loop() is not None and not _in_ipython():
        message = f"{what} this thread's event loop until the stream ends; inside a coroutine write: {instead}"
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)


def _in_ipython() -> bool:
    ipython: Any = sys.modules.get("IPython")  # a library may have imported it for something else
    return ipython is not None and ipython.get_ipython() is not None
