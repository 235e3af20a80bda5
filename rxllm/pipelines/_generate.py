"""generate and stream_generate: one response to one request."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._option_help import with_options
from rxllm.pipelines._options import GenerateOptions, PlainOptions
from rxllm.pipelines._request import Input, as_request
from rxllm.runtime import Stream
from rxllm.values import Request, Response, Thread

T = TypeVar("T")


@with_options(GenerateOptions)
def stream_generate(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[Event]:
    """Return the events of one response, as they come. Each subscription calls the model anew.

    >>> from rxllm import Fake, operators as ops
    >>> list(stream_generate(Fake("Hello"), "Hi").pipe(ops.text()))
    ['Hello']

    `engine` is an `Engine`, an adapter, or ``"provider:model"``; `request` is a text, messages, a `Thread` or a
    `Request`. Unknown and invalid options raise at once (`EngineError`, `ValidationError`). All other errors go to
    ``on_error``, or, once an event has been emitted, are an ``ErrorEvent``.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    thread = request if isinstance(request, Thread) else None
    request = as_request(request)
    events = setup.presented(setup.model_events(request, thread))
    return setup.returned_by("stream_generate", events, request=request)


@overload
def generate(
    engine: Engine | str | Any, request: Input | Request, *, response_format: type[T], **opts: Unpack[PlainOptions]
) -> Stream[Response[T]]: ...
@overload
def generate(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[Response[Any]]: ...
@with_options(GenerateOptions)
def generate(engine: Engine | str | Any, request: Input | Request, **opts: Any) -> Stream[Response[Any]]:
    """Return the model's response to one request: the fold of `stream_generate`.

    >>> from rxllm import Fake
    >>> generate(Fake("Hello"), "Hi").run()
    Response('Hello', stop, 0 tokens)

    With a `response_format` the model is asked for JSON, and `parsed` is the validated value:

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class City:
    ...     name: str
    >>> generate(Fake('{"name": "Lima"}'), "The capital of Peru?", response_format=City).run().parsed
    City(name='Lima')

    It may be any type that JSON can express. A list, a number or a union is asked for as the `value` of an object:

    >>> generate(Fake('{"value": [2, 3]}'), "Two primes?", response_format=list[int]).run().parsed
    [2, 3]

    An answer that does not fit goes to ``on_error`` as ``ValidationError("invalid_output")``; see
    ``operators.to_response``.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    request = as_request(request)
    return setup.returned_by("generate", response_of(setup, request), Response, request)


def response_of(setup: Setup, request: Request) -> Stream[Response[Any]]:
    """Return the response to `request`, with `parsed` if it has a format."""
    return setup.model_events(request).pipe(ops.to_response(setup.response_format(request)))
