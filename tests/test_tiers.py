"""A test that needs more than its tier has fails, and says which mark it needs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers


@pytest.mark.sockets
def test_a_socket_needs_its_mark(request: pytest.FixtureRequest) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        pass
    tiers.check(request.node)
    with pytest.raises(pytest.fail.Exception, match=r"opens a socket: mark it with pytest\.mark\.sockets"):
        tiers.check(_Unmarked())


@pytest.mark.judges
def test_a_process_needs_its_mark(request: pytest.FixtureRequest) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True, timeout=100)
    tiers.check(request.node)
    with pytest.raises(pytest.fail.Exception, match=r"starts a process: mark it with pytest\.mark\.judges"):
        tiers.check(_Unmarked())


def test_the_sockets_of_an_event_loop_are_pure() -> None:
    one, other = socket.socketpair()
    one.close()
    other.close()
    tiers.check(_Unmarked())


@pytest.mark.parametrize(
    ("first_line", "is_of_judges"),
    [
        ("pytestmark = pytest.mark.judges", True),
        ("pytestmark = [ON_BOTH, pytest.mark.judges]", True),
        ("pytestmark = pytest.mark.sockets", False),
        ("@pytest.mark.judges\ndef test(): pass", False),
    ],
)
def test_a_file_of_judges_is_known_before_it_is_imported(tmp_path: Path, first_line: str, is_of_judges: bool) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"import pytest\n\n{first_line}\n")
    assert tiers.is_of_judges(path) is is_of_judges


def test_each_test_of_a_fixture_needs_what_the_fixture_needed() -> None:
    with tiers.making("tests/test_tiers.py", "_a_server"):
        tiers.needs("sockets")
    tiers.begin()
    with pytest.raises(pytest.fail.Exception, match="opens a socket"):
        tiers.check(_Unmarked("_a_server"))
    tiers.check(_Unmarked("other"))


class _Unmarked:
    nodeid = "tests/test_tiers.py::test"

    def __init__(self, *fixtures: str) -> None:
        self.fixturenames = fixtures

    def iter_markers(self) -> list[pytest.Mark]:
        return []
