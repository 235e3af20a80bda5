"""What other packages add: entry points ``rxllm.adapters`` and ``rxllm.operators``.

::

    [project.entry-points."rxllm.adapters"]
    acme = "rxllm_acme:connect"        # connect(model) -> an adapter; used as "acme:large"

    [project.entry-points."rxllm.operators"]
    shout = "rxllm_acme:shout"         # used as ops.plugins.shout()

Nothing is imported before it is asked for. A package that fails hurts no other one, and the error names it. A name that
rxllm has itself is rxllm's; of one that two packages give, the first package in the alphabet has it. Either is logged
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from inspect import isasyncgenfunction
from typing import Any, Literal

from rxllm.values import EngineError, LLMError
from rxllm.values.arguments import call_fault

Group = Literal["rxllm.adapters", "rxllm.operators"]

log = logging.getLogger("rxllm")

_told: set[str] = set()


def names(group: Group) -> list[str]:
    """The names that installed packages have put into `group`, sorted."""
    return sorted(_found(group))


def load(group: Group, name: str) -> Any:
    """What `name` stands for. Raises ``KeyError`` if there is none, ``EngineError("missing_dependency")`` if it does
    not load or is no function.
    """
    point = _found(group)[name]
    try:
        loaded = point.load()
        if not callable(loaded):
            raise TypeError(f"{point.value} is no function")
    except (Exception, SystemExit) as error:
        raise _failed(point, "does not load", error) from error
    return loaded


def connect(provider: str, model: str) -> Any:
    """The adapter that the plugin `provider` makes for `model`, once. Raises what `load` raises, and the plugin's own
    ``LLMError``; any other failure, and what is no adapter, is an ``EngineError("invalid_engine")``.
    """
    make = load("rxllm.adapters", provider)
    point = _found("rxllm.adapters")[provider]
    fault = call_fault(make, model)
    if fault is not None:  # a class, mostly; no other version of the package need be better
        remedy = (
            "Its package has to name a function def connect(model): ...; until then write Engine(adapter, model=...)"
        )
        raise _failed(point, "is called with the model's name", fault, "invalid_engine", remedy) from fault
    try:
        made = _made(make, model)
        if isinstance(made, type) or not (isasyncgenfunction(made) or callable(getattr(made, "stream", None))):
            raise TypeError(f"{made!r} is no adapter")
        return made
    except LLMError:
        raise
    except Exception as error:
        reason = "missing_dependency" if isinstance(error, ImportError) else "invalid_engine"
        raise _failed(point, "gives no adapter", error, reason) from error


@lru_cache
def _made(make: Callable[[str], Any], model: str) -> Any:
    return make(model)


def about(group: Group, name: str) -> str:
    """Which plugin `name` is, and whose. Raises ``KeyError`` if there is none."""
    return _named(_found(group)[name])


def tell_taken(group: Group, taken: Iterable[str]) -> None:
    """Log the plugins that are not used because their names are `taken`."""
    found = _found(group)
    for name in sorted({*found} & {*taken}):
        _tell(f"{_named(found[name])} is not used: rxllm has that name itself. Import what it names instead")


def _found(group: Group) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in sorted(_points(group), key=lambda point: _package(point).lower()):
        first = found.setdefault(point.name, point)
        if first is not point:
            _tell(f"{_named(point)} is not used: {_package(first)} has one of that name")
    return found


def _points(group: Group) -> Iterable[EntryPoint]:
    try:
        return entry_points(group=group)
    except Exception:  # somebody's metadata is unreadable, and importlib reads that of all at once
        return [point for point in _readable() if point.group == group]


def _readable() -> Iterable[EntryPoint]:
    seen: set[str] = set()
    for each in distributions():
        name = _identity(each)[0]
        if name in seen:  # of a package that is there twice the first one counts, as for import
            continue
        seen |= {name} - {""}
        try:
            yield from each.entry_points
        except Exception as error:
            _tell(f"the entry points in {getattr(each, '_path', name)} are unreadable: {error!r}")


def _identity(package: Distribution | None) -> tuple[str, str]:
    try:
        return (package.name or "", package.version or "") if package else ("", "")
    except Exception:  # a folder without metadata
        return ("", "")


def _package(point: EntryPoint) -> str:
    return " ".join(_identity(point.dist)).strip() or "an unknown package"


def _named(point: EntryPoint) -> str:
    return f"the plugin {point.name!r} ({point.value}) in {point.group} of {_package(point)}"


def _failed(
    point: EntryPoint, what: str, error: BaseException, reason: str = "missing_dependency", remedy: str = ""
) -> EngineError:
    name, version = _identity(point.dist)
    again = f"Try: pip install --upgrade {name}; or: pip uninstall {name}" if name else "Reinstall or remove it"
    message = f"{_named(point)} {what}: {type(error).__name__}: {error}. {remedy or again}"
    return EngineError(reason, message, metadata={"distribution": name, "version": version})


def _tell(message: str) -> None:
    if message not in _told:
        _told.add(message)
        log.warning("%s", message)
