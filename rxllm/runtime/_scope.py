"""The scope: the chat, step and tool call that a subscription belongs to.

While an operator subscribes to its source, a context variable contains the scope, so that calls can read the scope.
When the operator calls its own subscriber, the operator sets the variable to the subscriber's scope; see
`ScopedObserver`. Events do not contain the scope, so they cannot leak prompts.

==================================  ==============================  ===================================================
field of `Scope`                    written by                      read by
==================================  ==============================  ===================================================
``request_id``                      ``repeat_until_halt``,          the model source and the tools of a step
                                    ``run_tools``, steps and chats
                                    that have observers
``parent_id``                       calls, steps and chats that     telemetry, to give a span its parent
                                    have observers; tools
``begin_attempt``                   calls that have observers       the source of a call, once for each attempt
``path``, ``tool_key``              tools                           telemetry, journals, and idempotency keys
``usage``, ``chat``                 ``repeat_until_halt``           ``budget``, to count the chat's earlier steps
``shares``, ``counted``             ``budget``, model sources,      model sources, to count a call exactly once in each
                                    agents                          enclosing budget
``is_steered``                      ``repeat_until_halt``           ``run_tools``, to stop the model after a sentence
``journal``                         ``journaled``                   model sources, ``run_tools``, ``repeat_until_halt``
``bookmark``                        journals                        HTTP adapters, to read a kept answer
``before_retry``, ``queued``        ``rate_limited``                ``retry_before_content`` and telemetry
==================================  ==============================  ===================================================

A model source passes on only ``parent_id``, ``path``, ``tool_key``, ``shares`` and ``journal``, because its
subscriptions are not part of the step. A tool passes on the same fields, and adds its call's id to the path.

A pipeline sets `current_engine_call` only while it is applying ``engine.operators``. Operators must read it at that
time, before they subscribe.
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
    """A journal's record of a tool call.

    `call` contains the arguments, and `events` is the outcome. If the tool was interrupted, `events` is None. If the
    call was denied, `call` is None.
    """

    call: ToolCall | None = None
    events: Sequence[Event] | None = None


class Journal(Protocol):
    """A record of the answers and tool calls of a stream; see ``operators.journaled``.

    It contains entries from earlier runs and from this one. `path` lists the ids of the enclosing tool calls, outermost
    first. The same call has the same path and key in every run. If several calls have the same key, the first call gets
    the first entry with this key, the second call gets the second entry, and so on. The methods can be called from any
    thread or loop. A `RecallingJournal` also keeps the corrections that ``steer`` makes.
    """

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        """Return the recorded answer. If there is none, return `events`, and record them.

        Each subscription calls this method once. If several calls have the same key, their order is the same in every
        run. `key` is like ``rxllm.values.request_key``, except that the descriptions of tools do not affect it.
        """
        ...

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        """Return the record of this call from an earlier run, or None if there is none."""
        ...

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        """Record that a tool is about to start. If this fails, the stream ends with the error."""
        ...

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Record the outcome of a tool, before it is emitted. If this fails, the stream ends with the error."""
        ...


@runtime_checkable
class RecallingJournal(Journal, Protocol):
    """A `Journal` that also keeps corrections, so that later runs can apply them again; see ``steer``."""

    def has_response(self, path: Sequence[str], key: str) -> bool:
        """Return whether the next call to `response` with this path and key will return a recorded answer."""
        ...

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        """Return the events that an earlier run kept, or None if it kept none."""
        ...

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Record `events`. They must be stored before anything that is recorded later."""
        ...


@runtime_checkable
class EagerJournal(RecallingJournal, Protocol):
    """A `RecallingJournal` that can also drop records.

    With any other journal, tools do not start before the end of the response. With this one, a tool may start earlier.
    Before the tool starts, `keep` is called with the beginning of the response and with a key that starts with "eager".
    If the process dies before the whole response has been recorded, the next run emits the beginning in place of the
    response, and keeps the beginning a second time.

    Once the whole response has been recorded, `keep` is called with an empty list and the same key. The empty list
    makes later runs use the response instead of its beginning. If the process died after recording the response but
    before keeping the empty list, `recall` must act as if the empty list had been kept: one call to `recall` must
    return the beginning, and the next call must return an empty list. If the beginning was kept twice, however,
    `recall` must not return an empty list, because an earlier run has already used the beginning in place of the
    response.
    """

    def void(self, path: Sequence[str], key: str) -> None:
        """Drop the records of a tool call that came from a discarded response."""
        ...


class Bookmark(Protocol):
    """A journal's entry for an answer that the provider keeps. Its note lets a later process find this answer."""

    def take(self) -> str | None:
        """Return the note that an earlier process left, or None if there is none. Later calls return None."""
        ...

    def put(self, note: str) -> None:
        """Keep `note` for a later process."""
        ...

    def is_handed_over(self) -> bool:
        """Return whether another process will read the answer."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether the answer must be stopped instead of being read."""
        ...


class Ask(Protocol):
    """Sends an `EngineCall`'s request to another engine or adapter, and returns the answer as a cold Observable."""

    def __call__(self, engine: Any, model: str | None = None) -> Observable[Event]: ...


class EngineCall(msgspec.Struct, frozen=True):
    """The engine call whose operators are being applied.

    `request` contains all options. `call` holds the settings that are not part of the request. `provider` is the name
    of the adapter's provider. `before` is the usage from earlier steps, and `chat` contains the budgets of the chat.
    ``ask(engine)`` returns another engine's answer to the request, as a cold Observable.
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
    """Return the engine call whose operators are being applied, or None if an operator is being applied in a pipe.

    Closures use this function instead of the context variable, which cloudpickle cannot pickle.
    """
    return current_engine_call.get()


def applying_operators(call: EngineCall) -> Setting[EngineCall | None]:
    """Set the `EngineCall` for the operators that are applied in the ``with`` block."""
    return Setting(current_engine_call, call)


def provider_name(adapter: Any) -> str:
    """Return the name of the adapter's provider. If there is none, return the adapter's own name."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__


class Scope(msgspec.Struct, frozen=True):
    """The chat, step and tool call that a subscription belongs to.

    `path` lists the ids of the enclosing tool calls, outermost first. `tool_key` returns the idempotency key of the
    innermost one. Each function in `before_retry` receives the error and the planned wait in seconds, and returns the
    minimum wait. `queued` is how many seconds the call has waited in a queue.
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
    bookmark: Bookmark | None = None

    def below_model(self) -> Scope:
        """Return the scope for the subscriptions that a model source makes."""
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
        """Return the scope with the budgets of `operators` added. `chat` contains the budgets of the chat itself."""
        holders = [operator for operator in operators if isinstance(operator, HoldsBudget)]
        if not holders:
            return self
        known = [share.budget for share in self.shares]
        budgets = dict.fromkeys(holder.budget_of({} if chat is None else chat) for holder in holders)
        return replace(self, shares=(*(Share(budget) for budget in budgets if budget not in known), *self.shares))

    def attempt(self, call: Call) -> Call:
        """Record the start of an attempt, and return `call` with the settings for this attempt."""
        return call if self.begin_attempt is None else self.begin_attempt(call)

    def of_tool(self, tool_call_id: str, tool_key: Callable[[], str]) -> Scope:
        parent_id, path = tool_id(self.parent_id, tool_call_id), (*self.path, tool_call_id)
        return replace(self.below_model(), parent_id=parent_id, path=path, tool_key=tool_key)


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


def within(scope: Scope) -> Setting[Scope]:
    """Use `scope` for the subscriptions in the ``with`` block."""
    return Setting(current_scope, scope)


class Setting(Generic[T]):
    """A context manager that sets a context variable. It is three times faster than one made from a generator."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


class ScopedObserver(abc.ObserverBase[Any]):
    """Calls `observer` in the scope that was current when `observer` subscribed.

    Operators such as ``repeat`` and ``retry`` start a new call when a call ends. The new call must not start in the
    scope of the call that has ended. `observer` may subscribe again when it receives an ``ErrorEvent`` or when the
    stream ends. In both cases, `observer` is therefore called in its complete scope. For other events, the scope
    contains only the fields that a model source passes on.
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
        token = current_scope.set(scope)  # `within` would be five times slower
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
    """Return a Stream that subscribes to `source` in `scope`. The subscriber keeps its own scope."""

    def subscribe(observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        subscriber = ScopedObserver(observer)
        with within(current_scope.get() if scope is None else scope):
            stream = cast(Stream[Any], source)
            if type(stream) is Stream:  # `subscribe` would add an observer that repeats the checks made by `observer`
                return stream._subscribe_core(subscriber, scheduler)  # pyright: ignore[reportPrivateUsage]
            return stream.subscribe(subscriber, scheduler=scheduler)

    return Stream(subscribe)


def tool_id(step_id: str | None, tool_call_id: str) -> str:
    """Return the id that a tool call has in telemetry."""
    return f"{step_id or ''}/{tool_call_id}"


def new_id() -> str:
    """Return a random id of 22 URL-safe characters."""
    # Do not use ``secrets``, because importing it would load all of OpenSSL's hashes.
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
