"""The tables in docs/operators.md, by intention, and the pictures: ``python -m tests.operators_page`` writes them.

The groups are those of the docstring of `rxllm.operators`; what an operator does is the first sentence of its own. The
pictures are those of `tests.pictures`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rxllm
from rxllm import operators as ops
from tests import pictures

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
BEGIN, END = "<!-- written by python -m tests.operators_page -->\n", "<!-- until here -->\n"

FUNCTIONS = ["rxllm.race", "rxllm.hedge", "rxllm.merge_labelled"]
"""Functions of streams, which stand beside the operators."""

READING = """### In pictures

Each picture is drawn from a real run in virtual time. The rows above a box are the operator's source, and the rows
below are its output. Each row is a subscription, so a retry is a second row, which starts where the first one ends. A
row ends where the stream completes or fails. If the stream is disposed, the row ends with two slashes. Equal content
has the same colour in all rows. Small grey marks are events that only begin or complete something. A row labelled `fn`
shows the arguments passed to the operator's function. `rxllm.display.marble_diagram(source, ops.words(), ...)` draws
the same picture for your own streams.
"""


def groups() -> dict[str, list[str]]:
    """Intention to names."""
    rows = re.findall(r"^(\w[\w ]*?)  +(\w+(?:, \w+)*)$", ops.__doc__ or "", re.MULTILINE)
    return {intention: names.split(", ") for intention, names in rows}


def signature(name: str) -> str:
    """The call, with what may be left out by its name alone: ``time_limits(first=, idle=, total=)``."""
    shown = (_parameter(each) for each in inspect.signature(_function(name)).parameters.values())
    return f"{name}({', '.join(shown)})"


def _function(name: str) -> Callable[..., Any]:
    return getattr(rxllm if name in FUNCTIONS else ops, name.removeprefix("rxllm."))


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    by_name = parameter.default is not parameter.empty and parameter.kind is not parameter.POSITIONAL_ONLY
    return f"{parameter.name}=" if by_name else parameter.name


def sentence(name: str) -> str:
    """The first of its docstring, in Markdown."""
    paragraph = " ".join((_function(name).__doc__ or "").partition("\n\n")[0].split())
    first = re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
    return first.replace("``", "`").replace("|", "\\|")


def tables() -> str:
    operators = (_table("operator", intention, names) for intention, names in groups().items())
    return "\n".join([*operators, _table("function", "functions of streams", FUNCTIONS)])


def gallery() -> str:
    """Each picture under the name of its operator, in the groups of the tables."""
    parts = [READING]
    functions = [name.removeprefix("rxllm.") for name in FUNCTIONS]
    for intention, names in [*groups().items(), ("functions of streams", functions)]:
        drawn = [name for name in names if name in pictures.SCENARIOS and f"#### {name}\n" not in "".join(parts)]
        parts.append(f"### Pictures: {intention}\n")
        parts += [f"#### {name}\n\n![Marbles of {name}](marbles/{name}.svg)\n" for name in drawn]
    return "\n".join(parts)


def _table(kind: str, intention: str, names: list[str]) -> str:
    rows = (f"| [`{signature(name)}`](#{name.removeprefix('rxllm.')}) | {sentence(name)} |" for name in names)
    return "\n".join([f"### {intention.capitalize()}", "", f"| {kind} | what it does |", "|---|---|", *rows, ""])


def written(page: str) -> str:
    """`page` with the tables in their place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{gallery()}\n{END}{after}"


if __name__ == "__main__":
    pictures.write()
    PAGE.write_text(written(PAGE.read_text()))
