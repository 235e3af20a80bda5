"""The recorded streams of real providers, which lie outside the project: in the folder that RXLLM_STREAMS names."""

from __future__ import annotations

import csv
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

VARIABLE = "RXLLM_STREAMS"


@dataclass(frozen=True)
class Recording:
    """One recorded stream: `body` is what the server sent; of payload lines, what it would have sent."""

    name: str
    provider: str
    api: str
    form: str
    tier: str
    features: frozenset[str]
    body: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name


def recordings(api: str) -> tuple[Recording, ...]:
    """All streams of an api; skips the test where there are none at hand."""
    root = os.environ.get(VARIABLE)
    if not root or not Path(root).is_dir():
        pytest.skip(f"recorded streams are not at hand: set {VARIABLE} to their folder")
    return tuple(each for each in _read_all(Path(root)) if each.api == api)


@cache
def _read_all(root: Path) -> tuple[Recording, ...]:
    found = [_recording(row, (root / row["file"]).read_bytes()) for row in _rows((root / "index.csv").read_text())]
    return (*found, *_read_archive(root / "more.tar.gz"))


def _read_archive(path: Path) -> Iterator[Recording]:
    if not path.is_file():
        return
    with tarfile.open(path) as archive:  # read front to back: to jump about in it is slow
        files = {
            member.name.removeprefix("./"): archive.extractfile(member).read() for member in archive if member.isfile()
        }
    for row in _rows(files["index.csv"].decode()):
        yield _recording(row, files[row["file"]])


def _rows(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(text))


def _recording(row: dict[str, str], body: bytes) -> Recording:
    if row["form"] == "payload-lines":
        body = b"".join(b"data: %b\n\n" % line for line in body.splitlines() if line.strip())
    features = frozenset(row["features"].split())
    return Recording(row["file"], row["provider"], row["api"], row["form"], row["tier"], features, body)
