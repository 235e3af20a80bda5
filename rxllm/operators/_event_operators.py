"""Make an operator: from what a subscription does, from an object without Rx, or from what is done with each event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from reactivex import Observable, abc

from rxllm import plugins as installed
from rxllm.collector import StreamCollector, nest, unnest
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, Nested, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.runtime import Stream, conclude
from rxllm.runtime.stream_arguments import OperatorMaker, check_source
from rxllm.values import ChatResult, Message, Response, StepResult, StreamError, Thread, Turn
from rxllm.values.argument_checks import check_function
from rxllm.values.threads import AGENTS

T = TypeVar("T")
R = TypeVar("R")
T_in = TypeVar("T_in", contravariant=True)
R_out = TypeVar("R_out", covariant=True)


Start = Callable[[Observable[T], abc.ObserverBase[R], abc.SchedulerBase | None], abc.DisposableBase]


def operate(start: Start[T, R]) -> Callable[[Observable[T]], Stream[R]]:
    """Return an operator that calls ``start(source, observer, scheduler)`` for each subscription."""

    def operator(source: Observable[T]) -> Stream[R]:
        check_source(source, "the operator")

        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return start(source, observer, scheduler)

        return Stream(subscribe)

    return operator


def shared(operator: Callable[[Observable[T]], Stream[R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Mark an operator whose calls share what cannot be copied: ``rxllm.cluster`` keeps it with the caller."""
    vars(operator)["is_shared"] = True
    return operator


class Feeder(Protocol[T_in, R_out]):
    """What `lift` takes: items in, items out, and the rest at the end. A decoder is one."""

    def feed(self, item: T_in, /) -> Iterable[R_out]: ...

    def close(self) -> Iterable[R_out]: ...


def lift(make: Callable[[], Feeder[T, R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Feed each item to a fresh ``make()``, an object that knows no Rx, and emit what it returns.

    ::

        source           --a-----b-----c--|
        lift(Pairs)      --------(ab)-----(c)|

    >>> from reactivex import of
    >>> class Pairs:
    ...     def __init__(self): self.pending = ""
    ...     def feed(self, item):
    ...         self.pending += item
    ...         if len(self.pending) == 2:
    ...             yield self.pending
    ...             self.pending = ""
    ...     def close(self): return [self.pending] if self.pending else []
    >>> list(of("a", "b", "c").pipe(lift(Pairs)))
    ['ab', 'c']

    An exception of the object ends the stream with it; ``close`` is called only when the source completes.

    Raises ``ValidationError("invalid_option")`` if `make` is not a function or class.
    """
    check_function("make", make)

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        feeder = _checked(make())
        waiting: deque[R] = deque()  # the first is being delivered

        def on_next(item: T) -> None:
            try:
                results = _results("feed", feeder, feeder.feed(item))
            except Exception as error:
                observer.on_error(error)
                return
            delivering = bool(waiting)  # further up the stack, where on_next caused this item
            waiting.extend(results)
            while waiting and not delivering:
                observer.on_next(waiting[0])
                waiting.popleft()

        def on_completed() -> None:
            try:
                rest = _results("close", feeder, feeder.close())
            except Exception as error:
                observer.on_error(error)
            else:
                conclude(observer, (*list(waiting)[1:], *rest))

        return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

    return operate(subscribe)


def _checked(feeder: Any) -> Any:
    if not (callable(getattr(feeder, "feed", None)) and callable(getattr(feeder, "close", None))):
        raise TypeError(f"lift(make): make must return an object with feed(item) and close(), not {feeder!r}")
    return feeder


def _results(method: str, feeder: object, results: Any) -> list[Any]:
    if results is None:
        raise TypeError(f"{method}() of {type(feeder).__name__} must return an iterable, not None")
    return list(results)


MakeHandler = Callable[[abc.OnNext[R], abc.OnError], abc.OnNext[T]]
"""Takes the observer's ``on_next`` and ``on_error``; returns the handler of one subscription's items."""

EVENTS = frozenset[type[Any]](EVENT_CLASSES)
DELTAS = frozenset({TextDelta, ThinkingDelta, ToolCallDelta})

_EVENTS_OF: dict[type[Any], str] = {
    Response: "stream_generate",
    StepResult: "stream_step",
    ChatResult: "stream",
    Turn: "session.stream_start",
}
"""The function that emits the events of a result."""


def not_an_event(operator: str, item: object) -> StreamError:
    """Return the error for an `item` that is not an event. It shows only the class: the item may be secret."""
    remedy = "put it after stream(...) or the like, and before text(), which turns events into something else"
    if function := _EVENTS_OF.get(type(item)):
        remedy = f"the result is all that is left of them; write {function}(...) for the events"
    return StreamError("malformed_event", f"{operator}() takes events, not {type(item).__name__}: {remedy}")


def handle_each(make_handler: MakeHandler[R, T]) -> Callable[[Observable[T]], Stream[R]]:
    """Call the handler of a fresh ``make_handler(on_next, on_error)`` with each item; the end and errors pass."""

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        handler = make_handler(observer.on_next, observer.on_error)
        return source.subscribe(handler, observer.on_error, observer.on_completed, scheduler=scheduler)

    return operate(subscribe)


def extract(
    name: str, make: Callable[[], Callable[[Event], Iterable[R]]], *types: type[Event]
) -> Callable[[Observable[Event]], Stream[R]]:
    """Emit what a fresh ``make()`` returns for each event of `types`; an ``ErrorEvent`` becomes ``on_error``.

    `name` is the operator's, for the error about an item that is not an event.
    """
    wanted = frozenset((*types, ErrorEvent))  # most events are not

    def make_handler(on_next: abc.OnNext[R], on_error: abc.OnError) -> abc.OnNext[Event]:
        read = make()

        def handle(event: Event) -> None:
            if type(event) not in wanted:
                if type(event) not in EVENTS:
                    on_error(not_an_event(name, event))
                return
            if isinstance(event, ErrorEvent):
                on_error(event.error)
                return
            try:
                results = read(event)
            except Exception as error:  # a raw usage with unknown keys
                on_error(error)
                return
            for result in results:
                on_next(result)

        return handle

    return handle_each(make_handler)


class Fold:
    """The state after the events so far. Most events are deltas, and are folded together."""

    def __init__(self, name: str, thread: Thread | None = None) -> None:
        self._name = name
        self._state = StreamCollector(thread)
        self._deltas: list[Any] = []  # since the last other event

    def add(self, event: Event) -> None:
        if type(event) in DELTAS:
            self._deltas.append(event)
            return
        try:
            if type(event) not in EVENTS:
                raise not_an_event(self._name, event)
            self._state = self._state.apply_deltas(self._deltas).apply_event(event)
        finally:
            self._deltas.clear()

    @property
    def state(self) -> StreamCollector:
        return self._state.apply_deltas(self._deltas)


def fold_events(
    name: str, project: Callable[[StreamCollector], R], thread: Thread | None = None
) -> Callable[[Observable[Event]], Stream[R]]:
    """Fold the whole stream, then emit ``project(state)``; exceptions become ``on_error``. `name` as in `extract`."""

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        fold = Fold(name, thread)

        def on_next(event: Event) -> None:
            try:
                fold.add(event)
            except Exception as error:  # a raw usage with unknown keys
                observer.on_error(error)

        def on_completed() -> None:
            try:
                result = project(fold.state)
            except Exception as error:
                observer.on_error(error)
            else:
                conclude(observer, (result,))

        return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

    return operate(subscribe)


F = TypeVar("F", bound=Feeder[Event, Event])


def with_agents(message: Message, change: Callable[[str, Thread], Thread]) -> Message:
    """Return `message` with the threads of its halted agents as ``change(id, thread)`` returns them."""
    threads: Any = message.metadata.get(AGENTS)
    if not isinstance(threads, dict):
        return message
    entries = cast(dict[str, Any], threads).items()  # users may have metadata of that name, too
    changed = {id: change(id, entry) if isinstance(entry, Thread) else entry for id, entry in entries}
    return replace(message, metadata={**message.metadata, AGENTS: changed})


class Agents(Generic[F]):
    """The agents of one chat, each with a feeder of its own, which takes care of the agents inside it."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._feeders: dict[str, F] = {}

    def __getitem__(self, id: str) -> F:
        """Return the feeder of the agent that is the tool call `id`, a new one for a new agent."""
        return self._feeders.get(id) or self._feeders.setdefault(id, self._make())

    def __contains__(self, id: object) -> bool:
        return id in self._feeders

    def feed(self, event: Nested) -> list[Event]:
        """Return what the agent's feeder makes of `event`."""
        id, inner = unnest(event)
        return [nest(id, result) for result in self[id].feed(inner)]

    def clear(self) -> None:
        self._feeders.clear()

    def close(self, id: str | None = None) -> list[Event]:
        """Return what is left of one agent, or of all; the feeders stay."""
        ids = list(self._feeders) if id is None else [id] if id in self else []
        return [nest(id, result) for id in ids for result in self._feeders[id].close()]


class Plugins:
    """The operators that installed packages add, each under its own name: ``ops.plugins.shout()``.

    An operator is imported when its name is looked up, see ``rxllm.plugins``; ``dir(ops.plugins)`` lists them. One that
    does not load raises ``EngineError("missing_dependency")``, a name that several packages use
    ``EngineError("invalid_engine")``, a call with the wrong arguments ``TypeError``; all name the package.

    A type checker does not know which packages are installed: here every operator is a ``Callable[..., Any]``, and so
    is what it emits. The package's own function is the same operator with its types::

        events.pipe(ops.plugins.citations())        # Any

        from rxllm_cohere import citations
        events.pipe(citations())                    # Stream[Mapping[str, Any]]
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            make = installed.load("rxllm.operators", name)
        except KeyError:
            known = ", ".join(dir(self)) or "none"
            message = f"no installed package adds an operator {name!r}; there are: {known}"
            raise AttributeError(message, name=name, obj=self) from None
        return OperatorMaker(f"plugins.{name}", make, partial(installed.about, "rxllm.operators", name))

    def __dir__(self) -> list[str]:
        return installed.names("rxllm.operators")

    def __repr__(self) -> str:
        return (
            f"<ops.plugins: {', '.join(installed.listed('rxllm.operators')) or 'no installed package adds operators'}>"
        )


plugins = Plugins()
