"""The tests that pytest collects, by file, so that tests which move are counted and none gets lost.

Names depend on what is installed: write and compare with all extras, and the recorded streams, in one environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FILE = Path(__file__).parent / "tests.txt"
ALL = "all"


def collect() -> dict[str, list[str]]:
    """Return the names of all tests and doctests by file. A doctest's name is without its module."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if ran.returncode:
        raise RuntimeError(f"pytest does not collect: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    names: dict[str, list[str]] = {}
    for line in ran.stdout.splitlines():
        path, separator, name = line.partition("::")
        if separator and "[rxllm/" not in name:  # a test for each file of rxllm comes and goes with the file
            module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            names.setdefault(path, []).append("" if name == module else name.removeprefix(f"{module}."))
    return names


def summary(names: dict[str, list[str]]) -> dict[str, str]:
    """Return for each file, and for all together, the number of tests and a hash of their names."""
    lines = {path: _line(each) for path, each in sorted(names.items())}
    return {ALL: _line(name for each in names.values() for name in each), **lines}


def _line(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"{len(ordered)} {sha256(json.dumps(ordered).encode()).hexdigest()[:12]}"


def write() -> None:
    lines = [f"{line} {path}\n" for path, line in summary(collect()).items()]
    FILE.write_text("".join(lines), encoding="utf-8")


def compare() -> list[str]:
    """Return what is not as in the file: tests that came or went, and the files in which names are others.

    Files that have moved are no difference; of a file that was split or merged the first line says that none is lost.
    """
    old = {path: line for line, _, path in (text.rpartition(" ") for text in FILE.read_text().splitlines())}
    new = summary(collect())
    gone = {path: line for path, line in old.items() if line not in new.values()}
    came = {path: line for path, line in new.items() if line not in old.values()}
    total = f"{old[ALL]} before, {new[ALL]} now: " + ("the same names" if old[ALL] == new[ALL] else "other names")
    lines = [f"- {line} {path}" for path, line in gone.items()] + [f"+ {line} {path}" for path, line in came.items()]
    return [total, *sorted(lines, key=lambda line: line.rpartition(" ")[2])]
