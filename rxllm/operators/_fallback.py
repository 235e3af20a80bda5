"""Somebody else's answer, when there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from reactivex import Observable

from rxllm.adapters import as_adapter, connect
from rxllm.events import Event, MessageCompleted
from rxllm.runtime import Assembly, Stream, attempting, current_assembly, provider_name
from rxllm.values import StreamError
from rxllm.values.arguments import invalid_option

if TYPE_CHECKING:
    from rxllm.engine import Engine

log = logging.getLogger("rxllm")


def fallback(
    *engines: Engine | str | Observable[Event] | Any, when: Callable[[Exception], bool] | None = None
) -> Callable[[Observable[Event]], Stream[Event]]:
    """A stream that fails before its first content is replaced by the next of `engines`, and so on.

    ::

        source            --start--X
        second            ---start--H--i--end--|
        fallback(second)  ------------------start,H--i--end--|

    >>> from rxllm import AdapterError, Engine, Fake, generate, stream_generate
    >>> down = Fake(AdapterError("provider_unavailable"))
    >>> response = generate(Engine(down, operators=[fallback(Fake("Hello"))], retry=False), "Hi").run()
    >>> response.output_text, response.metadata["fallback"]["answered_by"]
    ('Hello', 'Fake')
    >>> stream_generate(down, "Hi", retry=False).pipe(fallback(stream_generate(Fake("Hello"), "Hi"))).run().message.text
    'Hello'

    As an engine's operator it takes engines, adapters and ``"provider:model"``, which are asked the same: the messages,
    tools and format, and what the request or the call says by itself. What they left to the engine is the other
    engine's own, and so are always the model, if it has one, the key and the pass-through ``options``. Its retry and
    its operators apply to it. Elsewhere it takes Observables of events.

    What the failed attempts had sent before their first content is not seen. ``MessageCompleted`` then has the metadata
    ``{"fallback": {"answered_by": ..., "errors": (...)}}``, which is the response's too; if all fail, the last error is
    passed on as it came, the others are its notes. ``when(error)`` decides which errors count; by default all do but
    ``StreamError("cancelled")``.

    Raises ``ValidationError("invalid_option")`` for what is no engine, here, and for an engine outside of one, when it
    is applied; ``EngineError("unknown_provider")``.
    """
    if not engines:
        raise invalid_option("engines", "must be at least one")
    if when is not None and not callable(when):
        raise invalid_option("when", f"must be a function, not {when!r}")
    others = [_Other.of(given, index) for index, given in enumerate(engines)]

    def operator(source: Observable[Event]) -> Stream[Event]:
        assembly = current_assembly.get()
        sources = [source, *(other.events(assembly) for other in others)]
        first = _named(assembly.provider, assembly.request.model) if assembly else "the first"
        names = [first, *(other.name for other in others)]
        return attempting(lambda: _Falling(sources, names, when or _counts))

    return operator


@dataclass(frozen=True)
class _Other:
    """One of the others: a stream, or who is asked for one."""

    given: Any
    model: str | None
    name: str

    @classmethod
    def of(cls, given: Any, index: int) -> _Other:
        if isinstance(given, Observable):
            return cls(given, None, f"stream {index + 1}")
        if isinstance(given, str):
            provider, _, model = given.partition(":")
            return cls(connect(provider, model), model or None, given)
        adapter = getattr(given, "adapter", given)
        try:
            as_adapter(adapter)
        except Exception as error:
            raise invalid_option(
                "engines", f"must be engines, adapters, names of models or streams, not {given!r}"
            ) from error
        model = getattr(given, "model", None) if adapter is not given else None
        return cls(given, None, _named(provider_name(adapter), model))

    def events(self, assembly: Assembly | None) -> Observable[Event]:
        if isinstance(self.given, Observable):
            return self.given  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if assembly is None:
            what = (
                f"{self.name!r} is an engine, which belongs into Engine(operators=[fallback(...)]); in a pipe give a "
                "stream: fallback(stream_generate(engine, question))"
            )
            raise invalid_option("engines", what)
        return assembly.ask(self.given, self.model)


class _Falling:
    late = False

    def __init__(self, sources: list[Observable[Event]], names: list[str], counts: Callable[[Exception], bool]) -> None:
        self._sources = sources
        self._names = names
        self._counts = counts
        self._failed: list[str] = []

    def source(self, attempt: int) -> Observable[Event]:
        source = self._sources[attempt - 1]
        return source if attempt == 1 else source.map(self._signed)

    def again(self, error: Exception, attempt: int) -> float | None:
        if attempt < len(self._sources) and self._counts(error):
            log.warning("%s failed (%s); falling back on %s", self._names[attempt - 1], error, self._names[attempt])
            self._failed.append(f"{self._names[attempt - 1]}: {error!r}")
            return 0.0
        for each in self._failed:
            if each not in getattr(error, "__notes__", ()):  # a scripted error may be raised more than once
                error.add_note(each)
        return None

    def opens(self, attempt: int) -> Iterable[Event]:
        return ()

    def _signed(self, event: Event) -> Event:
        if not isinstance(event, MessageCompleted):
            return event
        told = {"answered_by": self._names[len(self._failed)], "errors": tuple(self._failed)}
        return msgspec.structs.replace(event, metadata={**event.metadata, "fallback": told})


def _counts(error: Exception) -> bool:
    return not (isinstance(error, StreamError) and error.reason == "cancelled")


def _named(provider: str, model: str | None) -> str:
    return f"{provider}:{model}" if model else provider
