"""`marble_diagram`, which runs streams and draws their items."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from os import PathLike
from types import FrameType
from typing import Any, TypeVar, cast, overload

import reactivex
from reactivex import Observable, abc
from reactivex import operators as rx
from reactivex.scheduler import HistoricalScheduler

from rxllm import operators as ops
from rxllm.display._card import truncate
from rxllm.display._export import HTML_HEAD, export
from rxllm.display._marble_lanes import Lane, Span
from rxllm.display._marble_svg import draw_svg
from rxllm.display._marble_text import draw_text
from rxllm.display._plain import ipython_shell
from rxllm.runtime import Stream, run, stopwatch, to_iter
from rxllm.values import Trace
from rxllm.values.argument_checks import check, check_function, check_instance, is_positive

T = TypeVar("T")
Streams = Observable[Any] | Sequence[Observable[Any]] | Mapping[str, Observable[Any]]

REDRAW_SECONDS = 0.25

VIRTUAL_SECONDS = 86_400.0
"""The maximum length of a run in virtual time, in seconds."""


class MarbleDiagram:
    """A diagram of the items that pass through chosen places in a pipe.

    >>> from rxllm import Fake, stream_generate, operators as ops
    >>> diagram = MarbleDiagram()
    >>> stream_generate(Fake("Hello"), "Hi").pipe(diagram.lane("events"), ops.to_text(), diagram.lane("text")).run()
    'Hello'
    >>> diagram.svg()[:4]
    '<svg'

    A notebook shows the diagram as SVG, and ``print`` shows it as text. You can draw it while the streams are still
    running. To draw a whole pipe, use `marble_diagram`.
    """

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._now: Callable[[], float] | None = None
        self._is_over = False
        self._drawn_in: object = None

    def lane(self, label: str) -> Callable[[Observable[T]], Stream[T]]:
        """Return an operator that adds a lane and leaves the stream unchanged."""
        check_instance("label", label, str, "a string")
        return self._add(Lane(label))

    def _add(self, lane: Lane) -> Callable[[Observable[T]], Stream[T]]:
        self._lanes.append(lane)

        def watched(source: Observable[T], scheduler: abc.SchedulerBase) -> Observable[T]:
            return source.pipe(ops.trace(partial(self._note, lane.begin(self._seconds(scheduler)))))

        return lambda source: Stream.of(reactivex.defer(partial(watched, source)))

    @overload
    def svg(self, path: None = None) -> str: ...
    @overload
    def svg(self, path: str | PathLike[str]) -> None: ...
    def svg(self, path: str | PathLike[str] | None = None) -> str | None:
        """Return the diagram as self-contained SVG. If `path` is given, write it there, and return None.

        Inside a page, the picture uses the colours of that page. As a file, it has its own light or dark background.
        """
        return export(draw_svg(self._lanes, self._end()), path)

    @overload
    def html(self, path: None = None) -> str: ...
    @overload
    def html(self, path: str | PathLike[str]) -> None: ...
    def html(self, path: str | PathLike[str] | None = None) -> str | None:
        """Return the diagram as HTML, which is its SVG. If `path` is given, write a page, and return None."""
        return export(self.svg(), path, head=HTML_HEAD)

    def __str__(self) -> str:
        return draw_text(self._lanes, self._end()) if self._lanes else "MarbleDiagram()"

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "image/svg+xml": self.svg()}

    def _ipython_display_(self) -> None:
        if self._drawn_in is None or self._drawn_in != _cell():  # otherwise the cell already shows the diagram
            sys.modules["IPython"].display.display(self._repr_mimebundle_(), raw=True)
        self._drawn_in = None

    def _seconds(self, scheduler: abc.SchedulerBase | None) -> float:
        if self._now is None:
            now = stopwatch(scheduler)
            started_at = now()
            self._now = lambda: round(now() - started_at, 6)
        return self._now()

    def _note(self, span: Span, trace: Trace) -> None:
        if not self._is_over:
            span.note(trace.kind, self._seconds(None), trace.item)

    def _end(self) -> float:
        spans = [span for lane in self._lanes for span in lane.spans]
        if self._is_over or self._now is None or all(span.outcome for span in spans):
            return max((span.latest for span in spans), default=0.0)
        return self._now()

    def _run(self, over: Observable[Any]) -> None:
        if _cell() is None:
            run(over.pipe(rx.default_if_empty(None)))
            return
        handle = sys.modules["IPython"].display.display(self._repr_mimebundle_(), raw=True, display_id=True)
        ticks = reactivex.interval(REDRAW_SECONDS).pipe(rx.take_until(over.pipe(rx.concat(reactivex.just(None)))))
        try:
            with to_iter(ticks) as items:
                for _ in items:
                    handle.update(self._repr_mimebundle_(), raw=True)
        finally:
            handle.update(self._repr_mimebundle_(), raw=True)
            self._drawn_in = _cell()

    def _run_virtually(self, over: Observable[Any]) -> None:
        scheduler = HistoricalScheduler()
        subscription = over.subscribe(scheduler=scheduler)
        scheduler.advance_to(scheduler.now + timedelta(seconds=VIRTUAL_SECONDS))
        self._is_over = True
        subscription.dispose()


def marble_diagram(
    streams: Streams,
    *operators: Callable[..., Any],
    until: float | None = None,
    labels: Sequence[str] | None = None,
    virtual: bool = False,
) -> MarbleDiagram:
    """Run a stream through `operators`, and draw a lane for the stream and for each operator.

    >>> import reactivex
    >>> from rxllm import operators as ops
    >>> ticks = reactivex.interval(2)
    >>> print(marble_diagram(ticks, ops.tap(str), reactivex.operators.take(2), virtual=True))
    ticks                        --a-b
                                 ^---!
    ops.tap(str)                 --a-b
                                 ^---!
    reactivex.operators.take(2)  --a-(b|)
                                 0   4 s
    a=0
    b=1

    To draw ``source.pipe(a, b)``, write ``marble_diagram(source, a, b)``. The call returns when all streams have ended.
    Streams that are still running after `until` seconds are disposed. Errors are drawn, not raised. In a notebook, the
    picture grows while the streams are running. The text uses the notation of ``rxllm.testing.marbles``. If each
    character stands for 1 s, as above, you can pass the text to that module's ``check`` function.

    Each subscription has its own row. For example, a retry adds a second row. In the picture, operators are shown in
    boxes, and items with equal content have the same colour.

    To draw several streams, pass a list or a dict. Each stream gets its own lane. The first operator must combine the
    streams, as in ``marble_diagram([a, b], rxllm.race)``. It is called with the list's streams as arguments, or with
    the dict itself. Without operators, the streams run side by side.

    If `virtual` is True, the streams run in virtual time, without real pauses and with exact times. The run ends after
    at most one virtual day. To draw a recording, write
    ``marble_diagram(rxllm.testing.replay_file("hello.jsonl"), virtual=True)``. Network calls need real time.

    `labels` are the names of the lanes. By default, they are the source code of the arguments. Streams in a dict are
    named by its keys, and a source that is not a variable is named ``source``.

    Raises ``ValidationError("invalid_option")`` if an argument is invalid.
    """
    check("until", until, until is None or is_positive(until), "a positive number of seconds")
    sources = _sources(streams)
    count = len(sources) + len(operators)
    names = _names(streams, list(sources), count, inspect.currentframe()) if labels is None else list(labels)
    check("labels", labels, len(names) == count, f"{count} labels, one for each lane")
    diagram = MarbleDiagram()
    add = diagram._add  # pyright: ignore[reportPrivateUsage]
    watched = {key: source.pipe(add(Lane(name))) for (key, source), name in zip(sources.items(), names, strict=False)}
    results = list(watched.values())
    for index, operator in enumerate(operators):
        check_function(f"operators[{index}]", operator)
        if index or isinstance(streams, Observable):
            stage = Stream.of(results[0]).pipe(operator)
        else:
            stage = operator(watched) if isinstance(streams, Mapping) else operator(*results)
        check_instance(f"what operators[{index}] returns", stage, Observable, "an Observable")
        results = [stage.pipe(add(Lane(names[len(sources) + index], is_operator=True)))]
    silent = (result.pipe(rx.ignore_elements(), rx.catch(reactivex.empty())) for result in results)
    end = reactivex.never() if until is None else reactivex.timer(until)
    over = reactivex.merge(*silent).pipe(rx.take_until(end))
    diagram._run_virtually(over) if virtual else diagram._run(over)  # pyright: ignore[reportPrivateUsage]
    return diagram


def _sources(streams: Any) -> dict[Any, Observable[Any]]:
    several = streams
    if not isinstance(streams, Mapping):
        several = dict(enumerate(cast(Any, streams) if isinstance(streams, list | tuple) else [streams], 1))
    sources = dict(cast(Mapping[Any, Any], several))
    fits = bool(sources) and all(isinstance(source, Observable) for source in sources.values())
    remedy = "an Observable, or a list or dict of Observables; for a recording, pass rxllm.testing.replay_file(path)"
    check("streams", cast(object, streams), fits, remedy)
    return sources


def _names(streams: Any, keys: Sequence[Any], count: int, frame: FrameType | None) -> list[str]:
    """Return names for the lanes: the source code of the caller's arguments, or the keys of a dict of streams.

    If the source code cannot be read, the names are numbers.
    """
    caller = cast(FrameType, cast(FrameType, frame).f_back)
    first, last, left, right = list(caller.f_code.co_positions())[caller.f_lasti // 2]
    place = ast.Pass(lineno=first or 0, end_lineno=last, col_offset=left or 0, end_col_offset=right)
    source = "".join(linecache.getlines(caller.f_code.co_filename, caller.f_globals))
    try:
        call = ast.parse(ast.get_source_segment(source, place) or "", mode="eval").body
    except (SyntaxError, IndexError, ValueError):  # the file is missing or has changed
        call = None
    nodes = call.args if isinstance(call, ast.Call) else []
    if nodes and isinstance(nodes[0], ast.List):
        nodes = [*nodes[0].elts, *nodes[1:]]
    names = [truncate(ast.unparse(node), 80) for node in nodes]
    if isinstance(streams, Observable) and nodes and not isinstance(nodes[0], ast.Name):
        names[0] = "source"
    if isinstance(streams, Mapping):
        names = [*map(str, keys), *names[1:]]
    return names if len(names) == count else [str(number) for number in range(1, count + 1)]


def _cell() -> object:
    """Return the number of the running cell, or None outside a notebook."""
    shell = ipython_shell()
    return shell.execution_count if hasattr(shell, "kernel") else None
