"""What users keep, send and import is what it was: the golden files, which ``python -m tests.golden`` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake
from rxllm.durable import open_runs
from rxllm.events import current_form
from rxllm.serializer import from_json
from rxllm.testing import Cassette, replay_file
from tests.golden import files, kept, samples


@pytest.mark.parametrize("name", files.WRITERS)
def test_what_is_written_now_is_what_was_written(name: str) -> None:
    difference = files.difference(name)
    assert not difference, difference


def test_every_class_and_every_field_has_a_sample() -> None:
    assert samples.unset_fields() == []


def test_old_json_is_read() -> None:
    current = [current_form(sample) for sample in samples.ALL]
    assert [from_json(line) for line in files.read("values.jsonl").splitlines()] == current


def test_old_pickles_are_read() -> None:
    assert files.unpickled() == samples.ALL


def silent() -> Fake:
    """Return a model that must not be asked."""
    return Fake(lambda request: pytest.fail(f"asked {request.messages[-1].text!r}"))


def test_an_old_journal_is_read(tmp_path: Path) -> None:
    old = tmp_path / "journal.jsonl"
    old.write_text(files.read(old.name), encoding="utf-8")
    assert kept.batch(silent(), old) == kept.batch(Fake(kept.answer), tmp_path / "new.jsonl")
    assert old.read_text(encoding="utf-8") == files.read(old.name)


def test_an_old_cassette_is_played() -> None:
    old = Engine(Cassette(files.FOLDER / "cassette.jsonl", silent(), "replay"), model="m")
    live = Engine(Fake(kept.answer), model="m")
    for request in kept.questions():
        played, answered = (list(rxllm.stream_generate(engine, request)) for engine in (old, live))
        assert played == answered


def test_an_old_recording_is_played() -> None:
    assert list(replay_file(files.FOLDER / "recording.jsonl")) == list(kept.events())


def interrupted(steps: int, answered: int) -> dict[str, Any]:
    """Return the old store with its first run killed: so many steps and records of it are left."""
    rows = json.loads(files.read("runs.json"))
    events = {event["number"]: event["data"]["blob"] for event in rows["events"] if event["run"] == 1}
    ends = [number for number, event in events.items() if re.match(r'[^{]*{[^{]*{"type": "step_completed"', event)]
    last = ends[steps - 1] if steps else 0
    rows["events"] = [event for event in rows["events"] if event["run"] != 1 or event["number"] <= last]
    rows["records"] = [record for record in rows["records"] if record["run"] != 1 or record["n"] <= answered]
    rows["runs"][0] |= {"ended_at": None, "ending": None, "events": last}
    return rows


@pytest.fixture(autouse=True)
def called() -> list[str]:
    kept.CALLED.clear()
    return kept.CALLED


def test_old_runs_are_read(tmp_path: Path, called: list[str]) -> None:
    kept.restore(files.read("runs.json"), tmp_path / "runs.db")
    with open_runs(tmp_path / "runs.db", kept.FACTORIES) as runs:
        halted, ended = runs.result("halted").run(), runs.result("resumed").run()
        events = list(runs.watch("halted"))
        assert runs.session("s1").run().session == samples.SESSION
    assert called == []
    now = kept.FACTORIES["chat"]("Go!")
    assert halted == now.run().result
    assert events == list(now)
    assert [call.id for call in halted.pending_tool_calls] == ["c3"]
    assert ended == kept.FACTORIES["resume"](halted).run().result


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_old_run_goes_on_without_asking_again(tmp_path: Path, called: list[str], steps: int) -> None:
    old = json.loads(files.read("runs.json"))
    kept.restore(json.dumps(interrupted(steps, len(old["records"]))), tmp_path / "runs.db")
    with open_runs(tmp_path / "runs.db", kept.FACTORIES) as runs:
        assert runs.recover().run() == ("halted",)
        halted = runs.result("halted").run()
    assert called == []
    assert json.loads(kept.rows_of(tmp_path / "runs.db"))["events"] == old["events"]
    assert halted == kept.FACTORIES["chat"]("Go!").run().result


def test_an_old_run_asks_for_what_it_has_not(tmp_path: Path, called: list[str]) -> None:
    kept.restore(json.dumps(interrupted(1, 3)), tmp_path / "runs.db")  # an answer, the begin and the end of its tool
    with open_runs(tmp_path / "runs.db", kept.FACTORIES) as runs:
        assert runs.recover().run() == ("halted",)
        halted = runs.result("halted").run()
    assert called == ["boss 1", "expert", "add 8", "expert", "boss 2"]
    assert halted == kept.FACTORIES["chat"]("Go!").run().result
