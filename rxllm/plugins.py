"""What other packages add: entry points ``rxllm.adapters`` and ``rxllm.operators``.

An adapter's entry point names a function of the model's name that gives an adapter, and is called by its provider name;
an operator's names the operator. Nothing is imported before it is asked for, and one that fails does not hurt the
others.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Literal

from rxllm.values import EngineError

Group = Literal["rxllm.adapters", "rxllm.operators"]


def names(group: Group) -> list[str]:
    """The names that installed packages have put into `group`, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: Group, name: str) -> Any:
    """What `name` stands for. Raises ``KeyError`` if there is none, ``EngineError("missing_dependency")`` if it
    fails.
    """
    for point in entry_points(group=group, name=name):
        try:
            return point.load()
        except Exception as error:
            message = f"the plugin {name!r} ({point.value}) of {group} does not load: {type(error).__name__}: {error}"
            raise EngineError("missing_dependency", message) from error
    raise KeyError(name)
