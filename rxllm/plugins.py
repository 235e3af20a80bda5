"""Adapters and operators from other packages.

::

    [project.entry-points."rxllm.adapters"]
    acme = "rxllm_acme:connect"        # connect(model, **options) -> an adapter; used as "acme:large"

    [project.entry-points."rxllm.operators"]
    shout = "rxllm_acme:shout"         # used as ops.plugins.shout()

A plugin is imported when it is first used. If the import fails, the error names the plugin's package, and other plugins
still work. If an adapter plugin has the name of one of rxllm's own providers, rxllm's provider is used, and a warning
is logged once. If two packages register the same name, using that name raises an error. Installing another package can
therefore never change the meaning of a name.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from inspect import isasyncgenfunction
from types import MappingProxyType
from typing import Any, Literal

from rxllm.values import EngineError, LLMError
from rxllm.values.argument_checks import call_fault

Group = Literal["rxllm.adapters", "rxllm.operators"]

log = logging.getLogger("rxllm")

_logged: set[str] = set()


def names(group: Group) -> list[str]:
    """Return the names that packages register in `group`, sorted."""
    return sorted(_points_by_name(group))


def load(group: Group, name: str) -> Any:
    """Return the function that the plugin `name` registers.

    Raises ``KeyError`` if the name is unknown. Raises ``EngineError("missing_dependency")`` if the plugin cannot be
    loaded. Raises ``EngineError("invalid_engine")`` if several packages register the name.
    """
    point = _point(group, name)
    try:
        loaded = point.load()
        if not callable(loaded):
            raise TypeError(f"{point.value} is not a function")
    except (Exception, SystemExit) as error:
        raise _failure(point, "cannot be loaded", error) from error
    return loaded


def connect(provider: str, model: str, options: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the adapter for `model` from the plugin named `provider`.

    The plugin's function is called with `model` and the `options` that ``Engine("acme:large", ...)`` does not know
    itself. Without `options`, the adapter is created once and then reused. Raises the same errors as `load`, and any
    ``LLMError`` from the plugin. Raises ``EngineError("unknown_option")`` if the plugin does not accept the options.
    Raises ``EngineError("missing_dependency")`` if an import fails. Raises ``EngineError("invalid_engine")`` if the
    plugin does not return an adapter.
    """
    make = load("rxllm.adapters", provider)
    point = _point("rxllm.adapters", provider)
    fault = call_fault(make, model)
    if fault is not None:  # usually because the plugin is a class
        remedy = (
            "Its package must register a function that takes the model's name, such as connect(model, **options); "
            "until it does, write Engine(adapter, model=...)"
        )
        raise _failure(point, "cannot be called with the model's name", fault, "invalid_engine", remedy) from fault
    if options and (refusal := call_fault(make, model, **options)) is not None:
        fault = f"{_describe(point)} does not accept the options {', '.join(sorted(options))}: {refusal}"
        remedy = "to accept them, its package must define connect(model, **options), and pass them to its adapter"
        raise EngineError("unknown_option", f"{fault}; {remedy}", provider=provider)
    try:
        adapter = make(model, **options) if options else _make_once(make, model)
        if isinstance(adapter, type) or not (isasyncgenfunction(adapter) or callable(getattr(adapter, "stream", None))):
            raise TypeError(f"{adapter!r} is not an adapter")
        return adapter
    except LLMError:
        raise
    except Exception as error:
        reason = "missing_dependency" if isinstance(error, ImportError) else "invalid_engine"
        raise _failure(point, "does not return an adapter", error, reason) from error


@lru_cache
def _make_once(make: Callable[[str], Any], model: str) -> Any:
    return make(model)


def about(group: Group, name: str) -> str:
    """Return a description of the plugin `name`.

    Raises ``KeyError`` if the name is unknown.
    """
    return _describe(_points_by_name(group)[name][0])


def listed(group: Group) -> list[str]:
    """Return each name in `group` with the package that registers it, such as ``"shout (loud 1.0)"``."""
    return [f"{name} ({_join(map(_package, points))})" for name, points in sorted(_points_by_name(group).items())]


def tell_taken(group: Group, taken: Iterable[str]) -> None:
    """Log a warning for each plugin whose name is in `taken`."""
    points = _points_by_name(group)
    for name in sorted({*points} & {*taken}):
        for point in points[name]:
            _warn_once(
                f"{_describe(point)} is ignored, because rxllm itself uses that name; "
                "to use the plugin, import it from its own module"
            )


def _point(group: Group, name: str) -> EntryPoint:
    points = _points_by_name(group)[name]
    if len(points) > 1:
        users = _join(f"{_package(point)} ({point.value})" for point in points)
        remedy = "Uninstall one of the packages, or import the plugin that you want from its module"
        raise EngineError("invalid_engine", f"the name {name!r} in {group} is used by {users}. {remedy}")
    return points[0]


def _points_by_name(group: Group) -> dict[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in sorted(_points(group), key=lambda point: _package(point).lower()):
        points[point.name].append(point)
    return dict(points)


def _join(parts: Iterable[str]) -> str:
    return " and ".join(parts)


def _points(group: Group) -> Iterable[EntryPoint]:
    try:
        return entry_points(group=group)
    except Exception:  # a single unreadable package makes the call fail
        return [point for point in _readable_packages() if point.group == group]


def _readable_packages() -> Iterable[EntryPoint]:
    seen: set[str] = set()
    for package in distributions():
        name = _identity(package)[0]
        if name in seen:  # Python imports only the first copy of a package
            continue
        seen |= {name} - {""}
        try:
            yield from package.entry_points
        except Exception as error:
            _warn_once(f"the entry points in {getattr(package, '_path', name)} are unreadable: {error!r}")


def _identity(package: Distribution | None) -> tuple[str, str]:
    try:
        return (package.name or "", package.version or "") if package else ("", "")
    except Exception:  # the package's folder has no metadata
        return ("", "")


def _package(point: EntryPoint) -> str:
    return " ".join(_identity(point.dist)).strip() or "an unknown package"


def _describe(point: EntryPoint) -> str:
    return f"the {point.group} plugin {point.name!r} ({point.value}) from {_package(point)}"


def _failure(
    point: EntryPoint, what: str, error: BaseException, reason: str = "missing_dependency", remedy: str = ""
) -> EngineError:
    name, version = _identity(point.dist)
    again = f'Try "pip install --upgrade {name}" or "pip uninstall {name}"' if name else "Reinstall or remove it"
    message = f"{_describe(point)} {what}: {type(error).__name__}: {error}. {remedy or again}"
    return EngineError(reason, message, metadata={"distribution": name, "version": version})


def _warn_once(message: str) -> None:
    if message not in _logged:
        _logged.add(message)
        log.warning("%s", message)
