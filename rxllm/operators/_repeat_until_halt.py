"""Run a chat step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from inspect import iscoroutinefunction
from threading import get_ident
from typing import Any, Literal, TypeVar, cast

from msgspec.structs import replace
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxllm.collector import PAUSE, StreamCollector, halted_by, is_unfinished
from rxllm.collector.parsed import Read, chat_with_parsed
from rxllm.events import ChatCompleted, ErrorEvent, Event, MessageStarted, Steered, StepCompleted
from rxllm.operators._event_operators import EVENTS, not_an_event, operate
from rxllm.operators._fold import Parse, answer_parser
from rxllm.operators._retry import errors_as_events
from rxllm.operators._steering import Steer, Steering
from rxllm.runtime import (
    RecallingJournal,
    ScopedObserver,
    Stream,
    behind,
    conclude,
    current_gate,
    current_scope,
    fail,
    new_id,
    within,
)
from rxllm.values import ChatResult, LLMError, Request, StepResult, StreamError, Thread, Usage, request_key
from rxllm.values.argument_checks import check, check_count, check_function, check_instance, must_be, shown
from rxllm.values.sessions import question, waits_in_agent

T = TypeVar("T")


def continue_with(fn: Callable[[T], Observable[T] | None]) -> Callable[[Observable[T]], Stream[T]]:
    """Continue a completed stream with ``fn(last)``.

    ::

        source               --1|
        continue_with(fn)    --1--2--3|        (fn: 1 to ---2|, 2 to ---3|, 3 to None)

    >>> from reactivex import of
    >>> list(of(1).pipe(continue_with(lambda last: of(last + 1) if last < 3 else None)))
    [1, 2, 3]

    `last` is the last item of the completed stream. When the stream that `fn` returned completes, `fn` is called again.
    The resulting stream completes when `fn` returns None or an empty stream.
    """

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        current = SerialDisposable()

        def follow(stream: Observable[T]) -> None:
            last: list[T] = []
            subscription = current.disposable = SingleAssignmentDisposable()  # set first: the stream may end at once

            def on_next(item: T) -> None:
                last[:] = (item,)
                observer.on_next(item)

            def on_completed() -> None:
                try:
                    following = fn(last[0]) if last else None
                    if following is not None and not isinstance(following, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
                        raise TypeError(f"continue_with: fn's result {must_be('an Observable or None', following)}")
                except Exception as error:
                    observer.on_error(error)
                    return
                if following is None:
                    observer.on_completed()
                else:
                    follow(following)

            subscription.disposable = stream.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        follow(source)
        return current

    return operate(subscribe)


Ask = Callable[[Thread], Observable[Event]]

FINALIZED = ("completed", "max_turns", "halt_when")
"""The halt reasons after which `finalize` runs."""


def repeat_until_halt(
    ask: Ask,
    *,
    max_turns: int = 8,
    halt_when: Callable[[StepResult], bool] | None = None,
    finalize: Ask | None = None,
    steer: Steer | None = None,
    steer_at: Literal["sentence", "step"] = "sentence",
    parse: Parse = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Run ``ask(thread)`` after each step until the chat halts.

    ::

        source                    --start--call--end--result-(step)|
        ask(thread)                                                 --start--H--i--end-(step)|
        repeat_until_halt(ask)    --start--call--end--result-(step)---start--H--i--end-(step,chat)|

    >>> from rxllm import Fake, Thread, ToolCall, operators as ops, stream_generate, tool, user
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> model = Fake(ToolCall("c0", "double", {"x": 21}), "It is 42.")
    >>> def ask(thread): return stream_generate(model, thread, tools=[double]).pipe(
    ...         ops.run_tools([double], thread=thread))
    >>> ask(Thread((user("Double 21!"),))).pipe(repeat_until_halt(ask)).run().result
    ChatResult('It is 42.', completed, 2 steps, 0 tokens)

    The source and each ``ask(thread)`` emit one step's events, up to its ``StepCompleted``. The chat ends with a
    ``ChatCompleted``. The first reason that applies becomes its `halted_reason`:

    - a tool halts the chat or asks the user a question
    - tool calls wait for approval or for the caller
    - the step failed
    - an operator such as ``ops.budget`` requests a halt in the response's metadata
    - the answer is finished (``completed``)
    - ``halt_when(step)`` returns True
    - `max_turns` steps have run, not counting a source that calls no model

    After ``completed``, `max_turns` or `halt_when`, ``finalize(thread)`` runs one more step for a structured answer. If
    this step calls tools, ``finalize(thread)`` runs a second and last time.

    An ``on_error`` from the source is passed on. If a later step fails, the chat ends with an ``ErrorEvent`` and a
    ``ChatCompleted`` that contains the error. An ``ErrorEvent`` in the first step has the same effect. All steps
    share one request id and one budget.

    `steer` is an Observable of strings or user messages, which the user sends during the chat. The Observable may emit
    from any thread. Each chat subscribes to it once. With ``steer_at="sentence"``, a message stops the model at the end
    of the current sentence. The text so far becomes the model's message (finish reason ``stop``, raw finish reason
    ``steered``). With ``"step"``, the model finishes its response first. A model that is thinking, a tool that is
    running and a response with tool calls are never interrupted. After the step, each message is emitted as
    ``Steered``, and the model answers them all. `max_turns` and `halt_when` still apply.

    A message is unused if no turn is left or the chat is already halting. It is then emitted as
    ``Steered(message, used=False)``. The chat's metadata lists it under ``unused_steering``. Blank messages are
    ignored. If `steer` fails or emits anything but strings and user messages, the chat ends with an ``on_error``.

    If `parse` is given, the result in ``ChatCompleted`` has the parsed answer or its error, as in `to_chat_result`.

    Raises ``ValidationError("invalid_option")`` for invalid arguments. If a step has no ``StepCompleted``, the stream
    ends with ``on_error`` and a ``StreamError("malformed_event")``.
    """
    check_function("ask", ask)
    check_instance("steer", steer, Observable | None, "an Observable of strings or user messages")
    check("steer_at", steer_at, steer_at in ("sentence", "step"), "'sentence' or 'step'")
    check_count("max_turns", max_turns)
    for name, function in (("halt_when", halt_when), ("finalize", finalize)):
        if function is not None:
            check_function(name, function)
    check("halt_when", halt_when, not iscoroutinefunction(halt_when), "a plain function")  # coroutines are truthy
    read = answer_parser(parse)
    make_chat = partial(_Chat, ask, max_turns, halt_when, finalize, steer, steer_at == "sentence", read)
    return operate(lambda source, observer, scheduler: make_chat(observer, scheduler).start(source))


class _Chat:
    def __init__(
        self,
        ask: Ask,
        max_turns: int,
        halt_when: Callable[[StepResult], bool] | None,
        finalize: Ask | None,
        steer: Steer | None,
        cuts: bool,
        read: Read | None,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._ask = ask
        self._max_turns = max_turns
        self._halt_when = halt_when
        self._finalize = finalize
        self._read = read
        self._first_end: str | None = None  # the halt reason, once `finalize` has begun
        self._observer = ScopedObserver(observer)
        self._scheduler = scheduler
        self._gate = current_gate()
        scope = current_scope.get()
        self._outside = scope.below_model()  # the scope in which the user's functions are called
        self._steering = Steering(steer)
        self._interrupt = self._steering.waits if cuts and steer is not None else None
        journal = scope.journal
        self._journal = journal if steer is not None and isinstance(journal, RecallingJournal) else None
        self._path = scope.path
        self._scope = replace(self._outside, request_id=scope.request_id or new_id(), chat={})
        self._current = SerialDisposable()
        self._source: list[Event] = []  # The source's events.
        self._last: Event | None = None  # The current step's last event.
        self._steps: list[StepResult] = []
        self._thread = Thread()  # The thread of the last step, followed by the user's later messages.
        self._usage = Usage()  # The total usage of all steps.
        self._turns = 0

    def start(self, source: Observable[Event]) -> abc.DisposableBase:
        self._steering.start(self._fail, self._scheduler)
        self._scope = replace(self._scope, is_steered=self._interrupt if self._max_turns > 1 else None)
        following = self._subscribe(source, self._on_source)
        if following is not None:
            self._run(following)
        return CompositeDisposable(self._current, self._steering)

    def _fail(self, error: Exception) -> None:
        self._current.dispose()
        fail(self._observer, error)

    def _run(self, following: Observable[Event]) -> None:
        """Run `following`, and keep running the next step as long as steps end synchronously."""
        step: Observable[Event] | None = following
        try:
            while step is not None:
                step = self._subscribe(step.pipe(errors_as_events()), self._on_next)
        except BaseException as error:  # No caller is left to report the error.
            fail(self._observer, error)

    def _subscribe(self, step: Observable[Event], on_next: Callable[[Event], None]) -> Observable[Event] | None:
        """Subscribe to `step`. If it ends synchronously, return the next step."""
        self._last = None
        following: Observable[Event] | None = None
        thread: int | None = get_ident()  # None once `subscribe` has returned

        def on_completed() -> None:
            nonlocal following
            after = self._on_completed()
            if after is not None and thread == get_ident():
                following = after
            elif after is not None:
                self._run(after)

        subscription = self._current.disposable = SingleAssignmentDisposable()  # set first: the step may end at once
        with within(self._scope), behind(self._gate):
            subscription.disposable = step.subscribe(
                on_next, self._observer.on_error, on_completed, scheduler=self._scheduler
            )
        thread = None
        return following

    def _on_source(self, event: Event) -> None:
        self._source.append(event)
        if len(self._source) == 1 and isinstance(event, ErrorEvent):
            return  # The source may have failed before it began.
        if len(self._source) == 2 and isinstance(self._source[0], ErrorEvent):
            self._observer.on_next(self._source[0])
        self._on_next(event)

    def _on_next(self, event: Event) -> None:
        if type(event) in EVENTS:
            self._last = event
            self._observer.on_next(event)
        else:
            self._observer.on_error(not_an_event("repeat_until_halt", event))

    def _on_completed(self) -> Observable[Event] | None:
        try:
            self._steering.raise_error()
            with within(self._outside):
                following = self._follow_up()
        except BaseException as error:  # A user's function raised an exception, or the step was malformed.
            fail(self._observer, error)
            return None
        if isinstance(following, ChatResult):
            conclude(self._observer, self._end(following))
            return None
        return following

    def _end(self, result: ChatResult) -> list[Event]:
        self._steering.dispose()
        # First the messages that `settle` has chosen, then all later messages.
        unused = (*self._steering.take(), *self._steering.take())
        if unused:
            result = dataclasses.replace(result, metadata={**result.metadata, "unused_steering": unused})
        parsed = result if self._read is None else chat_with_parsed(result, self._read)
        end = ChatCompleted(parsed, None if parsed is result else result)
        return [*(Steered(message, used=False) for message in unused), end]

    def _follow_up(self) -> Observable[Event] | ChatResult | None:
        match self._last:
            case StepCompleted(result=step):
                return self._add_step(step)
            case ErrorEvent(error=error) if self._steps:  # A later step failed before its first event.
                return self._result(halted_by(error), error)
            case ErrorEvent():
                return reduce(StreamCollector.apply_event, self._source, StreamCollector()).to_chat_result()
            case None if self._source:
                assert isinstance(self._source[0], ErrorEvent)
                raise self._source[0].error
            case last:
                raise _malformed_step(last)

    def _add_step(self, step: StepResult) -> Observable[Event] | ChatResult | None:
        if not self._steps:
            self._turns = int(any(isinstance(event, MessageStarted) for event in self._source))
            self._source.clear()
        self._steps.append(step)
        self._thread = step.thread
        self._usage += step.usage
        if self._journal is not None and step.response.raw_finish_reason != PAUSE:
            self._steering.settle(self._journal, self._path, f"steered {request_key(Request(step.thread.messages))}")
        reason = self._halt_reason(step)
        if reason is None:
            self._steer(step)
            return None if self._current.is_disposed else self._start_step(self._ask, self._turns + 1)
        if self._finalize is not None and self._first_end is None and reason in FINALIZED:
            self._first_end, self._max_turns, self._ask = reason, 2, self._finalize
            return self._start_step(self._finalize, 1)
        return self._result(reason, step.response.error)

    def _steer(self, step: StepResult) -> None:
        for message in self._steering.take() if step.response.raw_finish_reason != PAUSE else ():
            self._thread += message
            self._observer.on_next(Steered(message))

    def _start_step(self, ask: Ask, turns: int) -> Observable[Event]:
        self._turns = turns
        can_steer = turns < self._max_turns and self._first_end is None  # a message needs a step that answers it
        interrupt = self._interrupt if can_steer else None
        self._scope = replace(self._scope, usage=self._usage, is_steered=interrupt)
        step: Any = ask(self._thread)
        if not isinstance(step, Observable):
            raise TypeError(f"repeat_until_halt(ask): ask must return an Observable of events, not {shown(step)}")
        return cast(Observable[Event], step)

    def _halt_reason(self, step: StepResult) -> str | None:
        match step.metadata:
            case {"halted_reason": str(reason)}:
                return reason
            case {"approval_tool_calls": _}:
                return "approval"
            case {"manual_tool_calls": _} | {"mode": "manual"}:
                return "manual_tool_calls"
            case _ if step.response.finish_reason == "error":
                return "error" if step.response.error is None else halted_by(step.response.error)
            case _ if isinstance(reason := step.response.metadata.get("halted_reason"), str):
                return reason  # set by an operator
            case _ if not is_unfinished(step.response) and not self._is_steered():
                return "completed"
            case _ if self._halt_when is not None and self._halt_when(step):
                return "halt_when"
            case _:
                return "max_turns" if self._turns >= self._max_turns else None

    def _is_steered(self) -> bool:
        return self._steering.waits() and self._turns < self._max_turns and self._first_end is None

    def _result(self, reason: str, error: LLMError | None) -> ChatResult:
        last = self._steps[-1]
        metadata = last.metadata
        thread = self._thread
        if reason == "ask_user" and not waits_in_agent(thread, metadata["pending_tool_call_id"]):
            thread += question(metadata["pending_question"], metadata["pending_tool_call_id"], metadata)
        pending = (*metadata.get("manual_tool_calls", ()), *metadata.get("approval_tool_calls", ()))
        return ChatResult(
            thread=thread,
            final_response=last.response,
            steps=tuple(self._steps),
            halted_reason=reason,
            pending_question=metadata.get("pending_question"),
            pending_tool_call_id=metadata.get("pending_tool_call_id"),
            pending_tool_calls=last.response.tool_calls if metadata.get("mode") == "manual" else pending,
            usage=self._usage,
            error=error,
            metadata={**self._metadata(reason, metadata), **self._passes(reason)},
        )

    def _metadata(self, reason: str, step: dict[str, Any]) -> dict[str, Any]:
        index = len(self._steps) - 1
        match reason:
            case "max_turns":
                return {"max_turns": self._max_turns}
            case "halt_when":
                return {"halt_when_step_index": index}
            case "manual_tool_calls":
                return {"manual_turn_index": index, **_only(step, "manual_tool_calls")}
            case "approval":
                return _only(step, "manual_tool_calls", "approval_tool_calls")
            case "completed" | "error":
                return {}
            case _:  # a tool halted with ask_user, with tool_error, or with a reason of its own
                return {name: value for name, value in step.items() if name != "halted_reason"}

    def _passes(self, reason: str) -> dict[str, Any]:
        if self._finalize is None:
            return {}
        return {"structured_finalize": {"pass_1_halted": self._first_end or reason}}


def _only(metadata: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: metadata[name] for name in names if name in metadata}


def _malformed_step(last: Event | None) -> StreamError:
    end = "without an event" if last is None else f"with a {type(last).__name__}"
    message = (
        f"each step in repeat_until_halt() must end with a StepCompleted, but this one ended {end}; "
        "add ops.run_tools(tools, thread=thread), or use rxllm.stream_step"
    )
    return StreamError("malformed_event", message)
