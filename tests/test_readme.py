"""The README tells the truth: its code runs, and prints what it says."""

import re
from pathlib import Path

import pytest

from rxllm import operators
from tests import operators_page
from tests.programs import python

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

BRIEF = """
from rxllm.adapters.local import in_process_server

def brief(*arguments, complete=in_process_server._params):
    params = complete(*arguments)
    params.n_predict = 200
    return params

in_process_server._params = brief
"""
"""The small model's answers may else go on to the end of its context, for a minute."""


def test_the_code_runs_as_one_program():
    """Every block of Python, in order, in one fresh interpreter."""
    pytest.importorskip("xllamacpp", reason="the README's model needs rxllm[local]")
    program = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    ran = python("-c", BRIEF + program, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    first, *_ = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    printed = ran.stdout.splitlines()
    assert printed[0] == first.splitlines()[0]
    assert re.sub(r"\d+", "N", printed[1]) == re.sub(r"\d+", "N", first.splitlines()[1])
    assert "Pretty Polly" in ran.stdout


def test_the_two_commands_are_there_word_for_word():
    assert "\npip install '.[local]' && python examples/quickstart.py\n" in README
    assert "\npip install -e '.[test]' && python -m pytest\n" in README


def test_its_page_of_operators_is_what_their_docstrings_say():
    assert operators_page.written(README) == README, "run python -m tests.operators_page"


def test_what_has_no_name_for_its_caller_is_shown_without_one():
    assert operators_page.signature("items") == "items(type, *path)"
    assert operators_page.signature("snapshots") == "snapshots(every=)"


def test_every_operator_is_on_the_page_once():
    names = [name for names in operators_page.groups().values() for name in names]
    assert sorted(names) == operators.__all__


def test_what_it_points_to_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
