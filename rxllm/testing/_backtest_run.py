"""One run of a pipeline over a recording, in a virtual time of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable, Disposable
from reactivex.scheduler import CurrentThreadScheduler, VirtualTimeScheduler

from rxllm import models
from rxllm import operators as ops
from rxllm.adapters import Fake
from rxllm.engine import as_engine
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.runtime import EngineCall, Stream, applying_operators, is_content, provider_name
from rxllm.runtime.stream_arguments import check_source
from rxllm.serializer import from_json
from rxllm.testing._cassette import Cassette
from rxllm.testing._recordings import Recorded, is_left, recordings_in
from rxllm.testing._replay import play
from rxllm.testing._request_key import key_of
from rxllm.values import AdapterError, Call, Request, Usage, ValidationError

Operator = Callable[[Observable[Any]], Observable[Any]]
Shown = tuple[float, Literal["next", "error", "completed"], Any]

PATIENCE = 3600.0
"""Virtual seconds after the end of a recording in which its pipeline must have ended."""


@dataclass(frozen=True)
class Tape:
    """A recording, and those after it that answer the same request."""

    name: str
    takes: Sequence[Recorded | Observable[Any]]
    described: Mapping[str, Any]

    def check(self) -> float:
        """Return how long the recording is. Raises ``ValidationError`` if it is malformed."""
        return max([take.notes()[-1].at for take in self.takes[:1] if isinstance(take, Recorded)], default=0.0)

    @property
    def request(self) -> Request:
        data = {name: entry for name, entry in self.described.items() if name not in ("provider", "raw")}
        with suppress(ValidationError):  # bytes, of which a cassette has only the hash
            return from_json(msgspec.json.encode(data), Request, local_files=True)
        return Request(model=data.get("model"))


def tapes_of(origin: Path | Observable[Any]) -> list[Tape]:
    """Return the recordings of a file, or the one that is a stream."""
    if isinstance(origin, Observable):
        return [Tape(type(origin).__name__, [origin], {})]
    recordings = recordings_in(origin)
    keys = [key_of(recording.request) for recording in recordings]
    tapes: list[Tape] = []
    for index, recording in enumerate(recordings):
        takes = [other for other, key in zip(recordings[index:], keys[index:], strict=True) if key == keys[index]]
        name = origin.name if len(keys) == 1 else f"{origin.name}#{index + 1}"
        tapes.append(Tape(name, takes, recording.request))
    return tapes


class Run:
    """What has been shown of a `tape`. With `shown`, all of it is added there too."""

    def __init__(self, tape: Tape, operators: Sequence[Operator], shown: list[Shown] | None = None) -> None:
        self.outcome: Literal["completed", "error", "unanswered"] = "unanswered"
        self.error: Exception | None = None
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.cut_at: float | None = None
        self.items = 0
        self.text = ""
        self.usages: list[Usage] = []
        self.missing: list[tuple[float, str]] = []
        self._pieces: list[str] = []
        self._tape = tape
        self._operators = operators
        self._shown = shown
        self._takes = iter(tape.takes)
        self._scheduler = VirtualTimeScheduler(0.0)
        self._is_over = False

    def start(self) -> None:
        """Let the time pass until the pipeline has ended."""
        stream, length = self._piped(), self._tape.check()
        try:
            subscription = stream.subscribe(self._next, self._fail, self._complete, scheduler=self._scheduler)
            if self.ended_at is None:
                self._scheduler.advance_to(length + PATIENCE)
        except Exception as error:  # from an operator's timer
            self._fail(error)
        else:
            self._is_over = True
            subscription.dispose()
        self.text = "".join(self._pieces)

    def _piped(self) -> Observable[Any]:
        provider = self._tape.described.get("provider")
        call = EngineCall(self._tape.request, Call(), self._ask, provider, Usage()) if provider else None
        source: Observable[Any] = Stream(self._subscribe_again)
        with nullcontext() if call is None else applying_operators(call):
            for operator in self._operators:
                source = operator(source)
        check_source(source, "backtest")
        return source

    def _subscribe_again(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        take = next(self._takes, None)
        if take is None:
            self._need("another answer to the same request")
            return Disposable()
        source = play(take.notes(), 1.0) if isinstance(take, Recorded) else take
        source = _priced(source, self._tape.described.get("provider"), self._tape.request.model)
        return self._listen(source, "what follows, as its subscriber had left", observer)

    def _ask(self, engine: Any, model: str | None = None) -> Stream[Event]:
        """Answer for another engine, if that needs no call."""
        other = as_engine(engine)
        request = replace(self._tape.request, model=model or other.model or self._tape.request.model, options={})
        what = f"an answer of {provider_name(other.adapter)}" + (f":{request.model}" if request.model else "")

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            adapter = other.adapter
            if isinstance(adapter, Fake) or (isinstance(adapter, Cassette) and adapter.mode == "replay"):
                source = _priced(adapter.stream(request, Call()), provider_name(adapter), request.model)
                return self._listen(source, what, observer)
            self._need(what)
            return Disposable()

        return Stream(subscribe)

    def _listen(self, source: Observable[Any], what: str, observer: abc.ObserverBase[Any]) -> abc.DisposableBase:
        """Subscribe to an answer: note its usage, and when it is left; where it is not recorded, `what` is needed."""
        number, has_ended = len(self.usages), False
        self.usages.append(Usage())
        events = Subject[Any]()
        # An item that is not an event has no usage.
        at_once = CurrentThreadScheduler.singleton()
        note = partial(self.usages.__setitem__, number)
        events.pipe(ops.usage()).subscribe(note, lambda _: None, scheduler=at_once)

        def on_next(item: Any) -> None:
            events.on_next(item)
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            nonlocal has_ended
            has_ended = True
            if is_left(error) or (isinstance(error, AdapterError) and error.reason == "no_scripted_response"):
                self._need(what)
            else:
                observer.on_error(error)

        def on_completed() -> None:
            nonlocal has_ended
            has_ended = True
            observer.on_completed()

        def leave() -> None:
            if not has_ended and not self._is_over:
                self.cut_at = self._now()

        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, Disposable(leave))

    def _need(self, what: str) -> None:
        self.missing.append((self._now(), what))

    def _now(self) -> float:
        return round(self._scheduler.to_seconds(self._scheduler.now), 6)

    def _next(self, item: Any) -> None:
        self.items += 1
        if self.first_at is None and is_content(item):
            self.first_at = self._now()
        match item:
            case TextDelta(delta=text) | str(text):
                self._pieces.append(text)
            case ErrorEvent(error=error):
                self.error = self.error or error
            case _ if hasattr(item, "output_text"):  # a snapshot, or the response
                self._pieces = [item.output_text]
            case _:
                pass
        self._note("next", item)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._end("error", error)

    def _complete(self) -> None:
        self._end("completed", None)

    def _end(self, kind: Literal["error", "completed"], error: Exception | None) -> None:
        self.ended_at = self._now()
        self.outcome = "completed" if self.error is None else "error"
        self._note(kind, error)
        self._scheduler.stop()

    def _note(self, kind: Literal["next", "error", "completed"], item: Any) -> None:
        if self._shown is not None:
            self._shown.append((self._now(), kind, item))


def _priced(source: Observable[Any], provider: str | None, model: str | None) -> Observable[Any]:
    """Return an answer with its costs, as an engine's operators see it."""
    info = models.find(provider, model) if provider else None
    return source.pipe(ops.cost(price=models.price_of(info))) if info is not None and info.has_prices else source
