"""Where JSON data does not fit a type, by msgspec's and pydantic's errors alike."""

from __future__ import annotations

import re
from typing import Any

from rxllm.values.errors import Path, place


def described(faults: list[tuple[Path, str]]) -> str:
    """Return the `faults` on one line."""
    return "; ".join(f"{place(path)}: {fault}" if path else fault for path, fault in faults)


def faults_of(error: Any) -> list[tuple[Path, str]]:
    """Return the places and faults that an error of msgspec or pydantic names."""
    if callable(getattr(error, "errors", None)):  # pydantic's; a validator may raise any other error
        entries = error.errors(include_url=False, include_context=False)
        return [(tuple(entry["loc"]), entry["msg"]) for entry in entries]
    fault, _, place = str(error).partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", place)
    return [(tuple(int(key) if key.isdigit() else key for key in keys), fault)]
