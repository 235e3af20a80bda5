"""What a request shares with the request before it."""

from __future__ import annotations

from dataclasses import field

from rxllm.values.base import Value, value


@value
class PrefixReport(Value):
    """What changed in a request since the model's last answer, and which thoughts were left out because of changes.

    Both are about the body that was sent. `first_change` is ``"system"``, ``"tools: NAME"`` or ``"message 7"``, counted
    from 0. It is None if the request only adds to the one before it. The provider's cache ends at the first change.

    `left_out` maps the place of each such thought, as in ``"messages.3.content.0"``, to the change that it does not
    survive. ``"thoughts"`` stands for an earlier thought that is missing. Places count the thoughts that were left out.
    """

    first_change: str | None = None
    left_out: dict[str, str] = field(default_factory=dict[str, str])
