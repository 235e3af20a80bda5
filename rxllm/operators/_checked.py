"""What the operators' options must be. Not an operator."""

from __future__ import annotations

import math
from typing import Any

from rxllm.values import ValidationError


def refused(name: str, why: str) -> ValidationError:
    """The error for an option that makes no sense."""
    return ValidationError("invalid_option", errors=[((name,), why)])


def seconds(name: str, held: Any) -> float:
    """`held`, a number of seconds from 0 on. Raises ``ValidationError("invalid_option")``."""
    if isinstance(held, bool) or not isinstance(held, int | float) or not 0 <= held < math.inf:
        raise refused(name, f"must be a number of seconds, 0 or more, not {held!r}")
    return float(held)


def function(name: str, held: Any) -> None:
    """Raises ``ValidationError("invalid_option")`` unless `held` can be called."""
    if not callable(held):
        raise refused(name, f"must be a function, not {held!r}")
