"""The site: it builds without a warning, and its pages hold what readers look for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rxllm
from tests.programs import python

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"

pytestmark = [pytest.mark.timeout(600), pytest.mark.judges]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    if os.environ.get("RXLLM_JUDGES") != "site":
        pytest.skip("the site is built in one process: RXLLM_JUDGES=site python -m pytest -n 0 tests/test_site.py")
    ran = python("docs/site/build.py", cwd=ROOT, timeout=500)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules beside build.py."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    yield
    for name in {"build", "docstrings", "exports", "notebook", "reference"} - before:
        sys.modules.pop(name, None)


class _Page(HTMLParser):
    """The ids of a page, and the addresses that a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.add(found.get("id", ""))
        if tag in {"script", "img", "iframe"}:
            self.loaded.append(found.get("src", ""))
        elif tag == "link" and {"stylesheet", "icon", "preload"} & set(found.get("rel", "").split()):
            self.loaded.append(found["href"])


def text(page: str) -> str:
    """The text of a page, without tags, in one line."""
    return " ".join(re.sub(r"<[^>]+>", "", (SITE / page / "index.html").read_text()).split())


def ids() -> set[str]:
    return {id for page in SITE.glob("reference/**/*.html") for id in _Page(page).ids}


@pytest.fixture
def exports(tools: None) -> Any:
    package = import_module("griffe").load("rxllm", search_paths=[ROOT])
    return import_module("exports").Exports(package)


def test_every_name_of_rxllm_has_an_entry_or_a_page_under_that_name() -> None:
    ids = {id for page in SITE.glob("reference/**/*.html") for id in _Page(page).ids}
    assert {f"rxllm.{name}" for name in rxllm.__all__} - ids == set()


def test_the_reference_has_the_names_that_programs_see(exports: Any) -> None:
    rooms = [room for room in exports.modules if exports.modules[room].exports is not None]
    assert {"rxllm", "rxllm.operators", "rxllm.web", "rxllm.testing.loopback"} <= {*rooms}
    for room in rooms:
        assert sorted(exports.names[room]) == sorted(import_module(room).__all__)


def test_a_name_without_an_entry_would_be_found(exports: Any) -> None:
    without_entry = import_module("build").without_entry
    assert without_entry(exports) == []
    (path,) = (entry.path for entry in exports.entries if entry.item.name == "TextDelta")
    page = SITE / "reference" / "events" / "index.html"
    before = page.read_text()
    page.write_text(before.replace(f'id="{path}"', ""))
    try:
        assert without_entry(exports) == [path]
    finally:
        page.write_text(before)


def test_a_page_loads_nothing_from_another_host() -> None:
    loaded = {address for page in SITE.rglob("*.html") for address in _Page(page).loaded}
    assert loaded
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []
    styles = "".join(path.read_text() for path in SITE.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", styles) == []


def test_operators_stand_under_their_purposes() -> None:
    headings = re.findall(r"<h2[^>]*>([^<]*)", (SITE / "reference" / "operators" / "index.html").read_text())
    assert headings[:3] == ["Observing", "Text", "Selecting"]


def test_a_docstring_is_shown_with_its_code_and_its_drawing() -> None:
    page = (SITE / "reference" / "operators" / "index.html").read_text()
    assert "--H-----(ello)-end|" in re.sub(r"<[^>]+>", "", page)
    assert "language-pycon" in page


def test_a_docstring_shows_no_markup() -> None:
    for page in SITE.glob("reference/*/index.html"):
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert re.findall(r".*(?:``|::\s*</p>|\*\*|>>>|=====).*", prose, re.MULTILINE) == [], page


def test_a_name_in_a_docstring_is_a_link_but_a_field_of_that_name_is_none() -> None:
    assert re.search(r'href="[^"]*#[\w.]+\.ErrorEvent"', (SITE / "reference" / "events" / "index.html").read_text())
    assert "#rxllm.operators.tool_calls" not in (SITE / "reference" / "values" / "index.html").read_text()


def test_notebooks_have_their_outputs() -> None:
    assert "City(name='Paris', country='France')" in text("notebooks/05-typed-answers").replace("&#39;", "'")
    assert list(SITE.glob("notebooks/02-operators-with-marbles-*.svg"))
    page = (SITE / "notebooks" / "09-a-reactive-app" / "index.html").read_text()
    assert re.search(r'alt="A plot: [^"]*connection closed by the client', page)


def test_the_gallery_has_the_picture_of_every_operator() -> None:
    shown = re.findall(r"marbles/(\w+)\.svg", (SITE / "gallery" / "index.html").read_text())
    assert {path.stem for path in (ROOT / "docs" / "marbles").glob("*.svg")} == {*shown}


def test_models_find_every_page() -> None:
    listed = re.findall(r"/(\w+)/index\.md", (SITE / "llms.txt").read_text())
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {*listed} == {"index"}
    assert "TextDelta" in (SITE / "llms-full.txt").read_text()


def test_a_search_finds_names_and_pages() -> None:
    index = (SITE / "search.json").read_text()
    assert all(words in index for words in ("rxllm.operators.keep_latest", "In a terminal", "Operators with marbles"))


def test_docstrings_become_markdown(tools: None) -> None:
    to_markdown = import_module("docstrings").to_markdown
    assert to_markdown("Do it.\n\n::\n\n    --a--|\n") == "Do it.\n\n```text\n--a--|\n```"
    assert to_markdown("So::\n\n    run()\n\n    stop()\n\nEnd.") == "So:\n\n```python\nrun()\n\nstop()\n```\n\nEnd."
    assert to_markdown(">>> 1 + 1\n2") == "```pycon\n>>> 1 + 1\n2\n```"
    assert to_markdown("===  ===\na    b\n     c\n===  ===") == "|  |  |\n| --- | --- |\n| a | b c |"
    assert to_markdown("==  ==\na   b\n==  ==\nc   d\n==  ==") == "| a | b |\n| --- | --- |\n| c | d |"
    assert to_markdown("Ask\n    one\n    two") == "\n**Ask**\n\n- one\n- two"
    assert to_markdown("- one\n  more\n- two") == "- one\n  more\n- two"
