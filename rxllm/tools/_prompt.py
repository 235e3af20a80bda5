"""The arguments of an agent without a schema of its own, checked without jsonschema-rs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rxllm.values.argument_checks import must_be
from rxllm.values.errors import Path

PROMPT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "The task, with all that is needed to do it."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


def prompt_faults(arguments: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield where the arguments of a call do not fit `PROMPT`."""
    if "prompt" not in arguments:
        yield ("prompt",), "is missing; pass the task as text"
    elif not isinstance(arguments["prompt"], str):
        yield ("prompt",), must_be("text", arguments["prompt"])
    yield from (((name,), "is not an argument; the only one is prompt") for name in arguments if name != "prompt")
