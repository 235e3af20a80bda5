"""How strict the tests are: ``python -m tests.mutants`` breaks rxllm in many places, and counts what tests notice.

It samples mutants of the rooms below, with a seed: a comparison turned round, a constant changed, a statement left out,
the branches of an ``if`` swapped. Each runs against the pure tests of its room that enter the broken function, for at
most 20 seconds. The processes are forked after the collection of the tests, and the function gets its new code there,
so a mutant costs what its tests cost.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib
import io
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("wire", "collector", "operators", "tools", "http")
TESTS = {
    "wire": ["tests/wire", "tests/adapters"],
    "collector": ["tests/test_collector.py", "tests/laws", "tests/pipelines/test_generate.py"],
    "operators": ["tests/operators"],
    "tools": ["tests/tools", "tests/operators", "tests/pipelines"],
    "http": ["tests/http", "tests/adapters"],
}
SECONDS = 20
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

Key = tuple[str, int, str]
"""The file, first line and name of a function: what finds its code object again."""


class Mutant(NamedTuple):
    """The `number`-th place of a function in `path` that can be broken, and what is done to it."""

    path: str
    function: Key
    line: int
    number: int
    change: str


# Places


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the outermost functions and methods."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from functions(node)


def places(function: ast.AST) -> list[tuple[ast.AST, str]]:
    """The places of a function that can be broken, in order."""
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(function):
        match node:
            case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
                found.append((node, f"{ast.unparse(node)}: {type(op).__name__} -> {OPPOSITES[type(op)].__name__}"))
            case ast.Constant(value=bool() | int() as value):
                found.append((node, f"{value!r} -> {_other(value)!r}"))
            case ast.If():
                found.append((node, f"if {ast.unparse(node.test)}: swapped"))
            case ast.Assign() | ast.AugAssign():
                found.append((node, f"{ast.unparse(node)}: left out"))
            case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()):
                found.append((node, f"{ast.unparse(node)}: left out"))
            case _:
                pass
    return found


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + 1


def break_place(node: ast.AST) -> None:
    """Break a place of `places`."""
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [OPPOSITES[type(op)]()]
        case ast.Constant(value=value):
            node.value = _other(value)
        case ast.If(test=test):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        case ast.Expr():
            node.value = ast.copy_location(ast.Constant(None), node)
        case ast.Assign() | ast.AugAssign():
            # The name stays unbound or keeps what it had; the compiler still knows it as the function's own.
            statement = copy.copy(node)
            for name in list(vars(node)):
                if name in node._fields:
                    delattr(node, name)
            node.__class__ = ast.If  # type: ignore[assignment]
            node.test, node.body, node.orelse = ast.Constant(False), [statement], []  # type: ignore[attr-defined]
        case _:
            raise TypeError(node)


def sample(count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants, the same number from each room."""
    chosen: list[Mutant] = []
    for room in ROOMS:
        mutants: list[Mutant] = []
        for path in sorted((ROOT / "rxllm" / room).rglob("*.py")):
            for function in functions(ast.parse(path.read_text())):
                first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
                key = (str(path), first, function.name)
                mutants += [
                    Mutant(str(path), key, getattr(node, "lineno", function.lineno), number, change)
                    for number, (node, change) in enumerate(places(function))
                ]
        chosen += random.Random(f"{seed}{room}").sample(mutants, count // len(ROOMS))
    return chosen


def code_of(mutant: Mutant) -> types.CodeType:
    """Return the broken function's code."""
    tree = ast.parse(Path(mutant.path).read_text())
    for function in functions(tree):
        first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        if (first, function.name) == mutant.function[1:]:
            break_place(places(function)[mutant.number][0])
    module = compile(ast.fix_missing_locations(tree), mutant.path, "exec", dont_inherit=True)
    return next(code for code in _codes(module) if _key(code) == mutant.function)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _key(code: types.CodeType) -> Key:
    return code.co_filename, code.co_firstlineno, code.co_name


# Runs


class Runner:
    """A pytest plugin that runs the mutants of one room in place of its tests."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.mutants = mutants
        self.survivors: list[Mutant] = []
        self.untested: list[Mutant] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in {mutant.path for mutant in self.mutants}:
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(Path(path).relative_to(ROOT).with_suffix("").parts))
        entered: dict[Key, list[int]] = in_a_fork(lambda: self._entered(session), 3_000)
        for mutant in self.mutants:
            tests = entered.get(mutant.function, [])
            seconds = time.monotonic()
            failed = in_a_fork(lambda m=mutant, t=tests: self._is_caught(session, m, t), SECONDS) if tests else False
            if failed is False:
                (self.survivors if tests else self.untested).append(mutant)
            verdict = "caught" if failed else "late" if failed is None else "SURVIVED" if tests else "NOT ENTERED"
            where = f"{Path(mutant.path).relative_to(ROOT)}:{mutant.line}"
            print(
                f"{verdict} {where} {mutant.change[:110]!r} {len(tests)} tests {time.monotonic() - seconds:.1f} s",
                flush=True,
            )
        return True

    def _entered(self, session: pytest.Session) -> dict[Key, list[int]]:
        """Run all tests, and return the pure and passing ones that enter each function."""
        wanted = {mutant.function for mutant in self.mutants}
        entered: dict[Key, list[tuple[float, int]]] = {}
        now: set[Key] = set()
        impure: list[str] = []
        sys.addaudithook(lambda event, arguments: impure.append(event) if _is_impure(event, arguments) else None)

        def profile(frame: types.FrameType, event: str, _: Any) -> None:
            if event == "call" and (key := _key(frame.f_code)) in wanted:
                now.add(key)

        threading.setprofile(profile)
        for number, item in enumerate(session.items):
            now.clear()
            impure.clear()
            began = time.monotonic()
            sys.setprofile(profile)
            passed = _passes(item)
            sys.setprofile(None)
            if passed and not impure:
                for key in now:
                    entered.setdefault(key, []).append((time.monotonic() - began, number))
        return {key: [number for _, number in sorted(tests)] for key, tests in entered.items()}

    def _is_caught(self, session: pytest.Session, mutant: Mutant, tests: list[int]) -> bool:
        code = code_of(mutant)
        gc.unfreeze()  # tests/conftest.py froze what there was after the collection, and frozen objects are not listed
        functions = [
            function
            for function in gc.get_objects()
            if type(function) is types.FunctionType and _key(function.__code__) == mutant.function
        ]
        assert functions, mutant
        for function in functions:
            function.__code__ = code
        return not all(_passes(session.items[number]) for number in tests)


def _is_impure(event: str, arguments: tuple[Any, ...]) -> bool:
    if event in ("socket.bind", "socket.connect"):
        return isinstance(arguments[1], tuple)
    return event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty")


def _passes(item: pytest.Item) -> bool:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from _pytest.runner import runtestprotocol  # the one way to run an item at a chosen time

        reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.outcome != "failed" for report in reports)


def in_a_fork(work: Any, seconds: float) -> Any:
    """Return the result of `work` in a process of its own, or None if it takes longer than `seconds`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()
        try:
            result = pickle.dumps(work())
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writing)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(int(seconds))
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    signal.alarm(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0:
        raise RuntimeError("the process of a mutant failed in itself, see above")
    return pickle.loads(data) if data else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--room", choices=ROOMS, action="append")
    options = parser.parse_args()
    total: dict[str, int] = {}
    for room in options.room or ROOMS:
        mutants = [one for one in sample(options.count, options.seed) if f"/rxllm/{room}/" in one.path]
        runner = Runner(mutants)
        paths = [path for path in TESTS[room] if (ROOT / path).exists()]
        pytest.main(
            [
                "-n0",
                "-s",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=--import-mode=importlib -q -p no:faker",
                "-m",
                "not judges",
                *paths,
            ],
            [runner],
        )
        caught = len(mutants) - len(runner.survivors) - len(runner.untested)
        total[room] = caught
        print(
            f"{room}: {caught} of {len(mutants)} caught, {len(runner.untested)} in functions that no pure test enters",
            flush=True,
        )
    print(json.dumps(total), sum(total.values()))


if __name__ == "__main__":
    main()
