"""Helpers for building operators."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from reactivex import Observable, abc

from rxllm import plugins as installed
from rxllm.collector import DELTAS, StreamCollector, nest, unnest
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, Nested, is_content
from rxllm.runtime import Stream, conclude, stopwatch
from rxllm.runtime.stream_arguments import OperatorMaker, check_source
from rxllm.values import ChatResult, Message, Response, StepResult, StreamError, Thread, Timed, Turn
from rxllm.values.argument_checks import check_function
from rxllm.values.threads import AGENTS
from rxllm.values.times import measured

T = TypeVar("T")
R = TypeVar("R")
T_in = TypeVar("T_in", contravariant=True)
R_out = TypeVar("R_out", covariant=True)

EVENTS = frozenset[type[Any]](EVENT_CLASSES)

Start = Callable[[Observable[T], abc.ObserverBase[R], abc.SchedulerBase | None], abc.DisposableBase]


def operate(start: Start[T, R]) -> Callable[[Observable[T]], Stream[R]]:
    """Return an operator that calls ``start(source, observer, scheduler)``."""

    def operator(source: Observable[T]) -> Stream[R]:
        check_source(source, "the operator")

        def subscribe(observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return start(source, observer, scheduler)

        return Stream(subscribe)

    return operator


MakeHandler = Callable[[abc.OnNext[R], abc.OnError], abc.OnNext[T]]
"""A function that takes an observer's ``on_next`` and ``on_error``, and returns a handler for items.

If the handler has an attribute ``close``, it is called when the source completes, and may raise an error.
"""


def handle_each(make_handler: MakeHandler[R, T], *, is_filter: bool = False) -> Callable[[Observable[T]], Stream[R]]:
    """Return an operator that calls a handler with each item.

    ``make_handler(on_next, on_error)`` is called once per subscription. If `is_filter` is True, the handler may drop
    items, but must not change them, run user code or end the stream.
    """

    def operator(source: Observable[T]) -> Stream[R]:
        check_source(source, "the operator")
        return _Handled(source, make_handler, is_filter)

    return operator


class _Handled(Stream[R_out], Generic[T, R_out]):
    """Passes the items of `source` through a handler.

    A filter calls the next handler directly. Any other handler calls an observer, because an observer drops items that
    arrive after the end or after disposal.
    """

    def __init__(self, source: Observable[T], make_handler: MakeHandler[R_out, T], is_filter: bool) -> None:
        super().__init__()
        self._source: Observable[Any] = source
        self._make_handler: MakeHandler[R_out, Any] = make_handler
        self._is_filter = is_filter
        if isinstance(source, _Handled) and source._is_filter:
            first = cast("_Handled[Any, T]", source)
            self._source = first._source
            self._make_handler = partial(_make_both, first._make_handler, make_handler)

    def _subscribe_core(
        self, observer: abc.ObserverBase[R_out], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        handler = self._make_handler(observer.on_next, observer.on_error)
        close = getattr(handler, "close", None)
        on_completed = observer.on_completed if close is None else partial(_close, close, observer)
        return self._source.subscribe(handler, observer.on_error, on_completed, scheduler=scheduler)


def _close(close: Callable[[], None], observer: abc.ObserverBase[Any]) -> None:
    try:
        close()
    except Exception as error:
        observer.on_error(error)
    else:
        observer.on_completed()


def _make_both(
    make_filter: MakeHandler[T, T], make_handler: MakeHandler[R, T], on_next: abc.OnNext[R], on_error: abc.OnError
) -> abc.OnNext[T]:
    return make_filter(make_handler(on_next, on_error), on_error)


class Feeder(Protocol[T_in, R_out]):
    """An object, such as a decoder, that handles the items of one subscription to `lift`."""

    def feed(self, item: T_in, /) -> Iterable[R_out]: ...

    def close(self) -> Iterable[R_out]: ...


def lift(make: Callable[[], Feeder[T, R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Feed each item to an object, and emit the items that the object returns.

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

    ``make()`` returns a new object for each subscription. Its ``feed(item)`` returns the items to emit. Its ``close()``
    returns the last items, and is only called if the source completes. An exception from either method ends the stream.

    Raises ``ValidationError("invalid_option")`` if `make` is not a function or class.
    """
    check_function("make", make)

    def subscribe(
        source: Observable[T], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        feeder: Any = make()
        if not (callable(getattr(feeder, "feed", None)) and callable(getattr(feeder, "close", None))):
            raise TypeError(f"lift(make): make must return an object with feed(item) and close(), not {feeder!r}")
        waiting: deque[R] = deque()  # the results to emit, starting with the current one

        def on_next(item: T) -> None:
            try:
                results = _results("feed", feeder, feeder.feed(item))
            except Exception as error:
                observer.on_error(error)
                return
            delivering = bool(waiting)  # A re-entrant call leaves delivery to the outer call.
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


def _results(method: str, feeder: object, results: Any) -> list[Any]:
    if results is None:
        raise TypeError(f"{type(feeder).__name__}.{method}() must return an iterable, not None")
    return list(results)


def extract(
    name: str, make: Callable[[], Callable[[Event], Iterable[R]]], *types: type[Event]
) -> Callable[[Observable[Event]], Stream[R]]:
    """Return an operator that emits results for each event whose class is in `types`.

    ``make()`` returns a new function for each subscription. If the function has a ``close()``, it is called at the end
    of the source. An ``ErrorEvent`` becomes ``on_error``. Error messages include `name`, the operator's name.
    """
    wanted = frozenset((*types, ErrorEvent))

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
            except Exception as error:  # raised if the event's raw usage has unknown keys
                on_error(error)
                return
            for result in results:
                on_next(result)

        if (close := getattr(read, "close", None)) is not None:
            vars(handle)["close"] = close
        return handle

    return handle_each(make_handler)


def fold_events(
    name: str, project: Callable[[StreamCollector], R], thread: Thread | None = None
) -> Callable[[Observable[Event]], Stream[R]]:
    """Return an operator that folds the stream and emits ``project(state)``.

    Exceptions become ``on_error``. Error messages include `name`, the operator's name.
    """

    def subscribe(
        source: Observable[Event], observer: abc.ObserverBase[R], scheduler: abc.SchedulerBase | None
    ) -> abc.DisposableBase:
        fold = Fold(name, thread)
        now = stopwatch(scheduler)
        began, first_token = now(), None

        def add_first(delta: Event) -> None:
            nonlocal first_token, add_delta
            first_token = now() - began if first_token is None else first_token
            add_delta = fold.deltas.append
            add_delta(delta)

        add_delta: Callable[[Event], None] = add_first

        def on_next(event: Event) -> None:
            nonlocal first_token
            if type(event) in DELTAS:  # `Fold.add`, inlined for speed
                add_delta(event)
                return
            if first_token is None and is_content(event):
                first_token = now() - began
            try:
                fold.add(event)
            except Exception as error:  # raised if the item is not an event, or if raw usage has unknown keys
                observer.on_error(error)

        def on_completed() -> None:
            try:
                times = fold.times or (now() - began, first_token)
                result = measured(project(fold.state), *times, fold.timed)
            except Exception as error:
                observer.on_error(error)
            else:
                conclude(observer, (result,))

        return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

    return operate(subscribe)


class Fold:
    """The state built from the events received so far. Deltas are folded in batches."""

    def __init__(self, name: str, thread: Thread | None = None) -> None:
        self._name = name
        self._state = StreamCollector(thread)
        self.deltas: list[Any] = []  # The deltas since the last event of another kind. The list is never replaced.
        self.timed: list[Timed[Any]] = []  # All events, if the source is `timed`.

    def add(self, event: Event | Timed[Any]) -> None:
        if type(event) in DELTAS:
            self.deltas.append(event)
            return
        if isinstance(event, Timed):
            self.timed.append(event)
            self.add(event.item)
            return
        try:
            if type(event) not in EVENTS:
                raise not_an_event(self._name, event)
            self._state = self._state.apply_deltas(self.deltas).apply_event(event)
        finally:
            self.deltas.clear()

    @property
    def state(self) -> StreamCollector:
        return self._state.apply_deltas(self.deltas)

    @property
    def times(self) -> tuple[float, float | None] | None:
        """The times of the last event and of the first output, or None if the source is not `timed`."""
        first = next((event.at for event in self.timed if is_content(event.item)), None)
        return (self.timed[-1].at, first) if self.timed else None


def not_an_event(operator: str, item: object) -> StreamError:
    remedy = "put it after stream(...) or another stream of events"
    if function := _EVENTS_OF.get(type(item)):
        remedy = f"a result has no events; write {function}(...) to get them"
    # The item may contain private data, so show only its class.
    return StreamError("malformed_event", f"{operator}() takes events, not {type(item).__name__}: {remedy}")


_EVENTS_OF: dict[type[Any], str] = {
    Response: "stream_generate",
    StepResult: "stream_step",
    ChatResult: "stream",
    Turn: "session.stream_start",
}
"""Maps each result class to the function that emits events instead."""


def shared(operator: Callable[[Observable[T]], Stream[R]]) -> Callable[[Observable[T]], Stream[R]]:
    """Mark `operator` as having state that all its calls share. ``rxllm.cluster`` cannot send such an operator."""
    vars(operator)["is_shared"] = True
    return operator


F = TypeVar("F", bound=Feeder[Event, Event])


class Agents(defaultdict[str, F]):
    """One feeder for each agent in a chat, keyed by the id of the tool call that runs the agent."""

    def feed(self, event: Nested) -> list[Event]:
        id, inner = unnest(event)
        return [nest(id, result) for result in self[id].feed(inner)]

    def close(self, *ids: str) -> list[Event]:
        """Return the remaining events of the agents with these `ids`, or of all agents if no `ids` are given."""
        return [nest(id, result) for id in ids or self for result in self[id].close()]


def with_agents(message: Message, change: Callable[[str, Thread], Thread]) -> Message:
    """Return `message` with each halted agent's thread replaced by ``change(id, thread)``."""
    threads: Any = message.metadata.get(AGENTS)
    if not isinstance(threads, dict):
        return message
    entries = cast(dict[str, Any], threads).items()  # a user may have stored something else under this key
    changed = {id: change(id, entry) if isinstance(entry, Thread) else entry for id, entry in entries}
    return replace(message, metadata={**message.metadata, AGENTS: changed})


class Plugins:
    """The operators that installed packages provide, as attributes: ``ops.plugins.shout()``.

    An operator is imported when its name is looked up. ``dir(ops.plugins)`` lists the names. A failed import raises
    ``EngineError("missing_dependency")``. A name used by several packages raises ``EngineError("invalid_engine")``.
    Wrong arguments raise ``TypeError``. Every error names the package.

    A type checker sees every operator here as a ``Callable[..., Any]``. To get an operator's precise types, import the
    operator from its package::

        events.pipe(ops.plugins.citations())        # Any

        from rxllm_cohere import citations
        events.pipe(citations())                    # Stream[Mapping[str, Any]]
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            make = installed.load("rxllm.operators", name)
        except KeyError:
            known = ", ".join(dir(self)) or "none"
            message = f"no installed package adds an operator named {name!r}; the available operators are: {known}"
            raise AttributeError(message, name=name, obj=self) from None
        return OperatorMaker(f"plugins.{name}", make, partial(installed.about, "rxllm.operators", name))

    def __dir__(self) -> list[str]:
        return installed.names("rxllm.operators")

    def __repr__(self) -> str:
        listed = ", ".join(installed.listed("rxllm.operators")) or "no installed package adds operators"
        return f"<ops.plugins: {listed}>"


plugins = Plugins()
