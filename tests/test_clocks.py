"""No test depends on how fast the machine is, but for the places that are listed, whose number only falls."""

from __future__ import annotations

import textwrap

import pytest

from tests import clocks


def test_the_places_that_depend_on_a_clock_are_the_listed_ones_and_only_become_fewer() -> None:
    found = {clocks.line(name, counted) for name, counted in clocks.counts().items()}
    listed = set(clocks.LIST.read_text().splitlines())
    assert found == listed, "wait as tests/waiting.py does; if places are gone: python -m tests.clocks --write"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("sleep", "time.sleep(0.1)"),
        ("sleep", "await asyncio.sleep(delay)"),
        ("sleep", "threading.Event().wait(0.05)"),
        ("compare", "assert time.monotonic() - began < 5"),
        ("compare", "took = time.perf_counter() - began\nassert took < 5"),
        ("compare", "began = time.monotonic()\ntimes.append(time.monotonic() - began)\nassert max(times) < 1"),
        ("compare", "took = time.monotonic() - began\nassert took == pytest.approx(0.3, abs=0.1)"),
        ("compare", "assert server.connections[0].closed_at < left"),
        ("option", "with Loopback() as server: ask(server, timeout=0.2)"),
        ("option", "with Loopback() as server: await asyncio.wait_for(answer, 0.2)"),
        ("option", "with Loopback() as server: Runs(lease_seconds=0.2)"),
    ],
)
def test_a_clock_is_found(kind: str, code: str) -> None:
    source = f"async def test():\n{textwrap.indent(code, '    ')}"
    assert [found for found, _, _ in clocks.places(source)] == [kind]


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.sleep(0)",
        "assert server.connections[0].closed_at is not None",
        "assert event.at == 0.3",
        "with Loopback() as server: ask(server, timeout=30)",
        "simulate(lambda world: asyncio.sleep(5))",
    ],
)
def test_nothing_else_is_found(code: str) -> None:
    assert list(clocks.places(f"async def test():\n    {code}")) == []


def test_time_in_a_simulation_is_virtual() -> None:
    source = "async def other(): await asyncio.sleep(5)\nasync def app(world): await other()\ndef test(): simulate(app)"
    assert list(clocks.places(source)) == []
