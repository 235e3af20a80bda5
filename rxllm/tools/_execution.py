"""Run one tool call as a stream of events: on which thread, with which timeout, and what is said when it fails.

==============================  ==============================================================================
handler                         how it runs
==============================  ==============================================================================
``async def``                   on the call's loop; cancelled on timeout and dispose
plain function                  in a daemon thread, with the context copied; on timeout and dispose it runs on, its
                                result dropped and ``ToolContext.cancelled`` set, at most `THREADS_LEFT` of them
plain function, virtual time    at once, in place; ``async def`` fails, because a test has no loop for it
==============================  ==============================================================================

The result may be an awaitable, an Observable or a generator, asynchronous or not; each item of the latter two is a
``ToolProgress``, and the last item is the result.

What a tool raises is logged with its traceback, unless it is a `ToolError`, and goes to the model by ``on_tool_error``.
What an approver raises, an answer that it cannot give, arguments of its own that do not fit the tool, and a result that
cannot be encoded are errors of the caller's code: they end the stream through ``on_error``. An approver runs as a tool
does; of an Observable the last item is its answer. If that leaves the call to the caller, the stream ends without an
outcome.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import copy_context
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

from reactivex import Observable, abc, of
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.collector import is_waiting
from rxllm.events import Event, Nested, ToolApprovalRequested, ToolExecutionStarted, ToolProgress
from rxllm.runtime import (
    Pump,
    Question,
    Scope,
    Stream,
    budgets_of,
    call_loop,
    clock,
    daemon_threads,
    from_async_iter,
    in_thread,
    pumped,
    running_loop,
    shown_frames,
    within,
)
from rxllm.tools._agent import AgentCall, AgentTool, agent_failure, answer_of, blame_caller, blames_caller, chats
from rxllm.tools._approval import NO_ANSWER, decided
from rxllm.tools._idempotency_key import idempotency_key
from rxllm.tools._outcome import failed, own, returned
from rxllm.tools._settings import ToolSettings
from rxllm.values import ChatResult, LLMError, Thread, Tool, ToolCall, ToolContext, ToolError, ValidationError

log = logging.getLogger("rxllm")

MOST_DEEP = 16
"""How many tool calls may be inside one another where the innermost is an agent: Python's stack holds about 40."""

THREADS_LEFT = 100
"""How many plain functions may run on after their timeout or dispose; with so many, no other one starts."""


def execution(
    tool: Tool,
    call: ToolCall,
    settings: ToolSettings,
    question: Question,
    scope: Scope,
    edited_call: ToolCall | None = None,
    resumed: tuple[Thread, Any] | None = None,
) -> Stream[Event]:
    """Return the stream of ``ToolExecutionStarted``, progress, ``ToolExecutionCompleted`` and the outcome of `call`.

    It fails only by an error of the caller's code, see above. `question` is what the step asks its model, `scope` is
    the step's. The tool runs with the arguments of `edited_call`, if there is one. An agent that halts for the caller
    has neither a ``ToolExecutionCompleted`` nor an outcome; it goes on when it is `resumed` from its thread with the
    caller's answers.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        run = _Execution(tool, call, settings, question, scope, observer, scheduler, resumed)
        if edited_call is not None:
            run.edit(edited_call)
        run.start()
        return run

    return Stream(subscribe)


class _Execution(abc.DisposableBase):
    def __init__(
        self,
        tool: Tool,
        call: ToolCall,
        settings: ToolSettings,
        question: Question,
        scope: Scope,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        resumed: tuple[Thread, Any] | None,
    ) -> None:
        self._tool = tool
        self._question = question
        self._resumed = resumed
        self._call = call
        self._settings = settings
        operators = getattr(question.engine, "operators", ())
        below = scope.below_model().under(budgets_of(operators, {} if scope.chat is None else scope.chat))
        self._scope = below  # of `approve`; then of the tool
        self._observer = observer
        self._scheduler = scheduler
        self._running = SerialDisposable()
        self._timer = SerialDisposable()
        self._all = CompositeDisposable(self._running, self._timer)
        self._is_approved = False
        self._loop = None if isinstance(scheduler, VirtualTimeScheduler) else call_loop()
        self._own_context = copy_context()
        self._ended = False
        self._context = ToolContext(
            tool_call=own(call),
            context=settings.context,
            session_id=question.session_id,
            request_id=question.request_id,
            engine=question.engine,
            progress=self._progress,
            make_key=cache(partial(idempotency_key, call, question, scope.tool_key)),
        )

    def edit(self, call: ToolCall) -> None:
        """Let `call` run, which has other arguments than the model's."""
        self._call = call
        self._context = replace(self._context, tool_call=own(call))

    def start(self) -> None:
        if self._tool.approval and self._settings.approve is not None:
            self._ask_approval(self._settings.approve)
        else:
            self._execute()

    def dispose(self) -> None:
        self._ended = True
        self._context.cancelled.set()
        self._all.dispose()

    def _ask_approval(self, approve: Callable[[ToolCall], Any]) -> None:
        self._observer.on_next(ToolApprovalRequested(self._call.id, self._call.name, self._call.arguments))
        if self._settings.approve_timeout is not None:
            self._start_timer(self._settings.approve_timeout, self._time_out_approval)
        self._resolve(lambda: approve(own(self._call)), _is_async(approve), self._answered, lambda item: None)

    def _answered(self, answer: Any) -> None:
        self._timer.disposable = Disposable()
        if self._ended:
            return
        try:
            decision = decided(answer, self._tool, self._call)
        except (TypeError, ValidationError) as error:
            self._abort(error)
            return
        if decision is None:
            self._finish([])
        elif isinstance(decision, ToolError):
            self._finish(failed(decision, self._call, self._settings))
        else:
            if decision is not self._call:
                self.edit(decision)
            self._execute()

    def _time_out_approval(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._answered(f"there was no answer within {self._settings.approve_timeout} s (approve_timeout)")

    def _execute(self) -> None:
        self._scope = self._scope.of_tool(self._call.id, self._context.make_key)
        self._is_approved = True
        self._observer.on_next(ToolExecutionStarted(self._call.id, self._call.name, self._call.arguments))
        if self._ended:
            return
        if isinstance(self._tool, AgentTool):
            if len(self._scope.path) > MOST_DEEP:
                self._fail(self._too_deep())
                return
            self._arm()
            self._run_agent(self._tool)
            return
        try:
            handler = self._settings.bind(self._tool, self._context)
        except ToolError as error:
            self._fail(error)
            return
        self._arm()  # not before: the first check of arguments may import jsonschema, for longer than a short timeout
        function = self._settings.executor or self._tool.handler
        self._resolve(handler, _is_async(function), self._return, self._progress)

    def _run_agent(self, tool: AgentTool) -> None:
        try:
            if self._resumed is None:
                self._settings.check_call(tool, self._call)
            chat = chats().chat(AgentCall(tool, self._call, self._settings, self._question, *(self._resumed or ())))
        except ToolError as error:
            self._fail(error)
            return

        def end(last: Any) -> None:
            self._listen(of(last).pipe(chat.to_result), self._end_agent)

        self._listen(chat.events, lambda last: self._on_loop(end, last), self._nest)

    def _nest(self, event: Event) -> None:
        path, event = (event.path, event.event) if isinstance(event, Nested) else ((), event)
        self._on_loop(self._report, Nested((self._call.id, *path), event))

    def _end_agent(self, result: ChatResult) -> None:
        if result.error is not None:
            self._fail_agent(result.error)
        elif is_waiting(result):
            self._finish([])
        else:
            self._return(answer_of(result))

    def _fail_agent(self, error: BaseException) -> None:
        if isinstance(error, LLMError) and not blames_caller(error):
            self._fail(agent_failure(self._call, error))
        else:
            self._abort(error)

    def _arm(self) -> None:
        if (seconds := self._settings.timeout_of(self._tool)) is not None:
            self._start_timer(seconds, self._time_out)

    def _start_timer(self, seconds: float, action: Callable[[abc.SchedulerBase, Any], None]) -> None:
        self._timer.disposable = clock(self._scheduler).schedule_relative(seconds, action)

    def _time_out(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._context.cancelled.set()
        option = "tool_timeout" if self._tool.timeout == "default" else "its timeout"
        seconds = self._settings.timeout_of(self._tool)
        message = f"the tool {self._tool.name!r} did not finish within {seconds} s ({option})"
        self._fail(self._error("timeout", message))

    def _resolve(
        self, fn: Callable[[], Any], is_async: bool, done: Callable[[Any], None], on_item: Callable[[Any], None]
    ) -> None:
        """Call `fn`, and `done` with its result, at once or later; `on_item` gets the items of a streaming result."""
        if self._loop is not None:
            results: Stream[Any] = pumped(lambda pump: self._call_function(pump, fn, is_async))
            self._listen(results, lambda result: self._unwrap(result, done, on_item))
            return
        try:
            result = self._in_place(fn, is_async)
        except Exception as error:
            self._on_failure(error)
        else:
            self._unwrap(result, done, on_item)

    def _unwrap(self, result: Any, done: Callable[[Any], None], on_item: Callable[[Any], None]) -> None:
        if isinstance(result, Observable):
            items = cast(Observable[Any], result)
        elif hasattr(result, "__aiter__"):
            items = from_async_iter(lambda: cast(AsyncIterator[Any], result))
        else:
            done(result)
            return
        self._listen(items, done, on_item)

    def _listen(
        self,
        source: Observable[Any],
        done: Callable[[Any], None],
        on_item: Callable[[Any], None] = lambda item: None,
    ) -> None:
        last: Any = None if self._is_approved else NO_ANSWER
        subscription = self._running.disposable = SingleAssignmentDisposable()

        def on_next(item: Any) -> None:
            nonlocal last
            last = item
            on_item(item)

        with within(self._scope):
            subscription.disposable = source.subscribe(
                on_next,
                lambda error: self._on_loop(self._on_failure, error),
                lambda: self._on_loop(done, last),
                scheduler=self._scheduler,
            )

    def _in_place(self, fn: Callable[[], Any], is_async: bool) -> Any:
        if is_async:
            message = "an async function needs an event loop; under virtual time use a plain one or an Observable"
            raise self._error("handler_raised", message)
        with within(self._scope):
            return self._drained(fn())

    def _drained(self, result: Any) -> Any:
        """Return `result`, or the last item of a plain generator, whose items are progress."""
        if not inspect.isgenerator(result):
            return result
        last: Any = None
        for last in cast(Generator[Any], result):
            if self._context.cancelled.is_set():
                break
            self._progress(last)
        return last

    async def _call_function(self, pump: Pump[Any], fn: Callable[[], Any], is_async: bool) -> None:
        name = f"{'' if self._is_approved else 'the approver of '}the tool {self._tool.name!r}"
        try:
            if not is_async and daemon_threads().left >= THREADS_LEFT:
                message = f"{name} was not run: {THREADS_LEFT} others still run in threads after a timeout or a dispose"
                raise self._error("cancelled", f"{message}; make them check ToolContext.cancelled")
            result = fn() if is_async else await in_thread(lambda: self._drained(_without_stop_iteration(fn)), name)
            if inspect.isawaitable(result) and not isinstance(result, Observable):  # an Observable is awaitable too
                result = await result
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            if not self._is_approved:
                raise
            raise self._error("handler_exit", f"{name} tried to end the process") from error
        pump.emit((result,))

    def _return(self, result: Any) -> None:
        try:
            events = returned(result, self._call, self._settings)
        except ToolError as error:
            self._abort(error)
        else:
            self._finish(events)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._abort(error)
        elif not self._ended:
            if not isinstance(error, ToolError) or error.reason == "handler_exit":
                log.warning("the tool %r raised an error", self._tool.name, exc_info=shown_frames(error))
            self._finish(failed(self._as_tool_error(error), self._call, self._settings))

    def _on_failure(self, error: BaseException) -> None:
        """End with what the tool or, before it, the approver has raised."""
        if self._is_approved and isinstance(self._tool, AgentTool):
            self._on_loop(self._fail_agent, error)
        else:
            (self._fail if self._is_approved else self._abort)(error)

    def _abort(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            blame_caller(error)
            self._observer.on_error(cast(Exception, error))

    def _finish(self, events: list[Event]) -> None:
        if self._ended:
            return
        self._ended = True
        for event in events:
            self._observer.on_next(event)
        self._observer.on_completed()

    def _progress(self, data: Any) -> None:
        self._on_loop(self._report, ToolProgress(self._call.id, self._call.name, data))

    def _on_loop(self, fn: Callable[[Any], None], argument: Any) -> None:
        """Call `fn` on the call's loop, also if a tool or an Observable calls from another thread."""
        if self._loop is None or running_loop() is self._loop:
            fn(argument)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(fn, argument, context=self._own_context)

    def _report(self, event: Event) -> None:
        if not self._ended:
            self._observer.on_next(event)

    def _as_tool_error(self, error: Exception) -> ToolError:
        if isinstance(error, ToolError):
            return error
        message = f"{type(error).__name__}: {error}"
        tool_error = self._error("handler_raised", message)
        tool_error.__cause__ = error
        return tool_error

    def _too_deep(self) -> ToolError:
        message = f"the agent {self._tool.name!r} was not run: it is inside {MOST_DEEP} tool calls already, the most"
        return self._error("handler_raised", f"{message}; give fewer agents agents of their own")

    def _error(self, reason: str, message: str) -> ToolError:
        return ToolError(reason, message, tool_name=self._tool.name, tool_call_id=self._call.id)


def _without_stop_iteration(fn: Callable[[], Any]) -> Any:
    try:
        return fn()
    except StopIteration as error:  # a future cannot hold it
        raise RuntimeError(f"the function raised StopIteration({error})") from error


def _is_async(function: Callable[..., Any] | None) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
