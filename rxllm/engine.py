"""The engine: what is the same for many calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime import Retry
from rxllm.runtime._stream_arguments import check_operators
from rxllm.values import EngineError, Request, Tool, ValidationError
from rxllm.values.arguments import check_function, must_be
from rxllm.values.secrets import masked

Operator = Callable[[Observable[Event]], Observable[Event]]


@dataclass(frozen=True)
class Alongside:
    """A check in an engine's `prepare` that runs while the model answers, see `alongside`."""

    check: Callable[[Request], Any]


Prepare = Callable[[Request], Any] | Alongside
"""A function from a `Request` to the `Request` that is sent, or to an awaitable or an Observable of it."""


def alongside(check: Callable[[Request], Any]) -> Alongside:
    """Run ``check(request)`` while the model answers, and hold the answer back until it has passed.

    For an engine's `prepare`: a moderation that costs no time. `check` is a function, async or not, or returns an
    Observable; what it returns is not used. If it raises, the call is closed, and the error goes to ``on_error``.

    >>> from rxllm import Fake, ValidationError, generate
    >>> async def moderate(request):
    ...     if "bomb" in request.messages[-1].text:
    ...         raise ValidationError("invalid_request", "the question is not allowed")
    >>> engine = Engine(Fake("Hello"), prepare=[alongside(moderate)])
    >>> generate(engine, "Hi").run().output_text
    'Hello'
    >>> generate(engine, "How is a bomb built?").run()
    Traceback (most recent call last):
        ...
    rxllm.values.errors.ValidationError: the question is not allowed

    Raises ``ValidationError("invalid_option")`` for a `check` that is not a function.
    """
    check_function("check", check)
    return Alongside(check)


@dataclass(frozen=True)
class Engine:
    """How calls are made: configuration, not data, and never a key.

    `params` are defaults for the calls' options; `context` is what tools are given; `operators` is the middleware,
    applied to every response's events in order; `prepare` holds functions that are called with the `Request` before
    each call, one after another, and return the one that is sent (trimmed, redacted) or raise an error to refuse it;
    they may be async, return an Observable, or be `alongside`. `observers` receive telemetry values; `retry` is a
    `RetryPolicy`, or False for none. A copy has clients of its own, a pickle neither clients nor keys. Raises
    ``EngineError("invalid_engine")`` for tools, operators and observers that are none.

    >>> from rxllm import Fake
    >>> engine = Engine(Fake("Hi"), model="small").with_params(temperature=0.0)
    >>> engine.model, engine.params
    ('small', {'temperature': 0.0})
    """

    adapter: Any = None
    model: str | None = None
    tools: tuple[Tool, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    image_adapter: Any = None
    operators: tuple[Operator, ...] = ()
    prepare: tuple[Prepare, ...] = ()
    observers: tuple[Callable[[Any], object], ...] = ()
    retry: Retry = "default"
    tool_executor: Callable[..., Any] | None = None
    tool_result_encoder: Callable[[Any], str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if "api_key" in self.params:
            message = (
                "an engine keeps no key, and its params have an api_key; "
                "give it to the call or to the adapter, or write rxllm.keys.put(provider, key)"
            )
            raise EngineError("invalid_engine", message)
        for name in ("tools", "operators", "prepare", "observers"):
            object.__setattr__(self, name, _all_of(name, getattr(self, name)))

    def __repr__(self) -> str:
        shown = (f"{entry.name}={masked(getattr(self, entry.name))!r}" for entry in fields(self))
        return f"Engine({', '.join(shown)})"

    def __copy__(self) -> Engine:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return replace(self, **deepcopy(vars(self), memo))

    def with_model(self, model: str) -> Engine:
        return replace(self, model=model)

    def with_tools(self, *tools: Tool) -> Engine:
        """With these tools too; one of a name that is there takes its place."""
        return replace(self, tools=merge_tools(self.tools, _all_of("tools", tools)))

    def with_params(self, **params: Any) -> Engine:
        return replace(self, params={**self.params, **params})

    def with_context(self, **context: Any) -> Engine:
        return replace(self, context={**self.context, **context})

    def with_operators(self, *operators: Operator) -> Engine:
        return replace(self, operators=(*self.operators, *operators))

    def with_prepare(self, *functions: Prepare) -> Engine:
        return replace(self, prepare=(*self.prepare, *functions))

    @classmethod
    def from_model(cls, name: str) -> Engine:
        """The engine for ``"provider:model"`` or ``"local"``; the provider is built in or a plugin's.

        Raises ``EngineError("unknown_provider")``, which names those there are.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EngineError("unknown_provider", f"a model is named as 'provider:model', not {name!r}")
        provider, _, model = name.partition(":")
        other = stand_in.get()
        if other is not None:
            return replace(other, model=model or other.model)
        from rxllm.adapters import connect

        return cls(connect(provider, model), model=model or None)


stand_in: ContextVar[Engine | None] = ContextVar("rxllm_stand_in", default=None)
"""What takes the place of every engine that is given as a string: see ``rxllm.testing.sandbox``."""


def _all_of(name: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise EngineError("invalid_engine", f"an engine's {name} are several, not {given!r}")
    held = tuple(cast(Iterable[Any], given))
    if name == "operators":
        try:
            check_operators(held)
        except ValidationError as error:
            raise EngineError("invalid_engine", f"an engine's {_first(error)}") from None
    for place, each in enumerate(held):
        if name == "tools" and not isinstance(each, Tool):
            made = "make it one with rxllm.tool" if callable(each) else "rxllm.tool makes them"
            raise EngineError("invalid_engine", f"an engine's tools[{place}] is no tool but {each!r}; {made}")
        if name in ("observers", "prepare") and not callable(each) and not isinstance(each, Alongside):
            raise EngineError("invalid_engine", f"an engine's {name}[{place}] {must_be('a function', each)}")
    return held


def _first(error: ValidationError) -> str:
    (_, place), fault = error.errors[0]
    return f"operators[{place}]: {fault}"


def as_engine(given: Any) -> Engine:
    """`given`, an engine, an adapter or a model's name, as an engine."""
    if isinstance(given, Engine):
        return given
    return Engine.from_model(given) if isinstance(given, str) else Engine(given)


async def aclose(engine: Any) -> None:
    """Close the connections that an engine, or an adapter, keeps for the running loop. It can be used again."""
    made = as_engine(engine)
    for adapter in (made.adapter, made.image_adapter):
        close = getattr(adapter, "aclose", None)
        if close is not None:
            await close()


def merge_tools(tools: Iterable[Tool], others: Iterable[Tool]) -> tuple[Tool, ...]:
    """Both, in order; one of `others` takes the place of the tool of its name.

    >>> a, b, c = (Tool(name) for name in "abc")
    >>> [tool.name for tool in merge_tools([a, b], [b, c])]
    ['a', 'b', 'c']
    """
    by_name = {tool.name: tool for tool in tools}
    return tuple({**by_name, **{tool.name: tool for tool in others}}.values())
