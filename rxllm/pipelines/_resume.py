"""A halted chat goes on, here or in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, cast, overload

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._finalize import passes
from rxllm.pipelines._halted import Answers, HaltedStep, completing
from rxllm.pipelines._options import ChatOptions, PlainChatOptions, chat_options
from rxllm.pipelines._request import Input, as_thread
from rxllm.runtime import Stream
from rxllm.tools import ToolSettings
from rxllm.values import ChatResult, Request, Thread, ValidationError

T = TypeVar("T")

NONE: Mapping[str, Any] = MappingProxyType({})


def stream_resume(
    engine: Engine | str | Any,
    thread: Input | ChatResult,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    **opts: Unpack[ChatOptions],
) -> Stream[Event]:
    """The events of a halted chat that goes on, and one ``ChatCompleted``, last; see `resume`.

    First come those of the tools that run now, and the ``StepCompleted`` of the step that had halted; then the model is
    asked.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    return setup.presented(_events(setup, _thread_of(thread), _answers(approvals, results)))


@overload
def resume(
    engine: Engine | str | Any,
    thread: Input | ChatResult,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    response_format: type[T],
    **opts: Unpack[PlainChatOptions],
) -> Stream[ChatResult[T]]: ...
@overload
def resume(
    engine: Engine | str | Any,
    thread: Input | ChatResult,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    **opts: Unpack[ChatOptions],
) -> Stream[ChatResult]: ...
def resume(
    engine: Engine | str | Any,
    thread: Input | ChatResult,
    *,
    approvals: Mapping[str, bool | str] = NONE,
    results: Mapping[str, str | Mapping[str, Any]] = NONE,
    **opts: Any,
) -> Stream[ChatResult[Any]]:
    """A halted chat goes on: the fold of `stream_resume`. `thread` may be its `ChatResult`, and come from JSON.

    >>> from rxllm import Fake, ToolCall, chat, tool
    >>> @tool(approval=True)
    ... def pay(amount: int) -> str: return f"paid {amount}"
    >>> model = Fake(ToolCall("c0", "pay", {"amount": 5}), "Done.")
    >>> halted = chat(model, "Pay 5.", tools=[pay]).run()
    >>> halted.halted_reason, resume(model, halted, approvals={"c0": True}, tools=[pay]).run().output_text
    ('approval', 'Done.')

    Every unanswered call needs an answer, by its id: one of `results`, or one of `approvals`, which is True (the tool
    is run, once per subscription), False or the reason why not (the model is told of a ``ToolError("denied")``). With
    the option ``approve`` the calls of approval tools may be left to it. The first of the result's `steps` is the one
    that had halted, now complete; it asks no model, so ``max_turns`` does not count it and it has no usage. Once tools
    have run, a model that cannot be asked is a result with its `error`, so that what they did is not lost. A question
    to the user is answered by one more message, in a plain `chat`; here it stays open.

    Raises ``EngineError("missing_tool_results")``, which names them, where a call is left without an answer, and
    ``ValidationError("invalid_option")`` for an id of none; then nothing has run.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    return _events(setup, _thread_of(thread), _answers(approvals, results)).pipe(
        ops.to_chat_result(parse=setup.response_format(Request()))
    )


def _events(setup: Setup, thread: Thread, answers: Answers) -> Stream[Event]:
    until_halt = chat_options(setup.opts)

    def make() -> Stream[Event]:
        ask, finalize = passes(setup, thread)
        settings = ToolSettings(**setup.tool_options())
        halted = HaltedStep.of(thread)
        answers.check(halted.calls if halted else (), settings)
        first = ask(thread) if halted is None else setup.step_observed(completing(setup, halted, answers, settings))
        return setup.chat_observed(first.pipe(ops.repeat_until_halt(ask, finalize=finalize, **until_halt)))

    return Deferred(make)


def _thread_of(given: Any) -> Thread:
    return given.thread if isinstance(given, ChatResult) else as_thread(given)


def _answers(approvals: Any, results: Any) -> Answers:
    faults = [
        *_faults("approvals", approvals, "must be True, False or a reason", lambda held: isinstance(held, bool | str)),
        *_faults("results", results, "must be a string or a mapping", lambda held: isinstance(held, str | Mapping)),
    ]
    if faults:
        raise ValidationError("invalid_option", errors=faults)
    return Answers(approvals, results)


def _faults(name: str, held: Any, what: str, fits: Callable[[Any], bool]) -> list[tuple[tuple[str, ...], str]]:
    if not isinstance(held, Mapping):
        return [((name,), f"must be a mapping by the calls' ids, not {held!r}")]
    given = cast(Mapping[Any, Any], held)
    return [((name, str(id)), what) for id, each in given.items() if not fits(each)]
