"""Ask another engine when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from reactivex import Observable

from rxllm.adapters import as_adapter, connect
from rxllm.events import Event, MessageCompleted
from rxllm.runtime import EngineCall, Stream, attempting, engine_call, provider_name
from rxllm.values import StreamError
from rxllm.values.argument_checks import check_function, invalid_option, must_be

if TYPE_CHECKING:
    from rxllm.engine import Engine

log = logging.getLogger("rxllm")


def fallback(
    *engines: Engine | str | Observable[Event] | Any, when: Callable[[Exception], bool] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace a stream that fails before its first content by the next of `engines`, and so on.

    ::

        source            --start--X
        second                     ---start--H---------i--end--|
        fallback(second)  -------------------(start,H)-i--end--|

    >>> from rxllm import AdapterError, Engine, Fake, generate, stream_generate
    >>> down = Fake(AdapterError("provider_unavailable"))
    >>> response = generate(Engine(down, operators=[fallback(Fake("Hello"))], retry=False), "Hi").run()
    >>> response.output_text, response.metadata["fallback"]["answered_by"]
    ('Hello', 'Fake')
    >>> stream_generate(down, "Hi", retry=False).pipe(fallback(stream_generate(Fake("Hello"), "Hi"))).run().message.text
    'Hello'

    As an engine's operator it takes engines, adapters and ``"provider:model"``. Each gets the same messages, tools and
    format, and whatever the request or the call sets itself; the other settings are its own engine's, as are always the
    model (if it has one), the key, the pass-through ``options``, retry and operators. In a pipe it takes Observables of
    events.

    Events of a failed attempt before its first content do not pass. ``MessageCompleted``, and so the response, then has
    the metadata ``{"fallback": {"answered_by": ..., "errors": (...)}}``. If all fail, the last error passes unchanged,
    with the others as notes. ``when(error)`` decides which errors count; by default all but
    ``StreamError("cancelled")``.

    Raises ``ValidationError("invalid_option")`` if one of `engines` is not an engine, or, when it is applied, if it is
    an engine in a pipe; ``EngineError("unknown_provider")``.
    """
    if not engines:
        raise invalid_option("engines", "must be at least one")
    if when is not None:
        check_function("when", when)
    alternatives = [_Alternative.of(engine, index) for index, engine in enumerate(engines)]

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = engine_call()
        sources = [source, *(alternative.events(call) for alternative in alternatives)]
        first = _full_name(call.provider, call.request.model) if call else "the first"
        names = [first, *(alternative.name for alternative in alternatives)]
        return attempting(lambda: _Fallback(sources, names, when or _is_failure))

    return operator


@dataclass(frozen=True)
class _Alternative:
    """A stream, or an engine, adapter or model name to ask for one."""

    engine: Any
    model: str | None
    name: str

    @classmethod
    def of(cls, engine: Any, index: int) -> _Alternative:
        if isinstance(engine, Observable):
            return cls(engine, None, f"stream {index + 1}")
        if isinstance(engine, str):
            provider, _, model = engine.partition(":")
            return cls(connect(provider, model), model or None, engine)
        adapter = getattr(engine, "adapter", engine)
        try:
            as_adapter(adapter)
        except Exception as error:
            expected = "engines, adapters, names of models or streams"
            raise invalid_option("engines", must_be(expected, engine)) from error
        model = getattr(engine, "model", None) if adapter is not engine else None
        return cls(engine, None, _full_name(provider_name(adapter), model))

    def events(self, call: EngineCall | None) -> Observable[Event]:
        if isinstance(self.engine, Observable):
            return self.engine  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if call is None:
            fault = (
                f"{self.name!r} is an engine, which belongs in Engine(operators=[fallback(...)]); in a pipe, pass a "
                "stream: fallback(stream_generate(engine, question))"
            )
            raise invalid_option("engines", fault)
        return call.ask(self.engine, self.model)


class _Fallback:
    late = False

    def __init__(
        self, sources: list[Observable[Event]], names: list[str], is_failure: Callable[[Exception], bool]
    ) -> None:
        self._sources = sources
        self._names = names
        self._is_failure = is_failure
        self._failures: list[str] = []

    def source(self, attempt: int) -> Observable[Event]:
        source = self._sources[attempt - 1]
        return source if attempt == 1 else source.map(self._with_failures)

    def again(self, error: Exception, attempt: int) -> float | None:
        if attempt < len(self._sources) and self._is_failure(error):
            log.warning("%s failed (%s); falling back on %s", self._names[attempt - 1], error, self._names[attempt])
            self._failures.append(f"{self._names[attempt - 1]}: {error!r}")
            return 0.0
        for failure in self._failures:
            if failure not in getattr(error, "__notes__", ()):  # a scripted error may be raised more than once
                error.add_note(failure)
        return None

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()

    def _with_failures(self, event: Event) -> Event:
        if not isinstance(event, MessageCompleted):
            return event
        record = {"answered_by": self._names[len(self._failures)], "errors": tuple(self._failures)}
        return msgspec.structs.replace(event, metadata={**event.metadata, "fallback": record})


def _is_failure(error: Exception) -> bool:
    return not (isinstance(error, StreamError) and error.reason == "cancelled")


def _full_name(provider: str, model: str | None) -> str:
    return f"{provider}:{model}" if model else provider
