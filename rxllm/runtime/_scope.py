"""The scope of a subscription: the chat, the step and the tool call that it belongs to.

The scope is a context variable. An operator sets it while it subscribes to its source, and the calls below read it. It
is not part of any event, so no event carries a prompt out of the process. An operator that sets a scope calls its own
subscriber in the subscriber's scope; see `ScopedObserver`.

==================================  ==============================  ===================================================
field of `Scope`                    written by                      read by
==================================  ==============================  ===================================================
``request_id``                      ``repeat_until_halt``,          a step's model source and tools
                                    ``run_tools``, observed steps
                                    and chats
``parent_id``                       observed calls, steps and       telemetry, as the parent of the spans below
                                    chats; tools
``begin_attempt``                   observed calls                  a call's source, once per attempt
``path``, ``tool_key``              tools                           telemetry, the journal, idempotency keys
``usage``, ``chat``                 ``repeat_until_halt``           ``budget``: earlier steps, and the chat's budgets
``shares``, ``counted``             ``budget``, model sources,      model sources, for the budgets around a call, and
                                    agents                          the budgets that already count it
``is_steered``                      ``repeat_until_halt``           ``run_tools``, to stop the model after its sentence
``journal``                         ``journaled``                   model sources, ``run_tools``, ``repeat_until_halt``
``before_retry``, ``queued``        ``rate_limited``                ``retry_before_content``; telemetry
==================================  ==============================  ===================================================

Below a model source, the scope has only ``parent_id``, ``path``, ``tool_key``, ``shares`` and ``journal``, because
calls by an adapter or by the engine's operators are not part of the step. Below a tool it has the same fields, with the
tool call's id appended to the path.

A pipeline also sets `current_engine_call` while it applies ``engine.operators``, before any subscription. An operator
that needs more than the events reads it when it is applied, not later.
"""

from __future__ import annotations

import contextvars
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import msgspec
from msgspec.structs import replace
from reactivex import Observable, abc

from rxllm.events import ErrorEvent, Event
from rxllm.runtime._budget import Budget, HoldsBudget, Share
from rxllm.runtime._stream import Stream
from rxllm.values import Call, LLMError, Request, ToolCall, Usage

T = TypeVar("T")


class ToolRecord(msgspec.Struct, frozen=True):
    """A journal's record of a tool call: `call`, with the arguments that it began with, and `events`, its outcome.

    Without `events`, the call was interrupted; without `call`, it was denied before it began.
    """

    call: ToolCall | None = None
    events: Sequence[Event] | None = None


class Journal(Protocol):
    """Notes from an earlier run of the same stream, and from this run; see ``operators.journaled``.

    `path` holds the ids of the tool calls that enclose a request or a tool call, outermost first. The same call has the
    same path and key in every run. If several calls share a key, the first call gets the first note. Methods may be
    called on any thread and any event loop. A journal with the methods of ``RecallingJournal`` keeps the corrections of
    ``steer`` too.
    """

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        """Return the model's noted answer; without one, return `events`, and note how they end.

        It is called once per subscription; the n-th call with a key is the n-th in every run. `key` identifies the
        request, as ``rxllm.values.request_key`` does, but without its tools' descriptions.
        """
        ...

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        """Return an earlier run's record of this tool call, if there is one."""
        ...

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        """Note that the tool starts. The tool runs after this method returns; an exception here ends the stream."""
        ...

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Note the outcome. It is emitted once this method returns; an exception here ends the stream."""
        ...


@runtime_checkable
class RecallingJournal(Journal, Protocol):
    """A `Journal` that also keeps events, so that a chat that runs again is steered as before; see ``steer``."""

    def has_response(self, path: Sequence[str], key: str) -> bool:
        """Return whether the next call to `response` with this key will return a noted answer."""
        ...

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        """Return the events that an earlier run kept under this key, or None."""
        ...

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Keep `events`. A journal that holds a later note holds these events too."""
        ...


class Ask(Protocol):
    """Send the same request to another engine, or to an adapter with a `model`."""

    def __call__(self, engine: Any, model: str | None = None) -> Observable[Event]: ...


class EngineCall(msgspec.Struct, frozen=True):
    """The call that operators are applied to: its `request`, with all options, and the matching `call`.

    `provider` is the adapter's name, `before` the usage of the chat's earlier steps, `chat` the chat's budgets, and
    `operators` the engine's operators. ``ask(engine)`` returns a cold Observable of another engine's answer.
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
    """Return the call that operators are being applied to, or None inside a pipe.

    Operators that are closures use it: cloudpickle stores this function by name, but cannot pickle a context variable.
    """
    return current_engine_call.get()


def applying_operators(call: EngineCall) -> Setting[EngineCall | None]:
    """Set the engine's call for the operators applied inside the block."""
    return Setting(current_engine_call, call)


def provider_name(adapter: Any) -> str:
    """Return the adapter's provider, or its own name if it has none."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__


class Scope(msgspec.Struct, frozen=True):
    """The chat, step and tool call of a subscription; the module's table lists who writes and reads each field.

    `path` holds the ids of the enclosing tool calls, outermost first, and `tool_key` makes the idempotency key of the
    innermost. Each ``before_retry(error, seconds)`` is called before the wait for a retry, and returns the minimum wait
    in seconds. `queued` is how long a call waited before it started, in seconds.
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
        """Return the scope for subscriptions below a model source."""
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
        """Return the scope with the budgets of `operators` added; `chat` holds the chat's budgets."""
        holders = [operator for operator in operators if isinstance(operator, HoldsBudget)]
        if not holders:
            return self
        known = [share.budget for share in self.shares]
        budgets = dict.fromkeys(holder.budget_of({} if chat is None else chat) for holder in holders)
        return replace(self, shares=(*(Share(budget) for budget in budgets if budget not in known), *self.shares))

    def attempt(self, call: Call) -> Call:
        """Return `call` for an attempt that begins now; the enclosing span, if any, counts it."""
        return call if self.begin_attempt is None else self.begin_attempt(call)

    def of_tool(self, tool_call_id: str, tool_key: Callable[[], str]) -> Scope:
        """Return the scope of a running tool."""
        parent_id, path = tool_id(self.parent_id, tool_call_id), (*self.path, tool_call_id)
        return replace(self.below_model(), parent_id=parent_id, path=path, tool_key=tool_key)


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


def within(scope: Scope) -> Setting[Scope]:
    """Set the scope of subscriptions made inside the block."""
    return Setting(current_scope, scope)


class Setting(Generic[T]):
    """Sets a context variable inside ``with``. Each call uses several; a generator would be three times slower."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


class ScopedObserver(abc.ObserverBase[Any]):
    """Calls its observer in the subscription's scope, even if the source is in another scope.

    Otherwise a call that an operator makes at the end of another call (``concat``, ``repeat``, ``retry``, ``flat_map``)
    would count as part of the ended call. After an end or an ``ErrorEvent``, a new subscription may replace the source,
    so it gets the whole scope. A call made on any other event gets the scope below a model source.
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
        token = current_scope.set(scope)  # `within` would be five times slower, on every event
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
    """Return `source`, subscribed to within `scope`, by default the current one. Its subscriber keeps its own scope."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscriber = ScopedObserver(observer)
        with within(current_scope.get() if scope is None else scope):
            stream = cast(Stream[Any], source)
            if type(stream) is Stream:  # `subscribe` would add an observer with the same checks as `observer`
                return stream._subscribe_core(subscriber, scheduler)  # pyright: ignore[reportPrivateUsage]
            return stream.subscribe(subscriber, scheduler=scheduler)

    return Stream(subscribe)


def tool_id(step_id: str | None, tool_call_id: str) -> str:
    """Return the telemetry id of a tool call in the step `step_id`."""
    return f"{step_id or ''}/{tool_call_id}"


def new_id() -> str:
    """Return 22 random characters that are safe in a URL."""
    # Importing ``secrets`` for its ``token_urlsafe`` would load all of OpenSSL's hashes.
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
