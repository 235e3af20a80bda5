"""The scope of a subscription: the chat, step and tool that a call is made for.

It is a context variable, like the gate of back-pressure: an operator sets it while it subscribes to its source, and
calls below read it there. It is never part of an event, so no prompt leaves the process with one.

=====================  ================================================================================================
subscriber             sets for everything below
=====================  ================================================================================================
`repeat_until_halt`    one request id for all steps, and the usage of earlier ones
`run_tools`            a `Question`, still open
model source           the path and the parent only, after it filled in the nearest open question: calls by an adapter
                       or by the engine's operators are not part of the step
tool                   the path with its tool call at the end, itself as the parent, and nothing else
observed call,         itself as the parent
step or chat
=====================  ================================================================================================
"""

from __future__ import annotations

import contextlib
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextvars import ContextVar
from os import urandom
from typing import Any

import msgspec
from reactivex import Observable, abc

from rxllm.runtime._stream import Stream
from rxllm.values import Thread, Usage


class Question(msgspec.Struct):
    """What a step asks its model; open until a model source below fills it in."""

    thread: Thread | None = None
    request_id: str | None = None
    session_id: str | None = None
    engine: Any = None

    def ask(self, thread: Thread, request_id: str, session_id: str | None, engine: Any) -> None:
        """Fill it in, unless it already is."""
        if self.thread is None:
            self.thread, self.request_id, self.session_id, self.engine = thread, request_id, session_id, engine

    def __repr__(self) -> str:
        return "Question()"  # without the thread, which is private


class Scope(msgspec.Struct, frozen=True):
    """Where a subscription belongs.

    `request_id` is the chat's, `usage` that of its earlier steps. `parent_id` is the telemetry id of the innermost
    enclosing call, step, chat or tool; `path` holds the ids of the enclosing tool calls, the outermost first.
    """

    request_id: str | None = None
    parent_id: str | None = None
    path: tuple[str, ...] = ()
    usage: Usage = Usage()
    question: Question | None = None

    def below_model(self) -> Scope:
        """Return the scope of the subscriptions of a model source."""
        return Scope(parent_id=self.parent_id, path=self.path)

    def of_tool(self, tool_call_id: str) -> Scope:
        """Return the scope of a tool that runs."""
        return Scope(parent_id=tool_id(self.parent_id, tool_call_id), path=(*self.path, tool_call_id))


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


@contextlib.contextmanager
def within(scope: Scope) -> Generator[None]:
    """Subscribe inside as part of `scope`."""
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)


def scoped(source: Observable[Any], scope: Scope) -> Stream[Any]:
    """Return `source`, subscribed to within `scope`."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        with within(scope):
            return source.subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def tool_id(step_id: str | None, tool_call_id: str) -> str:
    """Return the telemetry id of a tool that runs in the step `step_id`."""
    return f"{step_id or ''}/{tool_call_id}"


def new_id() -> str:
    """Return 22 random characters that are safe in a URL."""
    # As ``secrets.token_urlsafe``, without its import, which loads all of OpenSSL's hashes.
    return urlsafe_b64encode(urandom(16)).rstrip(b"=").decode()
