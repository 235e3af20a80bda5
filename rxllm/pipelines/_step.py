"""step and stream_step: one response and the tools it calls."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._option_help import with_options
from rxllm.pipelines._options import PlainStepOptions, StepOptions
from rxllm.pipelines._request import Input, as_thread
from rxllm.runtime import Stream
from rxllm.values import Request, StepResult, Thread

T = TypeVar("T")


@with_options(StepOptions)
def stream_step(engine: Engine | str | Any, thread: Input, **opts: Unpack[StepOptions]) -> Stream[Event]:
    """Return the events of one response, those of the tools it calls, and one ``StepCompleted``, last.

    >>> from rxllm import Fake
    >>> stream_step(Fake("Hello"), "Hi").run().response
    Response('Hello', stop, 0 tokens)
    """
    setup = Setup.of(engine, StepOptions, opts)
    return setup.returned_by("stream_step", setup.presented(step_events(setup, as_thread(thread))))


@overload
def step(
    engine: Engine | str | Any, thread: Input, *, response_format: type[T], **opts: Unpack[PlainStepOptions]
) -> Stream[StepResult[T]]: ...
@overload
def step(engine: Engine | str | Any, thread: Input, **opts: Unpack[StepOptions]) -> Stream[StepResult]: ...
@with_options(StepOptions)
def step(engine: Engine | str | Any, thread: Input, **opts: Any) -> Stream[StepResult[Any]]:
    """Return the result of one response and the tools that it calls: the fold of `stream_step`.

    >>> from rxllm import Fake
    >>> step(Fake("Hello"), "Hi").run().thread.last
    Message('assistant', 'Hello')

    With a `response_format` the `parsed` of the response is the validated value; see ``operators.to_step_result``.
    """
    setup = Setup.of(engine, StepOptions, opts)
    to_result = ops.to_step_result(parse=setup.response_format(Request()))
    return setup.returned_by("step", step_events(setup, as_thread(thread)).pipe(to_result), StepResult)


def step_events(setup: Setup, thread: Thread) -> Stream[Event]:
    """Return the events of one response, then those of the tools."""

    def make() -> Stream[Event]:
        events = setup.model_events(Request(thread.messages), thread)
        return setup.observed_step(events.pipe(ops.run_tools(**setup.tool_options())))

    return Deferred(make)
