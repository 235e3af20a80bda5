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
from rxllm.values import EngineError, Tool, ValidationError
from rxllm.values.secrets import masked

Operator = Callable[[Observable[Event]], Observable[Event]]


@dataclass(frozen=True)
class Engine:
    """How calls are made: configuration, not data, and never a key.

    `params` are defaults for the calls' options; `context` is what tools are given; `operators` is the middleware,
    applied to every response's events in order; `observers` receive telemetry values; `retry` is a `RetryPolicy`, or
    False for none. A copy has clients of its own, a pickle neither clients nor keys. Raises
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
        for name in ("tools", "operators", "observers"):
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
        if name == "observers" and not callable(each):
            raise EngineError("invalid_engine", f"an engine's observers[{place}] is no function but {each!r}")
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
