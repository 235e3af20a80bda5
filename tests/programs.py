"""Programs that tests start, none of which may run for ever."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

SECONDS = 100.0
"""Less than a test may take, so that the test ends with what is known of the program."""


def python(*arguments: str, timeout: float = SECONDS, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python arguments`` to its end. It is killed when it takes longer than `timeout`, or the test is over."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def python_without(modules: list[str], code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` as where `modules` are not installed."""
    return python("-c", f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{code}", **options)
