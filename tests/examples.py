"""How many examples a property is tried with: RXLLM_EXAMPLES, where one says a number of its own its share of that.

Without it there are 40 where judges are required, as CI does, and 10 otherwise.
"""

from __future__ import annotations

import os

WANTED = os.environ.get("RXLLM_EXAMPLES")
USUAL = int(WANTED or (40 if os.environ.get("RXLLM_JUDGES") == "required" else 10))


def examples(of_a_hundred: int) -> int:
    """Return the number for a property that would have `of_a_hundred` where others have a hundred."""
    return max(5, of_a_hundred * USUAL // 100)


def share(number: int) -> int:
    """Return `number` if RXLLM_EXAMPLES asks for a number of examples, and a fifth of it otherwise."""
    return number if WANTED else max(1, number // 5)
