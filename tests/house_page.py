"""The page of the house, ``docs/house.md``: every file with one line. ``python -m tests.house_page`` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "house.md"

_HEAD = """# The house

Where everything is: each room and each file with the first line of its docstring. A room imports only from rooms to its
right, and `lint-imports` checks that:

    cli > cluster | display | durable | mcp | otel | testing | web > session > pipelines > operators | engine > images
    > tools > adapters > chunks > runtime > wire > serializer | validate > collector > events > plugins > values

Written by `python -m tests.house_page`.
"""


def page() -> str:
    package = ROOT / "rxllm"
    rooms = sorted(path.parent for path in package.rglob("__init__.py"))
    return "\n".join([_HEAD, *(line for room in rooms for line in _room(room))])


def first_line(path: Path) -> str:
    """The first line of a module's docstring, in Markdown."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("``", "`")


def _room(room: Path) -> Iterator[str]:
    files = [path for path in sorted(room.glob("*.py")) if path.name != "__init__.py"]
    yield f"## {room.relative_to(ROOT)}/\n"
    yield f"{first_line(room / '__init__.py')}\n"
    if files:
        yield from (f"- `{path.name}`: {first_line(path)}" for path in files)
        yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
