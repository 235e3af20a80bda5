"""What the tables have in common: how thoroughly they measure, and how they are written."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much is measured. `count` are the deltas of an answer that arrives in bursts; each alone, half as many.

    An operator that has not ended after `patience` seconds waits for something, and gets virtual time.
    """

    rounds: int = 9
    count: int = 2000
    lengths: tuple[int, ...] = (1000, 2000, 4000, 8000, 16_000, 32_000)
    streams: tuple[int, ...] = (10, 100, 300, 1000)
    rates: tuple[int, ...] = (10, 50)
    seconds: float = 10.0
    browsers: int = 500
    turns: int = 3
    items: int = 20_000
    patience: float = 2.0
    chunks: tuple[int, ...] = (1000, 100_000)
    peers: bool = True
    requests: int = 20_000
    steps: tuple[int, ...] = (50, 100, 200, 400)


FULL = Effort()
QUICK = Effort(5, 1000, (1000, 8000, 32_000), (10, 300), rates=(10,), seconds=3.0, browsers=200, turns=1, requests=2000)
SMOKE = Effort(1, 20, (10, 20), (2,), (10,), 0.2, 2, 1, 50, 0.05, (10, 20), peers=False, requests=60, steps=(2, 4))
"""Shows that everything runs; its figures mean nothing."""


@dataclass
class Table:
    """Rows under columns; `budgets` are what was measured and what it may be, by name."""

    key: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    budgets: dict[str, tuple[float, float]] = field(default_factory=dict)

    def skip(self, name: str, error: Exception) -> None:
        """Note, once, that `name` is not in the table."""
        note = f"{name}: not measured: {error}"
        self.notes += [] if note in self.notes else [note]

    def markdown(self) -> str:
        cells = [list(self.columns), *([shown(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_line(row, widths) for row in cells]
        lines.insert(1, "|" + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])]) + "|")
        budgets = [
            f"- {name}: {shown(measured)}, budget {limit:g}: {'kept' if measured <= limit else '**missed**'}"
            for name, (measured, limit) in self.budgets.items()
        ]
        below = [*budgets, *(f"- {note}" for note in self.notes)]
        return "\n".join([f"## {self.key}. {self.title}", "", *lines, *(["", *below] if below else [])]) + "\n"


def _line(cells: list[str], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"


def shown(cell: Any) -> str:
    """A number with three digits that count."""
    match cell:
        case None:
            return "-"
        case float() if cell != cell or abs(cell) >= 100:
            return f"{cell:,.0f}"
        case float():
            return f"{cell:.2f}" if abs(cell) >= 0.1 else f"{cell:.3f}"
        case int():
            return f"{cell:,}"
        case _:
            return str(cell)


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


_MEASURED = (
    *("rxllm", "reactivex", "httpx", "msgspec", "httpx2", "httpx-aiohttp", "aiohttp", "uvloop"),
    *("openai", "anthropic", "litellm", "langchain-openai", "langchain-anthropic", "pydantic-ai-slim"),
    *("uvicorn", "starlette"),
)


def machine() -> dict[str, Any]:
    """Where it was measured, and whether the machine had other things to do."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load": load,
        "packages": {name: held for name in _MEASURED if (held := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def write(folder: Path, tables: Sequence[Table], about: dict[str, Any]) -> None:
    """The tables as ``benchmarks.md`` and ``benchmarks.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    said = ", ".join(f"{name} {held}" for name, held in about.items() if name != "packages")
    packages = ", ".join(f"{name} {held}" for name, held in about["packages"].items())
    head = f"# rxllm, measured\n\n{said}\n\n{packages}\n"
    (folder / "benchmarks.md").write_text("\n".join([head, *(table.markdown() for table in tables)]))
    data = {"about": about, "tables": [asdict(table) for table in tables]}
    (folder / "benchmarks.json").write_text(json.dumps(data, indent=1) + "\n")
