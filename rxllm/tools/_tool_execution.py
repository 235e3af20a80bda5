"""Run one tool call: its approval, its function, its timeout, and what is said when it fails.

With a journal, see ``operators.journaled``:

==============================  =============================================================================
an earlier run of the stream    this one
==============================  =============================================================================
has noted nothing of the call   notes that it begins, before its function is called, and the outcome, before
                                it is emitted; a denial too
has noted its outcome           emits that
has noted only that it began    runs it again with the same arguments if it is ``idempotent``, as agents are:
                                their own calls and tools are noted; else leaves it to the caller, as an
                                approval does
==============================  =============================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

from reactivex import abc
from reactivex.disposable import Disposable, SerialDisposable

from rxllm.events import Event, ToolApprovalRequested, ToolExecutionStarted, ToolProgress
from rxllm.runtime import Question, Scope, ToolRecord, budgets_of, clock, shown_frames
from rxllm.tools._agent import blame_caller
from rxllm.tools._approval import decided
from rxllm.tools._caller import Caller, is_async
from rxllm.tools._idempotency_key import idempotency_key
from rxllm.tools._outcome import failed, own, returned
from rxllm.tools._question import halted, halted_again, replied
from rxllm.tools._settings import ToolSettings, tool_error
from rxllm.values import Halt, Thread, Tool, ToolCall, ToolContext, ToolError, ValidationError

log = logging.getLogger("rxllm")


class ToolExecution(abc.DisposableBase):
    """One run of one tool call; `start` begins it."""

    def __init__(
        self,
        tool: Tool,
        call: ToolCall,
        settings: ToolSettings,
        question: Question,
        scope: Scope,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        resumed: tuple[Thread, Any] | None = None,
    ) -> None:
        self._tool = tool
        self._question = question
        self._call = call
        self._settings = settings
        self._observer = observer
        self._scheduler = scheduler
        self._timer = SerialDisposable()
        self._ended = False
        self._journal = scope.journal
        self._path = scope.path
        self._has_begun = False
        self._resumed = resumed
        reply, state = replied(resumed)
        self._context = ToolContext(
            tool_call=own(call),
            context=settings.context,
            session_id=question.session_id,
            request_id=question.request_id,
            engine=question.engine,
            progress=self._progress,
            reply=reply,
            tool_state=state,
            make_key=cache(partial(idempotency_key, call, question, scope.tool_key)),
        )
        operators = getattr(question.engine, "operators", ())
        below = scope.below_model().under(budgets_of(operators, {} if scope.chat is None else scope.chat))
        self._caller = Caller(call, below, scheduler, self._context.cancelled, self._progress, self._on_failure)

    def edit(self, call: ToolCall) -> None:
        """Let `call` run, which has other arguments than the model's."""
        self._call = call
        self._context = replace(self._context, tool_call=own(call))

    def start(self) -> None:
        record = None if self._journal is None else self._journal.tool(self._path, self._context.idempotency_key)
        if record is not None:
            self._go_on(record)
        elif self._tool.approval and self._settings.approve is not None:
            self._ask_approval(self._settings.approve)
        else:
            self._execute()

    def _go_on(self, record: ToolRecord) -> None:
        self._has_begun = record.call is not None
        if record.call is not None and record.call != self._call:  # the arguments are those of an approval
            self.edit(record.call)
        call = self._call
        if record.events is not None:
            started = [ToolExecutionStarted(call.id, call.name, call.arguments)] if self._has_begun else []
            self._conclude([*started, *record.events])
        elif self._tool.idempotent:
            self._execute()
        else:
            self._conclude([ToolApprovalRequested(call.id, call.name, call.arguments, {"interrupted": True})])

    def dispose(self) -> None:
        self._ended = True
        self._context.cancelled.set()
        self._caller.dispose()
        self._timer.dispose()

    def _ask_approval(self, approve: Callable[[ToolCall], Any]) -> None:
        self._observer.on_next(ToolApprovalRequested(self._call.id, self._call.name, self._call.arguments))
        if self._settings.approve_timeout is not None:
            self._start_timer(self._settings.approve_timeout, self._time_out_approval)
        self._caller.call(lambda: approve(own(self._call)), is_async(approve), self._answered)

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
        self._caller.scope = self._caller.scope.of_tool(self._call.id, self._context.make_key)
        copy_context().run(self._announce)  # what observers set in it is the tool's

    def _announce(self) -> None:
        self._observer.on_next(ToolExecutionStarted(self._call.id, self._call.name, self._call.arguments))
        if self._ended:
            return
        if self._journal is None or self._has_begun:
            self._run_approved()
        else:
            note = partial(self._journal.begin, self._path, self._context.idempotency_key, self._call)
            self._caller.call(note, True, lambda result: self._run_approved(), on_failure=self._abort)

    def _run_approved(self) -> None:
        self._caller.is_approved = True
        self._run()

    def _run(self) -> None:
        if self._resumed is not None and self._context.reply is None:  # other calls go on, and this one waits still
            self._finish(halted_again(self._resumed[0], self._call))
            return
        try:
            handler = self._settings.bind(self._tool, self._context)
        except ToolError as error:
            self._fail(error)
            return
        self._arm()  # not before: the first check of arguments may import jsonschema-rs for a moment
        function = self._settings.executor or self._tool.handler
        self._caller.call(handler, is_async(function), self._return, self._progress)

    def _arm(self) -> None:
        if (seconds := self._settings.timeout_of(self._tool)) is not None:
            self._start_timer(seconds, self._time_out)

    def _start_timer(self, seconds: float, action: Callable[[abc.SchedulerBase, Any], None]) -> None:
        self._timer.disposable = clock(self._scheduler).schedule_relative(seconds, action)

    def _time_out(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._context.cancelled.set()
        self._caller.stop()  # before its failure is known: an agent's calls end first
        option = "tool_timeout" if self._tool.timeout == "default" else "its timeout"
        seconds = self._settings.timeout_of(self._tool)
        message = f"the tool {self._tool.name!r} did not finish within {seconds} s ({option})"
        self._fail(tool_error(self._call, "timeout", message))

    def _return(self, result: Any) -> None:
        if isinstance(result, Halt) and result.question is not None and result.calls_again:
            self._finish(halted(result, self._call))
            return
        self._finish(returned(result, self._call, self._settings))

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._abort(error)
        elif not self._ended:
            failure = self._as_tool_error(error)
            if failure is not error or failure.reason == "handler_exit":
                log.warning("the tool %r raised an error", self._tool.name, exc_info=shown_frames(error))
                failure.is_logged = True
            self._finish(failed(failure, self._call, self._settings))

    def _on_failure(self, error: BaseException) -> None:
        """End with what the tool or, before it, the approver has raised."""
        (self._fail if self._caller.is_approved else self._abort)(error)

    def _abort(self, error: BaseException) -> None:
        if not self._ended:
            self._fail_stream(error)

    def _fail_stream(self, error: BaseException) -> None:
        self._ended = True
        blame_caller(error)
        self._observer.on_error(cast(Exception, error))

    def _finish(self, events: list[Event]) -> None:
        if self._ended:
            return
        self._ended = True
        if self._journal is None or not events:
            self._conclude(events)
        else:
            self._timer.disposable = Disposable()
            note = partial(self._journal.finish, self._path, self._context.idempotency_key, events)
            self._caller.call(note, True, lambda result: self._conclude(events), on_failure=self._fail_stream)

    def _conclude(self, events: list[Event]) -> None:
        self._ended = True
        for event in events:
            self._observer.on_next(event)
        self._observer.on_completed()

    def _progress(self, data: Any) -> None:
        self._caller.on_loop(self._report, ToolProgress(self._call.id, self._call.name, data))

    def _report(self, event: Event) -> None:
        if not self._ended:
            self._observer.on_next(event)

    def _as_tool_error(self, error: Exception) -> ToolError:
        if isinstance(error, ToolError):
            return error
        message = f"{type(error).__name__}: {error}"
        failure = tool_error(self._call, "handler_raised", message)
        failure.__cause__ = error
        return failure
