"""The stream that runs one tool call and emits the call's events.

A journal (see ``operators.journaled``) records the call for later runs:

- If there is no record, the call runs. Its start is recorded before the function is called. Its outcome is recorded
  before the outcome's events are emitted.
- If an outcome is recorded, the run emits that outcome.
- If only a start is recorded, the call was interrupted. An ``idempotent`` tool or an agent runs again. For any other
  tool, the caller decides.

Exceptions that tools raise are logged, except `ToolError`. ``on_tool_error`` decides what the model receives.

An approver runs like a tool; see ``_caller``. If it raises an error or gives an invalid answer, the stream fails. If it
leaves the decision to the caller, the stream completes without an outcome.

A call that the provider runs once it is approved (``metadata["hosted"]``) is only decided here. No tool of the same
name runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import copy_context
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any, Protocol, cast

from reactivex import abc, of
from reactivex.disposable import Disposable, SerialDisposable

from rxllm.collector import AWAITING_USER, is_hosted, is_waiting, nest
from rxllm.events import (
    AskUserRequested,
    Event,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolHalt,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.runtime import Scope, Stream, ToolRecord, clock, shown_frames
from rxllm.tools._agent import AgentCall, AgentTool, agent_failure, answer_of, blame_caller, blames_caller, chats
from rxllm.tools._approval import question_events, read_decision, read_reply, repeat_question
from rxllm.tools._caller import Caller, idempotency_key, is_async
from rxllm.tools._settings import RESERVED_HALTS, TOO_DEEP, ToolSettings, encode_result, tool_error
from rxllm.values import ChatResult, Halt, LLMError, Thread, Tool, ToolCall, ToolContext, ToolError, ValidationError

log = logging.getLogger("rxllm")

MOST_DEEP = 16
"""The maximum number of tool calls that may enclose an agent. Python's stack would overflow at about 40."""


class Feed(Protocol):
    """A tool call's arguments while the model is still writing them."""

    @property
    def streams(self) -> Mapping[str, Any]: ...

    def when_complete(self, use: Callable[[ToolCall], None]) -> None:
        """Call ``use(call)`` as soon as the call is complete."""
        ...


def execution(
    tool: Tool,
    call: ToolCall,
    settings: ToolSettings,
    thread: Thread,
    scope: Scope,
    edited_call: ToolCall | None = None,
    resumed: tuple[Thread, Any] | None = None,
    feed: Feed | None = None,
) -> Stream[Event]:
    """Run `call`, and emit its start, progress, completion and outcome.

    * The stream fails only if the caller's code is at fault. See the module's docstring.
    * `thread` contains the messages before the call.
    * `scope` is the step's scope.
    * `edited_call` is `call` with new arguments in place of the model's arguments.
    * `resumed` continues an agent, or a tool that asked a question. It contains the thread and the caller's answers.
    * `feed` provides the arguments that the model is still writing.

    While an agent's chat waits for the caller, neither a completion nor an outcome is emitted.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        kind = AgentExecution if isinstance(tool, AgentTool) else ToolExecution
        kind = HostedExecution if is_hosted(call) else kind
        run = kind(tool, call, settings, thread, scope, observer, scheduler, resumed)
        if edited_call is not None:
            run.edit(edited_call)
        if feed is not None:
            run.read_from(feed)
        run.start()
        return run

    return Stream(subscribe)


class ToolExecution(abc.DisposableBase):
    def __init__(
        self,
        tool: Tool,
        call: ToolCall,
        settings: ToolSettings,
        thread: Thread,
        scope: Scope,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        resumed: tuple[Thread, Any] | None,
    ) -> None:
        self._tool = tool
        self._request_id = scope.request_id
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
        self._streams: Mapping[str, Any] | None = None
        self._is_whole = True  # False while the model is still writing the arguments
        self._key_of = partial(
            idempotency_key, thread=thread, session_id=settings.session_id, enclosing_key=scope.tool_key
        )
        self._models_call = call
        reply, state = read_reply(resumed)
        self._context = ToolContext(
            tool_call=copy_for_user(call),
            context=settings.context,
            session_id=settings.session_id,
            request_id=scope.request_id,
            engine=settings.engine,
            progress=self._progress,
            reply=reply,
            tool_state=state,
            make_key=cache(self._make_key),
        )
        below = scope.below_model().under(getattr(settings.engine, "operators", ()), scope.chat)
        self._caller = Caller(call, below, scheduler, self._context.cancelled, self._progress, self._on_failure)

    def edit(self, call: ToolCall) -> None:
        self._call = call
        self._context = replace(self._context, tool_call=copy_for_user(call))

    def read_from(self, feed: Feed) -> None:
        """Let the tool read the arguments that the model is still writing."""
        self._streams, self._is_whole = feed.streams, False
        feed.when_complete(self._complete)

    def _complete(self, call: ToolCall) -> None:
        self._call = self._models_call = call
        self._is_whole = True
        # The tool may already hold this context, so it is changed in place.
        object.__setattr__(self._context, "tool_call", copy_for_user(call))

    def _make_key(self) -> str:
        if not self._is_whole:
            fault = "has no idempotency key yet: the model is still writing the arguments"
            remedy = "first read all the streams to the end, or declare the tool without eager=True"
            raise RuntimeError(f"the call to {self._tool.name!r} {fault}; {remedy}")
        return self._key_of(self._models_call)

    def start(self) -> None:
        record = None if self._journal is None else self._journal.tool(self._path, self._context.idempotency_key)
        if record is not None:
            self._continue_from(record)
        elif self._tool.approval and self._settings.approve is not None:
            self._ask_approval(self._settings.approve)
        else:
            self._execute()

    def _continue_from(self, record: ToolRecord) -> None:
        self._has_begun = record.call is not None
        if record.call is not None and record.call != self._call:  # the approver changed the arguments
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
        self._caller.call(lambda: approve(copy_for_user(self._call)), is_async(approve), self._receive_answer)

    def _receive_answer(self, answer: Any) -> None:
        self._timer.disposable = Disposable()
        if self._ended:
            return
        try:
            decision = read_decision(answer, self._tool, self._call)
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
        self._receive_answer(f"there was no answer within {self._settings.approve_timeout} s (approve_timeout)")

    def _execute(self) -> None:
        self._caller.scope = self._caller.scope.of_tool(self._call.id, self._context.make_key)
        copy_context().run(self._announce)  # the tool inherits the observer's context variables

    def _announce(self) -> None:
        self._observer.on_next(ToolExecutionStarted(self._call.id, self._call.name, self._call.arguments))
        if self._ended:
            return
        if self._journal is None or self._has_begun:
            self._run_approved(None)
        else:
            note = partial(self._journal.begin, self._path, self._context.idempotency_key, self._call)
            self._caller.call(note, True, self._run_approved, on_failure=self._abort)

    def _run_approved(self, _: Any) -> None:
        self._caller.is_approved = True
        self._run()

    def _run(self) -> None:
        if self._resumed is not None and self._context.reply is None:  # the user has not answered the question
            self._finish(repeat_question(self._resumed[0], self._call))
            return
        try:
            handler = self._settings.bind(self._tool, self._context, self._streams)
        except ToolError as error:
            self._fail(error)
            return
        self._arm()  # after `bind`, because that may import jsonschema-rs, which is slow
        function = self._settings.executor or self._tool.handler
        self._caller.call(handler, is_async(function), self._return, self._progress)

    def _arm(self) -> None:
        if (seconds := self._settings.timeout_of(self._tool)) is not None:
            self._start_timer(seconds, self._time_out)

    def _start_timer(self, seconds: float, action: Callable[[abc.SchedulerBase, Any], None]) -> None:
        self._timer.disposable = clock(self._scheduler).schedule_relative(seconds, action)

    def _time_out(self, scheduler: abc.SchedulerBase, state: Any) -> None:
        self._context.cancelled.set()
        self._caller.stop()  # the tool must stop before the failure is emitted
        option = "tool_timeout" if self._tool.timeout == "default" else "its timeout"
        seconds = self._settings.timeout_of(self._tool)
        message = f"the tool {self._tool.name!r} did not finish within {seconds} s ({option})"
        self._fail(tool_error(self._call, "timeout", message))

    def _return(self, result: Any) -> None:
        if isinstance(result, Halt) and result.question is not None and result.calls_again:
            self._finish(question_events(result, self._call))
            return
        self._finish(result_events(result, self._call, self._settings))

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._abort(error)
        elif not self._ended:
            failure = error if isinstance(error, ToolError) else None
            if failure is None:
                failure = tool_error(self._call, "handler_raised", f"{type(error).__name__}: {error}")
                failure.__cause__ = error
            if failure is not error or failure.reason == "handler_exit":
                log.warning("the tool %r raised an error", self._tool.name, exc_info=shown_frames(error))
                failure.is_logged = True
            self._finish(failed(failure, self._call, self._settings))

    def _on_failure(self, error: BaseException) -> None:
        """End the call if the tool failed. If the approver failed, end the stream with the error."""
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


class AgentExecution(ToolExecution):
    def _run(self) -> None:
        agent = cast(AgentTool, self._tool)
        self._journal = None  # the calls and tools inside the agent are recorded instead
        if len(self._caller.scope.path) > MOST_DEEP:
            message = f"the agent {agent.name!r} is nested more than {MOST_DEEP} tool calls deep"
            self._fail(tool_error(self._call, "handler_raised", f"{message}; nest fewer agents"))
            return
        self._arm()
        try:
            if self._resumed is None:
                self._settings.check_call(agent, self._call)
            chat = chats().chat(AgentCall(agent, self._call, self._settings, self._request_id, *(self._resumed or ())))
        except ToolError as error:
            self._fail(error)
            return

        def end(last: Any) -> None:
            self._caller.listen(of(last).pipe(chat.to_result), self._end)

        self._caller.listen(chat.events, end, self._nest)

    def _nest(self, event: Event) -> None:
        self._caller.on_loop(self._report, nest(self._call.id, event))

    def _end(self, result: ChatResult) -> None:
        if result.error is not None:
            self._on_failure(result.error)
        elif is_waiting(result):
            self._finish([])
        else:
            self._return(answer_of(result))

    def _on_failure(self, error: BaseException) -> None:
        if not self._caller.is_approved:
            super()._on_failure(error)
        elif isinstance(error, LLMError) and not blames_caller(error):
            self._fail(agent_failure(self._call, error))
        else:
            self._abort(error)


class HostedExecution(ToolExecution):
    """Answers the provider, which runs the call itself. The answer is the result of the call."""

    def _execute(self) -> None:
        approved = {"approve": True}
        result = ToolResultEncoded(self._call.id, encode_result(approved))  # never by the caller's encoder
        self._finish([ToolExecutionCompleted(self._call.id, self._call.name, approved), result])


def copy_for_user(call: ToolCall) -> ToolCall:
    try:
        return deepcopy(call)
    except RecursionError:
        return replace(call, arguments={}, metadata={**call.metadata, "error": TOO_DEEP})


def result_events(result: Any, call: ToolCall, settings: ToolSettings) -> list[Event]:
    try:
        outcome = _outcome(result, call, settings)
    except ToolError as error:
        if error.reason == "encoding_failed":
            log.warning("%s", error.message)  # the model does not receive these details
            error.is_logged = True
        return failed(error, call, settings)
    if isinstance(result, Halt):
        result = AWAITING_USER if result.question is not None else result.result
    return [ToolExecutionCompleted(call.id, call.name, result), outcome]


def failed(error: ToolError, call: ToolCall, settings: ToolSettings) -> list[Event]:
    """Return the events for a failed tool call, according to ``on_tool_error``."""
    return [ToolExecutionCompleted(call.id, call.name, error=error), _apply_policy(error, call, settings)]


def _apply_policy(error: ToolError, call: ToolCall, settings: ToolSettings) -> Event:
    content, decision = settings.encode_error(error, call), settings.on_tool_error
    metadata: dict[str, Any] = {}
    if not isinstance(decision, str):
        try:
            decision = decision(copy_for_user(call), error)
            if not isinstance(decision, str) or decision not in ("continue", "halt"):
                return _outcome(decision, call, settings)
        except Exception as raised:
            decision = "halt"
            if raised is not error:  # to halt the chat, the function may raise the tool's own error
                metadata["on_tool_error_exception"] = {"type": type(raised).__name__, "message": str(raised)}
    if decision == "continue":
        return ToolResultEncoded(call.id, content)
    return ToolHalt(call.id, "tool_error", content=content, metadata=metadata)


def is_halting(event: Event) -> bool:
    """Whether `event` halts the chat."""
    return isinstance(event, ToolHalt | AskUserRequested)


def _outcome(result: Any, call: ToolCall, settings: ToolSettings) -> Event:
    if not isinstance(result, Halt):
        return ToolResultEncoded(call.id, *settings.encode(result, call))
    if result.question is not None:
        return AskUserRequested(call.id, call.name, result.question, dict(result.opts))
    if result.reason in RESERVED_HALTS:
        message = f"a tool cannot halt with the reason {result.reason!r}, which is reserved; choose a different reason"
        metadata = {"reserved_halt_reason": result.reason}
        raise ToolError("invalid_return", message, tool_name=call.name, tool_call_id=call.id, metadata=metadata)
    content, parts = settings.encode(result.result, call)
    return ToolHalt(call.id, result.reason, result.result, content, parts=parts)
