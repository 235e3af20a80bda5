"""f. What it takes to import and to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from statistics import median

import rxllm
from tests.benchmarks.report import Effort, Table, progress

NEEDED = ("reactivex", "httpx", "dataclasses_json", "msgspec")

ALONE = "import sys; sys.modules['click'] = None; "
"""As where nothing else is installed: beside click, which other packages bring, httpx imports its command line too."""

IMPORTS = {
    "its four dependencies": f"{ALONE}import {', '.join(NEEDED)}",
    "rxllm": f"{ALONE}import rxllm",
    "rxllm, ready to call": f"{ALONE}import rxllm, httpx; "
    "rxllm.OpenAIChat(api_key='k').build(rxllm.request('Hi', model='m'), rxllm.values.Call('r'))",
}
REPEATED = 3
"""Imports that differ little are measured so many times as often as the others."""

OTHERS = {
    **{f"  {name}": f"{ALONE}import {name}" for name in NEEDED},
    "openai": "import openai",
    "anthropic": "import anthropic",
    "litellm": "import litellm",
    "langchain-openai": "import langchain_openai",
    "pydantic-ai-slim": "import pydantic_ai",
}

_TIMED = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def measure(effort: Effort) -> list[Table]:
    """Milliseconds of a fresh interpreter's first import, and megabytes with all that it needs."""
    columns = ["import", "CPU, ms", "wall, ms", "ratio", "installed, MB", "packages"]
    table = Table("f", "Import time and installed size", columns)
    imports = IMPORTS | OTHERS if effort.peers else IMPORTS
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in imports}
    rounds = {name: REPEATED * effort.rounds if name in IMPORTS else effort.rounds for name in imports}
    with tempfile.TemporaryDirectory() as bytecode:
        for n in range(max(rounds.values()) + 1):
            progress(f"f. round {n} of {max(rounds.values())}")
            for name in [name for name in times if n <= rounds[name]]:
                measured = import_seconds(imports[name], bytecode)
                if measured is None:
                    del times[name]
                    table.notes.append(f"{name}: not installed")
                elif n:  # the first round writes the bytecode
                    times[name].append(measured)
    base = median(cpu for _, cpu in next(iter(times.values())))
    for name, each in times.items():
        wall, cpu = map(median, zip(*each, strict=True))
        size, packages = installed(name.partition(",")[0].strip().replace("_", "-"))
        table.rows.append([name, cpu * 1e3, wall * 1e3, cpu / base, size, packages])
        if name == "rxllm":
            table.budgets["rxllm over its four dependencies"] = (cpu / base, 1.2)
    return [table]


def import_seconds(statement: str, bytecode: str) -> tuple[float, float] | None:
    # There must be bytecode, also where it is not to be written.
    kept = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""} if sys.dont_write_bytecode else {}
    environment = {**os.environ, **kept}
    command = [sys.executable, "-c", _TIMED.format(statement)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if made.returncode and "ModuleNotFoundError" in made.stderr:
        return None
    wall, cpu = made.stdout.split()[-2:]
    return float(wall), float(cpu)


def installed(distribution: str) -> tuple[float | None, int | None]:
    """Megabytes and number of the packages that an installation of `distribution` brings, itself included."""
    try:
        names = _closure(distribution)
    except metadata.PackageNotFoundError:
        return None, None
    return sum(map(_size, names)) / 1e6, len(names)


def _closure(distribution: str) -> set[str]:
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            waiting += _requirements(metadata.requires(name) or ())
            found.add(name)
    return found


def _requirements(lines: Iterable[str]) -> Iterable[str]:
    # What is needed only with an extra, or elsewhere, is not installed, or not for this.
    for line in lines:
        name, marker = re.split(r"[\s<>=!~\[;(]", line, maxsplit=1)[0], line.partition(";")[2]
        if "extra" not in marker and _is_installed(name):
            yield name


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _size(name: str) -> int:
    if name == "rxllm":  # perhaps installed as a link to the sources
        files: Iterable[Path] = (path for path in Path(rxllm.__file__).parent.rglob("*") if path.is_file())
    else:
        files = (Path(str(file.locate())) for file in metadata.files(name) or ())
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
