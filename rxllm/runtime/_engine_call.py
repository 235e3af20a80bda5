"""Tell the operators of an engine which call they are applied to.

A pipeline sets `current_engine_call` while it applies ``engine.operators``. An operator that needs more than the events
reads it when it is applied, not later.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from typing import Any, Protocol

import msgspec
from reactivex import Observable

from rxllm.events import Event
from rxllm.runtime._budget import Budget
from rxllm.values import Call, Request, Usage


class Ask(Protocol):
    """Send the same request to another engine, or to an adapter with a `model`."""

    def __call__(self, engine: Any, model: str | None = None) -> Observable[Event]: ...


class EngineCall(msgspec.Struct, frozen=True):
    """The call that operators are applied to: its `request` with all options, and the `call` beside it.

    `provider` is the adapter's name, `before` the usage of the chat's earlier steps, `chat` has the chat's budgets,
    `operators` are the engine's.
    ``ask(engine)`` is a cold Observable of another engine's answer to the request.
    """

    request: Request
    call: Call
    ask: Ask
    provider: str
    before: Usage
    chat: dict[Any, Budget] = msgspec.field(default_factory=dict[Any, Budget])
    operators: tuple[Any, ...] = ()


current_engine_call: contextvars.ContextVar[EngineCall | None] = contextvars.ContextVar(
    "rxllm_engine_call", default=None
)


def engine_call() -> EngineCall | None:
    """Return the call that operators are being applied to, or None in a pipe.

    For operators that are closures: cloudpickle finds this function by its name, and cannot pickle a context variable.
    """
    return current_engine_call.get()


@contextlib.contextmanager
def applying_operators(call: EngineCall) -> Generator[None]:
    """Apply operators inside as part of `call`."""
    token = current_engine_call.set(call)
    try:
        yield
    finally:
        current_engine_call.reset(token)


def provider_name(adapter: Any) -> str:
    """Return the adapter's provider, or else its own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__
