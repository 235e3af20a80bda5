"""The table of a backtest, as text and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rxllm.values.responses import shorten

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&]")
_ROWS = 50
_WIDTH = 48
_COLUMNS = {
    "recording": "recording",
    "outcome": "outcome",
    "first_at": "first",
    "ended_at": "end",
    "items": "items",
    "cut_at": "cut",
    "tokens": "tokens",
    "cost": "cost",
    "missing": "not recorded",
    "error": "error",
    "text": "text",
}


def plain(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first rows under each other, and the totals."""
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, _totals(rows)])


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the same as a table in Markdown."""
    head, *body = [[_SPECIAL.sub(r"\\\g<0>", cell) for cell in line] for line in _cells(rows)]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", _totals(rows)])


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the head and the rows, without the columns that are empty."""
    names = [name for name in _COLUMNS if name == "recording" or any(row[name] not in (None, "") for row in rows)]
    return [[_COLUMNS[name] for name in names], *([_cell(name, row[name]) for name in names] for row in rows[:_ROWS])]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f} s" if name.endswith("_at") else f"{value:.6g}"
    return shorten(str(value), _WIDTH)


def _totals(rows: Sequence[Mapping[str, Any]]) -> str:
    outcomes = [row["outcome"] for row in rows]
    totals = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    cut, missing = (sum(row[name] not in (None, "") for row in rows) for name in ("cut_at", "missing"))
    tokens, cost = (sum(row[name] or 0 for row in rows) for name in ("tokens", "cost"))
    totals += [f"{cut} cut"] * bool(cut) + [f"{missing} lack an answer"] * bool(missing)
    totals += [f"{tokens} tokens"] * bool(tokens) + [f"cost {cost:g}"] * bool(cost)
    more = f"{len(rows) - _ROWS} more rows; " if len(rows) > _ROWS else ""
    return f"{more}{len(rows)} recording{'s' * (len(rows) != 1)}: {', '.join(totals) or 'nothing'}"
