"""The scope of a subscription: the chat, the step and the tool call that it belongs to.

A context variable. An operator sets the scope while it subscribes to its source, and calls below read it there. It is
never part of an event, so no prompt leaves the process with one. What sets a scope delivers to its own subscriber in
the subscriber's scope, see `ScopedObserver`.

==================================  ==============================  ===================================================
field of `Scope`                    written by                      read by
==================================  ==============================  ===================================================
``request_id``                      ``repeat_until_halt``,          the model source and the tools of a step
                                    ``run_tools``, steps and chats
                                    that are observed
``parent_id``                       calls, steps and chats that     telemetry: the parent of what is below
                                    are observed; tools
``begin_attempt``                   calls that are observed         the source of a call, once an attempt
``path``, ``tool_key``              tools                           telemetry, the journal, idempotency keys
``usage``, ``chat``                 ``repeat_until_halt``           ``budget``: earlier steps, and the chat's budgets
``shares``, ``counted``             ``budget``, model sources,      model sources: the budgets that a call keeps to, and
                                    agents                          those that count it already
``is_steered``                      ``repeat_until_halt``           ``run_tools``, which ends the model's sentence
``journal``                         ``journaled``                   model sources, ``run_tools``, ``repeat_until_halt``
``before_retry``, ``queued``        ``rate_limited``                ``retry_before_content``; telemetry
==================================  ==============================  ===================================================

Below a model source are ``parent_id``, ``path``, ``tool_key``, ``shares`` and ``journal`` only: calls by an adapter or
by the engine's operators are not part of the step. The same is below a tool, with its own id at the end of the path.

A pipeline also sets `current_engine_call` while it applies ``engine.operators``, which ends before anything is
subscribed to. An operator that needs more than the events reads it when it is applied, not later.
"""

from __future__ import annotations

import contextvars
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec.structs import replace
from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.runtime._budget import Budget, HoldsBudget, Share
from rxllm.runtime._stream import Stream
from rxllm.values import Call, LLMError, Request, ToolCall, Usage

T = TypeVar("T")


class ToolRecord(msgspec.Struct, frozen=True):
    """What a journal has of a tool call: `call` as it began, with its arguments then, and `events`, its outcome.

    Without `events` it was interrupted; without `call` it was denied before it began.
    """

    call: ToolCall | None = None
    events: Sequence[Event] | None = None


class Journal(Protocol):
    """What an earlier run of the same stream has noted, and what this one notes; see ``operators.journaled``.

    `path` has the ids of the tool calls around a request or a tool call, the outermost first. A key with its path is
    equal whenever the same call is made again. Several calls may have one key: then the first of them gets what was
    noted first. Methods are called on any thread and on any event loop. One that has those of ``RecallingJournal`` too
    keeps the corrections of ``steer``.
    """

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        """Return what the model answered if it is noted, else `events`, noting what they end with.

        Called at each subscription; the n-th one of a key is the n-th in every run. `key` names the request, as
        ``rxllm.values.request_key`` does, without the descriptions of its tools.
        """
        ...

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        """Return what an earlier run has noted of this tool call."""
        ...

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        """Note that the tool runs now. It runs when this has returned; an error of this ends the stream."""
        ...

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Note the outcome. It is emitted when this has returned; an error of this ends the stream."""
        ...


@runtime_checkable
class RecallingJournal(Journal, Protocol):
    """A `Journal` that keeps events too, by which a chat that is run again is steered as before; see ``steer``."""

    def has_response(self, path: Sequence[str], key: str) -> bool:
        """Return whether the next call of `response` with this key is answered by what is noted."""
        ...

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        """Return the events that an earlier run has kept under this key, None if it has kept none."""
        ...

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Keep events. What is noted later is not there without them."""
        ...


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


def applying_operators(call: EngineCall) -> Setting[EngineCall | None]:
    """Apply operators inside as part of `call`."""
    return Setting(current_engine_call, call)


def provider_name(adapter: Any) -> str:
    """Return the adapter's provider, or else its own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__


class Scope(msgspec.Struct, frozen=True):
    """Where a subscription belongs; the module's table says who writes and who reads each field.

    `path` holds the ids of the enclosing tool calls, the outermost first, and `tool_key` makes the idempotency key of
    the innermost. Each ``before_retry(error, seconds)`` is called before a call waits to be retried, and returns the
    seconds that it waits at least. A call was `queued` for that many seconds before it began.
    """

    request_id: str | None = None
    parent_id: str | None = None
    path: tuple[str, ...] = ()
    usage: Usage = Usage()
    tool_key: Callable[[], str] | None = None
    begin_attempt: Callable[[Call], Call] | None = None
    shares: tuple[Share, ...] = ()
    counted: tuple[Budget, ...] = ()
    chat: dict[Any, Budget] | None = None
    is_steered: Callable[[], bool] | None = None
    journal: Journal | None = None
    before_retry: tuple[Callable[[LLMError, float], float], ...] = ()
    queued: float = 0.0

    def below_model(self) -> Scope:
        """Return the scope of the subscriptions of a model source."""
        if not (self.parent_id or self.path or self.shares or self.journal):
            return NO_SCOPE
        return Scope(
            parent_id=self.parent_id,
            path=self.path,
            tool_key=self.tool_key,
            shares=self.shares,
            journal=self.journal,
        )

    def under(self, operators: Iterable[Any], chat: dict[Any, Budget] | None) -> Scope:
        """Return the scope of calls that keep to the budgets of an engine's `operators` too; `chat` has the chat's."""
        holders = [operator for operator in operators if isinstance(operator, HoldsBudget)]
        if not holders:
            return self
        known = [share.budget for share in self.shares]
        budgets = dict.fromkeys(holder.budget_of({} if chat is None else chat) for holder in holders)
        return replace(self, shares=(*(Share(budget) for budget in budgets if budget not in known), *self.shares))

    def attempt(self, call: Call) -> Call:
        """Return `call` for an attempt that begins now, counted by the span around it, if there is one."""
        return call if self.begin_attempt is None else self.begin_attempt(call)

    def of_tool(self, tool_call_id: str, tool_key: Callable[[], str]) -> Scope:
        """Return the scope of a tool that runs."""
        parent_id, path = tool_id(self.parent_id, tool_call_id), (*self.path, tool_call_id)
        return replace(self.below_model(), parent_id=parent_id, path=path, tool_key=tool_key)


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


def within(scope: Scope) -> Setting[Scope]:
    """Subscribe inside as part of `scope`."""
    return Setting(current_scope, scope)


class Setting(Generic[T]):
    """Sets a variable inside ``with``. Each call has several, and a generator would take three times as long."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


class ScopedObserver(abc.ObserverBase[Any]):
    """An observer that is called in the scope of its subscription, whatever scope its source is in.

    Otherwise a call that an operator makes when another has ended (``concat``, ``repeat``, ``retry``, ``flat_map``)
    would be part of the ended one. An end, or an ``ErrorEvent``, may lead to a new subscription in place of the source;
    a call that is made for any other event has the parent and the path only.
    """

    __slots__ = ("_observer", "_of_events", "_scope")

    def __init__(self, observer: abc.ObserverBase[Any]) -> None:
        self._observer = observer
        self._scope = current_scope.get()
        self._of_events = self._scope.below_model()

    def on_next(self, value: Any) -> None:
        scope = self._scope if type(value) is ErrorEvent else self._of_events
        if current_scope.get() is scope:
            self._observer.on_next(value)
            return
        token = current_scope.set(scope)  # as `within`, which takes five times as long, for every event
        try:
            self._observer.on_next(value)
        finally:
            current_scope.reset(token)

    def on_error(self, error: Exception) -> None:
        with within(self._scope):
            self._observer.on_error(error)

    def on_completed(self) -> None:
        with within(self._scope):
            self._observer.on_completed()


def scoped(source: Observable[Any], scope: Scope | None = None) -> Stream[Any]:
    """Return `source`, subscribed to within `scope`, by default the current one, which its subscriber does not see."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscriber = ScopedObserver(observer)
        with within(current_scope.get() if scope is None else scope):
            return source.subscribe(subscriber, scheduler=scheduler)

    return Stream(subscribe)


def tool_id(step_id: str | None, tool_call_id: str) -> str:
    """Return the telemetry id of a tool that runs in the step `step_id`."""
    return f"{step_id or ''}/{tool_call_id}"


def new_id() -> str:
    """Return 22 random characters that are safe in a URL."""
    # As ``secrets.token_urlsafe``, without its import, which loads all of OpenSSL's hashes.
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
