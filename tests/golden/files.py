"""The golden files: what rxllm writes, sends and exports today, each with the function that makes it anew."""

from __future__ import annotations

import base64
import difflib
import json
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rxllm.serializer import to_json
from tests.golden import calls, kept, requests, samples, signatures, simulations

FOLDER = Path(__file__).parent
PICKLES = FOLDER / "pickles.jsonl"
REMEDY = "If users may see this difference, run python -m tests.golden, and look at the diff before you commit it."


def values() -> str:
    """Return the JSON of all samples, one a line."""
    return "".join(f"{to_json(sample)}\n" for sample in samples.ALL)


def pickles() -> str:
    """Return the pickles of all samples, one a line. They have the places of the classes, so they are written once."""
    lines = [json.dumps(base64.b64encode(pickle.dumps(sample, 4)).decode()) for sample in samples.ALL]
    return "\n".join(lines) + "\n"


def unpickled() -> list[Any]:
    """Return the samples as they were when they were pickled."""
    return [pickle.loads(base64.b64decode(json.loads(line))) for line in PICKLES.read_text().splitlines()]


def _in_folder(write: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder))


WRITERS: dict[str, Callable[[], str]] = {
    "values.jsonl": values,
    **{name: partial(_in_folder, write) for name, write in kept.WRITERS.items()},
    **requests.WRITERS,
    **calls.WRITERS,
    **simulations.WRITERS,
    **signatures.WRITERS,
}


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def write() -> None:
    """Write all files, but not the pickles if there are some."""
    writers = WRITERS if PICKLES.exists() else {**WRITERS, PICKLES.name: pickles}
    for name, make in writers.items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(make(), encoding="utf-8", newline="\n")


def difference(name: str) -> str:
    """Return how a file differs from what would be written now, as a short diff; an empty text if it does not."""
    old, new = read(name), WRITERS[name]()
    if old == new:
        return ""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"golden/{name}", "now", lineterm="", n=0)
    shown = [line if len(line) <= 1000 else f"{line[:1000]} ..." for line in lines]
    return "\n".join([*shown[:40], REMEDY])
