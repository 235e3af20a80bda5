"""The tables as one picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Table


def draw(path: Path, tables: Sequence[Table]) -> None:
    """A panel for every table that has a picture. Raises ``ModuleNotFoundError`` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    pictured = [table for table in tables if table.key in _PANELS and table.rows]
    if not pictured:
        return
    heights = [max(4.2, 0.2 * len(table.rows)) for table in pictured]
    size = (9, sum(heights))
    figure, panels = pyplot.subplots(len(pictured), 1, figsize=size, height_ratios=heights, squeeze=False)
    for table, axes in zip(pictured, panels[:, 0], strict=True):
        _PANELS[table.key](axes, table)
        axes.set_title(table.title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_cpu(axes: Any, table: Table) -> None:
    names = [row[0] for row in table.rows]
    for n, arrival in enumerate(("burst", "queued", "single")):
        places = [place + 0.27 * (n - 1) for place in range(len(names))]
        axes.barh(places, [row[2 * n + 1] or 0 for row in table.rows], 0.25, label=arrival)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("µs of CPU per chunk")
    axes.legend()


def _draw_lengths(axes: Any, table: Table) -> None:
    lengths = [row[0] for row in table.rows]
    for n in range(1, len(table.columns), 2):
        axes.plot(lengths, [row[n] for row in table.rows], marker="o", label=table.columns[n].rpartition(",")[0])
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("deltas")
    axes.set_ylabel("µs of CPU per delta")
    axes.legend()


def _draw_live(axes: Any, table: Table) -> None:
    for rate, name in {(row[1], row[2]): None for row in table.rows}:
        rows = [row for row in table.rows if row[1:3] == [rate, name]]
        axes.plot([row[0] for row in rows], [row[6] for row in rows], marker="o", label=f"{name}, {rate}/s each")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("streams")
    axes.set_ylabel("delay, p99, ms")
    axes.legend()


def _draw_operators(axes: Any, table: Table) -> None:
    axes.barh([row[0] for row in table.rows], [row[1] for row in table.rows])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("ns of CPU per event")


def _draw_imports(axes: Any, table: Table) -> None:
    axes.barh([row[0].strip() for row in table.rows], [row[1] for row in table.rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms of CPU to import")


_PANELS: dict[str, Callable[[Any, Table], None]] = {
    "a": _draw_cpu,
    "c": _draw_lengths,
    "d": _draw_live,
    "e": _draw_operators,
    "f": _draw_imports,
}
