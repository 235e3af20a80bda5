"""Where calls run: the running loop if there is one, else the portal.

The portal is one daemon thread with one event loop, for callers that have none. ``run()``, ``for`` and ``to_iter``
choose it even where a loop runs, because they block that one. The choice is a context variable, so that it reaches the
source through any chain of operators and no scheduler has to be passed that would move resubscriptions to other
threads.

At interpreter exit the portal waits for the calls that are still live; see ``_exit``.
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

from rxllm.runtime._interpreter_exit import CLOSE_SECONDS, Drain, Live
from rxllm.runtime._threads import daemon_threads, is_daemon_worker

is_read: contextvars.ContextVar[bool] = contextvars.ContextVar("rxllm_read", default=False)
"""Whether a thread of the user's waits for what is subscribed here."""

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
        except (SystemExit, KeyboardInterrupt) as error:  # of a task that is not ours: asyncio stops its loop for these
            logging.getLogger("rxllm").error("a task on rxllm's loop raised %r", error, exc_info=error)
            return False
        return True

    def _close(self) -> None:
        if self is not _portal:  # it is the parent's, and this a forked child
            return
        drain = Drain(self.live)
        try:
            drain.wait(asyncio.run_coroutine_threadsafe(drain.run(), self.loop))
        except KeyboardInterrupt:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(drain.cancel(), self.loop).result(timeout=CLOSE_SECONDS)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout=CLOSE_SECONDS)


def live_on(loop: asyncio.AbstractEventLoop) -> Live | None:
    """What goes on on `loop`, if that is the portal's: the interpreter's end waits for no other."""
    return _portal.live if _portal is not None and loop is _portal.loop else None


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
    loop, read = _chosen.set(chosen.loop), is_read.set(is_read.get() or not is_daemon_worker())
    try:
        with subscribing():
            yield chosen
    finally:
        _chosen.reset(loop)
        is_read.reset(read)


def warn_if_blocking(what: str, instead: str, *, stacklevel: int) -> None:
    """Warn that `what` this thread's event loop, if one runs that is not a notebook's; see ``warnings.warn``."""
    if running_loop() is not None and not _in_ipython():
        message = f"{what} this thread's event loop until the stream ends; inside a coroutine write: {instead}"
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)


def _in_ipython() -> bool:
    ipython: Any = sys.modules.get("IPython")  # a library may have imported it for something else
    return ipython is not None and ipython.get_ipython() is not None
