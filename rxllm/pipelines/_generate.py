"""generate, stream_generate and generate_many: one response for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from reactivex import abc

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._option_help import with_options
from rxllm.pipelines._options import GenerateOptions, PlainOptions
from rxllm.pipelines._request import Input, as_request, as_requests
from rxllm.runtime import Bounded, Stream
from rxllm.values import LLMError, Progress, Request, Response, Thread, Usage
from rxllm.values.argument_checks import check_count, check_function
from rxllm.values.errors import as_llm_error

T = TypeVar("T")
OnProgress = Callable[[Progress], object]


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
    return setup.returned_by("generate", _response(setup, request), Response, request)


def _response(setup: Setup, request: Request) -> Stream[Response[Any]]:
    return setup.model_events(request).pipe(ops.to_response(setup.response_format(request)))


@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request],
    *,
    concurrency: int = 8,
    ordered: bool = True,
    on_progress: OnProgress | None = None,
    response_format: type[T],
    **opts: Unpack[PlainOptions],
) -> Stream[Response[T]]: ...
@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request],
    *,
    concurrency: int = 8,
    ordered: bool = True,
    on_progress: OnProgress | None = None,
    **opts: Unpack[GenerateOptions],
) -> Stream[Response[Any]]: ...
@with_options(GenerateOptions)
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request],
    *,
    concurrency: int = 8,
    ordered: bool = True,
    on_progress: OnProgress | None = None,
    **opts: Any,
) -> Stream[Response[Any]]:
    """Return the responses to many requests, `concurrency` at a time, in the requests' order or as they finish.

    >>> from rxllm import Fake
    >>> shout = Fake(lambda request: request.messages[-1].text.upper())
    >>> [response.output_text for response in generate_many(shout, ["a", "b"])]
    ['A', 'B']

    All `requests` are read and checked at the call. A request that fails is a Response with its `error`; the others go
    on. With ``ordered=False``, ``response.metadata["request_index"]`` is the place of its request, failed or not:

    >>> many = generate_many(shout, ["a", "b"], ordered=False)
    >>> sorted((response.metadata["request_index"], response.output_text) for response in many)
    [(0, 'A'), (1, 'B')]

    ``on_progress(progress)`` is called with a `Progress` whenever a request has ended.
    """
    check_count("concurrency", concurrency)
    if on_progress is not None:
        check_function("on_progress", on_progress)
    setup, many = Setup.of(engine, GenerateOptions, opts), as_requests(requests)

    def subscribe(
        observer: abc.ObserverBase[Response[Any]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        emitter = _Emitter(observer, ordered, len(many), on_progress)
        sources = (_response(setup, request) for request in many)
        running = Bounded(sources, concurrency, emitter.receive, emitter.end, observer.on_completed, observer.on_error)
        running.start(scheduler)
        return running

    return setup.returned_by("generate_many", Stream(subscribe), "Responses")


class _Emitter:
    """Emits each response at once, or in order after those before it."""

    def __init__(
        self, observer: abc.ObserverBase[Response[Any]], ordered: bool, total: int, on_progress: OnProgress | None
    ) -> None:
        self._observer = observer
        self._ordered = ordered
        self._progress = Progress(0, 0, total, Usage())
        self._on_progress = on_progress
        self._waiting: dict[int, Response[Any]] = {}
        self._next = 0

    def receive(self, index: int, response: Response[Any]) -> None:
        # An exception of the subscriber's is not a failure of the request.
        try:
            self._count(response)
            if self._ordered:
                self._emit_in_order(index, response)
            else:
                self._observer.on_next(replace(response, metadata={**response.metadata, "request_index": index}))
        except Exception as error:
            self._observer.on_error(error)

    def end(self, index: int, error: Exception | None) -> None:
        if error is not None:
            self.receive(index, _failed(as_llm_error(error)))

    def _count(self, response: Response[Any]) -> None:
        if self._on_progress is not None:
            last = self._progress
            failed = last.failed + (response.error is not None)
            self._progress = Progress(last.done + 1, failed, last.total, last.usage + response.usage)
            self._on_progress(self._progress)

    def _emit_in_order(self, index: int, response: Response[Any]) -> None:
        self._waiting[index] = response
        while self._next in self._waiting:
            self._observer.on_next(self._waiting.pop(self._next))
            self._next += 1


def _failed(error: LLMError) -> Response[Any]:
    """Return the response of a request that failed, with the text of an answer that had the wrong format."""
    answer: Mapping[str, Any] = error.metadata if error.reason == "invalid_output" else {}
    text, usage = answer.get("text", ""), answer.get("usage", Usage())
    return Response(output_text=text, finish_reason="error", usage=usage, error=error)
