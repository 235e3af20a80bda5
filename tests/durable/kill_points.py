"""Points at which a program kills itself, and what it leaves in files: effects of tools, questions to models."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from rxllm.durable import Store
from rxllm.durable.testing import Interposed

FOLDER = Path()
POINT = ""
"""Such as ``before:append:3``, the third call of the store's method, or ``note:inside:1``, the first run of a tool."""

COUNTS: Counter[str] = Counter()
REACHED: list[str] = []


def reach(name: str) -> None:
    """Die if this is the point."""
    COUNTS[name] += 1
    point = f"{name}:{COUNTS[name]}"
    REACHED.append(point)
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


def add(name: str, text: str) -> None:
    """Append to a file, which survives the kill."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def lines(name: str) -> list[str]:
    file = FOLDER / name
    return file.read_text().splitlines() if file.exists() else []


def effect(name: str, line: str) -> str:
    """Do what a tool does outside: note its beginning and its end."""
    reach(f"{name}:before")
    add("begun", f"{line}\n")
    reach(f"{name}:inside")
    add("effects", f"{line}\n")
    reach(f"{name}:after")
    return line


def interposed(store: Store) -> Any:
    """Return `store`, each of whose calls has a point before and after it."""
    return Interposed(
        store,
        before=lambda method, arguments: reach(f"before:{method}"),
        after=lambda method, arguments: reach(f"after:{method}"),
    )
