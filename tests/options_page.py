"""The tables of options in docs/settings.md: ``python -m tests.options_page`` writes them.

What an option means is written once, under its field in ``rxllm.pipelines.options``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rxllm.pipelines import ChatOptions, GenerateOptions, StepOptions
from rxllm.pipelines.options import meanings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- written by python -m tests.options_page -->\n", "<!-- until here -->\n"

_GROUPS = {
    "Options for every call": GenerateOptions,
    "Options for step and chat": StepOptions,
    "Options for chat only": ChatOptions,
}


def tables() -> str:
    """Three tables, each under a heading; an option is in the first that has it."""
    seen: set[str] = set()
    return "\n".join(_table(heading, options, seen) for heading, options in _GROUPS.items())


def _table(heading: str, options: type[Any], seen: set[str]) -> str:
    rows = [_row(name, text) for name, text in meanings(options).items() if name not in seen]
    seen.update(options.__annotations__)
    return "\n".join([f"### {heading}", "", "| option | meaning | default |", "|---|---|---|", *rows, ""])


def _row(name: str, text: str) -> str:
    meaning, _, default = text.replace("``", "`").partition(" Default: ")
    return f"| `{name}` | {meaning} | {default.removesuffix('.')} |"


def written(page: str) -> str:
    """`page` with the tables in their place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
