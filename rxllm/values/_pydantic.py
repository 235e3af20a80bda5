"""Use pydantic where the user's own types bring it; nothing here imports it before."""

from __future__ import annotations

import dataclasses
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any, cast, get_args, get_origin, get_type_hints, is_typeddict


def is_pydantic(cls: Any) -> bool:
    """Whether `cls` is a model or a dataclass of pydantic's, or an alias of a generic one."""
    return hasattr(get_origin(cls) or cls, "__pydantic_validator__")


def brings_pydantic(hint: Any) -> bool:
    """Whether `hint` needs pydantic somewhere: a model, one of its types, or ``Annotated`` with a ``Field``."""
    return "pydantic" in sys.modules and _brings(hint, set())


def _brings(hint: Any, seen: set[int]) -> bool:
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    if is_pydantic(hint) or hasattr(hint, "__get_pydantic_core_schema__") or _is_of_pydantic(hint):
        return True
    parts = (*get_args(hint), *getattr(hint, "__metadata__", ()), *_field_hints(get_origin(hint) or hint))
    return any(_brings(part, seen) for part in parts)


def _is_of_pydantic(part: Any) -> bool:
    """Whether pydantic has made `part`: a class such as ``EmailStr``, or what stands in an ``Annotated``."""
    module = part.__module__ if isinstance(part, type) else type(part).__module__
    return module.partition(".")[0] in ("pydantic", "annotated_types")


def _field_hints(cls: Any) -> tuple[Any, ...]:
    """Return the hints of the fields of a dataclass, a ``TypedDict`` or a named tuple."""
    has_fields = dataclasses.is_dataclass(cls) or is_typeddict(cls) or hasattr(cls, "_fields")
    if not (isinstance(cls, type) and has_fields):
        return ()
    try:
        return tuple(get_type_hints(cast(Any, cls), include_extras=True).values())
    except NameError:  # whoever reads the class says so
        return ()


def is_field(value: Any) -> bool:
    """Whether `value` is what ``pydantic.Field(...)`` returns."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


@lru_cache(maxsize=256)
def class_adapter(cls: type[Any]) -> Any:
    """Return pydantic's ``TypeAdapter`` of a class, the same each time."""
    return type_adapter(cls)


def type_adapter(hint: Any) -> Any:
    """Return pydantic's ``TypeAdapter`` of `hint`."""
    return import_module("pydantic").TypeAdapter(hint)
