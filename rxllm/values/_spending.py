"""What a budget has spent."""

from __future__ import annotations

from rxllm.values._encode import Value, value


@value
class Spending(Value):
    """What the calls that share a `Budget` have used.

    `tokens` are those of the `calls` that have ended; `estimated` of them nobody has stated, since the call failed, was
    left early, or has a provider that states no usage. `usd` is the sum of the costs that are known, None as long as
    none is; `unpriced` calls are not in it. `reserved` and `reserved_usd` are kept back for calls that still run.
    """

    tokens: int = 0
    usd: float | None = None
    calls: int = 0
    estimated: int = 0
    unpriced: int = 0
    reserved: int = 0
    reserved_usd: float = 0.0
