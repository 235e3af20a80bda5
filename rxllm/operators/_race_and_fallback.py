"""Operators that ask another model, or the same one again: race, hedge, fallback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import msgspec
from reactivex import Observable

from rxllm import runtime
from rxllm.adapters import as_adapter, connect
from rxllm.events import Event, MessageCompleted, failure_of, is_refusal, shows_nothing
from rxllm.operators._retry import Restarts
from rxllm.runtime import EngineCall, Plan, Stream, attempting, engine_call, is_prelude, provider_name
from rxllm.runtime.stream_arguments import check_streams
from rxllm.values import AdapterError, Message, StreamError
from rxllm.values.argument_checks import (
    check,
    check_function,
    explains_call,
    invalid_option,
    is_positive,
    must_be,
)

if TYPE_CHECKING:
    from rxllm.engine import Engine

log = logging.getLogger("rxllm")


def race(*others: Observable[Event]) -> Callable[[Observable[Event]], Stream[Event]]:
    """Keep the first stream to emit content, and dispose of the rest.

    ``a.pipe(ops.race(b, c))`` is the same as ``rxllm.race(a, b, c)``. In the result's metadata, the source is stream 0.

    Raises ``ValidationError("invalid_option")`` if `others` is empty, or if one of them is not an Observable.
    """
    check_streams("others", others)
    return lambda source: runtime.race(source, *others)


@explains_call("ops.hedge(after=2) in a pipe, or rxllm.hedge(stream, after)")
def hedge(after: float) -> Callable[[Observable[Event]], Stream[Event]]:
    """Subscribe again if no content arrives within `after` seconds.

    The first subscription to emit content wins. A refusal counts as content: the same model would refuse again.
    ``stream.pipe(ops.hedge(after=2))`` is the same as ``rxllm.hedge(stream, after=2)``. To hedge every call of an
    engine, write ``Engine(adapter, operators=[ops.hedge(after=2)])``.

    Raises ``ValidationError("invalid_option")`` if `after` is not a positive number.
    """
    check("after", after, is_positive(after), "a positive number of seconds")
    return lambda source: runtime.hedge(source, after)


On = Literal["errors", "refusals", "limits"]


def fallback(
    *engines: Engine | str | Observable[Event] | Any,
    when: Callable[[Exception], bool] | None = None,
    on: On | Iterable[On] = ("errors", "refusals"),
    after_content: bool = False,
    sticky: bool = False,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Try the next engine when a stream fails, or when its model refuses to answer, before the first content.

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

    In an engine's operators, pass engines, adapters, or names such as ``"provider:model"``. Each fallback engine
    receives the messages, the tools, the response format, and settings such as the temperature from the original
    request. It keeps its own key, model (if set), pass-through ``options``, retry policy and operators. Settings that
    its model does not accept (see ``rxllm.models``) are left out, with a warning in the log; the response's
    ``metadata["settings_left_out"]`` names them. In a pipe, pass Observables of events instead.

    `on` lists what triggers a fallback:

    * ``"errors"``: every error except ``StreamError("cancelled")`` and refusals.
    * ``"refusals"``: the finish reason ``content_filter``, or an ``AdapterError("content_filter")``. The text of a
      refusal does not count as content if the provider marks it, as OpenAI does. Hidden thinking does not either.
    * ``"limits"``: the finish reason ``length``, or an ``AdapterError`` whose reason is ``rate_limited`` or
      ``context_length_exceeded``.

    ``when(error)`` can then decide against a fallback. For a refused answer, `error` is an
    ``AdapterError("content_filter")`` with the response's metadata. For an answer that is cut off, its reason is
    ``context_length_exceeded``.

    With ``after_content=True``, a stream that fails after its first content is also replaced. ``StepRestarted`` then
    makes folds discard what the step has emitted, as in ``ops.restart``. With ``sticky=True``, a conversation whose
    model has refused stays with the engine that answered: later requests do not ask the engines before it. This needs
    an engine's operators; messages of that engine carry the place of the engine in ``metadata["fallback"]``.

    The events of a failed attempt are dropped. After a fallback, the response has the metadata
    ``{"fallback": {"answered_by": ..., "errors": (...)}}``. If every attempt fails, the last failure is passed on: its
    error, with earlier errors as notes, or its refusal.

    Raises ``ValidationError("invalid_option")`` for invalid arguments, for example if `engines` is empty or contains an
    item of the wrong type. Raises ``EngineError("unknown_provider")`` for an unknown provider. In a pipe, raises
    ``ValidationError`` if `sticky` is set, or unless all `engines` are streams.
    """
    if not engines:
        raise invalid_option("engines", "must not be empty: write fallback(engine)")
    if when is not None:
        check_function("when", when)
    kinds = _kinds(on)
    check("after_content", after_content, type(after_content) is bool, "True or False")
    check("sticky", sticky, type(sticky) is bool, "True or False")
    alternatives = [_Alternative.of(engine, index) for index, engine in enumerate(engines)]

    def operator(source: Observable[Event]) -> Stream[Event]:
        call = engine_call()
        if sticky and call is None:
            raise invalid_option("sticky", "needs an engine's operators; write Engine(..., operators=[fallback(...)])")
        sources = [source, *(alternative.events(call) for alternative in alternatives)]
        first = _full_name(call.provider, call.request.model) if call else "the first"
        names = [first, *(alternative.name for alternative in alternatives)]
        start = _sticky_place(call.request.messages, names) if sticky and call else 0
        rules = _Rules(kinds, when or _is_failure, after_content, sticky)
        return attempting(lambda: _Fallback(sources, names, rules, start))

    return operator


def _kinds(on: Any) -> frozenset[str]:
    names: list[Any] = [on] if isinstance(on, str) else [*cast(Iterable[Any], on)] if isinstance(on, Iterable) else []
    is_known = bool(names) and all(name in get_args(On) for name in names)
    check("on", cast(object, on), is_known, "one or more of 'errors', 'refusals' and 'limits'")
    return frozenset(names)


def _sticky_place(messages: Sequence[Message], names: Sequence[str]) -> int:
    """Return the place of the engine that has answered in this conversation since a model refused, or 0."""
    for message in reversed(messages):
        match message.metadata.get("fallback"):
            case {"place": int(place), "engine": str(name)} if 0 < place < len(names) and names[place] == name:
                return place
            case _:
                pass
    return 0


@dataclass(frozen=True)
class _Alternative:
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
            expected = "engines, adapters, model names or streams"
            raise invalid_option("engines", must_be(expected, engine)) from error
        model = getattr(engine, "model", None) if adapter is not engine else None
        return cls(engine, None, _full_name(provider_name(adapter), model))

    def events(self, call: EngineCall | None) -> Observable[Event]:
        if isinstance(self.engine, Observable):
            return self.engine  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if call is None:
            fault = (
                f"cannot include the engine {self.name!r} when fallback(...) is used in a pipe; pass a stream, as in "
                "fallback(stream_generate(engine, question))"
            )
            raise invalid_option("engines", fault)
        return call.ask(self.engine, self.model)


class _Rules(NamedTuple):
    """The arguments of a fallback."""

    on: frozenset[str]
    when: Callable[[Exception], bool]
    after_content: bool
    sticky: bool


class _Fallback(Plan):
    """The attempts of one subscription. The first one asks the engine at the place `start`."""

    def __init__(self, sources: list[Observable[Event]], names: list[str], rules: _Rules, start: int) -> None:
        self.late = rules.after_content
        self._sources = sources
        self._names = names
        self._rules = rules
        self._start = start
        self._is_sticky = start > 0
        self._restarts = Restarts()
        self._reason = ""
        self._failures: list[str] = []

    def source(self, attempt: int) -> Observable[Event]:
        place = self._place(attempt)
        source = self._sources[place].map(partial(self._mark, place)) if self._is_sticky else self._sources[place]
        return self._restarts.record(source) if self.late else source

    def failure(self, event: Event) -> Exception | None:
        is_cut = isinstance(event, MessageCompleted) and event.finish_reason == "length" and "limits" in self._rules.on
        return AdapterError("context_length_exceeded", _CUT) if is_cut else failure_of(event)

    def holds(self, event: Event) -> bool:
        return shows_nothing(event) if "refusals" in self._rules.on else is_prelude(event)

    def again(self, error: Exception, attempt: int) -> float | None:
        place = self._place(attempt)
        if place + 1 < len(self._sources) and not self._restarts.is_over and self._acts_on(error):
            log.warning("%s failed (%s); falling back to %s", self._names[place], error, self._names[place + 1])
            self._failures.append(f"{self._names[place]}: {error!r}")
            self._reason = getattr(error, "reason", type(error).__name__)
            self._is_sticky = self._is_sticky or (self._rules.sticky and is_refusal(error))
            return 0.0
        for failure in self._failures:
            if failure not in getattr(error, "__notes__", ()):  # Tests may raise the same error twice.
                error.add_note(failure)
        return None

    def _acts_on(self, error: Exception) -> bool:
        kinds = {"refusals" if is_refusal(error) else "errors"}
        if isinstance(error, AdapterError) and error.reason in _LIMITS:
            kinds.add("limits")
        return not kinds.isdisjoint(self._rules.on) and self._rules.when(error)

    def opens(self, attempt: int) -> Iterable[Event]:
        return self._restarts.announce(self._reason, attempt) if self.late else ()

    def name(self, attempt: int) -> str:
        return self._names[self._place(attempt)]

    def note(self, times: Mapping[str, Any]) -> Mapping[str, Any]:
        answered_by = self._names[self._start + len(self._failures)]
        times = {} if self._restarts.is_announced else times  # the `StepRestarted` event shows the lost attempt
        return {"fallback": {"answered_by": answered_by, "errors": tuple(self._failures), **times}}

    def _place(self, attempt: int) -> int:
        return self._start + attempt - 1

    def _mark(self, place: int, event: Event) -> Event:
        """Mark the message, so that the rest of the conversation stays with the engine at `place`."""
        if not isinstance(event, MessageCompleted):
            return event
        mark = {"place": place, "engine": self._names[place]}
        message = replace(event.message, metadata={**event.message.metadata, "fallback": mark})
        return msgspec.structs.replace(event, message=message, metadata={**event.metadata, **self.note({})})


_CUT = "the answer is cut off at its token limit"
_LIMITS = ("rate_limited", "context_length_exceeded")


def _is_failure(error: Exception) -> bool:
    return not (isinstance(error, StreamError) and error.reason == "cancelled")


def _full_name(provider: str, model: str | None) -> str:
    return f"{provider}:{model}" if model else provider
