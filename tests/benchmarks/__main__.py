"""rxllm measured beside loops written by hand and other libraries: ``python -m tests.benchmarks``.

Every table measures all of its contenders in one run, in turns, over several rounds, and gives medians: the ratios hold
on another machine, and on a busy one, better than the times do. Needs the extra ``bench``; what is not installed is
skipped by name. The tables are printed, and written with a picture to the folder `--out`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks import (
    batch,
    browsers,
    chunks,
    closes,
    cluster,
    cpu,
    decode,
    display,
    early,
    first,
    live,
    numbers,
    operators,
    plot,
    report,
    runs,
    size,
    standstill,
    stores,
    tracing,
)
from tests.benchmarks.report import FULL, QUICK, Effort, Table, progress

TABLES: dict[str, Callable[[Effort], list[Table]]] = {
    "a": cpu.measure,
    "b": decode.measure,
    "c": decode.measure_lengths,
    "d": live.measure,
    "e": operators.measure,
    "f": size.measure,
    "g": first.measure,
    "h": chunks.measure,
    "i": numbers.measure,
    "j": display.measure,
    "k": browsers.measure,
    "l": tracing.measure,
    "m": batch.measure,
    "n": cluster.measure,
    "o": stores.measure,
    "p": runs.measure,
    "q": early.measure,
    "r": closes.measure,
    "s": standstill.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short version: some five minutes instead of twenty")
    parser.add_argument("--only", metavar="a,c", help="these tables, by letter", type=_letters, default=tuple(TABLES))
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path("benchmarks-out"))
    asked = parser.parse_args(arguments)
    measure(asked.only, QUICK if asked.quick else FULL, asked.out)
    return 0


def measure(letters: Sequence[str], effort: Effort, folder: Path) -> list[Table]:
    """Measure, print and write these tables."""
    about = report.machine()
    tables: list[Table] = []
    for letter in letters:
        for table in TABLES[letter](effort):
            tables.append(table)
            print(table.markdown(), flush=True)
        report.write(folder, tables, about)  # at once: what comes later may be interrupted
    try:
        plot.draw(folder / "benchmarks.png", tables)
    except ModuleNotFoundError as error:
        progress(f"no picture: {error.name} is not installed")
    return tables


def _letters(given: str) -> tuple[str, ...]:
    letters = tuple(dict.fromkeys(given.replace(" ", "").split(",")))
    unknown = [letter for letter in letters if letter not in TABLES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    return letters


if __name__ == "__main__":
    sys.exit(main())
