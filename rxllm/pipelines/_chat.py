"""chat and stream: step after step until a halt."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._finalize import passes
from rxllm.pipelines._option_help import with_options
from rxllm.pipelines._options import ChatOptions, PlainChatOptions, chat_options
from rxllm.pipelines._request import Input, as_thread
from rxllm.pipelines._spans import ChatSpan
from rxllm.runtime import Stream
from rxllm.values import ChatResult, Request, Thread

T = TypeVar("T")


@with_options(ChatOptions)
def stream(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[Event]:
    """Return the events of step after step until a halt, and one ``ChatCompleted``, last.

    >>> from rxllm import Fake
    >>> stream(Fake("Hello"), "Hi").run().result
    ChatResult('Hello', completed, 1 steps, 0 tokens)
    """
    setup = Setup.of(engine, ChatOptions, opts)
    return setup.returned_by("stream", setup.presented(_chat_events(setup, as_thread(thread))))


@overload
def chat(
    engine: Engine | str | Any, thread: Input, *, response_format: type[T], **opts: Unpack[PlainChatOptions]
) -> Stream[ChatResult[T]]: ...
@overload
def chat(engine: Engine | str | Any, thread: Input, **opts: Unpack[ChatOptions]) -> Stream[ChatResult]: ...
@with_options(ChatOptions)
def chat(engine: Engine | str | Any, thread: Input, **opts: Any) -> Stream[ChatResult[Any]]:
    """Return the result of a chat, step after step until a halt: the fold of `stream`.

    >>> from rxllm import Fake, ToolCall, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> result = chat(Fake(ToolCall("c0", "double", {"x": 21}), "42"), "Double 21!", tools=[double]).run()
    >>> result.halted_reason, len(result.steps), result.output_text
    ('completed', 2, '42')

    With a `response_format` the `parsed` of the final response is the validated value. An answer that does not fit is
    the `error` of the result, since tools have run by then: ``.map(ChatResult.raise_for_error)`` raises it. See
    ``operators.to_chat_result``.
    """
    setup = Setup.of(engine, ChatOptions, opts)
    to_result = ops.to_chat_result(parse=setup.response_format(Request()))
    return setup.returned_by("chat", _chat_events(setup, as_thread(thread)).pipe(to_result), ChatResult)


def _chat_events(setup: Setup, thread: Thread) -> Stream[Event]:
    until_halt = chat_options(setup.options)

    def make() -> Stream[Event]:
        ask, finalize = passes(setup, thread)
        events = ask(thread).pipe(ops.repeat_until_halt(ask, finalize=finalize, **until_halt))
        return setup.observed(events, ChatSpan)

    return Deferred(make)
