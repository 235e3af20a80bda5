"""The engine: what is the same for many calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime import Retry
from rxllm.values import Tool

Operator = Callable[[Observable[Event]], Observable[Event]]


@dataclass(frozen=True)
class Engine:
    """How calls are made: configuration, not data, and never a key.

    `params` are defaults for the calls' options; `context` is what tools are given; `operators` is the middleware,
    applied to every response's events in order; `observers` receive telemetry values; `retry` is a `RetryPolicy`, or
    False for none.

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
        for name in ("tools", "operators", "observers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def with_model(self, model: str) -> Engine:
        return replace(self, model=model)

    def with_tools(self, *tools: Tool) -> Engine:
        """With these tools too; one of a name that is there takes its place."""
        return replace(self, tools=merge_tools(self.tools, tools))

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
        provider, _, model = name.partition(":")
        from rxllm.adapters import connect

        return cls(connect(provider, model), model=model or None)


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
