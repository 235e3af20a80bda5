"""All Python of the project, also in pages and notebooks, and what a compiler refuses of it. Needs no other package.

``python -m tests.sources`` compiles everything with the Python that runs it, ``tests/newest_python.mjs`` with 3.14.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("rxllm", "tests", "examples")


def sources() -> Iterator[tuple[str, str]]:
    """Every file, block of a page and cell of a notebook, as its place and its code."""
    for path in [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in _files(ROOT / folder))]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        yield from ((f"{page.name}, block {number}", block) for number, block in enumerate(blocks, 1))
    for notebook in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield from ((f"{notebook.name}, cell {number}", cell) for number, cell in enumerate(code, 1))


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "node_modules"]
        yield from (Path(parent, name) for name in names if name.endswith(".py"))


def refusal(place: str, code: str) -> str:
    """Return why this Python, or Python 3.13, does not compile `code`, or "" if it does; a warning is a refusal."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            # Cells of notebooks may await; in a file that is a syntax error at its import, which every test would meet.
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(code, place, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            for docstring in _docstrings(tree):
                docstring.encode()  # the compiler does so from Python 3.13 on, where it strips the indentation
            compile(tree, place, "exec", flags, dont_inherit=True)
        except (SyntaxError, UnicodeError) as error:
            return f"{place}: {error!r}"
    return ""


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def main() -> int:
    """Print what does not compile, and return the number of refusals."""
    found = [refusal(place, code) for place, code in sources()]
    refusals = [reason for reason in found if reason]
    print(*refusals, f"Python {sys.version.split()[0]} compiles {len(found) - len(refusals)} of {len(found)}", sep="\n")
    return len(refusals)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
