"""PARITY.md is true: its rows are all there, and what they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("PARITY.md").read_text()

ROWS = 141


class Row(NamedTuple):
    number: str
    feature: str
    state: str
    where: str
    why: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"`(rxllm[\w.]*)`", self.where)

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[\w/.]+::\w+)`", self.why)


def rows() -> list[Row]:
    lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines())
    return [Row(*cells) for cells in lines if cells and cells[0].isdigit()]


every_row = pytest.mark.parametrize("row", rows(), ids=[row.number for row in rows()])


def test_no_row_is_missing() -> None:
    assert [int(row.number) for row in rows()] == list(range(1, ROWS + 1))


@every_row
def test_a_row_says_enough(row: Row) -> None:
    assert row.feature
    match row.state:
        case "shown":
            assert row.names
            assert row.tests
        case "replaced":
            assert row.why.startswith("replaced by ")
            assert row.names
            assert row.tests
        case state:
            assert state == "not yet"
            assert row.why
            assert not row.tests


@every_row
def test_what_a_row_names_exists(row: Row) -> None:
    assert [name for name in row.names if not _exists(name)] == []


@every_row
def test_the_tests_of_a_row_exist(row: Row) -> None:
    assert [test for test in row.tests if not _is_test(*test.split("::"))] == []


def test_every_path_exists() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)(?:::\w+)?`", TABLE)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_it_finds_what_is_not_there() -> None:
    assert not _exists("rxllm.nothing")
    assert not _exists("rxllm.Response.nothing")
    assert not _exists("rxllm.ChatOptions.nothing")
    assert not _is_test("tests/laws/test_parity.py", "test_nothing")
    assert not _is_test("tests/laws/test_nothing.py", "test_nothing")


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, an attribute or a field of a class."""
    first, *rest = name.split(".")
    held: Any = import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        if hasattr(held, part):
            held = getattr(held, part)
        elif isinstance(held, type):
            return part in _fields(held)
        else:
            try:
                held = import_module(path)
            except ModuleNotFoundError:
                return False
    return True


def _fields(cls: type) -> list[str]:
    return [name for each in cls.__mro__ for name in getattr(each, "__annotations__", {})]


def _is_test(path: str, name: str) -> bool:
    return name in _tests(path)


@cache
def _tests(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    found = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = (node.name for node in ast.parse(file.read_text()).body if isinstance(node, found))
    return frozenset(name for name in names if name.lower().startswith("test"))
