"""Names say what they hold: some words that never do are kept out, over the syntax trees of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "rxllm").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
HOOKS = {
    "rxllm/testing/_http_suite.py": {"said"},
    "rxllm/testing/_adapter_run.py": {"asked"},
    "examples/plugin/tests/test_adapter.py": {"said"},
}
"""Hooks of the kit keep the names that authors have overridden: what a service has `said`, what it was `asked`."""

EMPTY = {"asked", "each", "given", "held", "made", "said", "told"}


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is bound, and the line where: variables, parameters, functions, attributes of self."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case _:
                pass


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_name_says_what_it_holds(file: Path) -> None:
    hooks = HOOKS.get(str(file.relative_to(ROOT)), set())
    names = bindings(ast.parse(file.read_text()))
    assert [f"{name}:{line}" for name, line in names if name.strip("_") in EMPTY - hooks] == []


def test_the_words_would_be_found() -> None:
    tree = ast.parse("def f(given): held = [each for each in given]\nwith x as told: self.made = 1\nfor _said in y: 0")
    assert {name.strip("_") for name, _ in bindings(tree)} >= EMPTY - {"asked"}
