"""The page of the house is true, and every file says in one line what it holds."""

from __future__ import annotations

from tests import house_page

MODULES = sorted(house_page.ROOT.glob("rxllm/**/*.py"))


def test_the_page_is_what_the_files_say() -> None:
    assert house_page.PAGE.read_text() == house_page.page(), "run python -m tests.house_page"


def test_every_file_says_in_one_line_what_it_holds() -> None:
    lines = {str(path): house_page.first_line(path) for path in MODULES}
    assert {path: line for path, line in lines.items() if not 10 < len(line) <= 120} == {}


def test_no_two_files_say_the_same() -> None:
    lines = [house_page.first_line(path) for path in MODULES]
    assert sorted(lines) == sorted(set(lines))
