"""Programs that tests start, none of which may run for ever, and examples that they import."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"

SECONDS = 100.0
"""Less than a test may take, so that the test ends with what is known of the program."""


def python(*arguments: str, timeout: float = SECONDS, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python arguments`` to its end. It is killed when it takes longer than `timeout`, or the test is over."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def python_without(modules: list[str], code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` as where `modules` are not installed."""
    return python("-c", f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{code}", **options)


def example(name: str) -> ModuleType:
    """Import ``examples/name.py`` anew, without running it as a program. Its folder is where it imports from."""
    path = EXAMPLES / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
