"""The table of options in docs/first_steps.md: ``python -m tests.options_page`` writes it.

What an option means is written once, under its field in ``rxllm.pipelines._options``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rxllm import ChatOptions, GenerateOptions, StepOptions
from rxllm.pipelines._option_help import meanings

PAGE = Path(__file__).parent.parent / "docs" / "first_steps.md"
BEGIN, END = "<!-- written by python -m tests.options_page -->\n", "<!-- until here -->\n"

_OF = {"every call": GenerateOptions, "step, chat": StepOptions, "chat": ChatOptions}


def table() -> str:
    return "\n".join(["| of | option | meaning | default |", "|---|---|---|---|", *_rows(), ""])


def _rows() -> Iterator[str]:
    seen: set[str] = set()
    for owner, options in _OF.items():
        for name, text in _new(options, seen):
            meaning, _, default = text.replace("``", "`").partition(" Default: ")
            yield f"| {owner} | `{name}` | {meaning} | {default.removesuffix('.')} |"
            owner = ""


def _new(options: type[Any], seen: set[str]) -> Iterator[tuple[str, str]]:
    texts = meanings(options)
    for name in options.__annotations__:
        if name not in seen:
            seen.add(name)
            yield name, texts[name]


def written(page: str) -> str:
    """`page` with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
