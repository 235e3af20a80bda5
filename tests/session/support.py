"""Tools of sessions: one that waits for an approval, and one that asks the user."""

from __future__ import annotations

from typing import Any

from rxllm import ask_user, tool

RUNS: list[str] = []


@tool(approval=True)
def pay(amount: int = 1) -> str:
    RUNS.append(f"pay {amount}")
    return f"paid {amount}"


@tool
def ask() -> Any:
    return ask_user("Which one?", choices=[1, 2])
