"""`Caller`, which calls an approver or a tool and receives its result.

* An ``async def`` function runs on the call's event loop. A timeout or disposal cancels it.
* A plain function runs in a daemon thread, in a copy of the context. At most `THREADS` of them run at once.
* A timeout or disposal cannot stop a plain function, but sets ``ToolContext.cancelled`` and discards the result.
* While `THREADS_LEFT` plain functions are still running after their timeout or disposal, no new function starts.
* Under virtual time, a plain function is called directly, and an ``async def`` function fails.
* A function may return an awaitable, an Observable or a generator. Each emitted item becomes a ``ToolProgress``, and
  the last item is the result.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextvars import copy_context
from typing import Any, cast

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.runtime import (
    Pump,
    Scope,
    Stream,
    call_loop,
    daemon_threads,
    from_async_iter,
    in_thread,
    pumped,
    running_loop,
    within,
)
from rxllm.runtime.threads import THREADS, THREADS_LEFT
from rxllm.tools._approval import NO_ANSWER
from rxllm.tools._settings import tool_error
from rxllm.values import Message, Thread, ToolCall, unanswered
from rxllm.values.codec import encode
from rxllm.values.request_keys import hash_of_thread, plain_call, plain_message


class Caller(abc.DisposableBase):
    """Calls the approver and then the tool. Both run within `scope`."""

    def __init__(
        self,
        call: ToolCall,
        scope: Scope,
        scheduler: abc.SchedulerBase | None,
        cancelled: threading.Event,
        progress: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.scope = scope
        self.is_approved = False
        self._call = call
        self._scheduler = scheduler
        self._cancelled = cancelled
        self._progress = progress  # receives the items of a plain generator
        self._on_failure = on_failure
        self._running = SerialDisposable()
        self._loop = None if isinstance(scheduler, VirtualTimeScheduler) else call_loop()
        self._own_context = copy_context()

    def dispose(self) -> None:
        self._running.dispose()

    def stop(self) -> None:
        self._running.disposable = Disposable()

    def call(
        self,
        fn: Callable[[], Any],
        is_async: bool,
        done: Callable[[Any], None],
        on_item: Callable[[Any], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        def unwrap(result: Any) -> None:
            if isinstance(result, Observable):
                self.listen(cast(Observable[Any], result), done, on_item)
            elif hasattr(result, "__aiter__"):
                self.listen(from_async_iter(lambda: cast(AsyncIterator[Any], result)), done, on_item)
            else:
                done(result)

        if self._loop is not None:
            results: Stream[Any] = pumped(lambda pump: self._run(pump, fn, is_async))
            self.listen(results, unwrap, on_failure=on_failure)
            return
        try:
            if is_async:
                message = (
                    "an async function needs an event loop; under virtual time, use a plain function or an Observable"
                )
                raise tool_error(self._call, "handler_raised", message)
            with within(self.scope):
                result = self._drain(fn())
        except Exception as error:
            (on_failure or self._on_failure)(error)
        else:
            unwrap(result)

    def listen(
        self,
        source: Observable[Any],
        done: Callable[[Any], None],
        on_item: Callable[[Any], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Pass each item of `source` to `on_item`. When `source` completes, pass the last item to `done`."""
        if self._running.is_disposed:  # another thread may have disposed this `Caller` already
            return
        last: Any = None if self.is_approved else NO_ANSWER
        subscription = self._running.disposable = SingleAssignmentDisposable()

        def on_next(item: Any) -> None:
            nonlocal last
            last = item
            if on_item is not None:
                on_item(item)

        with within(self.scope):
            subscription.disposable = source.subscribe(
                on_next,
                lambda error: self.on_loop(on_failure or self._on_failure, error),
                lambda: self.on_loop(done, last),
                scheduler=self._scheduler,
            )

    def _drain(self, result: Any) -> Any:
        """Return the last item of `result` if it is a plain generator. Otherwise, return `result` itself."""
        if not inspect.isgenerator(result):
            return result
        last: Any = None
        for last in cast(Generator[Any], result):
            if self._cancelled.is_set():
                break
            self._progress(last)
        return last

    async def _run(self, pump: Pump[Any], fn: Callable[[], Any], is_async: bool) -> None:
        name = f"{'' if self.is_approved else 'the approver for '}the tool {self._call.name!r}"
        try:
            if not is_async and (fault := _start_fault()):
                raise tool_error(self._call, "cancelled", f"{name} was not run: {fault}")
            result = fn() if is_async else await in_thread(lambda: self._drain(_replace_stop_iteration(fn)), name)
            if inspect.isawaitable(result) and not isinstance(result, Observable):  # an Observable is awaitable too
                result = await result
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            if not self.is_approved:
                raise
            raise tool_error(self._call, "handler_exit", f"{name} tried to end the process") from error
        pump.emit((result,))

    def on_loop(self, fn: Callable[[Any], None], argument: Any) -> None:
        """Run `fn` on the call's event loop, from any thread."""
        if self._loop is None or running_loop() is self._loop:
            fn(argument)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(fn, argument, context=self._own_context)


def _start_fault() -> str:
    """Return the reason why no plain function can start in a thread right now, or "" if one can."""
    threads = daemon_threads()
    if threads.left >= THREADS_LEFT:
        fault = f"{threads.left} other functions are still running in threads after they timed out or were disposed"
        return f"{fault}; make them check ToolContext.cancelled, or make them async"
    if threads.running >= THREADS:
        return f"{threads.running} other functions are running in threads; pass max_concurrency=..., or make them async"
    return ""


def _replace_stop_iteration(fn: Callable[[], Any]) -> Any:
    try:
        return fn()
    except StopIteration as error:  # a future cannot hold a StopIteration
        raise RuntimeError(f"the function raised StopIteration({error})") from error


def is_async(function: Callable[..., Any] | None) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def idempotency_key(
    call: ToolCall, thread: Thread, session_id: str | None, enclosing_key: Callable[[], str] | None
) -> str:
    """Return the key of `call`, a string of 32 hexadecimal digits.

    If the tool call runs again, it has the same key. Metadata does not affect the key, because metadata can contain the
    call's progress.
    """
    around = enclosing_key() if enclosing_key is not None else None
    head = f"[{json.dumps(around)}, {json.dumps(session_id)}, ["
    hashed = hash_of_thread(head, _messages_before(call, thread), _json_text)
    hashed.update(f"], {json.dumps(encode(plain_call(call)), sort_keys=True)}]".encode())
    return hashed.hexdigest()[:32]


def _json_text(message: Message) -> str:
    return json.dumps(encode(plain_message(message)), sort_keys=True)


def _messages_before(call: ToolCall, thread: Thread) -> Iterator[Message]:
    """Yield the messages that the model had seen when it made `call`."""
    is_open = any(other.id == call.id for other in unanswered(thread))
    for message in thread:
        if is_open and any(other.id == call.id for other in message.tool_calls):
            return
        yield message
