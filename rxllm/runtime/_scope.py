"""The scope of a subscription: the chat, step and tool that a call is made for.

It is a context variable, like the gate of back-pressure: an operator sets it while it subscribes to its source, and
whatever makes a call below reads it there. It never travels in events, so no prompt leaves the process with them.

=====================  ================================================================================================
what subscribes        sets for what lies below
=====================  ================================================================================================
`repeat_until_halt`    one request id for all steps, and the usage of those before
`run_tools`            a `Question`, still open
a model source         (it answers the nearest open question, once) the path and the parent alone: what an adapter or
                       an operator of the engine's asks is no part of the step
a tool                 its call at the end of the path, itself as the parent, and nothing else
an observed call,      itself as the parent
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
    """What a step asks its model. It is open until a model source below has filled it in."""

    thread: Thread | None = None
    request_id: str | None = None
    session_id: str | None = None
    engine: Any = None

    def ask(self, thread: Thread, request_id: str, session_id: str | None, engine: Any) -> None:
        """Fill it in, unless that has been done."""
        if self.thread is None:
            self.thread, self.request_id, self.session_id, self.engine = thread, request_id, session_id, engine

    def __repr__(self) -> str:
        return "Question()"  # the thread is nobody else's business


class Scope(msgspec.Struct, frozen=True):
    """Where a subscription belongs.

    `request_id` is the chat's, `usage` what its earlier steps have used. `parent_id` is the telemetry id of the
    innermost call, step, chat or tool around, and `path` holds the ids of the tool calls around, the outermost first.
    """

    request_id: str | None = None
    parent_id: str | None = None
    path: tuple[str, ...] = ()
    usage: Usage = Usage()
    question: Question | None = None

    def below_model(self) -> Scope:
        """The scope of what a model source subscribes to."""
        return Scope(parent_id=self.parent_id, path=self.path)

    def of_tool(self, tool_call_id: str) -> Scope:
        """The scope of what a tool does."""
        return Scope(parent_id=tool_id(self.parent_id, tool_call_id), path=(*self.path, tool_call_id))


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


@contextlib.contextmanager
def within(scope: Scope) -> Generator[None]:
    """What is subscribed inside belongs to `scope`."""
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)


def scoped(source: Observable[Any], scope: Scope) -> Stream[Any]:
    """`source`, subscribed within `scope`."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        with within(scope):
            return source.subscribe(observer, scheduler=scheduler)

    return Stream(subscribe)


def tool_id(step_id: str | None, tool_call_id: str) -> str:
    """The telemetry id of a tool that runs in the step `step_id`."""
    return f"{step_id or ''}/{tool_call_id}"


def new_id() -> str:
    """22 random characters that are safe in a URL."""
    # What ``secrets.token_urlsafe`` does, without its import, which brings all of OpenSSL's hashes.
    return urlsafe_b64encode(urandom(16)).rstrip(b"=").decode()
