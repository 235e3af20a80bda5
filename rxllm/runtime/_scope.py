"""A subscription's scope: the chat, step and tool call that it belongs to.

The scope is stored in a context variable. An operator sets the variable while it subscribes to its source. The calls
in this subscription then read the variable. When the operator calls its own subscriber, it restores the subscriber's
scope; see `ScopedObserver`. Events do not contain the scope, so they cannot leak prompts out of the process.

==================================  ==============================  ===================================================
field of `Scope`                    written by                      read by
==================================  ==============================  ===================================================
``request_id``                      ``repeat_until_halt``,          the model source and the tools of a step
                                    ``run_tools``, steps and chats
                                    that have observers
``parent_id``                       calls, steps and chats that     telemetry, to give a span its parent
                                    have observers; tools
``begin_attempt``                   calls that have observers       the source of a call, once per attempt
``path``, ``tool_key``              tools                           telemetry, journals, and idempotency keys
``usage``, ``chat``                 ``repeat_until_halt``           ``budget``, to count the chat's earlier steps
``shares``, ``counted``             ``budget``, model sources,      model sources, to count a call exactly once in each
                                    agents                          enclosing budget
``is_steered``                      ``repeat_until_halt``           ``run_tools``, to stop the model after a sentence
``journal``                         ``journaled``                   model sources, ``run_tools``, ``repeat_until_halt``
``bookmark``                        journals                        HTTP adapters, to read a kept answer
``before_retry``, ``queued``        ``rate_limited``                ``retry_before_content`` and telemetry
==================================  ==============================  ===================================================

A model source is a stream that makes a model call. It passes on only ``parent_id``, ``path``, ``tool_key``, ``shares``
and ``journal`` to the subscriptions that it makes, because calls by an adapter or by the engine's operators do not
belong to the step. A tool passes on the same fields, and appends the id of its call to the path.

A pipeline also sets `current_engine_call` while it applies ``engine.operators``, before anything is subscribed to. An
operator that needs more than the events must read the variable when it is applied, because the variable is unset later.
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

    `call` holds the arguments that the tool was started with, and `events` is the outcome. If `events` is None, the
    tool was interrupted. If `call` is None, the call was denied before the tool started.
    """

    call: ToolCall | None = None
    events: Sequence[Event] | None = None


class Journal(Protocol):
    """A record of a stream's model answers and tool calls; see ``operators.journaled``.

    It holds entries from earlier runs of the same stream and from the current run. `path` holds the ids of the tool
    calls that enclose a request or a tool call, outermost first. The same call has the same path and key in every run.
    If several calls share a key, the first call gets the first entry, the second call gets the second one, and so on.
    The methods can be called from any thread or event loop. A journal with the methods of `RecallingJournal` also keeps
    ``steer`` corrections.
    """

    def response(self, path: Sequence[str], key: str, events: Observable[Event]) -> Observable[Event]:
        """Return the model's recorded answer or, if there is none, a stream that emits and records `events`.

        This method is called once per subscription. Calls with the same key are made in the same order in every
        run. `key` identifies the request; it is like ``rxllm.values.request_key``, but ignores tools' descriptions.
        """
        ...

    def tool(self, path: Sequence[str], key: str) -> ToolRecord | None:
        """Return the record of this tool call from an earlier run, or None."""
        ...

    async def begin(self, path: Sequence[str], key: str, call: ToolCall) -> None:
        """Record that the tool is about to start. It starts when this method returns. An exception ends the stream."""
        ...

    async def finish(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Record the tool's outcome, which is emitted when this method returns. An exception ends the stream."""
        ...


@runtime_checkable
class RecallingJournal(Journal, Protocol):
    """A `Journal` that also keeps events, so that a chat gets the same corrections in every run; see ``steer``."""

    def has_response(self, path: Sequence[str], key: str) -> bool:
        """Return whether the next call to `response` with this key will return a recorded answer."""
        ...

    def recall(self, path: Sequence[str], key: str) -> Sequence[Event] | None:
        """Return the events that an earlier run kept under this key, or None."""
        ...

    def keep(self, path: Sequence[str], key: str, events: Sequence[Event]) -> None:
        """Record `events`. They must be stored before anything that is recorded after them."""
        ...


@runtime_checkable
class EagerJournal(RecallingJournal, Protocol):
    """A `RecallingJournal` that can also drop records. With any other journal, tools wait for the response to end.

    A response that was recorded whole replaces its beginning, which was kept in the same chat under a key that starts
    with "eager", unless that was kept twice. Later runs then recall an empty list last.
    """

    def void(self, path: Sequence[str], key: str) -> None:
        """Drop what is recorded about this tool call so far, because its response was discarded."""
        ...


class Bookmark(Protocol):
    """A journal's place for the id of an answer that the provider keeps, so that another process can read it."""

    def take(self) -> str | None:
        """Return what an earlier process has put here. Later calls return None."""
        ...

    def put(self, note: str) -> None:
        """Keep `note` for a later process."""
        ...

    def is_handed_over(self) -> bool:
        """Return whether another process will read the answer, so that it must not be stopped."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether the answer must be stopped instead of being read."""
        ...


class Ask(Protocol):
    """A function that sends the same request to another engine, or to an adapter with a model name."""

    def __call__(self, engine: Any, model: str | None = None) -> Observable[Event]: ...


class EngineCall(msgspec.Struct, frozen=True):
    """The engine call whose operators are being applied.

    `request` contains all options, and `call` contains the settings that are not part of a request. `provider` is the
    adapter's name, and `operators` are the engine's operators. `before` is the usage of the chat's earlier steps, and
    `chat` holds the chat's budgets. ``ask(engine)`` returns a cold Observable of another engine's answer.
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
    """Return the engine call whose operators are being applied, or None in a pipe.

    Operators that are closures call this function instead of reading the context variable, because cloudpickle cannot
    pickle a context variable, but can store this function by name.
    """
    return current_engine_call.get()


def applying_operators(call: EngineCall) -> Setting[EngineCall | None]:
    """Return a context manager that sets the `EngineCall` for operators applied inside it."""
    return Setting(current_engine_call, call)


def provider_name(adapter: Any) -> str:
    """Return the adapter's provider, or the adapter's own name if it has no provider."""
    return getattr(adapter, "provider", None) or getattr(adapter, "__name__", None) or type(adapter).__name__


class Scope(msgspec.Struct, frozen=True):
    """The chat, step and tool call that a subscription belongs to.

    The table at the top of this module shows where each field is written and read. `path` holds the ids of the
    enclosing tool calls, outermost first. `tool_key` returns the idempotency key of the innermost tool call. Before a
    retry, every ``before_retry(error, seconds)`` returns the shortest wait that it allows, in seconds. `queued` is the
    number of seconds that a call waited before it started.
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
        """Return this scope with the budgets of `operators` added. `chat` holds the chat's own budgets."""
        holders = [operator for operator in operators if isinstance(operator, HoldsBudget)]
        if not holders:
            return self
        known = [share.budget for share in self.shares]
        budgets = dict.fromkeys(holder.budget_of({} if chat is None else chat) for holder in holders)
        return replace(self, shares=(*(Share(budget) for budget in budgets if budget not in known), *self.shares))

    def attempt(self, call: Call) -> Call:
        """Record an attempt in the enclosing span, if any. Return the call to make: `call`, or a changed copy of it."""
        return call if self.begin_attempt is None else self.begin_attempt(call)

    def of_tool(self, tool_call_id: str, tool_key: Callable[[], str]) -> Scope:
        """Return the scope of a running tool."""
        parent_id, path = tool_id(self.parent_id, tool_call_id), (*self.path, tool_call_id)
        return replace(self.below_model(), parent_id=parent_id, path=path, tool_key=tool_key)


NO_SCOPE = Scope()

current_scope: ContextVar[Scope] = ContextVar("rxllm_scope", default=NO_SCOPE)


def within(scope: Scope) -> Setting[Scope]:
    """Return a context manager that gives `scope` to every subscription made inside it."""
    return Setting(current_scope, scope)


class Setting(Generic[T]):
    """A context manager that sets a context variable.

    Each call uses several of these, and a generator-based one would be three times slower.
    """

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


class ScopedObserver(abc.ObserverBase[Any]):
    """Calls `observer` in the scope in which it subscribed, even if the source runs in a different scope.

    Operators such as ``concat``, ``repeat``, ``retry`` and ``flat_map`` make a new call when another call ends. Without
    this class, the new call would be part of the call that has ended. When the source ends or emits an ``ErrorEvent``,
    `observer` runs in the whole scope, because it might then replace the source with a new subscription. On any other
    event, the scope contains only the fields that a model source passes on.
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
        token = current_scope.set(scope)  # runs for every event; `within` would be five times slower
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
    """Return a stream that subscribes to `source` within `scope`, or by default within the subscriber's scope.

    Events are still delivered to the subscriber in the subscriber's scope.
    """

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
    """Return a random id of 22 URL-safe characters."""
    # ``secrets.token_urlsafe`` would do the same, but importing ``secrets`` loads all of OpenSSL's hashes.
    return urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
