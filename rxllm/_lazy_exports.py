"""Import a package's names when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, files: Mapping[str, str], refused: Callable[[str], AttributeError] | None = None
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` function for `package`.

    `files` maps each file to the names that it exports, separated by spaces. A file in another package must be given by
    its full module name. `refused` creates the error for an unknown name.
    """
    places = {name: file for file, names in files.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in places:
            raise refused(name) if refused else _no_attribute(package, name, namespace["__all__"])
        file = places[name]
        module = import_module(file if file.startswith("rxllm.") else f"{package}.{file}")
        value = namespace[name] = getattr(module, name)
        return value

    return load


def _no_attribute(package: str, name: str, names: list[str]) -> AttributeError:
    from rxllm.values.advice import no_attribute  # needed only for errors

    return no_attribute(f"module {package!r}", name, names)
