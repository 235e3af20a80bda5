"""Send many requests, and store their responses in a journal."""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import msgspec
from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable, SerialDisposable

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.pipelines._batch_journal import Journal, RequestId
from rxllm.pipelines._call import budget_counter
from rxllm.pipelines._generate import response_of
from rxllm.pipelines._setup import Input, Setup, arriving_requests, as_entry, as_requests
from rxllm.pipelines.options import GenerateOptions, PlainOptions, with_options
from rxllm.runtime import (
    MAX_WAITING,
    Arriving,
    Bounded,
    Budget,
    Deferred,
    Stream,
    current_scope,
    provider_name,
    result_of,
    scoped,
    within,
)
from rxllm.telemetry import CallFinished, RetryAttempt, Telemetry
from rxllm.values import (
    AdapterError,
    EngineError,
    LLMError,
    Progress,
    Request,
    Response,
    StreamError,
    Usage,
    ValidationError,
)
from rxllm.values.argument_checks import check, check_count, check_function, check_instance, invalid_option, is_positive
from rxllm.values.errors import as_llm_error
from rxllm.values.times import with_times_of

T = TypeVar("T")
OnProgress = Callable[[Progress], object]
Requests = (
    Iterable[Input | Request]
    | Mapping[str, Input | Request]
    | Mapping[int, Input | Request]
    | AsyncIterable[Input | Request]
    | Observable[Any]
)
"""The requests of a batch: all at once, also with ids, or as they arrive."""

_SETUP_REASONS = frozenset(
    {
        "authentication_failed",
        "invalid_engine",
        "missing_dependency",
        "missing_key",
        "missing_model",
        "unknown_provider",
        "wrong_loop",
    }
)
"""The reasons of errors that the requests of a batch share."""


class Responses(Stream[Response[T]]):
    """The responses to many requests. ``run`` and ``await`` return a list in the order of the requests."""

    def __init__(self, subscribe: abc.Subscription[Response[T]], *, is_ordered: bool) -> None:
        super().__init__(subscribe)
        self._is_ordered = is_ordered

    @property
    def _whole(self) -> Observable[Any]:
        if self._is_ordered:
            return self.to_list()
        return self.to_list().map(lambda responses: sorted(responses, key=lambda item: item.metadata["request_index"]))

    if TYPE_CHECKING:

        def run(self, scheduler: abc.SchedulerBase | None = None) -> list[Response[T]]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __await__(self) -> Generator[Any, None, list[Response[T]]]: ...  # pyright: ignore[reportIncompatibleMethodOverride]


@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Requests,
    *,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    usd: float | None = None,
    response_format: type[T],
    **opts: Unpack[PlainOptions],
) -> Responses[T]: ...
@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Requests,
    *,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    usd: float | None = None,
    **opts: Unpack[GenerateOptions],
) -> Responses[Any]: ...
@with_options(GenerateOptions)
def generate_many(
    engine: Engine | str | Any,
    requests: Requests,
    *,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    usd: float | None = None,
    **opts: Any,
) -> Responses[Any]:
    """Send many requests, and return their responses.

    >>> from rxllm import Fake
    >>> shout = Fake(lambda request: request.messages[-1].text.upper())
    >>> [response.output_text for response in generate_many(shout, ["a", "b"])]
    ['A', 'B']

    Up to `concurrency` requests run at a time. ``.run()`` and ``await`` return a list in the order of the requests.

    All `requests` are read and checked when this function is called. If a request fails, its Response has an `error`,
    and the other requests continue. If the engine cannot answer any request, for example because its key is missing,
    the stream fails with this one error. The stream emits the responses in the order of the requests. With
    ``ordered=False``, each response is emitted as soon as it is complete. The index of its request is in
    ``response.metadata["request_index"]``:

    >>> many = generate_many(shout, ["a", "b"], ordered=False)
    >>> sorted((response.metadata["request_index"], response.output_text) for response in many)
    [(0, 'A'), (1, 'B')]

    `requests` can also be a mapping from ids (strings or integers) to requests. The id is then in
    ``response.metadata["request_id"]``.

    `requests` can also be an Observable, such as a `Stream`, or an async iterable, such as an async generator. Its
    requests are then sent as they arrive. While `concurrency` requests are running, an async iterable waits. An invalid
    request becomes a Response with an `error`. If the source fails, the stream fails with the same exception after the
    requests that have arrived. A `journal` needs all requests in advance:

    >>> async def questions():
    ...     yield "a"
    ...     yield "b"
    >>> [response.output_text for response in generate_many(shout, questions())]
    ['A', 'B']

    `journal` is the path of a file. Each answer is appended to this file before the answer is emitted. A second run
    with the same file emits the stored answers, and sends only the remaining requests. Failed requests are not stored.
    A request is recognized by its id or, if there are no ids, by its `request_key`, which covers all options except
    `system`. The file is synced to disk at the end and, while answers arrive, at most once a second.

    ``on_progress(progress)`` is called with a `Progress` whenever a request ends. For a progress bar, pass
    ``rxllm.display.progress_bar()``.

    `usd` limits the cost of the whole batch in dollars, including stored answers. See ``operators.budget``. Each
    request reserves the most that it can cost, so set `max_tokens`. A request that would exceed the limit waits until
    other requests have ended. If it would still exceed the limit, it fails without being sent. A request whose price is
    unknown also fails without being sent.

    If an id in the journal belongs to a different request, the stream fails with ``ValidationError`` before anything is
    sent. The stream fails with ``EngineError("journal_in_use")`` if another stream is writing to the file, and with
    ``EngineError("journal_failed")`` if the file cannot be read or written.
    """
    check_count("concurrency", concurrency)
    check_instance("ordered", ordered, bool, "True or False")
    if on_progress is not None:
        check_function("on_progress", on_progress)
    check("usd", usd, usd is None or is_positive(usd), "None or a positive number of dollars")
    path = None if journal is None else _path(journal)
    setup, arriving = Setup.of(engine, GenerateOptions, opts), arriving_requests(requests)
    if arriving is not None and path is not None:
        raise invalid_option("journal", "needs all requests in advance; pass them as a list")
    many, ids = ([], None) if arriving is not None else as_requests(requests)

    def subscribe(
        observer: abc.ObserverBase[Response[Any]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        journal = None
        limited = setup if usd is None else setup.without(setup.engine.with_operators(ops.budget(Budget(usd=usd))))
        if path is not None:
            count = budget_counter(limited, many)
            journal = Journal(path, many, ids, setup.complete, provider_name(setup.engine.adapter), count)
        emitter = _Emitter(observer, ordered, ids, len(many), on_progress, journal)
        watched = limited if on_progress is None else limited.with_observer(emitter.observe)

        def response(index: int, request: Request) -> Stream[Response[Any]]:
            source = _response(watched, index, request, journal)
            return source if usd is None else emitter.queue.add(source)

        def run() -> abc.DisposableBase:
            sources = (response(index, request) for index, request in enumerate(many))
            running = Bounded(sources, concurrency, emitter.receive, emitter.end, emitter.finish, emitter.fail)
            emitter.stop = running.dispose
            running.start(scheduler)
            return running

        def run_arriving(source: Observable[Any]) -> abc.DisposableBase:
            def ask(index: int, value: Any) -> Stream[Response[Any]]:
                emitter.expect(index + 1)
                return Deferred(lambda: response(index, as_entry(index, value)))

            running = Arriving(
                ask, concurrency, emitter.receive, emitter.end, emitter.finish, emitter.fail, emitter.is_behind
            )
            emitter.stop, emitter.resume = running.dispose, running.resume
            running.start(source, scheduler)
            return running

        if arriving is not None:
            return run_arriving(arriving)
        return run() if journal is None else _run_with_journal(journal, run, emitter, scheduler)

    responses = Responses[Any](subscribe, is_ordered=ordered)
    setup.returned_by("generate_many", responses, "Responses")
    return responses


def readable_again(requests: Requests) -> Any:
    """Return `requests` in a form that several calls of `generate_many` can read, or raise the error of the first."""
    arriving = arriving_requests(requests)
    if arriving is not None:
        return arriving
    many, ids = as_requests(requests)
    return many if ids is None else dict(zip(ids, many, strict=True))


def _path(journal: Any) -> str:
    expected = "the path of a file, or None"
    check_instance("journal", journal, str | os.PathLike, expected)
    check("journal", journal, journal != "", expected)
    return os.path.abspath(journal)


def _run_with_journal(
    journal: Journal, run: Callable[[], abc.DisposableBase], emitter: _Emitter, scheduler: abc.SchedulerBase | None
) -> abc.DisposableBase:
    # The last request may end before ``run`` returns.
    scope, running, closing = current_scope.get(), SerialDisposable(), SerialDisposable()

    def begin(_: None) -> None:
        with within(scope):
            running.disposable = run()

    def close() -> None:
        closing.disposable = result_of(journal.close).subscribe(
            on_error=emitter.fail, on_completed=emitter.complete, scheduler=scheduler
        )

    emitter.finish = close
    opening = result_of(journal.open).subscribe(begin, emitter.fail, scheduler=scheduler)
    return CompositeDisposable(opening, running, closing, Disposable(journal.leave))


def _response(setup: Setup, index: int, request: Request, journal: Journal | None) -> Stream[Response[Any]]:
    """Return the response from the journal, or else from the model.

    A response from the model is journaled before it is emitted.
    """
    if journal is None:
        return response_of(setup, request)

    def keep(response: Response[Any]) -> Observable[Response[Any]]:
        return result_of(lambda: response if response.error is not None else journal.append(index, response))

    def ask() -> Observable[Response[Any]]:
        return response_of(setup, request).flat_map(keep)

    def check(response: Response[Any]) -> Observable[Response[Any]]:
        read = setup.response_format(request)
        if read is not None and not response.tool_calls:
            try:
                response = with_times_of(response, replace(response, parsed=read(response.output_text)))
            except ValidationError:  # the type's validation has changed since the response was journaled
                journal.forget(index)
                return scoped(Deferred(ask), scope)
        return result_of(lambda: response)

    scope = current_scope.get()
    return Deferred(lambda: result_of(partial(journal.read, index)).flat_map(check) if journal.has(index) else ask())


class _Queue:
    """A queue of requests that may have to wait until the spending limit has room for them."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting: list[Callable[[], None]] = []
        self._is_waking = False

    def add(self, source: Stream[Response[Any]]) -> Stream[Response[Any]]:
        def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> SerialDisposable:
            def ask() -> None:
                if not subscription.is_disposed:
                    self._running += 1
                    subscription.disposable = source.subscribe(
                        observer.on_next, refuse, observer.on_completed, scheduler=scheduler
                    )

            def refuse(error: Exception) -> None:
                if self._running > 1 and isinstance(error, StreamError) and error.metadata.get("limit") == "usd":
                    self._running -= 1
                    self._waiting.insert(0 if self._is_waking else len(self._waiting), ask)
                else:
                    observer.on_error(error)

            subscription = SerialDisposable()
            ask()
            return subscription

        return Stream(subscribe)

    def end(self) -> None:
        self._running -= 1
        ask = None
        if not self._is_waking:  # otherwise, the loop below is already running in an outer call
            self._is_waking = True
            while self._waiting and self._waiting[0] is not ask:  # stop as soon as a request is put back
                ask = self._waiting.pop(0)
                ask()
            self._is_waking = False


class _Emitter:
    def __init__(
        self,
        observer: abc.ObserverBase[Response[Any]],
        ordered: bool,
        ids: Sequence[RequestId] | None,
        total: int,
        on_progress: OnProgress | None,
        journal: Journal | None,
    ) -> None:
        self._observer = observer
        self._ordered = ordered
        self._ids = ids
        self._progress = Progress(0, 0, total, Usage())
        self._retries = 0
        self._seconds: list[float] = []  # sorted
        self.queue = _Queue()
        self._on_progress = on_progress
        self._waiting: dict[int, Response[Any]] = {}
        self._next = 0
        self._journal = journal
        self.complete = self.finish = observer.on_completed
        self._is_answered = False  # whether the model has answered a request
        self.stop: Callable[[], None] = lambda: None
        self.resume: Callable[[], None] = lambda: None

    def fail(self, error: Any) -> None:
        self.stop()
        self._observer.on_error(error)

    def expect(self, total: int) -> None:
        """Set the number of requests that have arrived so far."""
        self._progress = msgspec.structs.replace(self._progress, total=total)

    def is_behind(self) -> bool:
        """Whether so many responses wait for an earlier one that no further requests should be sent."""
        return len(self._waiting) >= MAX_WAITING

    def receive(self, index: int, response: Response[Any]) -> None:
        # An exception raised by the subscriber ends the stream. It does not count as a failure of the request.
        try:
            self._count(index, response)
            self._is_answered |= response.error is None and not self._is_stored(index)
            if not self._ordered:
                self._emit(index, response, request_index=index)
                return
            self._waiting[index] = response
            while self._next in self._waiting:
                self._emit(self._next, self._waiting.pop(self._next))
                self._next += 1
            self.resume()
        except Exception as error:
            self._observer.on_error(error)

    def end(self, index: int, error: Exception | None) -> None:
        if self._ends_all(error):
            self.fail(error)
            return
        if error is not None:
            self.receive(index, _failed_response(as_llm_error(error)))
        self.queue.end()

    def _ends_all(self, error: Exception | None) -> bool:
        """Whether `error` ends the batch: its journal has failed, or nothing is answered because of the setup."""
        if not isinstance(error, EngineError | AdapterError):
            return False
        if error.reason == "journal_failed":
            return self._journal is not None
        return error.reason in _SETUP_REASONS and not self._is_answered

    def _is_stored(self, index: int) -> bool:
        return self._journal is not None and self._journal.has(index)

    def observe(self, value: Telemetry) -> None:
        if isinstance(value, RetryAttempt):
            self._retries += 1
        elif isinstance(value, CallFinished) and value.outcome == "completed":
            insort(self._seconds, value.seconds)

    def _count(self, index: int, response: Response[Any]) -> None:
        if self._on_progress is not None:
            last = self._progress
            failed = last.failed + (response.error is not None)
            journaled = last.journaled + self._is_stored(index)
            usage = last.usage + response.usage
            percentiles = [self._seconds[int(len(self._seconds) * share)] for share in (0.5, 0.95) if self._seconds]
            self._progress = Progress(last.done + 1, failed, last.total, usage, journaled, self._retries, *percentiles)
            self._on_progress(self._progress)

    def _emit(self, index: int, response: Response[Any], **notes: Any) -> None:
        if self._ids is not None:
            notes["request_id"] = self._ids[index]
        noted = replace(response, metadata={**response.metadata, **notes}) if notes else response
        self._observer.on_next(with_times_of(response, noted))


def _failed_response(error: LLMError) -> Response[Any]:
    answer: Mapping[str, Any] = error.metadata if error.reason == "invalid_output" else {}
    text, usage = answer.get("text", ""), answer.get("usage", Usage())
    return Response(output_text=text, finish_reason="error", usage=usage, error=error)
