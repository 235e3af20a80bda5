"""Use pydantic where the user's own types bring it; nothing here imports it before."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, wraps
from importlib import import_module
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")


def is_pydantic(cls: Any) -> bool:
    """Whether `cls` is a model or a dataclass of pydantic's, or an alias of a generic one."""
    return hasattr(get_origin(cls) or cls, "__pydantic_validator__")


def brings_pydantic(hint: Any) -> bool:
    """Whether `hint` needs pydantic somewhere: a model, one of its types, or ``Annotated`` with a ``Field``."""
    return "pydantic" in sys.modules and any(map(_is_of_pydantic, parts_of(hint)))


def parts_of(hint: Any) -> Iterator[Any]:
    """Yield `hint`, the types and annotations in it, and those of the fields of its classes."""
    return _parts(hint, set())


def _parts(hint: Any, seen: set[int]) -> Iterator[Any]:
    yield hint
    cls: Any = get_origin(hint) or hint
    children = list(get_args(hint))
    if _has_fields(cls) and id(cls) not in seen:
        seen.add(id(cls))
        with suppress(Exception):  # a name that cannot be resolved is reported with the schema
            children += get_type_hints(cls, include_extras=True).values()
    for child in children:
        yield from _parts(child, seen)


def _has_fields(cls: Any) -> bool:
    has_fields = dataclasses.is_dataclass(cls) or is_typeddict(cls) or hasattr(cls, "_fields")
    return isinstance(cls, type) and has_fields


def _is_of_pydantic(part: Any) -> bool:
    """Whether `part` is a model, or one of pydantic's own types and annotations, such as ``EmailStr`` and ``Field``."""
    module = part.__module__ if isinstance(part, type) else type(part).__module__
    is_own = module.partition(".")[0] in ("pydantic", "annotated_types")
    return is_own or is_pydantic(part) or hasattr(part, "__get_pydantic_core_schema__")


def is_field(value: Any) -> bool:
    """Whether `value` is what ``pydantic.Field(...)`` returns."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


def type_adapter(hint: Any) -> Any:
    """Return pydantic's ``TypeAdapter`` of `hint`."""
    return import_module("pydantic").TypeAdapter(hint)


def cached_by_type(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return `function`, which keeps its results, except of types with an annotation that has no hash."""
    cached = lru_cache(maxsize=256)(function)

    @wraps(function)
    def call(hint: Any) -> T:
        try:
            hash(hint)
        except TypeError:
            return function(hint)
        return cached(hint)

    return call


cached_adapter = cached_by_type(type_adapter)
