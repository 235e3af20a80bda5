"""`timeline`, which draws a run as bars over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from os import PathLike
from time import monotonic
from typing import Any, cast, overload

from reactivex import Observable

from rxllm.display import _show
from rxllm.display._export import HTML_HEAD, export
from rxllm.display._plain import Cards, Screen
from rxllm.display._show import Showing, notebook_cell, suppress_repr
from rxllm.display._timeline_drawing import MANY, Drawn, dollars, fine_duration, svg_of, table_of, text_of
from rxllm.display._timeline_rows import Lane, Row
from rxllm.display._words import count
from rxllm.events import TextDelta
from rxllm.runtime import merge_labelled, noting_times
from rxllm.values import Labelled, Timed, Usage, Value, times_of
from rxllm.values.argument_checks import check_instance, invalid_option, must_be

MAX_SECONDS = 1e9
"""The maximum length of a run, in seconds."""


class Timeline:
    """The rows of a run. ``str(timeline)`` draws them as text.

    `rows` are the steps, with their tools and agents. If the streams have labels, `rows` are the streams. If the
    function `timeline` ran a stream, `result` is what ``show`` would have returned. Notebooks show an SVG picture and a
    table.
    """

    def __init__(self, title: str = "", labels: Iterable[str] = ()) -> None:
        self.rows: list[Row] = []
        self.result: Any = None
        self._title = title
        self._seconds = 0.0
        self._ticks: list[float] | None = None  # the ticks of the growing text bar, if streams have no labels
        self._lanes: dict[str | None, Lane] = {label: self._begin(label) for label in labels}

    def add(self, timed: Timed[Any]) -> None:
        """Add an event to the rows. If there are several streams, the event must be inside a `Labelled`."""
        at, event = timed.at, timed.item
        if not 0.0 <= at <= MAX_SECONDS:
            raise invalid_option("source", f"has an event at {at!r} s; times must be between 0 and {MAX_SECONDS:g} s")
        if self._ticks is not None and type(event) is TextDelta:  # by far the most frequent case
            self._ticks.append(at)
            return
        self._seconds = max(self.seconds, at)
        label: str | None = None
        while isinstance(event, Labelled | Timed):
            label = event.label if isinstance(event, Labelled) else label
            event = cast(Any, event.item)
        lane = self._lanes.get(label)
        if lane is None:
            lane = self._lanes[label] = self._begin(label)
        lane.add(event, at)
        self._ticks = lane.ticks if label is None else None

    def _begin(self, label: str | None) -> Lane:
        if label is None:
            return Lane(self.rows, 0.0)
        row = Row("stream", label, 0.0)
        self.rows.append(row)
        return Lane(row.rows, 0.0)

    def finish(self, at: float | None = None, error: Exception | None = None) -> None:
        """End all growing bars at the time `at`, or at the last event if that is later."""
        self.pass_time(at or 0.0)
        for lane in self._lanes.values():
            lane.finish(self.seconds)
        if error is not None:
            self._lanes.setdefault(None, Lane(self.rows, 0.0)).fail(self.seconds, error)

    def pass_time(self, at: float) -> None:
        """Extend the growing bars to the time `at`."""
        self._seconds = max(self.seconds, at)

    @property
    def seconds(self) -> float:
        """The time of the last event, or the time passed to `pass_time` if that is later."""
        return max(self._seconds, self._ticks[-1]) if self._ticks else self._seconds

    @property
    def title(self) -> str:
        """The title passed to `timeline`, or the user's last message."""
        results = (lane.result for lane in self._lanes.values() if lane.result is not None)
        texts = (m.text for result in results for m in reversed(result.thread.messages) if m.role == "user")
        return self._title or next(texts, "")

    @property
    def usage(self) -> Usage:
        """The total usage of all steps and agents."""
        return sum((row.total() for row in self.rows), Usage())

    @property
    def error(self) -> str:
        """The first line of the run's error, or "" if there is none."""
        return next((lane.error for lane in self._lanes.values() if lane.error), "")

    @property
    def summary(self) -> str:
        """A one-line summary of the run: its models, steps, tool calls, duration, tokens, cost and error."""
        rows = [row for _, row in self._walk()]
        tops = [row for top in self.rows for row in (top.rows if top.kind == "stream" else [top])]
        steps = sum(row.kind == "step" and not row.is_lost for row in tops)
        tools = [row for row in rows if row.kind == "tool"]
        failed = sum(1 for row in tools if row.error)
        texts = [
            " + ".join(dict.fromkeys(row.model for row in rows if row.model)),
            count(steps, "step") if any(lane.is_chat for lane in self._lanes.values()) else "",
            count(len(tools), "tool call") + (f" ({failed} failed)" if failed else "") if tools else "",
            fine_duration(self.seconds),
            f"{self.usage.total:,} tokens" if self.usage.total else "",
            dollars(self.usage.total_cost),
            self.error,
        ]
        return " · ".join(filter(None, texts))

    @overload
    def svg(self, path: None = None) -> str: ...
    @overload
    def svg(self, path: str | PathLike[str]) -> None: ...
    def svg(self, path: str | PathLike[str] | None = None) -> str | None:
        """Return the picture as SVG. If `path` is given, write it there, and return None."""
        return export(svg_of(self._drawn(), is_file=True), path)

    @overload
    def html(self, path: None = None) -> str: ...
    @overload
    def html(self, path: str | PathLike[str]) -> None: ...
    def html(self, path: str | PathLike[str] | None = None) -> str | None:
        """Return the picture and a table of its data as HTML. If `path` is given, write a page, and return None.

        Text takes its colour from the surrounding page, except that errors are red.
        """
        drawn = self._drawn()
        folded = f'<details style="margin-inline-start:24px"><summary>Figures</summary>{table_of(drawn)}</details>'
        style = "overflow-x:auto;font:13px system-ui,sans-serif"
        return export(f'<div style="{style}">{svg_of(drawn)}{folded}</div>', path, head=HTML_HEAD)

    def _walk(self) -> Iterator[tuple[int, Row]]:
        return chain.from_iterable(row.walk() for row in [*self.rows])

    def _drawn(self) -> Drawn:
        rows = [*self._walk()]
        return Drawn(self.title, self.summary, rows[:MANY], self.seconds, max(0, len(rows) - MANY))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.html()}

    def __str__(self) -> str:
        return text_of(self._drawn())

    def __repr__(self) -> str:
        return f"Timeline({self.summary!r})"


def timeline(source: Any, *, title: str = "") -> Timeline:
    """Draw a run over time, and return its `Timeline`.

    >>> from rxllm import events
    >>> from rxllm.values import Timed
    >>> run = timeline([Timed(0.5, events.TextDelta("Hel")), Timed(1.0, events.TextDelta("lo"))])
    >>> print(run)
    1.0 s
    response  ░░░░░░░░░░░░░░░░░░░░████████████████████  0.50 s TTFT
    ░ waiting  █ text

    ==================================  ===============================================================================
    `source`                            what is drawn
    ==================================  ===============================================================================
    a stream of events                  The run. Its times are measured as it runs. In a notebook, the picture grows
                                        in its cell; elsewhere, the timeline is printed at the end. The stop button
                                        or Ctrl-C cancels the call, as in ``show``.
    a mapping of labels to streams,     All streams, one below another. They run concurrently.
    or a stream of `Labelled` events
    a stream or an iterable of `Timed`  A run whose events have times, such as one from ``ops.timed()``, a recording
                                        (``testing.timed_file``) or a durable run (``watch(id, timed=True)``).
    a result                            The run that produced the result, if ``ops.timed()`` was applied before its
                                        events were folded.
    ==================================  ===============================================================================

    If the stream fails, its error is raised after the timeline has been drawn. The timeline is then available as
    ``rxllm.display.last``. The default `title` is the user's last message.

    Raises ``ValidationError("invalid_option")`` for any other `source`.
    """
    check_instance("title", title, str, "a string")
    labels: list[str] = []
    if isinstance(source, Mapping):
        labels, source = [*source], merge_labelled(cast(Mapping[str, Observable[Any]], source))
    drawing = Timeline(title, labels)
    if isinstance(source, Observable):
        return _run(cast(Observable[Any], source), drawing)
    items: Any = times_of(source) or source
    is_timed = isinstance(items, Iterable) and not isinstance(items, str | bytes | Value)
    for item in cast(Iterable[Any], items) if is_timed else [source]:
        if not isinstance(item, Timed):
            expected = "a stream, a mapping of labels to streams, timed events, or a result made from timed events"
            raise invalid_option("source", f"{must_be(expected, item)}; apply ops.timed() to get timed events")
        drawing.add(cast(Timed[Any], item))
    drawing.finish()
    return drawing


def _run(source: Observable[Any], drawing: Timeline) -> Timeline:
    try:
        drawing.result = Showing[Any](noting_times(source), [], _Drawing(drawing)).run()
    finally:
        _show.last = drawing
    return suppress_repr(drawing)


class _Drawing(Screen):
    """A screen that draws a timeline in a notebook cell or, outside a notebook, prints it at the end."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._cell = notebook_cell(lambda cards, now: timeline.html(), lambda cards: str(timeline))
        self._begun = monotonic()
        self._is_timed = False

    def open(self, cards: Cards, stop: Callable[[], None] | None) -> None:
        self._begun = monotonic()
        if self._cell is not None:
            self.thread = self._cell.thread
            self._cell.open(cards, stop)

    def add(self, item: Any) -> None:
        self._is_timed = isinstance(item, Timed)
        self._timeline.add(item if self._is_timed else Timed(monotonic() - self._begun, item))

    def draw(self, cards: Cards, now: float) -> None:
        if self._cell is not None:
            if not self._is_timed:
                self._timeline.pass_time(now - self._begun)
            self._cell.draw(cards, now)

    def finish(self, cards: Cards, now: float) -> None:
        error = next((card.error for card in cards.values() if card.error is not None), None)
        self._timeline.finish(None if self._is_timed else now - self._begun, error)
        if self._cell is not None:
            self._cell.finish(cards, now)
        else:
            print(self._timeline)
