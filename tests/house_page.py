"""The page of the house, ``docs/house.md``: its rooms by layer. ``python -m tests.house_page`` writes it."""

from __future__ import annotations

import ast
import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "house.md"

_PAGE = """# The house

This page lists the *rooms* of the package: the folders and files directly in `rxllm/`. A room may import only from
rooms in lower rows of this diagram, and `lint-imports` enforces this. Each room's `__init__.py` lists its public names.
The first line of each file describes what the file contains.

```
{picture}
```

{rooms}

`rxllm/__init__.py` is the facade above all rooms: it exports the names that programs use.

This page is written by `python -m tests.house_page`, from the layers in `setup.cfg` and the rooms' docstrings.
"""


def page() -> str:
    rows = layers()
    picture = "\n".join("   ".join(row).center(56).rstrip() for row in rows)
    rooms = "\n".join(f"- `{name}`: {first_line(file_of(name))}" for row in rows for name in row)
    return _PAGE.format(picture=picture, rooms=rooms)


def layers() -> list[list[str]]:
    """Return the rooms of each layer, as in the contract of import-linter, from the top."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    contract = config["importlinter:contract:layers"]["layers"].strip()
    return [rooms for row in contract.splitlines() if (rooms := re.findall(r"rxllm\.([a-z]\w*)", row))]


def file_of(room: str) -> Path:
    folder = ROOT / "rxllm" / room
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def first_line(path: Path) -> str:
    """The first line of a module's docstring, in Markdown."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page())
