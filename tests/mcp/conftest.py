from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from rxllm import mcp
from tests.mcp import served as program
from tests.mcp.served import Seen, served
from tests.runtime.support import ROOT


@pytest.fixture(scope="session")
def modern() -> Iterator[tuple[str, Seen]]:
    """A server of the modern era: its URL, and what it has seen."""
    with served(seen := Seen()) as url:
        yield url, seen


@pytest.fixture(scope="session")
def handshake() -> Iterator[tuple[str, Seen]]:
    """The same, in the handshake's era."""
    with served(seen := Seen(), handshake=True) as url:
        yield url, seen


@pytest.fixture(params=["modern", "handshake"])
def server(request: pytest.FixtureRequest) -> tuple[str, Seen]:
    return request.getfixturevalue(request.param)


@pytest.fixture
def stdio() -> Iterator[mcp.Stdio]:
    """The same server as a program."""
    with mcp.Stdio(sys.executable, str(program.__file__), env={"PYTHONPATH": str(ROOT)}) as connection:
        yield connection
