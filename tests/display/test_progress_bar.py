"""`progress_bar` on a terminal, in a file and in the cell of a notebook."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

import rxllm
from rxllm import Fake, Progress, Usage, ValidationError, generate_many
from rxllm.display import _progress_bar


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, file: io.TextIOWrapper, count: int = 30, **options: Any) -> str:
    monkeypatch.setattr(sys, "stderr", file)
    fake = Fake(lambda request: ["Hi", Usage(2, 1)])
    bar = rxllm.progress_bar("many")
    assert len(list(generate_many(fake, ["a"] * count, on_progress=bar, **options))) == count
    file.seek(0)
    return file.read()


def test_on_a_terminal_one_line_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.progress_bar.__globals__, "EVERY", 0.0)
    text = run(monkeypatch, Terminal(io.BytesIO(), "utf-8", newline=""))
    drawn = text.split("\r")[1:]
    assert len(drawn) == 30
    assert {len(line.rstrip("\n")) for line in drawn} == {79}
    assert re.fullmatch(r"many: 100%\|██████████\| 30/30 \[00:0\d<00:00, .*/s, 90 tokens\] *\n", drawn[-1])
    assert text.count("\n") == 1


def test_many_quick_answers_are_not_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.progress_bar.__globals__, "EVERY", 60.0)
    text = run(monkeypatch, Terminal(io.BytesIO(), "utf-8", newline=""))
    assert text.count("\r") == 1


def test_a_file_gets_a_line_now_and_then_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = run(monkeypatch, io.TextIOWrapper(io.BytesIO(), "ascii")).splitlines()
    assert line.startswith("many: 100%|##########| 30/30 [")


@pytest.mark.parametrize("file", [None, "closed"])
def test_whoever_cannot_see_it_gets_the_answers_all_the_same(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    if file == "closed":
        file = Terminal(io.BytesIO(), "utf-8")
        file.close()
        monkeypatch.setattr(file.__class__, "isatty", lambda self: True)
    monkeypatch.setattr(sys, "stderr", file)
    assert len(list(generate_many(Fake("Hi"), ["a", "b"], on_progress=rxllm.progress_bar()))) == 2


def test_the_line() -> None:
    def line(progress: Progress, seconds: float) -> str:
        return _progress_bar.progress_line(progress, seconds)

    assert line(Progress(1200, 3, 2000, Usage(40_000, 8_210, total_cost=0.52)), 70.2) == (
        " 60%|██████    | 1200/2000 [01:10<00:46, 17.1/s, 3 failed, 48,210 tokens, cost 0.52]"
    )
    assert (
        line(Progress(5, 0, 10, Usage(), journaled=5), 2.0)
        == " 50%|█████     | 5/10 [00:02<?, 0/s, 5 from the journal]"
    )
    assert line(Progress(1, 0, 100_000, Usage()), 1.0).endswith("[00:01<27:46:39, 1/s]")
    assert line(Progress(1, 0, 1, Usage()), 0.0) == "100%|██████████| 1/1 [00:00<?, 0/s]"


def test_the_label_is_a_text() -> None:
    with pytest.raises(ValidationError, match="label must be a text"):
        rxllm.progress_bar(5)  # type: ignore[arg-type]
