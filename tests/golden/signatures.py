"""Every public name of rxllm with its kind and signature, wherever its file is."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, is_typeddict

import rxllm

WITHOUT_ALL = ("rxllm.engine", "rxllm.plugins", "rxllm.serializer")
"""Rooms that are one file without an `__all__`: what they define is public."""

PROTOCOLS = {"__aenter__", "__aiter__", "__await__", "__call__", "__enter__", "__getitem__", "__iter__", "__len__"}
MODULE = re.compile(r"\b(?:rxllm|typing|collections\.abc|msgspec|reactivex)(?:\.\w+)*\.(?=\w)")
ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Text(str):
    """An annotation or a default that shows as what it says."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def public_modules() -> list[ModuleType]:
    """Return the modules whose names are listed: those with an `__all__` and no underscore in their path."""
    names = ["rxllm", *(found.name for found in pkgutil.walk_packages(rxllm.__path__, "rxllm."))]
    modules = [import_module(name) for name in names if "._" not in name]
    return [module for module in modules if hasattr(module, "__all__") or module.__name__ in WITHOUT_ALL]


def public_names(module: ModuleType) -> list[str]:
    if module.__name__ not in WITHOUT_ALL:
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def page() -> str:
    """Return the list of all names; one that an earlier module has too is only mentioned."""
    known: dict[int, str] = {}
    lines: list[str] = []
    for module in public_modules():
        lines += [f"\n{module.__name__}\n"]
        for name in public_names(module):
            value = getattr(module, name)
            if (module.__name__, name) == ("rxllm.display", "last"):  # what the cell before has shown
                value = None
            is_definition = inspect.isclass(value) or inspect.isroutine(value)
            if is_definition and id(value) in known:
                lines.append(f"  {name}: as in {known[id(value)]}")
                continue
            known[id(value)] = module.__name__
            lines += [f"  {line}" for line in described(name, value)]
    return "\n".join(lines).lstrip() + "\n"


def described(name: str, value: Any) -> Iterator[str]:
    """Yield the lines of a name."""
    if inspect.ismodule(value):
        yield f"module {name}"
    elif inspect.isclass(value):
        yield from _class(name, value)
    elif isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        yield f"property {name} -> {annotation_text(getattr(getter, '__annotations__', {}).get('return'))}"
    elif isinstance(value, staticmethod | classmethod):
        yield f"{type(value).__name__} {name}{signature_of(value.__func__)}"
    elif inspect.isroutine(value):
        kind = "async def" if inspect.iscoroutinefunction(value) else "def"
        yield f"{kind} {name}{signature_of(value)}"
    elif type(value).__module__ in ("typing", "types"):
        yield f"{name} = {annotation_text(value)}"
    elif isinstance(value, str | int | float | tuple | list | frozenset | None):
        yield f"{name} = {default_text(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _class(name: str, cls: Any) -> Iterator[str]:
    if is_typeddict(cls):
        yield f"class {name}(TypedDict), required: {sorted(cls.__required_keys__)}"
        for key, annotation in sorted(cls.__annotations__.items()):
            yield f"  {key}: {annotation_text(getattr(annotation, '__forward_arg__', annotation))}"
        return
    if issubclass(cls, Enum):
        yield f"class {name}(Enum): {', '.join(cls.__members__)}"
        return
    bases = {base.__name__: base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] != "rxllm"}
    named = [base for base in bases if base not in ("object", "ABC", "Generic") and not base.endswith("Mixin")]
    yield f"class {name}{signature_of(cls)}" + (f" is {', '.join(named)}" if named else "")
    for member, value in sorted(members(cls).items()):
        yield from (f"  {line}" for line in described(member, value))


def members(cls: type) -> dict[str, Any]:
    """Return the public members that rxllm defines in a class or its bases, without the fields of a dataclass."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "rxllm":
            found |= {name: value for name, value in vars(base).items() if name in PROTOCOLS or name[0] != "_"}
    fields = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "__struct_fields__", ())}
    return {name: value for name, value in found.items() if name not in fields}


def signature_of(function: Any) -> str:
    """Return the signature with annotations as they are written."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(?)"
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(
            annotation=empty if parameter.annotation is empty else Text(annotation_text(parameter.annotation)),
            default=empty if parameter.default is empty else Text(default_text(parameter.default)),
        )
        for parameter in signature.parameters.values()
    ]
    returned = signature.return_annotation
    returned = returned if returned is inspect.Signature.empty else Text(annotation_text(returned))
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def annotation_text(annotation: Any) -> str:
    """Return an annotation without the modules of its names."""
    return MODULE.sub("", annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def default_text(value: Any) -> str:
    """Return a value without the modules of its names, and without its address."""
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if inspect.isroutine(value) or inspect.isclass(value):
        return str(value.__name__)
    return ADDRESS.sub("", MODULE.sub("", repr(value)))


WRITERS = {"signatures.txt": page}
