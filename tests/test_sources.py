"""All Python of the project compiles, also on stricter newer Pythons; only Pythons that CI tries are claimed."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from tests.sources import ROOT, refusal, sources


@pytest.mark.judges
def test_everything_compiles_here_and_on_newer_pythons() -> None:
    code = dict(sources())
    assert {"rxllm/wire/frames.py", "README.md, block 1", "01-first-stream.ipynb, cell 1"} < code.keys()
    assert len(code) > 800
    assert [reason for place in code if (reason := refusal(place, code[place]))] == []


DOCSTRING = r'"""Half of a pair: \ud83d."""'
HEADS = ["", "def f(): ", "async def f(): ", "class C: ", "class C:\n  def f(self): "]


@pytest.mark.parametrize("head", HEADS)
def test_half_a_surrogate_pair_in_a_docstring_is_refused(head: str) -> None:
    assert refusal("here", f"{head}r{DOCSTRING}") == ""
    assert re.match("here: UnicodeEncodeError.*surrogates not allowed", refusal("here", f"{head}{DOCSTRING}"))


@pytest.mark.parametrize("head", ["text = ", "'Doc.'\n", "lambda: ", "f(", "# "])
def test_half_a_surrogate_pair_elsewhere_is_not(head: str) -> None:
    assert refusal("here", head + DOCSTRING + ")" * head.count("(")) == ""


@pytest.mark.parametrize("code", ["def f(:", "'\\d'", "1 is 1"])
def test_what_the_compiler_refuses_or_warns_of_is_refused(code: str) -> None:
    assert refusal("here", code).startswith("here: SyntaxError")


def test_only_pythons_that_ci_tries_are_claimed() -> None:
    """The last is compiled for: Pyodide's major version is that of its Python, 314 for 3.14."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    run = re.findall(r"^(?:first|between|newer)=\(?([\d. ]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    pyodide = json.loads((ROOT / "tests" / "package.json").read_text())["devDependencies"]["pyodide"]
    assert claimed == [*" ".join(run).split(), f"3.{pyodide[1:3]}"]
