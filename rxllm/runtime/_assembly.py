"""What an engine's operator may know of the call that it is applied to.

A pipeline sets a context variable while it applies ``engine.operators``. An operator that needs more than the events
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
from rxllm.values import Call, Request, Usage


class Ask(Protocol):
    """Returns the answer of another engine, or of an adapter with a `model`, to the same request."""

    def __call__(self, engine: Any, model: str | None = None) -> Observable[Event]: ...


class Assembly(msgspec.Struct, frozen=True):
    """The call that is being assembled: its `request`, with every option in its place, and what travels beside it.

    `provider` is the name of the adapter, and `before` the usage of the chat's earlier steps. ``ask(engine)`` is a cold
    Observable of another engine's answer to the request.
    """

    request: Request
    call: Call
    ask: Ask
    provider: str
    before: Usage


current_assembly: contextvars.ContextVar[Assembly | None] = contextvars.ContextVar("rxllm_assembly", default=None)


@contextlib.contextmanager
def assembling(assembly: Assembly) -> Generator[None]:
    """Operators that are applied inside belong to the call of `assembly`."""
    token = current_assembly.set(assembly)
    try:
        yield
    finally:
        current_assembly.reset(token)


def provider_name(adapter: Any) -> str:
    """Return the adapter's provider, or else its own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__
