"""Words: names say what they hold, and prose is without habits that stop a reader (``python -m tests.prose``)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prose

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "rxllm").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
HOOKS = {
    "rxllm/testing/_http_suite.py": {"said"},
    "rxllm/testing/_adapter_run.py": {"asked"},
    "examples/plugin/tests/test_adapter.py": {"said"},
    "examples/bedrock/tests/wire.py": {"said"},
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


MOST = {
    "question as a label": 2,
    "begins in mid-sentence": 2,
    "tell, say, hear": 14,
    "one, another, others without a noun": 10,
    "that of": 2,
    "whoever, nobody": 0,
    "goes on": 1,
    "come": 8,
    "so many": 3,
    "anew": 2,
}
"""The most places of each habit: some are right, and words that a model reads stay as they are."""


def test_habits_that_stop_a_reader_stay_rare() -> None:
    pieces = prose.prose()
    found = {habit: [f"{piece.place}: {words}" for piece, words in prose.found(habit, pieces)] for habit in MOST}
    assert MOST.keys() == prose.HABITS.keys()
    assert {habit: places for habit, places in found.items() if len(places) > MOST[habit]} == {}


@pytest.mark.parametrize(
    ("habit", "text"),
    [
        ("question as a label", "How many items wait."),
        ("begins in mid-sentence", "whose end has not arrived"),
        ("that of", "its path and that of the agent"),
        ("goes on", "the call goes on"),
        ("anew", "it is made anew"),
    ],
)
def test_the_habits_would_be_found(habit: str, text: str) -> None:
    kind = prose.HABITS[habit][1][0]
    assert list(prose.found(habit, [prose.Piece(kind, "a.py", 1, text)]))
