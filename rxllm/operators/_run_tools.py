"""The operator that runs the tools called by a response."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeGuard

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.collector import StreamCollector, joined
from rxllm.engine import as_engine
from rxllm.events import (
    ErrorEvent,
    Event,
    StepCompleted,
    StepRestarted,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from rxllm.operators._argument_feed import ArgumentFeed
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.operators._steering import until_sentence
from rxllm.operators._step_tools import EarlyRecord, StepTools, recalled_key
from rxllm.runtime import (
    Hold,
    RecallingJournal,
    ScopedObserver,
    Stream,
    behind,
    call_loop,
    clock,
    conclude,
    current_gate,
    current_scope,
    fail,
    new_id,
    paced,
    running_loop,
    within,
)
from rxllm.tools import (
    WAITING,
    AgentTool,
    Approve,
    Encoder,
    Executor,
    OnToolError,
    ToolSettings,
    WaitingCalls,
)
from rxllm.values import (
    EngineError,
    FunctionTool,
    LLMError,
    StepResult,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
    as_tools,
)
from rxllm.values.argument_checks import invalid_option
from rxllm.values.sessions import Input, as_thread


def run_tools(
    tools: Iterable[Tool | Callable[..., Any]] = (),
    *,
    thread: Input | None = None,
    mode: Literal["auto", "manual"] = "auto",
    context: Mapping[str, Any] | None = None,
    on_tool_error: OnToolError = "continue",
    tool_timeout: float | None = 30.0,
    max_concurrency: int | None = None,
    eager: bool | None = None,
    executor: Executor | None = None,
    encoder: Encoder | None = None,
    approve: Approve | None = None,
    approve_timeout: float | None = None,
    engine: Any = None,
    session_id: str | None = None,
    request_id: str | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Emit the events of a response, run the tools that it calls, and end with a ``StepCompleted``.

    ::

        source          --start--call--end--|
        run_tools()     --start--call--end--started--completed--encoded--(step)|

    >>> from rxllm import Fake, Thread, ToolCall, stream_generate, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> model, thread = Fake(ToolCall("c1", "double", {"x": 21})), Thread().add_user("Double 21")
    >>> stream_generate(model, thread).pipe(run_tools([double], thread=thread)).run().result.tool_results
    (Message('tool', '42'),)

    `tools` contains tools, or functions that ``rxllm.tool`` can turn into tools. Results are sent to the model as text
    or JSON; pydantic models, dataclasses, datetimes, enums and sets are encoded too. `thread` is the input to the model
    call: a thread, messages or text. The thread in the ``StepCompleted`` is `thread` followed by the answer and the
    results, in the order of the tool calls.

    With ``mode="manual"``, no tools run and the caller has to answer the tool calls. A tool marked ``manual`` is always
    left to the caller. At most `max_concurrency` tools run at once; by default there is no limit. `tool_timeout` limits
    the run time of each tool, in seconds, unless the tool sets its own timeout. If the model calls a tool that does not
    exist, none of the tools run, and an ``ErrorEvent`` with ``EngineError("unknown_tool")`` is emitted.

    A tool that fails does not end the stream. With ``on_tool_error="continue"``, the model receives the error as the
    tool's result; with ``"halt"``, the chat halts. `on_tool_error` can also be a function that takes the `ToolCall` and
    the `ToolError`, and returns ``"continue"`` or ``"halt"``, a replacement for the result, or ``halt(...)``. If it
    re-raises the error, the chat halts too. Halts are emitted after all tools have finished, in the order of the tool
    calls. Any exception that is not a `ToolError` is logged with its traceback. A result that cannot be encoded is
    logged as well, and treated as a ``ToolError("encoding_failed")``.

    A tool with ``approval=True`` runs only if ``approve(tool_call)`` returns True or a mapping. The tool receives the
    mapping in place of the model's arguments, which stay in the thread. False, or text with the reason,
    denies the call. With ``halt("approval")``, or without `approve`, the caller decides later. `approve` may return an
    awaitable, or an Observable that ends with the answer. An unanswered call is denied after `approve_timeout` seconds.

    Three results of `approve` are bugs in the caller's code: an exception, any other answer (``TypeError``), and
    arguments that the tool does not accept (``ValidationError("invalid_option")``). They end the stream through
    ``on_error`` and are not sent to the model.

    A tool with ``eager=True`` starts as soon as its call is complete, while the model is still writing::

        source          --start--call--end--text----------|
        run_tools()     --start--call--end-(started)-text-(completed)-|(encoded)(step)|

    Its events are emitted at once, except for the result, which follows the response. If the response then fails, is
    restarted or does not run its calls, the tool is stopped, and its result is dropped. `eager` set to True starts
    ``idempotent`` tools early too, but no agents, and False starts none. Tools that need an approval, ``manual`` tools
    and tools whose source emits on another thread wait for the end of the response.

    If given, ``executor(tool, arguments, context)`` is called instead of each tool's handler, and ``encoder(result)``
    returns the text for the model. Tools receive `context`, `engine`, `session_id` and `request_id` in their
    `ToolContext`. `request_id` defaults to the chat's id, or else to a new one; the model call uses the same id.

    Raises ``ValidationError("invalid_option")`` for invalid options or if `thread` is missing.
    """
    settings = ToolSettings(
        tools=as_tools(tools),
        mode=mode,
        context=context or {},
        on_tool_error=on_tool_error,
        tool_timeout=tool_timeout,
        max_concurrency=max_concurrency,
        eager=eager,
        executor=executor,
        encoder=encoder,
        approve=approve,
        approve_timeout=approve_timeout,
        engine=None if engine is None else as_engine(engine),
        session_id=session_id,
        request_id=request_id,
    )
    model_input = _checked_thread(thread)
    return operate(lambda source, observer, scheduler: _Step(settings, model_input, observer, scheduler).start(source))


class _Step(abc.DisposableBase):
    """One subscription. It emits the source's events, the tools' events, and then the ``StepCompleted``."""

    def __init__(
        self,
        settings: ToolSettings,
        thread: Thread,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._settings = settings
        self._observer = ScopedObserver(observer)
        self._scheduler = scheduler
        self._thread = thread
        scope = current_scope.get()
        self._is_steered = scope.is_steered
        chat = {} if scope.chat is None else scope.chat
        id = settings.request_id or scope.request_id or new_id()
        self._scope = replace(scope, request_id=id, chat=chat, is_steered=None)
        self._state = StreamCollector(thread)
        self._source = SingleAssignmentDisposable()
        self._scheduled = CompositeDisposable()
        self._gate = current_gate()
        self._tools: StepTools | None = None  # created late: it refers to this object, and a cycle delays clean-up
        self._early = EarlyRecord(self._scope, thread, settings.session_id)
        self._hold: Hold | None = None
        self._feeds: dict[str, ArgumentFeed] = {}  # the calls whose arguments the model is still writing, by id
        self._eager: dict[str, ToolCall] = {}  # the calls that are about to start early, by id
        self._waiting = WaitingCalls()
        self._metadata: dict[str, Any] = {}

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        source = self._early.recall() or source
        if any(map(self._may_stream, self._settings.tools)):
            source = paced(source, self._hold_source())
        if self._is_steered is not None:
            source = until_sentence(source, self._is_steered, self._recall_cut, self._keep_cut)
        with within(self._scope):
            self._source.disposable = source.subscribe(
                self._on_next, self._on_error, self._on_completed, scheduler=self._scheduler
            )
        return self

    def dispose(self) -> None:
        self._eager.clear()
        self._feeds.clear()
        self._source.dispose()
        self._early.settle(is_used=False)  # only after disposing the source, because a journal records that first
        self._scheduled.dispose()
        self._dispose_tools()

    def _recall_cut(self) -> Sequence[Event] | None:
        """Return the recorded events of this response if an earlier run of the stream cut it off, or else None."""
        journal = self._scope.journal
        key = recalled_key("cut", self._thread)
        return journal.recall(self._scope.path, key) if isinstance(journal, RecallingJournal) else None

    def _keep_cut(self, events: Sequence[Event]) -> None:
        if isinstance(journal := self._scope.journal, RecallingJournal):
            journal.keep(self._scope.path, recalled_key("cut", self._thread), events)

    # While the model writes

    def _on_next(self, event: Event) -> None:
        if type(event) is ErrorEvent:
            self._void("the response failed")
        elif type(event) is StepRestarted:
            self._void("the response was restarted")
        self._emit(event)
        match event:
            case ToolCallStarted(id=id, name=name):
                tool, is_server = self._settings.tools_by_name.get(name), event.metadata.get("server")
                if tool is not None and not is_server and self._may_stream(tool) and self._is_serial():
                    self._feeds[id] = ArgumentFeed(tool, id, self._open_source)
            case ToolCallDelta(id=id, arguments_delta=delta) if id in self._feeds:
                self._feed(id, delta)
            case ToolCallCompleted():
                self._end_call(event)
            case _:
                pass

    def _feed(self, id: str, delta: str) -> None:
        feed = self._feeds[id]
        feed.feed(delta)
        if feed.is_ready and id not in self._eager:
            tool, state = feed.tool, self._state
            call = self._eager[id] = ToolCall(id, tool.name, feed.arguments)
            self._schedule(partial(self._begin_early, tool, call, state, feed))

    def _end_call(self, event: ToolCallCompleted) -> None:
        feed = self._feeds.pop(event.id, None)
        if feed is not None and feed.has_started:
            feed.end(ToolCall(event.id, event.name, dict(event.arguments), event.raw_arguments, dict(event.metadata)))
            self._step_tools().complete(event.id)
        else:
            if feed is not None:  # all arguments are here, so the tool gets them at once
                self._eager.pop(event.id, None)
            self._start_early(event)

    def _may_stream(self, tool: Tool) -> TypeGuard[FunctionTool[..., Any]]:
        """Whether `tool` can start while the model is still writing its arguments."""
        # A journal identifies a call by its whole arguments. Under virtual time, no loop can run the tool.
        is_possible = self._scope.journal is None and not isinstance(self._scheduler, VirtualTimeScheduler)
        return self._settings.streams_arguments(tool) and self._settings.is_eager(tool) and is_possible

    def _hold_source(self) -> Hold:
        self._hold = Hold(is_full=lambda: any(feed.is_full for feed in self._feeds.values()))
        return self._hold

    def _open_source(self) -> None:
        if self._hold is not None:
            self._hold.open()

    def _emit(self, event: Event) -> None:
        try:
            if type(event) not in EVENTS:
                raise not_an_event("run_tools", event)
            self._state = self._state.apply_event(event)
        except Exception as error:  # raised, for example, by raw usage with unknown keys
            self._dispose_tools()
            self._observer.on_error(error)
            return
        self._observer.on_next(event)

    def _start_early(self, event: ToolCallCompleted) -> None:
        """Start the tool that `event` calls now, if it may start before the response has ended."""
        tool = self._settings.tools_by_name.get(event.name)
        if tool is None or event.id in self._eager or not self._may_start_early(tool, event):
            return
        state = self._state
        call = self._eager[event.id] = state.current_tool_calls[event.id]
        self._schedule(partial(self._begin_early, tool, call, state, None))

    def _begin_early(
        self,
        tool: Tool,
        call: ToolCall,
        state: StreamCollector,
        feed: ArgumentFeed | None,
        scheduler: abc.SchedulerBase,
        _: Any,
    ) -> None:
        tools = self._step_tools()
        if self._eager.get(call.id) is call and tools.add(tool, call, feed):
            if feed is not None:
                feed.has_started = True
            self._early.keep(call, state)
            self._run(tools)

    def _may_start_early(self, tool: Tool, event: ToolCallCompleted) -> bool:
        if not self._settings.is_eager(tool) or "error" in event.metadata or event.metadata.get("server"):
            return False
        if isinstance(tool, AgentTool) and (not tool.eager or self._scope.journal is not None):
            # An agent is idempotent because it is journaled, whatever its tools do. A discarded agent would leave
            # records of its own in the journal.
            return False
        return self._is_serial() and self._early.is_possible

    def _is_serial(self) -> bool:
        # If the source emits on other threads, its events could overlap with the tool's events.
        return isinstance(self._scheduler, VirtualTimeScheduler) or running_loop() is call_loop()

    def _void(self, reason: str) -> None:
        """Stop the tools that have started early, and drop their results."""
        self._eager.clear()
        self._feeds.clear()
        self._early.discard()
        if self._tools is not None:
            for event in self._tools.void(f"{reason}, so the tool was stopped and its result is not used"):
                self._deliver(event)

    def _on_error(self, error: Exception) -> None:
        self._eager.clear()
        self._dispose_tools()
        if isinstance(error, LLMError) and error.reason != "cancelled":  # a journal records only these errors
            self._early.settle(is_used=False)
        self._observer.on_error(error)

    # After the response

    def _on_completed(self) -> None:
        self._eager.clear()
        step = self._state.to_step_result()
        calls = step.response.tool_calls if step.response.finish_reason == "tool_calls" else ()
        unknown = [call for call in calls if call.name not in self._settings.tools_by_name]
        runs = bool(calls) and self._settings.mode == "auto" and not unknown
        self._early.settle(is_used=runs)
        if calls and self._settings.mode == "manual":
            self._metadata["mode"] = "manual"
        elif unknown:
            self._deliver(ErrorEvent(self._unknown_tools(unknown)))
        if runs:
            self._schedule(partial(self._run_calls, calls))
        else:
            self._void("the response's tool calls do not run")
            self._complete(self._state.to_step_result())

    def _schedule(self, action: Callable[[abc.SchedulerBase, Any], None]) -> None:
        # The source may emit on any thread. The tools run on the call's own loop.
        loop = clock(self._scheduler)

        def start() -> None:
            self._scheduled.add(loop.schedule(action))

        if self._gate is None:
            start()
        else:
            self._gate.before_tools(start)

    def _run_calls(self, calls: tuple[ToolCall, ...], scheduler: abc.SchedulerBase, _: Any) -> None:
        runnable, deferred = self._partition(calls)
        self._metadata.update({name: calls for name, calls in deferred.items() if calls})
        for call in deferred["approval_tool_calls"]:
            self._deliver(ToolApprovalRequested(call.id, call.name, call.arguments))
        tools = self._step_tools()
        tools.end_response(calls)
        for tool, call in runnable:
            tools.add(tool, call)
        self._run(tools)

    def _run(self, tools: StepTools) -> None:
        with behind(self._gate):  # a slow consumer also slows the agents down
            tools.start()

    def _step_tools(self) -> StepTools:
        if self._tools is None:
            callbacks = (self._deliver, self._finish, self._fail)
            self._tools = StepTools(self._settings, self._thread, self._scope, self._scheduler, *callbacks)
        return self._tools

    def _dispose_tools(self) -> None:
        if self._tools is not None:
            self._tools.dispose()

    def _partition(
        self, calls: tuple[ToolCall, ...]
    ) -> tuple[list[tuple[Tool, ToolCall]], dict[str, tuple[ToolCall, ...]]]:
        """Return the calls to run, each with its tool, and the calls that are left to the caller."""
        runnable: list[tuple[Tool, ToolCall]] = []
        manual: list[ToolCall] = []
        waiting: list[ToolCall] = []
        for call in calls:
            tool = self._settings.tools_by_name[call.name]
            if tool.manual:
                manual.append(call)
            elif tool.approval and self._settings.approve is None:
                waiting.append(call)
            else:
                runnable.append((tool, call))
        return runnable, {"manual_tool_calls": tuple(manual), "approval_tool_calls": tuple(waiting)}

    def _deliver(self, event: Event) -> None:
        # No caller would pass on an exception that the subscriber raises.
        self._waiting.note(event)
        try:
            self._emit(event)
        except BaseException as error:
            self.dispose()
            fail(self._observer, error)

    def _fail(self, error: Any) -> None:
        """End the stream because of a bug in the caller's code."""
        self.dispose()
        self._observer.on_error(error)

    def _finish(self) -> None:
        step = self._state.to_step_result()
        self._metadata.update(self._waiting.of(step.response.tool_calls))
        self._complete(step)

    def _complete(self, result: StepResult) -> None:
        if self._metadata:
            waits = any(name in self._metadata for name in WAITING)
            metadata = joined(self._metadata, result.metadata)
            result = dataclasses.replace(result, done=result.done or waits, metadata=metadata)
        conclude(self._observer, (StepCompleted(result),))

    def _unknown_tools(self, calls: list[ToolCall]) -> EngineError:
        names = ", ".join(repr(call.name) for call in calls)
        known = ", ".join(repr(tool.name) for tool in self._settings.tools) or "none"
        message = f"the model called {names}, which is not among the available tools: {known}"
        return EngineError("unknown_tool", message, metadata={"tool_name": calls[0].name})


def _checked_thread(thread: Input | None) -> Thread:
    if thread is None:
        fault = "is missing: write run_tools(tools, thread=thread), with the thread that you sent to the model"
        raise invalid_option("thread", fault)
    try:
        return as_thread(thread)
    except ValidationError as error:
        raise invalid_option("thread", error.errors[0][1]) from None
