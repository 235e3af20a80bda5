"""The programs of a first day: the type checker has nothing to say about them, and they print what they say."""

from __future__ import annotations

import ast
import inspect
import runpy
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 12


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_what_its_first_lines_say(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, printed = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("Prints::\n\n")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out == inspect.cleandoc(printed) + "\n"
