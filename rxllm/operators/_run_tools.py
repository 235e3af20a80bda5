"""The operator that runs the tools called by a response."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable

from rxllm.collector import StreamCollector, joined
from rxllm.engine import as_engine
from rxllm.events import ErrorEvent, Event, StepCompleted, ToolApprovalRequested
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.operators._steering import until_sentence
from rxllm.runtime import (
    Bounded,
    RecallingJournal,
    ScopedObserver,
    Stream,
    behind,
    clock,
    conclude,
    current_gate,
    current_scope,
    fail,
    new_id,
    within,
)
from rxllm.tools import (
    WAITING,
    Approve,
    Encoder,
    Executor,
    OnToolError,
    ToolSettings,
    WaitingCalls,
    execution,
    is_halting,
)
from rxllm.values import (
    EngineError,
    Request,
    StepResult,
    Thread,
    Tool,
    ToolCall,
    ValidationError,
    as_tools,
    request_key,
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

    A tool with ``approval=True`` runs only if ``approve(tool_call)`` returns True, or a mapping with the arguments to
    use instead; the thread keeps the model's arguments. False, or text with the reason, denies the call. With
    ``halt("approval")``, or if there is no `approve`, the caller decides later. `approve` may also return an awaitable,
    or an Observable whose last item is the answer. A call without an answer after `approve_timeout` seconds is denied.

    Three results of `approve` are bugs in the caller's code: an exception, any other answer (``TypeError``), and
    arguments that the tool does not accept (``ValidationError("invalid_option")``). They end the stream through
    ``on_error`` and are not sent to the model.

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


class _Step:
    """One subscription. It emits the source's events, then the tools' events, and then the ``StepCompleted``."""

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
        self._tools = SerialDisposable()
        self._gate = current_gate()
        self._halts: dict[int, Event] = {}
        self._waiting = WaitingCalls()
        self._metadata: dict[str, Any] = {}

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        if self._is_steered is not None:
            source = until_sentence(source, self._is_steered, self._recall_cut, self._keep_cut)
        with within(self._scope):
            subscription = source.subscribe(
                self._emit, self._observer.on_error, self._on_completed, scheduler=self._scheduler
            )
        return CompositeDisposable(subscription, self._tools)

    def _recall_cut(self) -> Sequence[Event] | None:
        """Return the events that were kept when an earlier run of the stream cut this response off, or None."""
        journal = self._scope.journal
        return journal.recall(self._scope.path, self._cut_key()) if isinstance(journal, RecallingJournal) else None

    def _keep_cut(self, events: Sequence[Event]) -> None:
        if isinstance(journal := self._scope.journal, RecallingJournal):
            journal.keep(self._scope.path, self._cut_key(), events)

    def _cut_key(self) -> str:
        return f"cut {request_key(Request(self._thread.messages))}"

    def _emit(self, event: Event) -> None:
        try:
            if type(event) not in EVENTS:
                raise not_an_event("run_tools", event)
            self._state = self._state.apply_event(event)
        except Exception as error:  # raised, for example, by raw usage with unknown keys
            self._observer.on_error(error)
            return
        self._observer.on_next(event)

    def _on_completed(self) -> None:
        step = self._state.to_step_result()
        calls = step.response.tool_calls if step.response.finish_reason == "tool_calls" else ()
        if not calls:
            self._complete(step)
        elif self._settings.mode == "manual":
            self._metadata["mode"] = "manual"
            self._complete(step)
        elif unknown := [call for call in calls if call.name not in self._settings.tools_by_name]:
            self._deliver(ErrorEvent(self._unknown_tools(unknown)))
            self._complete(self._state.to_step_result())
        else:
            self._start(calls)

    def _start(self, calls: tuple[ToolCall, ...]) -> None:
        # The source may end on any thread. Everything after that happens on the call's own loop.
        loop = clock(self._scheduler)

        def start() -> None:
            self._tools.disposable = loop.schedule(self._run, calls)

        if self._gate is None:
            start()
        else:
            self._gate.before_tools(start)

    def _run(self, scheduler: abc.SchedulerBase, calls: tuple[ToolCall, ...] | None) -> abc.DisposableBase:
        runnable, deferred = self._partition(calls or ())
        executions = (execution(tool, call, self._settings, self._thread, self._scope) for tool, call in runnable)
        running = Bounded(
            executions,
            self._settings.concurrency(len(runnable)),
            self._receive,
            lambda index, error: None if error is None else end(error),
            self._finish,
            self._observer.on_error,
        )

        def end(error: Exception) -> None:  # a bug in the caller's code: stop the other tools
            running.dispose()
            self._observer.on_error(error)

        self._metadata.update({name: calls for name, calls in deferred.items() if calls})
        for call in deferred["approval_tool_calls"]:
            self._deliver(ToolApprovalRequested(call.id, call.name, call.arguments))
        with behind(self._gate):  # a slow consumer also slows the agents down
            running.start(self._scheduler)
        return running

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

    def _receive(self, index: int, event: Event) -> None:
        self._waiting.note(event)
        if is_halting(event):
            self._halts[index] = event
        else:
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        # The source has ended, so if the subscriber raises, no caller would pass the exception on.
        try:
            self._emit(event)
        except BaseException as error:
            fail(self._observer, error)

    def _finish(self) -> None:
        for index in sorted(self._halts):
            self._deliver(self._halts[index])
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
