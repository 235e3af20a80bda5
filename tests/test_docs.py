"""The pages under docs/ tell the truth: their code runs, and prints what they say."""

import ast
import builtins
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from rxllm import Fake, operators, testing
from rxllm.events import EVENT_CLASSES
from rxllm.pipelines import ChatOptions
from rxllm.telemetry import CallDetails, Telemetry
from tests import operators_page, options_page
from tests.pages import DOCS, anchors, blocks
from tests.programs import python

DECISIONS = DOCS.parent / "DECISIONS.md"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.judges
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_one_program(page: Path) -> None:
    text = page.read_text()
    ran = python("-c", "\n".join(blocks(text, "python")))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "".join(blocks(text, "text"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_readers_see_all_code_of_a_page_but_one_setup(page: Path) -> None:
    comments = re.findall(r"<!--.*?-->", page.read_text(), re.DOTALL)
    assert len(blocks("\n".join(comments), "python")) <= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_names_in_a_block_are_defined_where_readers_see_it(page: Path) -> None:
    """In this block or an earlier one, and not in the setup."""
    visible = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    known, unknown = {*dir(builtins)}, set[str]()
    for block in blocks(visible, "python"):
        known |= definitions(block)
        used = {node.id for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Name)}
        unknown |= used - known
    assert unknown == set()


def definitions(source: str) -> set[str]:
    """Return all names that `source` binds, in any scope."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add((other or name).partition(".")[0])
            case _:
                pass
    return names


def test_a_name_that_only_the_setup_defines_would_be_found() -> None:
    assert definitions("import os.path as place\nfor x, *y in f(lambda z: z): pass\ndef g(a): pass") == {
        *("place", "x", "y", "z", "g", "a")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_points_to_exists(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        target = DOCS / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_pages_link_every_word_of_the_glossary() -> None:
    words = set(re.findall(r"^## (\w+)$", (DOCS / "glossary.md").read_text(), re.MULTILINE))
    linked = {word for page in PAGES for word in re.findall(r"\(glossary\.md#([^)]*)\)", page.read_text())}
    assert {word.lower() for word in words} == linked
    assert len(words) == 10


def test_the_index_of_the_decisions_links_every_record_once() -> None:
    index, _, records = DECISIONS.read_text().partition("\n## ")
    links = re.findall(r"^ *- \[(.*)\]\(#(.*)\)$", index, re.MULTILINE)
    assert [title for title, _ in links] == re.findall(r"^#+ (.*)$", f"## {records}", re.MULTILINE)
    assert {anchor for _, anchor in links} <= anchors(DECISIONS)


# Tables


def names_in(first_cell: str) -> list[str]:
    """The names in the first cells of the tables of settings.md; `first_cell` is the heading of that column."""
    _, *rest = re.split(rf"^\| {first_cell} \|.*$", (DOCS / "settings.md").read_text(), flags=re.MULTILINE)
    cells = [cell for part in rest for cell in re.findall(r"^\| (`.*?) \|", part.partition("\n\n")[0], re.MULTILINE)]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_tables_of_options_are_what_is_written_under_their_fields() -> None:
    page = options_page.PAGE.read_text()
    assert options_page.written(page) == page, "run python -m tests.options_page"


def test_the_tables_of_options_have_every_option_once() -> None:
    assert sorted(names_in("option")) == sorted(ChatOptions.__optional_keys__)


def test_the_table_of_events_has_every_event_once_with_fields_that_it_has() -> None:
    _, _, rest = (DOCS / "first_steps.md").read_text().partition("| about | events, and their fields |")
    rows = re.findall(r"`(\w+)\((.*?)\)`", rest.partition("\n\n")[0])
    fields = {event.__name__: event.__struct_fields__ for event in EVENT_CLASSES}
    assert sorted(name for name, _ in rows) == sorted(fields)
    assert all(set(names.split(", ")) <= {*fields[name]} for name, names in rows)


def test_the_table_of_telemetry_has_every_value_once_with_fields_that_it_has() -> None:
    _, _, rest = (DOCS / "telemetry.md").read_text().partition("| value | when | fields that matter |")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in line.split(" | ")] for line in lines]
    values = {value.__name__: value for value in get_args(Telemetry)}
    assert sorted(name for (name,), *_ in rows) == sorted(values)
    for (name,), _, fields in rows:
        details = CallDetails.__struct_fields__ if "details" in fields else ()
        assert {*fields} <= {*values[name].__struct_fields__, *details}


def test_the_table_of_extras_has_every_extra_but_those_of_developers() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    assert {*names_in("extra")} == project["optional-dependencies"].keys() - {"test", "bench", "browser", "docs"}


def test_the_figures_beside_other_libraries_are_those_of_the_page_on_speed() -> None:
    columns = ["rxllm", "the provider's SDK", "langchain", "pydantic-ai", "litellm"]
    rows = [line.split(" | ") for line in (DOCS / "speed.md").read_text().splitlines() if line.startswith("| ")]
    measured = {name.removeprefix("| "): figures for name, *figures in rows}
    _, _, table = (DOCS / "why.md").read_text().partition("|---|---:|")
    for place, line in enumerate(table.splitlines()[1:3]):
        assert line.strip("| ").split(" | ")[1:] == [measured[name][place] for name in columns]


def test_a_line_beside_that_of_another_library_can_be_written() -> None:
    """Every line of rxllm in the tables is evaluated, but for `except`; ``"openai:gpt-5"`` and others are a `Fake`."""
    page = (DOCS / "from_other_libraries.md").read_text()
    rows = re.findall(r"^\| .* \| `([^`]+)` \|$", page, re.MULTILINE)
    assert len(rows) > 60
    names: dict[str, object] = {}
    with testing.sandbox(Fake('{"name": "Lima"}')):
        exec("\n".join(blocks(page, "python")), names)
        for line in rows:
            if not line.startswith("except"):
                eval(line, names)


# The page of operators


def test_the_page_of_operators_is_what_their_docstrings_say() -> None:
    page = operators_page.PAGE.read_text()
    assert operators_page.written(page) == page, "run python -m tests.operators_page"


def test_what_has_no_name_for_its_caller_is_shown_without_one() -> None:
    assert operators_page.signature("items") == "items(type, *path)"
    assert operators_page.signature("snapshots") == "snapshots(every=)"


def test_every_operator_is_on_the_page_once() -> None:
    names = [name for names in operators_page.groups().values() for name in names]
    assert sorted(names) == operators.__all__
