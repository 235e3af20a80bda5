"""The README tells the truth: its code runs, and prints what it says."""

import re
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.judges
def test_its_program_prints_what_stands_below_it():
    pytest.importorskip("xllamacpp", reason="the README's model needs rxllm[local]")
    program = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    ran = python("-c", program, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    (below,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert ran.stdout.strip() == below.strip()


def test_the_two_commands_are_there_word_for_word():
    assert "\npip install '.[local]' && python examples/quickstart.py\n" in README
    tests = "pip install -e '.[test]' -c tests/constraints.txt && python -m pytest"
    assert f"\n{tests}\n" in README
    assert f" {tests}\n" in (ROOT / ".ci" / "run").read_text()


def test_it_is_the_first_page_and_not_the_only_one():
    assert len(README.splitlines()) <= 80


def links(page: str) -> set[str]:
    """Return the places in the checkout that a page links to, from the page's own folder."""
    return {link for link in re.findall(r"\]\(([^)#]+)", page) if not link.startswith("https://")}


def test_its_links_work_on_a_package_index_and_lead_to_what_exists():
    assert links(README) == set()
    ours = re.findall(
        r"https://(?:raw\.githubusercontent\.com|github\.com)/rxllm/rxllm/(?:blob/)?main/([^)#]+)", README
    )
    assert len(ours) > 10
    assert [place for place in ours if not (ROOT / place).exists()] == []


def test_the_index_has_every_page_notebook_and_example():
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in links((docs / "index.md").read_text())}
    assert [place for place in linked if not place.exists()] == []
    places = [*docs.glob("*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]
    assert {*places} - linked == {docs / "index.md"}
