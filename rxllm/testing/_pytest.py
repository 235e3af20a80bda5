"""pytest where it is installed; otherwise a stand-in with which the suites can be imported, listed and read about."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest
else:
    try:
        import pytest
    except ModuleNotFoundError:

        class _Missing:
            """Marks tests without any effect; everything else raises."""

            def __init__(self) -> None:
                self.mark = SimpleNamespace(parametrize=_unmarked)

            def __getattr__(self, name: str) -> Any:
                message = f"the suites of rxllm.testing need pytest ({name}): pip install pytest"
                raise ModuleNotFoundError(message, name="pytest")

        def _unmarked(*parameters: Any) -> Callable[[Any], Any]:
            return lambda test: test

        pytest = _Missing()

__all__ = ["pytest"]
