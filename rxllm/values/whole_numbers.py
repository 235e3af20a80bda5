"""Turn whole floats into ints where a JSON schema asks for an integer.

To JSON Schema, ``4.0`` is an integer, and some models write integers that way. Functions, dataclasses and models expect
ints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from rxllm.values.schema_checks import MAX_APPLIED, follow_pointer

Schema = Mapping[str, Any]


def with_ints(data: Any, schema: Schema) -> Any:
    """Return `data` with ints in place of the whole floats for which `schema` asks for an integer.

    >>> with_ints({"n": 4.0, "x": 4.0}, {"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}})
    {'n': 4, 'x': 4.0}

    A float stays where `schema` also accepts any number. If there is no whole float, `data` itself is returned.
    """
    return _Converter(schema).convert(data, [schema]) if has_whole_float(data) else data


def has_whole_float(data: Any) -> bool:
    match data:
        case float():
            return data.is_integer()
        case dict():
            return any(map(has_whole_float, cast(dict[str, Any], data).values()))
        case list():
            return any(map(has_whole_float, cast(list[Any], data)))
        case _:
            return False


class _Converter:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[int, list[Schema]] = {}

    def convert(self, data: Any, schemas: Iterable[Any]) -> Any:
        """Convert `data`, to which all `schemas` may apply."""
        distinct = {id(schema): schema for schema in _only_schemas(schemas)}
        groups = [self._options(schema) for schema in distinct.values()]
        if sum(map(len, groups)) > MAX_APPLIED:  # untrusted schemas must not take too long
            return data
        options = [option for group in groups for option in group]
        match data:
            case float() if data.is_integer() and any(_wants_int(group, data) for group in groups):
                return int(data)
            case dict():
                entries = cast(dict[str, Any], data).items()
                return {key: self.convert(entry, _at_key(options, key)) for key, entry in entries}
            case list():
                entries = enumerate(cast(list[Any], data))
                return [self.convert(entry, _at_index(options, index)) for index, entry in entries]
            case _:
                return data

    def _options(self, schema: Schema) -> list[Schema]:
        """Return `schema` and all the schemas that it combines or refers to."""
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = [schema]
            seen = {id(schema)}
            for option in known:
                parts = [part for part in _only_schemas(self._parts(option)) if id(part) not in seen]
                if len(known) <= MAX_APPLIED:
                    seen |= set(map(id, parts))
                    known += parts
        return known

    def _parts(self, schema: Schema) -> list[Any]:
        lists = (schema.get(name) for name in ("anyOf", "oneOf", "allOf"))
        parts = [part for some in lists if isinstance(some, list) for part in cast(list[Any], some)]
        match schema.get("$ref"):
            case str(reference) if reference.startswith("#"):
                return [*parts, follow_pointer(self._root, reference[1:])]
            case _:
                return parts


def _only_schemas(parts: Iterable[Any]) -> list[Schema]:
    return [cast(Schema, part) for part in parts if isinstance(part, Mapping)]


def _wants_int(options: Iterable[Schema], number: float) -> bool:
    types = {name for option in options for name in _types(option.get("type"))}
    constants = [value for option in options for value in (*(option.get("enum") or ()), option.get("const"))]
    is_constant = any(type(value) is int and value == number for value in constants)
    return "number" not in types and ("integer" in types or is_constant)


def _types(types: Any) -> list[Any]:
    return cast(list[Any], types) if isinstance(types, list) else [types]


def _at_key(options: Iterable[Schema], key: str) -> Iterable[Any]:
    for option in options:
        properties = option.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            yield properties[key]
            continue
        patterns = option.get("patternProperties")  # untrusted patterns are not matched
        yield from cast(Schema, patterns).values() if isinstance(patterns, Mapping) else ()
        yield option.get("additionalProperties")


def _at_index(options: Iterable[Schema], index: int) -> Iterable[Any]:
    for option in options:
        items = option.get("items")
        places: Any = option.get("prefixItems", items)
        is_placed = isinstance(places, list) and index < len(cast(list[Any], places))
        yield places[index] if is_placed else items
