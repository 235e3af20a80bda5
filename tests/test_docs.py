"""The pages under docs/ tell the truth: their code runs, and prints what they say."""

import re
from pathlib import Path

import pytest

from tests.programs import python

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_one_program(page: Path) -> None:
    text = page.read_text()
    ran = python("-c", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_page_points_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (DOCS / link).exists()] == []
