"""No test depends on how fast the machine is."""

from __future__ import annotations

import textwrap

import pytest

from tests import clocks


@pytest.mark.judges
def test_no_test_depends_on_a_clock_without_a_reason() -> None:
    found = {name: [f"line {line}: {code}" for _, line, code in places] for name, places in clocks.found().items()}
    reasons = {name: places for name, places in found.items() if len(places) == 1 and name in clocks.REASONS}
    assert found == reasons, "wait as tests/waiting.py does"
    assert reasons.keys() == clocks.REASONS.keys()


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
        ("option", "ask(server, timeout=0.2)"),
        ("option", "await asyncio.wait_for(answer, 0.2)"),
        ("option", "Runs(lease_seconds=0.2)"),
    ],
)
def test_a_clock_is_found(kind: str, code: str) -> None:
    source = f"@pytest.mark.sockets\nasync def test():\n{textwrap.indent(code, '    ')}"
    assert [found for found, _, _ in clocks.places(source)] == [kind]


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.sleep(0)",
        "assert server.connections[0].closed_at is not None",
        "assert event.at == 0.3",
        "ask(server, timeout=30)",
        "simulate(lambda world: asyncio.sleep(5))",
    ],
)
def test_nothing_else_is_found(code: str) -> None:
    assert list(clocks.places(f"@pytest.mark.sockets\nasync def test():\n    {code}")) == []


@pytest.mark.parametrize(
    "source",
    [
        "async def other(): await asyncio.sleep(5)\nasync def app(world): await other()\ndef test(): simulate(app)",
        "async def other(): await asyncio.sleep(5)\nasync def app(world: World): await other()",
        "def test():\n    async def app(world): await asyncio.sleep(5)\n    simulate(app)",
    ],
)
def test_time_in_a_simulation_is_virtual(source: str) -> None:
    assert list(clocks.places(source)) == []


def test_a_short_option_without_sockets_is_allowed() -> None:
    assert list(clocks.places("def test():\n    chat(fake, timeout=0.01)")) == []
