"""The README tells the truth: its code runs, and prints what it says."""

import re
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_its_program_prints_what_stands_below_it():
    pytest.importorskip("xllamacpp", reason="the README's model needs rxllm[local]")
    program = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    ran = python("-c", program, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    (below,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    printed = ran.stdout.splitlines()
    assert printed[0] == below.splitlines()[0]
    assert re.sub(r"\d+", "N", printed[1]) == re.sub(r"\d+", "N", below.splitlines()[1])


def test_the_two_commands_are_there_word_for_word():
    assert "\npip install '.[local]' && python examples/quickstart.py\n" in README
    assert "\npip install -e '.[test]' && python -m pytest\n" in README


def test_it_is_the_first_page_and_not_the_only_one():
    assert len(README.splitlines()) < 90


def links() -> set[str]:
    return set(re.findall(r"\]\(([^)#:]+)\)", README))


def test_what_it_points_to_exists():
    assert [link for link in links() if not (ROOT / link).exists()] == []


def test_its_map_has_every_page_notebook_and_example():
    places = [*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]
    assert {str(place.relative_to(ROOT)) for place in places} - links() == set()
