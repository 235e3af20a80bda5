"""Three tiers of tests, by what a test needs.

===========  ========================================================================================================
pure         Neither sockets nor processes. Tests without a mark are pure.
``sockets``  Servers of its own, in this process.
``judges``   What the README's command leaves out: other processes, programs, the SDKs of providers, and what takes
             seconds. ``RXLLM_JUDGES=required`` runs them, and naming their file does.
===========  ========================================================================================================

A test that opens a socket or starts a process without the mark fails, and says which mark it needs. A file with
``pytestmark = pytest.mark.judges``, or a list with that mark, is not even imported where judges are left out, since the
imports of the SDKs take longer than most tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

JUDGES = "judges: other processes, programs, SDKs and what takes seconds; the whole suite leaves it out, CI does not"
SOCKETS = "sockets: servers in this process"

_OF_JUDGES = re.compile(r"^pytestmark = .*\bpytest\.mark\.judges\b", re.MULTILINE)
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}

_needed: set[str] = set()
_shared: dict[tuple[str, str], set[str]] = {}
"""What each fixture of several tests needed when it was made, by the place and the name of the fixture."""


leaves_out_judges = False
"""Whether this run is without judges: what asks one only to be strict then does not import it (tests/conftest.py)."""


def is_of_judges(path: Path) -> bool:
    """Whether all tests of a file are for judges."""
    return _OF_JUDGES.search(path.read_text()) is not None


def watch() -> None:
    """Record from now on which tier each test needs: there is no other way to see a socket that a library opens."""
    sys.addaudithook(_record)


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS:
        _needed.add("judges")
    elif event in ("socket.bind", "socket.connect") and isinstance(arguments[1], tuple):
        _needed.add("sockets")


def needs(tier: str) -> None:
    """Record what the running test needs, where nothing is to be seen: a process that another test has started."""
    _needed.add(tier)


def begin() -> None:
    _needed.clear()


@contextmanager
def making(place: str, fixture: str) -> Iterator[None]:
    """Record what a fixture of several tests needs, since each of them may be the one that makes it."""
    before = {*_needed}
    _needed.clear()
    yield
    _shared[place, fixture] = {*_needed}
    _needed.update(before)


def check(item: pytest.Item) -> None:
    """Fail a test that has needed more than its tier has."""
    marks = {mark.name for mark in item.iter_markers()}
    fixtures = [needed for (place, name), needed in _shared.items() if name in _fixtures(item) and place in item.nodeid]
    needed = _needed.union(*fixtures)
    if "judges" in needed - marks:
        pytest.fail("this test starts a process: mark it with pytest.mark.judges (tests/tiers.py)", pytrace=False)
    if "sockets" in needed and not marks & {"sockets", "judges"}:
        pytest.fail("this test opens a socket: mark it with pytest.mark.sockets (tests/tiers.py)", pytrace=False)


def _fixtures(item: pytest.Item) -> set[str]:
    return {*getattr(item, "fixturenames", ())}
