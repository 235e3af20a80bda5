"""``providers``: a table of the providers, their keys and their addresses. It never shows a key."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import rxllm
from rxllm import Engine, LLMError, keys
from rxllm.cli._screen import plain


def run(options: Namespace) -> int:
    """Print the table."""
    rows = [("provider", "key", "is", "default address"), *map(_row, rxllm.adapters.providers())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    try:
        adapter: Any = Engine.from_model(name if name == "local" else f"{name}:model").adapter
    except LLMError as error:  # a plugin that does not load
        return name, "-", "-", plain(error.message)[:100]
    provider, needs_key = getattr(adapter, "provider", name), getattr(adapter, "needs_key", False)
    variable = getattr(adapter, "key_variable", None)
    state = "set" if keys.find(provider, None, None, variable) else "missing" if needs_key else "not needed"
    variable = variable or (keys.variable_for(provider) if needs_key else "-")
    return name, variable, state, getattr(adapter, "default_base_url", "-")
