"""Clocks in tests: ``python -m tests.clocks`` prints the places where a test depends on how fast the machine is.

=============  ======================================================================================================
``sleep``      ``time.sleep``, a wait for an event that nobody sets, ``asyncio.sleep`` of more than 0
``compare``    a comparison with a reading of a clock, or with what was computed from one
``option``     a number of seconds below 1 for a time limit, a lease or an interval, where sockets or processes are used
=============  ======================================================================================================

Exempt are the tests of a real model, the benchmarks, functions that `simulate` runs, whose time is virtual, and the
`REASONS` below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXEMPT = ("tests/live/", "tests/benchmarks/", "tests/waiting.py", "tests/clocks.py")

REASONS = {
    "tests/testing/test_adapter_faults.py": "an adapter that blocks longer than the kit allows",
    "tests/testing/planted.py": "an adapter that blocks longer than the kit allows",
}
"""The files that may have one place, and why."""

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "monotonic_ns", "perf_counter_ns", "time_ns"}
READINGS = {"closed_at", "accepted_at", "elapsed"}
OPTION = re.compile(
    r"(^|_)(timeout|deadline|lease|idle|grace|heartbeat|interval|seconds|delay|wait|patience|every|ping|poll)(_|$)"
)
USES_SOCKETS = re.compile(r"\b([lL]oopback|socket|subprocess|httpx|uvicorn|served?|script)\b")

READS_CLOCKS = re.compile(rf"\b({'|'.join(CLOCKS | READINGS)}|time\.time)\b")
WORTH_READING = re.compile(rf"\bsleep|\.wait\(|mark\.|{USES_SOCKETS.pattern}|{READS_CLOCKS.pattern}")

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE

Place = tuple[str, int, str]
"""The kind of a place, its line, and the code that stands there."""


def test_files() -> list[Path]:
    paths = sorted(path for pattern in ("*.py", "*/*.py", "*/*/*.py") for path in (ROOT / "tests").glob(pattern))
    return [path for path in paths if not name_of(path).startswith(EXEMPT)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def places(source: str, is_test: bool = True) -> Iterator[Place]:
    """Yield the places of a file, in no order. The functions of a file that is not a test have no marks."""
    if not WORTH_READING.search(source):
        return
    tree = ast.parse(source)
    virtual = _lines_of_simulated(tree) if re.search(r"\bsimulate|\bWorld\b", source) else set()
    found = [*_sleeps(tree), *(_comparisons(tree) if READS_CLOCKS.search(source) else [])]
    if is_test or USES_SOCKETS.search(source):
        found += _options(tree, is_test)
    for kind, node in found:
        if node.lineno not in virtual:
            yield kind, node.lineno, ast.unparse(node)


def _sleeps(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    return [("sleep", node) for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_sleep(node)]


def _is_sleep(call: ast.Call) -> bool:
    match call.func, call.args:
        case ast.Attribute(value=ast.Name(id="asyncio" | "anyio" | "trio"), attr="sleep"), [
            ast.Constant(value=0 | 0.0)
        ]:
            return False
        case (
            (
                ast.Attribute(value=ast.Name(id="asyncio" | "anyio" | "trio" | "time"), attr="sleep")
                | ast.Name(id="sleep")
            ),
            _,
        ):
            return True
        case ast.Attribute(value=ast.Call(func=ast.Attribute(attr="Event") | ast.Name(id="Event")), attr="wait"), [
            _,
            *_,
        ]:
            return True
    return False


def _comparisons(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    functions = list(_outermost_functions(tree))
    clocks = {function.name for function in functions if _returns_reading(function)}
    found: list[tuple[str, ast.expr]] = []
    for function in functions:
        measured = _measured_names(function, clocks)
        found += [("compare", node) for node in ast.walk(function) if _compares(node, clocks, measured)]
    return list({(node.lineno, node.col_offset): (kind, node) for kind, node in found}.values())


def _outermost_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions and methods; what is defined inside of one shares its names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _outermost_functions(child)


def _compares(node: ast.AST, clocks: set[str], measured: set[str]) -> bool:
    match node:
        case ast.Compare(ops=ops, comparators=[*_, last]) if all(isinstance(op, ORDERS) for op in ops) or _is_about(
            last
        ):
            pass
        case _:
            return False
    return any(_is_measured(side, clocks, measured) for side in [node.left, *node.comparators])


def _is_about(node: ast.AST) -> bool:
    return "approx" in ast.unparse(node)


def _is_measured(expression: ast.AST, clocks: set[str], measured: set[str]) -> bool:
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="time")):
                return True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in CLOCKS | clocks:
                return True
            case ast.Attribute(attr=name) if name in READINGS:
                return True
            case ast.Name(id=name) if name in measured:
                return True
            case _:
                pass
    return False


def _returns_reading(function: FUNCTIONS) -> bool:
    measured = _measured_names(function, set())
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
    return any(_is_measured(value, set(), measured) for value in returned)


def _measured_names(scope: ast.AST, clocks: set[str]) -> set[str]:
    """Names that hold a reading of a clock, or what was computed from one."""
    measured: set[str] = set()
    for _ in range(3):  # what was computed from what was computed
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=targets, value=value) if _is_measured(value, clocks, measured):
                    measured |= {
                        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
                    }
                case ast.NamedExpr(target=target, value=value) if _is_measured(value, clocks, measured):
                    measured.add(target.id)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]) if _is_measured(
                    value, clocks, measured
                ):
                    measured.add(name)
                case _:
                    pass
    return measured


def _options(tree: ast.Module, is_test: bool) -> list[tuple[str, ast.expr]]:
    marked = any(isinstance(node, ast.Assign) and _is_marked(node.value) for node in tree.body)
    found: list[tuple[str, ast.expr]] = []
    for top in tree.body:
        if marked or not is_test or any(_is_marked(node) for node in getattr(top, "decorator_list", [])):
            for node in ast.walk(top):
                found += [("option", value) for value in _options_of(node) if _is_short(value)]
    return found


def _is_marked(node: ast.expr) -> bool:
    return re.search(r"\bmark\.(sockets|judges)\b", ast.unparse(node)) is not None


def _options_of(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(attr="timeout" | "wait_for" | "wait" | "join") | ast.Name(id="Timeouts")):
            plain = [] if _is_sleep(node) else node.args
        case ast.Call():
            plain = []
        case _:
            return []
    return plain + [word.value for word in node.keywords if word.arg and OPTION.search(word.arg)]


def _is_short(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float) and 0 < value.value < 1


def _lines_of_simulated(tree: ast.Module) -> set[int]:
    """Return the lines of functions that call `simulate` and its like, or get a `World`, and of all that they name."""
    shared = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS | ast.ClassDef)}
    pending: list[ast.stmt] = [top for top in tree.body if any(_simulates(node) for node in ast.walk(top))]
    lines: set[int] = set()
    reached: set[str] = set()
    while pending:
        node = pending.pop()
        lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & shared.keys() - reached
        reached |= names
        pending += [shared[name] for name in names]
    return lines


def _simulates(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2].startswith("simulate")
        case ast.arg(annotation=ast.Name(id="World")):
            return True
        case _:
            return False


def found() -> dict[str, list[Place]]:
    """Return the places by file, in order; files without any are left out."""
    by_file = {name_of(path): places(path.read_text(), path.name.startswith("test_")) for path in test_files()}
    ordered = {name: sorted(found, key=lambda place: place[1]) for name, found in by_file.items()}
    return {name: places for name, places in ordered.items() if places}


def main() -> None:
    for name, places in found().items():
        for kind, line, code in places:
            print(f"{name}:{line}: {kind}: {code[:100]}")


if __name__ == "__main__":
    main()
