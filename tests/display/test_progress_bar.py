"""`progress_bar` on a terminal, in a file and in the cell of a notebook."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, Fake, Usage, ValidationError, generate_many
from rxllm.display import _progress_bar
from rxllm.values import Progress
from tests.waiting import PATIENCE


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, file: io.TextIOWrapper, count: int = 30, **options: Any) -> str:
    monkeypatch.setattr(sys, "stderr", file)
    fake = Fake(lambda request: ["Hi", Usage(2, 1)])
    bar = rxllm.display.progress_bar("many")
    assert len(list(generate_many(fake, ["a"] * count, on_progress=bar, **options))) == count
    file.seek(0)
    return file.read()


def test_on_a_terminal_one_line_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.display.progress_bar.__globals__, "EVERY", 0.0)
    text = run(monkeypatch, Terminal(io.BytesIO(), "utf-8", newline=""))
    drawn = text.split("\r")[1:]
    assert len(drawn) == 30
    assert {len(line.rstrip("\n")) for line in drawn} == {79}
    assert re.fullmatch(r"many: 100%\|██████████\| 30/30 \[00:0\d<00:00, .*/s, 90 tokens, p50 0\..*\n", drawn[-1])
    assert text.count("\n") == 1


def test_many_quick_answers_are_not_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.display.progress_bar.__globals__, "EVERY", 60.0)
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
    assert len(list(generate_many(Fake("Hi"), ["a", "b"], on_progress=rxllm.display.progress_bar()))) == 2


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
    assert line(Progress(8, 2, 10, Usage(total_cost=0.125), 0, 3, 0.44, 12.0), 4.0) == (
        " 80%|████████  | 8/10 [00:04<00:01, 2/s, 2 failed, 3 retried, cost 0.125, p50 0.4 s, p95 12.0 s]"
    )
    assert line(Progress(1, 0, 100_000, Usage()), 1.0).endswith("[00:01<27:46:39, 1/s]")
    assert line(Progress(1, 0, 1, Usage()), 0.0) == "100%|██████████| 1/1 [00:00<?, 0/s]"


def test_the_label_is_a_text() -> None:
    with pytest.raises(ValidationError, match="label must be a string"):
        rxllm.display.progress_bar(5)  # type: ignore[arg-type]


def screen(text: str) -> list[str]:
    """The lines that a terminal shows: what follows a carriage return overwrites the line."""
    lines: list[str] = []
    for written in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for piece in written.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown.rstrip())
    return lines


def logging_and_printing(request: rxllm.Request) -> list[str]:
    text = request.messages[-1].text
    logging.getLogger("rxllm").warning("a record of %s", text)
    logging.getLogger("another").warning("another record of %s", text)
    print("a print of", text, file=sys.stderr)
    return ["Hi"]


def test_records_and_prints_are_whole_lines_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.display.progress_bar.__globals__, "EVERY", 0.0)
    file = Terminal(io.BytesIO(), "utf-8", newline="", write_through=True)
    monkeypatch.setattr(sys, "stderr", file)
    handler = logging.StreamHandler(file)
    logging.getLogger().addHandler(handler)
    try:
        texts = [f"number {number}" for number in range(5)]
        bar = rxllm.display.progress_bar("many")
        list(generate_many(Fake(logging_and_printing), texts, on_progress=bar, concurrency=1))
    finally:
        logging.getLogger().removeHandler(handler)
    assert (sys.stderr, handler.stream) == (file, file)
    file.seek(0)
    *lines, bar_line, end = screen(file.read())
    expected = [
        line for text in texts for line in (f"a record of {text}", f"another record of {text}", f"a print of {text}")
    ]
    assert lines == expected
    assert bar_line.startswith("many: 100%|")
    assert end == ""


def test_a_batch_that_is_left_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rxllm.display.progress_bar.__globals__, "EVERY", 0.0)
    file = Terminal(io.BytesIO(), "utf-8", newline="", write_through=True)
    monkeypatch.setattr(sys, "stderr", file)
    fake = Fake(scripts=[["Hi"], [("delay", 3600.0), "Hi"]])
    with rxllm.to_iter(
        generate_many(fake, ["a", "b"], on_progress=rxllm.display.progress_bar(), concurrency=1)
    ) as items:
        next(items)
    print("what follows", file=sys.stderr)
    assert sys.stderr is file
    file.seek(0)
    assert screen(file.read()) == ["what follows", ""]


def test_retries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[Progress] = []
    fake = Fake(scripts=[[AdapterError("rate_limited")], [AdapterError("rate_limited")], ["Hi"], ["Hi"]])
    policy = {"base_delay": 0.0, "jitter": 0.0}
    list(generate_many(fake, ["a", "b"], on_progress=progress.append, concurrency=1, retry=policy))
    assert [(step.done, step.failed, step.retries) for step in progress] == [(1, 0, 2), (2, 0, 2)]
    assert "2 retried" in _progress_bar.progress_line(progress[-1], 1.0)
    assert "retried" not in _progress_bar.progress_line(Progress(1, 0, 2, Usage()), 1.0)


PROGRAM = """
import logging, sys
logging.basicConfig()  # before the bar: its handler holds the standard error of now
import rxllm
from rxllm import AdapterError, Fake

rxllm.display.progress_bar.__globals__["EVERY"] = 0.0
fails = [[AdapterError("rate_limited")], ["Hi"]]
policy = {"base_delay": 0.0, "jitter": 0.0}
bar = rxllm.display.progress_bar("many")
list(rxllm.generate_many(Fake(scripts=fails * 4), list("abcd"), on_progress=bar, concurrency=1, retry=policy))
print("done")
"""


@pytest.mark.judges
def test_on_a_real_terminal_the_retries_that_are_logged_do_not_tear_it() -> None:
    pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
    master, slave = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=slave, stderr=slave, stdin=slave) as process:
            os.close(slave)
            written = b""
            with contextlib.suppress(OSError):  # the end of a pseudo-terminal
                while data := os.read(master, 4096):
                    written += data
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(master)
    *records, bar_line, done, end = screen(written.decode())
    assert len(records) == 4
    assert all(record.startswith("WARNING:rxllm:attempt 1") and "many" not in record for record in records)
    assert bar_line.startswith("many: 100%|")
    assert "4 retried" in bar_line
    assert (done, end) == ("done", "")
