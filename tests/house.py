"""Figures of the house: ``python -m tests.house`` prints how large and how tangled ``rxllm/`` is today.

A room is the first folder or the top file below ``rxllm/``. With ``--list`` the private imports are listed, with
``--speed`` the import and a warm call are timed, which takes half a minute; ``--profile`` shows where a warm call and
the chunks of a long answer spend their time.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import cProfile
import io
import itertools
import json
import pstats
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx

import rxllm
from tests import doors
from tests.benchmarks import contenders, size, wires

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rxllm"
KINDS = ("code", "docstrings", "comments", "imports", "blank")
ROUNDS = 15
CALLS = 200


class Module(NamedTuple):
    """A file of the package with its dotted name and its syntax."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return room_of(self.name)


class Import(NamedTuple):
    """An import of one name (None for ``import module``) from a module of the package."""

    importer: Module
    line: int
    module: str
    name: str | None
    is_typing: bool


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "rxllm"


def read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    text = path.read_text(encoding="utf-8")
    return Module(".".join(part for part in parts if part != "__init__"), path, text, ast.parse(text))


# Lines


def lines_by_kind(module: Module) -> Counter[str]:
    """Count each line once; a docstring is any string that stands alone, with its blank lines."""
    lines = module.text.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comments"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds[node.lineno - 1 : node.end_lineno] = ["imports"] * len(kinds[node.lineno - 1 : node.end_lineno])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds[node.lineno - 1 : node.end_lineno] = ["docstrings"] * len(kinds[node.lineno - 1 : node.end_lineno])
    return Counter(kinds)


# Imports


def imports(module: Module, node: ast.AST, is_typing: bool = False) -> Iterator[Import]:
    """Yield the imports from the package in `node`, those inside functions included."""
    if isinstance(node, ast.Import):
        found: list[tuple[str, str | None]] = [(alias.name, None) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        found = [(node.module or "", alias.name) for alias in node.names]
    else:
        for_types = node.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" else []
        for child in ast.iter_child_nodes(node):
            yield from imports(module, child, is_typing or child in for_types)
        return
    for source, name in found:
        if source.partition(".")[0] == "rxllm":
            yield Import(module, node.lineno, source, name, is_typing)


def private_imports(every: list[Import]) -> dict[str, list[str]]:
    """Return the names that are private in another room by the place of their import; TYPE_CHECKING counts."""
    found: dict[str, list[str]] = {}
    for each in every:
        imported = f"{each.module}.{each.name}" if each.name else each.module
        if doors.is_private(imported, each.importer.name):
            found.setdefault(f"{each.importer.path.relative_to(ROOT)}:{each.line}", []).append(imported)
    return found


def import_graph(every: list[Import], names: set[str]) -> dict[str, set[str]]:
    """Return which module imports which; ``from package import module`` is an import of that module.

    Imports inside functions count. Imports of a name through ``__getattr__`` are none: they have no statement.
    """
    graph: dict[str, set[str]] = {name: set() for name in names}
    for each in every:
        inner = f"{each.module}.{each.name}"
        graph[each.importer.name].add(inner if inner in names else each.module)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, the largest first."""
    reached = {name: {*_reachable(graph, name)} for name in graph}
    found = {frozenset({name, *(other for other in reached[name] if name in reached[other])}) for name in graph}
    return sorted((sorted(circle) for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def _reachable(graph: dict[str, set[str]], start: str) -> list[str]:
    reached = [*graph[start]]
    for name in reached:  # it grows
        reached += graph.get(name, set()).difference(reached)
    return reached


def context_variables(module: Module) -> list[str]:
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func).endswith("ContextVar")]
    return [f"{module.name}: {ast.unparse(call.args[0])}" for call in made]


# The way of a call


def warm_chat() -> Callable[[], Awaitable[Any]]:
    """Return a chat over `OpenAIChat` in which the model calls one tool; no network, one client."""
    answers = [b"".join(wires.answer("chat", kind, 3)) for kind in ("tool", "text")]

    def answer(request: httpx.Request) -> httpx.Response:
        is_second = len(json.loads(request.content)["messages"]) > 1
        return httpx.Response(200, content=answers[is_second], headers={"content-type": "text/event-stream"})

    @rxllm.tool
    async def note(text: str) -> str:
        """Note a text."""
        return "noted"

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    engine = rxllm.Engine(rxllm.OpenAIChat(api_key="k", client=client), model="m", tools=[note])

    async def chat() -> Any:
        result = await rxllm.chat(engine, "Hi")
        assert len(result.steps) == 2
        return result

    return chat


async def way() -> tuple[int, int]:
    """Return the files that a warm chat with one tool enters, and its switches between files.

    Counted are the calls of Python functions whose code stands in ``rxllm/``, on the loop's thread, as
    ``sys.setprofile`` reports them: a generator or coroutine that is resumed is called again. A switch is a call in
    another file than the one before.
    """
    chat = warm_chat()
    for _ in range(3):
        await chat()
    entered: list[str] = []

    def enter(frame: FrameType, kind: str, _: object) -> None:
        if kind == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            entered.append(frame.f_code.co_filename)

    sys.setprofile(enter)
    await chat()
    sys.setprofile(None)
    return len(set(entered)), sum(one != other for one, other in itertools.pairwise(entered))


# Speed


def import_ratio() -> float:
    """Return the CPU time of ``import rxllm`` over that of its dependencies: the shortest of alternating processes."""
    statements = [size.IMPORTS["rxllm"], size.IMPORTS["its four dependencies"]]
    with tempfile.TemporaryDirectory() as bytecode:
        rounds = [[size.import_seconds(each, bytecode) for each in statements] for _ in range(ROUNDS + 1)]
    own, needed = (min(cpu for _, cpu in times) for times in zip(*rounds[1:], strict=True))  # the first compiles
    return own / needed


def mocked_client(deltas: int) -> Callable[[], httpx.AsyncClient]:
    """Return a maker of clients that receive an answer of so many deltas over a mocked transport."""
    frames = b"".join(wires.answer("chat", "text", deltas))
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=frames))
    return partial(httpx.AsyncClient, transport=transport)


async def call_ratio() -> float:
    """Return the CPU time of a warm call over that of a loop by hand, both over one mocked transport."""
    client = mocked_client(10)
    asks = [make("chat", "http://mocked/v1", client) for make in (contenders.rxllm, contenders.by_hand)]
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for ask, spent in zip(asks, times, strict=True):
            await ask()
            start = time.process_time()
            for _ in range(CALLS):
                await ask()
            spent.append(time.process_time() - start)
    own, by_hand = map(min, times)
    return own / by_hand


async def shares(deltas: int, calls: int) -> Counter[str]:
    """Return the share of the time of `calls` warm calls, in percent, by library and by rxllm's rooms.

    Functions written in C count as part of the function that calls them.
    """
    ask = contenders.rxllm("chat", "http://mocked/v1", mocked_client(deltas))
    await ask()
    profile = cProfile.Profile()
    with profile:
        for _ in range(calls):
            await ask()
    times: Counter[str] = Counter()
    entries: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, *_), (_, _, seconds, _, callers) in entries.items():
        if file == "~":
            times.update({owner(caller[0]): spent for caller, (_, _, spent, _) in callers.items()})
        else:
            times[owner(file)] += seconds
    return Counter({name: 100 * seconds / times.total() for name, seconds in times.items()})


def owner(file: str) -> str:
    """Return the library or the room that `file` belongs to."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return f"rxllm/{room_of('.'.join(('rxllm', *path.relative_to(PACKAGE).with_suffix('').parts)))}"
    packages = ("reactivex", "httpx", "httpcore")
    return next((name for name in packages if name in path.parts), "Python and others")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the private imports")
    parser.add_argument("--speed", action="store_true", help="time the import and a warm call")
    parser.add_argument(
        "--profile", action="store_true", help="show where a warm call and a long answer spend their time"
    )
    asked = parser.parse_args()

    house = [read(path) for path in sorted(PACKAGE.rglob("*.py"))]
    every = [each for module in house for each in imports(module, module.tree)]
    rooms: dict[str, Counter[str]] = {}
    for module in house:
        rooms.setdefault(module.room, Counter()).update(lines_by_kind(module) + Counter(files=1))
    rooms["all"] = sum(rooms.values(), Counter())
    print(f"{'room':12}{'files':>7}{'lines':>8}", *(f"{kind:>11}" for kind in KINDS), sep="")
    for room, counts in rooms.items():
        cells = [f"{counts[kind]:11,}" for kind in KINDS]
        print(f"{room:12}{counts['files']:7,}{counts.total() - counts['files']:8,}", *cells, sep="")

    names = {module.name for module in house}
    found = circles(import_graph([each for each in every if not each.is_typing], names))
    print(f"\ncircles: {len(found)}", *(f"  {len(circle)}: {', '.join(circle)}" for circle in found), sep="\n")
    typed = circles(import_graph([each for each in every if each.importer.name != "rxllm"], names))
    print("sizes with the imports of TYPE_CHECKING, without rxllm/__init__.py:", *map(len, typed))
    variables = [name for module in house if module.room != "testing" for name in context_variables(module)]
    print(f"\ncontext variables outside testing: {len(variables)}", *(f"  {name}" for name in variables), sep="\n")
    private = private_imports(every)
    print(f"\nprivate imports from another room: {len(private)}, of {sum(map(len, private.values()))} names")
    for place, imported in private.items() if asked.list else ():
        print(f"  {place}: {', '.join(imported)}")
    files, switches = asyncio.run(way())
    print(f"\na warm chat with one tool: {files} files entered, {switches:,} switches between files")
    if asked.speed:
        print(f"import rxllm over its dependencies: {import_ratio():.2f}")
        print(f"a warm call's CPU over a loop by hand: {asyncio.run(call_ratio()):.2f}")
    for name, deltas, calls in (("a warm call", 10, CALLS), ("a long answer", 20_000, 1)) if asked.profile else ():
        found = asyncio.run(shares(deltas, calls)).most_common(12)
        print(f"\n{name}, % of its time:", *(f"  {share:5.1f}  {owner}" for owner, share in found), sep="\n")


if __name__ == "__main__":
    main()
