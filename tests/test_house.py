"""The page of the house is true, and every file says in one line what it holds."""

from __future__ import annotations

import ast
import asyncio

import pytest

from tests import doors, house, house_page

PACKAGE = house_page.ROOT / "rxllm"
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_the_page_is_what_the_rooms_say() -> None:
    assert house_page.PAGE.read_text() == house_page.page(), "run python -m tests.house_page"


def test_every_room_is_in_a_layer() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms = {name for name in found if not name.startswith("_")}
    assert rooms == {name for row in house_page.layers() for name in row}


@pytest.mark.judges
def test_every_file_says_in_one_line_what_it_holds() -> None:
    lines = {str(path): house_page.first_line(path) for path in MODULES}
    assert {path: line for path, line in lines.items() if not 10 < len(line) <= 120} == {}


@pytest.mark.judges
def test_no_two_files_say_the_same() -> None:
    lines = [house_page.first_line(path) for path in MODULES]
    assert sorted(lines) == sorted(set(lines))


SOURCE = '''"""A room.

With a blank line.
"""

from typing import TYPE_CHECKING

from rxllm.values import (
    _private,
    user,
)

if TYPE_CHECKING:
    import rxllm.tools

# A comment.
TEXT = """
# not a comment
"""


def ask():
    from rxllm.web._codec import sse  # inside
    return sse
'''


def test_each_line_is_counted_once_and_each_import_found() -> None:
    module = house.Module("rxllm.cli._ask", house.PACKAGE / "cli" / "_ask.py", SOURCE, ast.parse(SOURCE))
    assert house.lines_by_kind(module) == {"docstrings": 4, "imports": 7, "blank": 6, "comments": 1, "code": 6}
    every = [*house.imports(module, module.tree)]
    assert [(each.module, each.name, each.is_typing) for each in every] == [
        ("rxllm.values", "_private", False),
        ("rxllm.values", "user", False),
        ("rxllm.tools", None, True),
        ("rxllm.web._codec", "sse", False),
    ]
    assert [*house.private_imports(every).values()] == [["rxllm.values._private"], ["rxllm.web._codec.sse"]]


def test_circles_are_the_modules_that_import_each_other() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"f", "a"}}
    assert house.circles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_the_way_of_a_call_is_counted() -> None:
    files, switches = asyncio.run(house.way())
    assert 10 < files < switches


LOOK_INSIDE = {"tests/benchmarks", "tests/laws", "tests/live", "docs/pictures"}
"""They measure, judge or draw what no room shows."""


@pytest.mark.judges
def test_tests_import_only_what_is_private_in_their_own_room() -> None:
    """``tests/web`` may import ``rxllm.web._codec``, others may not; ``test_keys.py`` belongs to ``rxllm.keys``."""
    found: dict[str, str] = {}
    for path in sorted({*house.ROOT.glob("tests/**/*.py"), *house.ROOT.glob("docs/**/*.py")}):
        place = path.relative_to(house.ROOT)
        if "node_modules" in place.parts or str(place.parent) in LOOK_INSIDE:
            continue
        room = place.parts[1] if len(place.parts) > 2 else place.stem.removeprefix("test_")
        for node in ast.walk(ast.parse(path.read_text())):
            for name in node.names if isinstance(node, ast.ImportFrom) else ():
                if doors.is_private(imported := f"{node.module}.{name.name}", f"rxllm.{room}"):
                    found[str(place)] = imported
    allowed = {  # a private seam that the test replaces, or a pure function that it takes as its judge
        "tests/durable/test_recovery.py": "rxllm.pipelines._call",
        "tests/pipelines/test_models.py": "rxllm.operators._cost.fill_costs",
    }
    assert {place: name for place, name in found.items() if name.startswith("rxllm.")} == allowed
