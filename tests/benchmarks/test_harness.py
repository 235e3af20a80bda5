"""The harness runs, and says what it should. No figure is asserted: how fast anything is, only a full run can say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rxllm import StreamCollector, TextDelta, ThinkingDelta, ToolCallDelta
from tests.benchmarks import report, wires
from tests.benchmarks.__main__ import TABLES, main, measure
from tests.benchmarks.report import SMOKE, Table, shown
from tests.benchmarks.server import serving
from tests.benchmarks.worker import Absent, Failed, Worker

pytestmark = pytest.mark.judges


@pytest.mark.parametrize("wire", wires.WIRES)
def test_an_answer_has_as_many_deltas_as_was_said(wire: str) -> None:
    for kind, delta in zip(wires.KINDS, (TextDelta, ThinkingDelta, ToolCallDelta), strict=True):
        if kind != "text" and wire not in ("chat", "anthropic"):
            continue
        decoder = wires.adapter(wire).decoder(_request())
        events = [event for frame in wires.answer(wire, kind, 7) for event in decoder.feed(frame)] + decoder.close()
        assert sum(isinstance(event, delta) for event in events) == 7
        response = _folded(events)
        assert response.finish_reason == ("tool_calls" if kind == "tool" else "stop")
        assert wires.text(kind, 7) in (response.output_text, *_rest(response))


@pytest.mark.parametrize("letter", TABLES)
def test_every_table_is_measured_and_written(letter: str, tmp_path: Path) -> None:
    tables = measure((letter,), SMOKE, tmp_path)
    assert all(table.key == letter for table in tables)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    assert not [note for table in tables for note in table.notes if "not measured" in note]
    if letter == "d":
        assert [row[tables[0].columns.index("lost")] for row in tables[0].rows] == [0, 0]
    assert all(table.rows or "skipped" in table.notes[0] for table in tables)
    written = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [table["title"] for table in written["tables"]] == [table.title for table in tables]
    assert all(table.markdown() in (tmp_path / "benchmarks.md").read_text() for table in tables)


def test_a_worker_says_what_is_absent_and_what_failed() -> None:
    with Worker() as worker:
        assert worker("operator:add", 1, 2) == 3
        with pytest.raises(Absent, match="no_such_package"):
            worker("no_such_package:f")
        with pytest.raises(Failed, match="ZeroDivisionError"):
            worker("operator:truediv", 1, 0)
        for _ in range(2):
            with pytest.raises(Failed, match="process has ended"):
                worker("os:_exit", 1)


def test_a_contender_that_reads_something_else_fails() -> None:
    with serving() as url, Worker() as worker, pytest.raises(Failed, match="not what was sent"):
        worker("tests.benchmarks.cpu:ask", "by_hand", "chat", f"{url}/answer/burst/chat/text/3/v1", 4)


def test_unknown_tables_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "a,z"])
    assert "no table z" in capsys.readouterr().err


def test_a_table_as_markdown() -> None:
    table = Table("x", "Costs", ["", "µs"], [["one", 1.234], ["two", 1234.5]], ["noted"], {"two": (2.0, 1.0)})
    assert table.markdown().splitlines() == [
        "## x. Costs",
        "",
        "|     |    µs |",
        "|-----|------:|",
        "| one |  1.23 |",
        "| two | 1,234 |",
        "",
        "- two: 2.00, budget 1: **missed**",
        "- noted",
    ]


@pytest.mark.parametrize(
    ("cell", "text"), [(None, "-"), (0.0123, "0.012"), (0.5, "0.50"), (123.4, "123"), (1000, "1,000"), ("a", "a")]
)
def test_numbers_have_three_digits_that_count(cell: Any, text: str) -> None:
    assert shown(cell) == text


def test_the_machine_is_named() -> None:
    assert {"python", "processors", "load", "packages"} <= report.machine().keys()


def _request() -> Any:
    from rxllm import request

    return request("Hi", model="m")


def _folded(events: list[Any]) -> Any:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    return state.to_response()


def _rest(response: Any) -> list[str]:
    thoughts = [part.text for part in response.message.parts if type(part).__name__ == "ThinkingPart"]
    return [*thoughts, *(call.raw_arguments for call in response.tool_calls)]
