"""`marble_diagram`: run streams, or a pipe stage by stage, and draw what happens in each."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast

import reactivex
from reactivex import Observable
from reactivex import operators as rx
from reactivex.scheduler import HistoricalScheduler

from rxllm import operators as ops
from rxllm.display._marble_lanes import Lane, clipped
from rxllm.display._marble_svg import draw_svg
from rxllm.display._marble_text import draw_text
from rxllm.runtime import Stream, run, stopwatch, to_iter
from rxllm.values import Trace
from rxllm.values.argument_checks import check, check_function, check_instance, is_positive

T = TypeVar("T")
Streams = Observable[Any] | Sequence[Observable[Any]] | Mapping[str, Observable[Any]]

REDRAW_SECONDS = 0.25
"""How often a cell is redrawn while its streams run."""

VIRTUAL_SECONDS = 86_400.0
"""When a run in virtual time is over, whatever still waits."""


class MarbleDiagram:
    """What happened at the places of a pipe, to be drawn: as text by ``print``, as a picture in a notebook.

    >>> from rxllm import Fake, stream_generate, operators as ops
    >>> diagram = MarbleDiagram()
    >>> answer = stream_generate(Fake(["Hel", "lo"]), "Hi").pipe(ops.text(), diagram.lane("text"), ops.to_text())
    >>> answer.run(), diagram.svg[:4]
    ('Hello', '<svg')

    `lane` is an operator that watches the place where it stands, in sync and in async code; `marble_diagram` puts one
    after each stage of a pipe. Lanes are drawn in the order in which they were created, while their streams run too.
    """

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._now: Callable[[], float] | None = None
        self._stopped_at: float | None = None
        self._drawn_in: object = None

    def lane(self, label: str) -> Callable[[Observable[T]], Stream[T]]:
        """Pass a stream on unchanged, and draw it as the lane `label`. Each subscription begins where time is then.

        Raises ``ValidationError("invalid_option")`` if `label` is not a string.
        """
        check_instance("label", label, str, "a string")
        lane = Lane(label)
        self._lanes.append(lane)

        def operator(source: Observable[T]) -> Stream[T]:
            def watched(scheduler: Any) -> Observable[T]:
                note = lane.watcher(partial(self._seconds, scheduler))
                return source.pipe(ops.trace(lambda trace: self._note(note, trace)))

            return Stream.of(reactivex.defer(watched))

        return operator

    @property
    def svg(self) -> str:
        """The picture, of bounded size: light or dark as its viewer is, and in need of nothing else."""
        return draw_svg(self._lanes, self._end())

    def __str__(self) -> str:
        return draw_text(self._lanes, self._end()) if self._lanes else "MarbleDiagram()"

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "image/svg+xml": self.svg}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._drawn_in is None or self._drawn_in != _cell():  # else it is there
            display(self._repr_mimebundle_(), raw=True)
        self._drawn_in = None

    def _seconds(self, scheduler: Any) -> float:
        if self._now is None:
            now = stopwatch(scheduler)
            started_at = now()
            self._now = lambda: round(now() - started_at, 6)
        return self._now()

    def _note(self, note: Callable[[str, Any], None], trace: Trace) -> None:
        if self._stopped_at is None:
            note(trace.kind, trace.item)

    def _end(self) -> float:
        spans = [span for lane in self._lanes for row in lane.rows() for span in row]
        if self._now is not None and any(span.until is None for span in spans):
            return self._now() if self._stopped_at is None else self._stopped_at
        return max((span.until or 0.0 for span in spans), default=0.0)

    def _stop(self) -> None:
        """Note nothing any more; what still runs is drawn as running, until the last that has happened."""
        spans = [span for lane in self._lanes for row in lane.rows() for span in row]
        times = (time for span in spans for time in (span.start, span.until or 0.0, *(mark.at for mark in span.marks)))
        self._stopped_at = max(times, default=0.0)


def marble_diagram(
    streams: Streams,
    *operators: Callable[..., Any],
    until: float | None = None,
    labels: Sequence[str] | None = None,
    virtual: bool = False,
) -> MarbleDiagram:
    """Run a stream through `operators`, and draw what happens: a lane for the stream, and one for each operator.

    ::

        >>> from rxllm import Fake, stream_generate, operators as ops
        >>> answer = stream_generate(Fake([("delay", 2), "Hel", ("delay", 2), "lo wo", ("delay", 3), "rld"]), "Hi")
        >>> print(marble_diagram(answer, ops.text(), ops.words(), virtual=True))
        answer        --(sH)l--(rte|)
                      ^------!
        ops.text()    --H-l--(r|)
                      ^------!
        ops.words()   ----a--(b|)
        H='Hel'

    It waits until all is over, or for `until` seconds, and disposes what still runs; errors are drawn, not raised. In a
    notebook the cell shows the picture while it grows. Write ``marble_diagram(`` for ``source.pipe(`` with the source
    in front of the operators.

    Several streams are a list or a dict of them. Each has a lane; the first operator joins them, and receives those of
    a list as its arguments, and a dict as it is: ``marble_diagram([a, b], ops.race)``,
    ``marble_diagram({"a": a, "b": b}, ops.merge_labelled)``. Without operators they run side by side. A stream that is
    subscribed several times, as by ``lambda answer: ops.hedge(answer, after=1)``, has a row for each that is concurrent.

    With `virtual` the time is that of a virtual scheduler: pauses take none, and the picture is exact. So what
    ``rxllm.testing.record`` has written is drawn at once, with the times of the recording:
    ``marble_diagram(replay_file("hello.jsonl"), virtual=True)``. After a day of virtual time it is over. Streams from a
    network have no virtual time.

    `labels` are those of the lanes; by default, the arguments as they are typed.

    Raises ``ValidationError("invalid_option")`` for arguments of another kind.
    """
    check("until", until, until is None or is_positive(until), "a number of seconds above 0")
    sources = _sources(streams)
    names = _names(sources, operators, labels, sys._getframe(1))
    diagram = MarbleDiagram()
    joined = _watched(diagram, sources, streams, operators, names)
    over = joined.pipe(rx.take_until(reactivex.never() if until is None else reactivex.timer(until)))
    if virtual:
        scheduler = HistoricalScheduler()
        subscription = over.subscribe(scheduler=scheduler)
        scheduler.advance_to(scheduler.now + timedelta(seconds=VIRTUAL_SECONDS))
        diagram._stop()  # pyright: ignore[reportPrivateUsage]
        subscription.dispose()
    elif _cell() is None:
        run(over.pipe(rx.default_if_empty(None)))
    else:
        _run_in_cell(diagram, over)
    return diagram


def _sources(streams: Any) -> dict[str, Observable[Any]]:
    expected = "an Observable, such as rxllm.stream(...) returns, or a list or a dict of these"
    if isinstance(streams, str):
        expected = "an Observable, as rxllm.testing.replay_file(path) makes one of a recording"
    if isinstance(streams, Mapping):
        sources = {str(name): source for name, source in cast(Mapping[Any, Any], streams).items()}
    elif isinstance(streams, list | tuple):
        sources = {str(number): source for number, source in enumerate(cast(Iterable[Any], streams), 1)}
    else:
        sources = {"source": streams}
    fits = bool(sources) and all(isinstance(source, Observable) for source in sources.values())
    check("streams", streams, fits, expected)
    return sources


def _watched(
    diagram: MarbleDiagram,
    sources: dict[str, Observable[Any]],
    streams: Any,
    operators: Sequence[Callable[..., Any]],
    names: list[str],
) -> Observable[Any]:
    """Return what emits nothing and ends when all is over."""
    lanes = dict(zip(sources, (diagram.lane(name) for name in names), strict=False))
    watched = {name: source.pipe(lanes[name]) for name, source in sources.items()}
    results = list(watched.values())
    for index, operator in enumerate(operators):
        check_function(f"operators[{index}]", operator)
        if index or isinstance(streams, Observable):
            stage = Stream.of(results[0]).pipe(operator)
        else:
            stage = operator(watched) if isinstance(streams, Mapping) else operator(*results)
        check_instance(f"what operators[{index}] returns", stage, Observable, "an Observable")
        results = [stage.pipe(diagram.lane(names[len(sources) + index]))]
    silent = [result.pipe(rx.ignore_elements(), rx.catch(reactivex.empty())) for result in results]
    return reactivex.merge(*silent)


def _run_in_cell(diagram: MarbleDiagram, over: Observable[Any]) -> None:
    from IPython.display import display

    def draw() -> None:
        handle.update(diagram._repr_mimebundle_(), raw=True)  # pyright: ignore[reportPrivateUsage]

    handle: Any = display(diagram._repr_mimebundle_(), raw=True, display_id=True)  # pyright: ignore[reportPrivateUsage]
    ended = over.pipe(rx.concat(reactivex.just(True)))
    frames = reactivex.merge(ended, reactivex.interval(REDRAW_SECONDS).pipe(rx.map(lambda _: False)))
    try:
        with to_iter(frames.pipe(rx.take_while(lambda is_over: not is_over))) as items:
            for _ in items:
                draw()
    finally:
        draw()
        diagram._drawn_in = _cell()  # pyright: ignore[reportPrivateUsage]


def _cell() -> object:
    """Return the number of the notebook's cell that runs, None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell.execution_count if hasattr(shell, "kernel") else None


# Labels


def _names(
    sources: dict[str, Any], operators: Sequence[Any], labels: Sequence[str] | None, caller: FrameType
) -> list[str]:
    count = len(sources) + len(operators)
    if labels is not None:
        names = list(labels)
        check("labels", labels, len(names) == count, f"as many as there are lanes, {count}")
        return names
    streams, *stages = _typed(caller) or [None]
    numbered = isinstance(streams, ast.List | ast.Tuple) and len(streams.elts) == len(sources)
    first = [ast.unparse(node) for node in streams.elts] if numbered else list(sources)
    if list(sources) == ["source"] and isinstance(streams, ast.Name):
        first = [streams.id]
    named = [ast.unparse(stage) for stage in stages]
    rest = named if len(named) == len(operators) else [f"operator {number}" for number in range(1, len(operators) + 1)]
    return [clipped(name, 40) for name in (*first, *rest)]


def _typed(caller: FrameType) -> list[ast.expr] | None:
    """Return the positional arguments of the call that `caller` is in, as they are written, if its source is there."""
    positions = list(caller.f_code.co_positions())[caller.f_lasti // 2]
    lines = linecache.getlines(caller.f_code.co_filename, caller.f_globals)
    first, last, begin, end = positions
    if None in positions or not 0 < first <= last <= len(lines):
        return None
    text = [line.encode() for line in lines[first - 1 : last]]
    text[-1] = text[-1][:end]
    text[0] = text[0][begin:]
    try:
        call = ast.parse(b"".join(text), mode="eval").body
    except SyntaxError:
        return None
    return call.args if isinstance(call, ast.Call) else None
