"""One subscription to ``run_tools``: the events of a response, the tools that it calls, and the end of the step.

A tool can start early, while the model is still writing. What happens to it depends on how the response continues:

==================================  ===================================================================================
the response                        effect on the tools that have started early
==================================  ===================================================================================
ends and its calls run              Their outcomes are emitted. The other tools start.
fails or is restarted, or ends but  They are stopped, and their results are dropped.
its calls do not run
ends early because a tool fails or  The source is disposed. That tool's call is marked as incomplete, but the tool's
halts while the model writes its    outcome is kept. Tools with complete calls continue. The other incomplete calls are
arguments (a veto)                  dropped, and their tools are stopped.
==================================  ===================================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable
from reactivex.scheduler import VirtualTimeScheduler

from rxllm.collector import VETOED, StreamCollector, joined
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
from rxllm.operators._event_operators import EVENTS, not_an_event
from rxllm.operators._steering import until_sentence
from rxllm.operators._step_tools import EarlyRecord, StepTools, close_response, recalled_key
from rxllm.runtime import (
    Hold,
    RecallingJournal,
    ScopedObserver,
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
from rxllm.tools import WAITING, AgentTool, ToolSettings, WaitingCalls
from rxllm.values import EngineError, FunctionTool, LLMError, StepResult, Thread, Tool, ToolCall

_THEIRS = ("server", "hosted")
"""The metadata keys of calls that the provider runs, even if a tool here has the same name."""

MOST_LISTENING = 64
"""The most calls of a response whose tools read the arguments while the model writes them. The others wait."""

_CALLS = frozenset({ToolCallStarted, ToolCallDelta, ToolCallCompleted})


class ToolStep(abc.DisposableBase):
    """One subscription to ``run_tools``. It emits the source's events, the tools' events and the ``StepCompleted``."""

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
        # The tools refer to this object, and a reference cycle delays clean-up, so they are created only when needed.
        self._tools: StepTools | None = None
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
        self._drop_feeds()
        self._source.dispose()
        # Dispose of the source first. The disposal makes the journal record the response, which `settle` relies on.
        self._early.settle(is_used=False)
        self._scheduled.dispose()
        self._dispose_tools()

    def _recall_cut(self) -> Sequence[Event] | None:
        """Return the events of this response if an earlier run of the stream cut the response off.

        Otherwise, return None.
        """
        journal = self._scope.journal
        key = recalled_key("cut", self._thread)
        return journal.recall(self._scope.path, key) if isinstance(journal, RecallingJournal) else None

    def _keep_cut(self, events: Sequence[Event]) -> None:
        if isinstance(journal := self._scope.journal, RecallingJournal):
            journal.keep(self._scope.path, recalled_key("cut", self._thread), events)

    # While the model is writing

    def _on_next(self, event: Event) -> None:
        if type(event) is ErrorEvent:
            self._void("the response failed")
        elif type(event) is StepRestarted:
            self._void("the response was restarted")
        self._emit(event)
        if type(event) in _CALLS:
            self._follow_call(event)

    def _follow_call(self, event: Event) -> None:
        match event:
            case ToolCallStarted(id=id, name=name):
                tool, is_ours = self._settings.tools_by_name.get(name), event.metadata.keys().isdisjoint(_THEIRS)
                if tool is None or not is_ours or len(self._feeds) >= MOST_LISTENING:
                    return
                if self._may_stream(tool) and self._is_serial():
                    self._feeds[id] = ArgumentFeed(tool, id, self._begin_listening, self._open_source)
            case ToolCallDelta(id=id, arguments_delta=delta) if id in self._feeds:
                self._feeds[id].feed(delta)
            case ToolCallCompleted():
                self._end_call(event)
            case _:
                pass

    def _begin_listening(self, feed: ArgumentFeed) -> None:
        """Start the tool of `feed`, if the feed is ready and belongs to this response."""
        id = feed.id
        if feed.is_ready and id not in self._eager and self._feeds.get(id) is feed:
            tool, state = feed.tool, self._state
            call = self._eager[id] = ToolCall(id, tool.name, feed.arguments)
            self._schedule(partial(self._begin_early, tool, call, state, feed))

    def _end_call(self, event: ToolCallCompleted) -> None:
        feed = self._feeds.pop(event.id, None)
        if feed is not None and feed.has_started:
            call = ToolCall(event.id, event.name, dict(event.arguments), event.raw_arguments, dict(event.metadata))
            feed.end(call)
            self._step_tools().complete(event.id, feed.rewritten(call))
        else:
            if feed is not None:  # all arguments have arrived, so the tool receives them together
                feed.close()
                self._eager.pop(event.id, None)
            self._start_early(event)

    def _drop_feeds(self) -> None:
        while self._feeds:
            self._feeds.popitem()[1].close()

    def _may_stream(self, tool: Tool) -> TypeGuard[FunctionTool[..., Any]]:
        """Return whether `tool` can start while the model is still writing its arguments."""
        # A journal identifies a call by its full arguments. Under virtual time, there is no event loop that could run
        # the tool.
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
        except Exception as error:  # for example, because raw usage has unknown keys
            self._dispose_tools()
            self._observer.on_error(error)
            return
        self._observer.on_next(event)

    def _start_early(self, event: ToolCallCompleted) -> None:
        """Start the tool that `event` calls, unless it has to wait for the end of the response."""
        tool = self._settings.tools_by_name.get(event.name)
        if tool is None or event.id in self._eager or not self._may_start_early(tool, event):
            return
        call = self._eager[event.id] = event.tool_call
        self._schedule(partial(self._begin_early, tool, call, self._state, None))

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
        if not self._settings.is_eager(tool) or not event.metadata.keys().isdisjoint(("error", *_THEIRS)):
            return False
        if isinstance(tool, AgentTool) and (not tool.eager or self._scope.journal is not None):
            # An agent is always marked as idempotent, even if its tools are not. It therefore starts early only if its
            # own `eager` is True. With a journal, no agent starts early, because a discarded agent would leave its
            # records there.
            return False
        return self._is_serial() and self._early.is_possible

    def _is_serial(self) -> bool:
        # If the source emits on other threads, its events could overlap with the tool's events.
        return isinstance(self._scheduler, VirtualTimeScheduler) or running_loop() is call_loop()

    def _void(self, reason: str) -> None:
        """Stop the tools that have started early, and discard their results."""
        self._eager.clear()
        self._drop_feeds()
        self._early.discard()
        if self._tools is not None:
            for event in self._tools.void(f"{reason}, so this tool was stopped and its result is not used"):
                self._deliver(event)

    def _veto(self, call: ToolCall) -> None:
        """End the response, because `call` is incomplete and its tool has either failed or halted the chat."""
        self._source.dispose()
        self._drop_feeds()
        *completions, end = close_response(self._state, VETOED, call)
        reason = (
            f"the tool {call.name!r} ended the response before the model had completed this call, so the call was "
            "stopped and its result is not used"
        )
        for event in [*completions, *self._step_tools().cut(call, reason), end]:
            self._deliver(event)
        self._on_completed()

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
        unknown = [call for call in calls if self._settings.tool_of(call) is None]
        runs = bool(calls) and self._settings.mode == "auto" and not unknown
        self._early.settle(is_used=runs)
        if calls and self._settings.mode == "manual":
            self._metadata["mode"] = "manual"
        elif unknown:
            self._deliver(ErrorEvent(self._unknown_tools(unknown)))
        if runs:
            for event in self._step_tools().stop_incomplete("the call was never completed, so the tool was stopped"):
                self._deliver(event)
            self._schedule(partial(self._run_calls, calls))
        else:
            self._void("the response's tool calls do not run")
            self._complete(self._state.to_step_result())

    def _schedule(self, action: Callable[[abc.SchedulerBase, Any], None]) -> None:
        # The source may emit on any thread, but the tools run on the call's own loop.
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
            callbacks = (self._deliver, self._veto, self._finish, self._fail)
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
            tool = self._settings.tool_of(call)
            assert tool is not None
            if tool.manual:
                manual.append(call)
            elif tool.approval and self._settings.approve is None:
                waiting.append(call)
            else:
                runnable.append((tool, call))
        return runnable, {"manual_tool_calls": tuple(manual), "approval_tool_calls": tuple(waiting)}

    def _deliver(self, event: Event) -> None:
        # If the subscriber raises an exception, there is no caller left for the exception to propagate to.
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
        message = f"the model called tools that are not available: {names}; the available tools are: {known}"
        return EngineError("unknown_tool", message, metadata={"tool_name": calls[0].name})
