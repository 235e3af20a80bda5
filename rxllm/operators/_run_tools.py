"""Run the tools that a response asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.collector import StreamCollector
from rxllm.events import ErrorEvent, Event, StepCompleted, ToolApprovalRequested
from rxllm.operators._shared.event_operators import EVENTS, not_an_event
from rxllm.runtime import Bounded, Question, Stream, clock, conclude, current_scope, fail, within
from rxllm.tools import Approve, Encoder, Executor, OnToolError, ToolSettings, execution, is_halting
from rxllm.values import EngineError, Thread, Tool, ToolCall, ValidationError
from rxllm.values.arguments import check_instance, invalid_option


def run_tools(
    tools: Iterable[Tool] = (),
    *,
    thread: Thread | None = None,
    mode: Literal["auto", "manual"] = "auto",
    context: Mapping[str, Any] | None = None,
    on_tool_error: OnToolError = "continue",
    tool_timeout: float | None = 30.0,
    max_concurrency: int | None = None,
    executor: Executor | None = None,
    encoder: Encoder | None = None,
    approve: Approve | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Pass the events of a response on; then run the tools it calls, all at once, and end with a ``StepCompleted``.

    ::

        source          --start--call--end--|
        run_tools()     --start--call--end--started--completed--encoded--(step)|

    >>> from rxllm import Fake, ToolCall, stream_generate, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> events = stream_generate(Fake(ToolCall("c1", "double", {"x": 21})), "Double 21").pipe(run_tools([double]))
    >>> events.run().result.tool_results
    (Message('tool', '42'),)

    `thread` is what the response answers; the step's thread is that, the answer and the results, in the order of the
    calls. Behind ``stream_generate`` it may be left out: it is then the thread that was asked, as the step's tools get
    the engine and the ids of that call in their `ToolContext`. Elsewhere, as behind a recording, a step without it is a
    ``ValidationError("invalid_option")``, through ``on_error`` and before any tool runs.

    With ``mode="manual"``, and for ``manual`` tools, nothing runs and the calls are left to the caller.
    `tool_timeout` is in seconds and counts per tool. A tool that fails does not end the stream: `on_tool_error` is
    ``"continue"`` (the model is told), ``"halt"``, or a function of the call and the `ToolError` that returns one of
    these words, a replacement for the result, or ``halt(...)``; raising that error again halts too. Halts are emitted
    once all siblings have finished, in the order of the calls. A call of a tool that does not exist runs none of them
    and is an ``ErrorEvent`` with ``EngineError("unknown_tool")``.

    Tools with ``approval=True`` run once ``approve(call)`` says True (a bool, a reason to refuse, an awaitable or an
    Observable of these); without `approve` they are left to the caller. At most `max_concurrency` tools run at once.
    `executor(tool, arguments, context)` runs a tool in its handler's place, `encoder(result)` gives the text that the
    model is told, `context` is what tools find in their `ToolContext`.

    Raises ``ValidationError("invalid_option")`` for options that make no sense.
    """
    check_instance("tools", tools, Iterable, "tools; make them with rxllm.tool")
    made = tuple(tools)
    for each in made:
        check_instance("tools", each, Tool, "tools; make them with rxllm.tool")
    check_instance("thread", thread, Thread | None, "a Thread")
    settings = ToolSettings(
        tools=made,
        mode=mode,
        context=context or {},
        on_tool_error=on_tool_error,
        tool_timeout=tool_timeout,
        max_concurrency=max_concurrency,
        executor=executor,
        encoder=encoder,
        approve=approve,
    )

    def operator(source: Observable[Event]) -> Stream[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _Step(settings, thread, observer, scheduler).start(source)

        return Stream(subscribe)

    return operator


class _Step:
    """One subscription: the source's events, then the tools', then the end."""

    def __init__(
        self,
        settings: ToolSettings,
        thread: Thread | None,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._scheduler = scheduler
        self._thread = thread
        self._question = Question()
        self._scope = replace(current_scope.get(), question=self._question)
        self._state = StreamCollector()
        self._tools = SerialDisposable()
        self._halts: dict[int, Event] = {}
        self._metadata: dict[str, Any] = {}

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        with within(self._scope):
            subscription = source.subscribe(
                self._emit, self._observer.on_error, self._answered, scheduler=self._scheduler
            )
        return CompositeDisposable(subscription, self._tools)

    def _emit(self, event: Event) -> None:
        try:
            if type(event) not in EVENTS:
                raise not_an_event("run_tools", event)
            self._state = self._state.apply_event(event)
        except Exception as error:  # a raw usage with unknown keys
            self._observer.on_error(error)
            return
        self._observer.on_next(event)

    def _answered(self) -> None:
        thread = self._state.thread or self._thread or self._question.thread
        if thread is None:
            self._observer.on_error(_no_thread())
            return
        self._state = replace(self._state, thread=thread)
        response = self._state.to_response()
        calls = response.tool_calls if response.finish_reason == "tool_calls" else ()
        if not calls:
            self._complete()
        elif self._settings.mode == "manual":
            self._metadata["mode"] = "manual"
            self._complete()
        elif unknown := [call for call in calls if call.name not in self._settings.tools_by_name]:
            self._tell(ErrorEvent(self._unknown(unknown)))
            self._complete()
        else:
            # One hop to the call's own loop: from here on everything happens there, whatever thread the source ended
            # on.
            self._tools.disposable = clock(self._scheduler).schedule(self._run, calls)

    def _run(self, scheduler: abc.SchedulerBase, calls: tuple[ToolCall, ...] | None) -> abc.DisposableBase:
        mine, left = self._partition(calls or ())
        executions = (execution(tool, call, self._settings, self._question, self._scope) for tool, call in mine)
        running = Bounded(
            executions,
            self._settings.concurrency(len(mine)),
            self._receive,
            lambda index, error: None,
            self._finish,
            self._observer.on_error,
        )
        for name, kept in left.items():
            if kept:
                self._metadata[name] = kept
        for call in left["approval_tool_calls"]:
            self._tell(ToolApprovalRequested(call.id, call.name, call.arguments))
        running.start(self._scheduler)
        return running

    def _partition(
        self, calls: tuple[ToolCall, ...]
    ) -> tuple[list[tuple[Tool, ToolCall]], dict[str, tuple[ToolCall, ...]]]:
        """The calls to run, each with its tool, and those that are left to the caller."""
        mine: list[tuple[Tool, ToolCall]] = []
        manual: list[ToolCall] = []
        waiting: list[ToolCall] = []
        for call in calls:
            tool = self._settings.tools_by_name[call.name]
            if tool.manual:
                manual.append(call)
            elif tool.approval and self._settings.approve is None:
                waiting.append(call)
            else:
                mine.append((tool, call))
        return mine, {"manual_tool_calls": tuple(manual), "approval_tool_calls": tuple(waiting)}

    def _receive(self, index: int, event: Event) -> None:
        if is_halting(event):
            self._halts[index] = event
        else:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        # The source has ended: nobody above would deliver a subscriber's exception.
        try:
            self._emit(event)
        except BaseException as error:
            fail(self._observer, error)

    def _finish(self) -> None:
        for index in sorted(self._halts):
            self._tell(self._halts[index])
        self._complete()

    def _complete(self) -> None:
        result = self._state.to_step_result()
        if self._metadata:
            result = dataclasses.replace(result, metadata={**result.metadata, **self._metadata})
        conclude(self._observer, (StepCompleted(result),))

    def _unknown(self, calls: list[ToolCall]) -> EngineError:
        names = ", ".join(repr(call.name) for call in calls)
        known = ", ".join(repr(tool.name) for tool in self._settings.tools) or "none"
        message = f"the model called {names}, and there is no such tool; the tools are: {known}"
        return EngineError("unknown_tool", message, metadata={"tool_name": calls[0].name})


def _no_thread() -> ValidationError:
    fault = "is missing, and the source does not say what it answers: write run_tools(tools, thread=thread)"
    return invalid_option("thread", fault)
