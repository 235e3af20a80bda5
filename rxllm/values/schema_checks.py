"""Functions that check data against a JSON schema, using jsonschema-rs.

Schemas may be untrusted, so the time spent on each check is limited:

====================  ===============================================================================================
part                  treatment
====================  ===============================================================================================
references            Followed only inside the schema. Nothing is fetched.
patterns              Matched by a regex engine with linear run time. A pattern is removed if this engine cannot
                      read it, or if it follows the first `MAX_PATTERNS` patterns. If any pattern is removed,
                      ``not``, ``oneOf`` and other keywords that could then give wrong results are removed too.
``format``            Not checked. Encoded content in strings is not checked either.
``$schema``           An unknown value is treated as draft 2020-12.
a large schema        A schema with more than `MAX_BYTES` bytes or `MAX_SCHEMAS` subschemas is not checked.
nested branches       The deeper the data, the more subschemas may apply to it, directly or through references.
                      Data to which more than `MAX_APPLIED` subschemas may apply is not checked.
large data            If large data is invalid, only one fault is reported, because the library copies the data
                      into each fault.
====================  ===============================================================================================

If a check is skipped or partial, a warning is logged once for each schema.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from rxllm.values.errors import Path, ValidationError
from rxllm.values.json_text import MAX_DEPTH, UNREADABLE, decode_json, is_deeper, json_bytes, json_text

MAX_BYTES = 1_000_000
MAX_SCHEMAS = 10_000
MAX_PATTERNS = 100
MAX_IDS = 100
MAX_APPLIED = 2_000
MAX_COPIED = 5_000_000
"""The maximum number of bytes that may be copied to report all faults. Above this, only one fault is reported."""

log = logging.getLogger("rxllm")

Schema = dict[str, Any]

_SHOWN = 200
_PATTERN_BYTES = 200_000
"""The maximum size of a compiled regular expression, in bytes."""

_NAMES_TO_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
_DATA = ("enum", "const", "examples", "default", "required", "type", "dependentRequired")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_APART = ("$defs", "definitions", *_REFERENCES)
_UNEVALUATED = ("unevaluatedItems", "unevaluatedProperties")
_UNEVALUATED_COST = 4
"""The `_UNEVALUATED` keywords check neighbouring branches again, so each level multiplies the cost by this factor."""
_ONE_LEVEL_DOWN = {
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("items", "prefixItems", "additionalItems", "contains", *_UNEVALUATED),
}
_NEED_ALL_PATTERNS = ("not", "if", "oneOf", "maxContains", *_UNEVALUATED)


def schema_faults(schema: Mapping[str, Any], data: Any) -> list[tuple[Path, str]]:
    """Return a (path, fault) pair for each place where `data` does not match `schema`.

    If jsonschema-rs is not installed, nothing is checked, and a warning is logged once. If `schema` is invalid, the
    exception from jsonschema-rs propagates. NaN does not count as a number.
    """
    try:
        import_module("jsonschema_rs")
    except ImportError:
        _warn_unchecked()
        return []
    checked = _compiled(json_bytes(schema))
    try:
        return checked.faults(data)
    except ValueError:  # raised for bytes, numeric keys or lone surrogates
        try:
            return checked.faults(decode_json(json_bytes(data)))
        except (ValidationError, *UNREADABLE) as error:
            return [((), f"not JSON data: {str(error)[:_SHOWN]}")]


@cache
def _warn_unchecked() -> None:
    unchecked = "answers in json_schema(...) format, arguments to tools defined by a schema, and forms from MCP servers"
    log.warning(
        "jsonschema-rs is not installed, so these are not checked: %s. Try: pip install 'rxllm[schema]'", unchecked
    )


@lru_cache(maxsize=256)
def _compiled(text: bytes) -> _Checked:
    if len(text) > MAX_BYTES:
        return _skip_checks(text, f"the schema is larger than {MAX_BYTES} bytes")
    document = _Document(decode_json(text))
    if len(document.schemas) > MAX_SCHEMAS:
        return _skip_checks(text, f"the schema has more than {MAX_SCHEMAS} subschemas")
    if document.unread:
        why = f"they cannot be read, or they follow the first {MAX_PATTERNS} patterns"
        log.warning("some patterns of a JSON schema are not checked, because %s: %.80r", why, document.unread[0])
    validator = _validator(document.root)
    depth = bisect_right(range(MAX_DEPTH + 1), MAX_APPLIED, key=document.count_applied) - 1
    if depth < 0:
        return _skip_checks(text, "the schema has too many branches")
    if depth < MAX_DEPTH:
        log.warning(
            "a JSON schema has too many branches, so data deeper than %s levels is not checked: %.80s",
            depth,
            text.decode(),
        )
    return _Checked(validator, depth, document.count_applied(depth))


def _skip_checks(text: bytes, why: str) -> _Checked:
    log.warning("data is not checked against this JSON schema, because %s: %.80s", why, text.decode())
    return _Checked(None, -1, 0)


def _validator(schema: Schema) -> Any:
    library = import_module("jsonschema_rs")
    patterns = library.RegexOptions(size_limit=_PATTERN_BYTES)
    unchecked = {"contentEncoding": _Unchecked, "contentMediaType": _Unchecked}
    options = {"pattern_options": patterns, "keywords": unchecked, "validate_formats": False, "offline": True}
    return library.validator_cls_for(schema)(schema, **options)


class _Unchecked:
    """A JSON schema keyword that is not checked, so it accepts every value."""

    def __init__(self, *_: Any) -> None:
        pass

    def validate(self, _: Any) -> None:
        pass


class _Checked(msgspec.Struct, frozen=True):
    """A compiled schema that checks data nested at most `depth` levels deep.

    If `depth` is -1, no data is checked. `applied` is the number of subschemas that may apply to the data.
    """

    validator: Any
    depth: int
    applied: int

    def faults(self, data: Any) -> list[tuple[Path, str]]:
        if self.depth < 0 or (self.depth < MAX_DEPTH and is_deeper(data, self.depth)) or self.validator.is_valid(data):
            return []
        return [(tuple(error.instance_path), _message(error)[:_SHOWN]) for error in self._errors(data)]

    def _errors(self, data: Any) -> Iterable[Any]:
        if _size(data) * self.applied <= MAX_COPIED:
            return self.validator.iter_errors(data)
        try:
            self.validator.validate(data)
        except import_module("jsonschema_rs").ValidationError as error:
            return [error]
        return []


def _size(data: Any) -> int:
    try:
        return len(json_bytes(data))
    except ValidationError:  # a number has too many digits to be written
        return MAX_COPIED + 1


def _message(error: Any) -> str:
    if error.kind.name == "enum":
        return f"{json_text(error.instance)} is not one of {json_text(error.kind.options)}"
    if error.kind.name == "falseSchema":
        return f"{json_text(error.instance)} is not allowed here"
    return error.message


class _Document:
    """A schema and its subschemas. `unread` contains the patterns that were removed."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.schemas = [root]
        self.unread: list[str] = []
        patterns = 0
        for schema in self.schemas:
            if len(self.schemas) > MAX_SCHEMAS:
                return
            patterns = self._remove_unread(schema, patterns)
            self.schemas += (part for keyword, value in schema.items() for part in _parts(keyword, value))
        for schema in self.schemas if self.unread else ():
            for keyword in _NEED_ALL_PATTERNS:
                schema.pop(keyword, None)
        self._bases = [root, *(schema for schema in self.schemas if "$id" in schema or "id" in schema)]
        self._by_anchor: dict[str, list[Schema]] = {}
        for schema in self.schemas:
            for anchor in _anchors(schema):
                self._by_anchor.setdefault(anchor, []).append(schema)

    def _remove_unread(self, schema: Schema, patterns: int) -> int:
        """Remove patterns from `schema`, and return the number of patterns found so far.

        A pattern is removed if it cannot be read, or if `MAX_PATTERNS` patterns have already been found. `patterns` is
        the number of patterns found in earlier schemas.
        """
        names = schema.get("patternProperties")
        names = cast(Schema, names) if isinstance(names, dict) else {}
        own = schema.get("pattern")
        for pattern in [own, *names] if isinstance(own, str) else [*names]:
            patterns += 1
            if patterns <= MAX_PATTERNS and _is_readable(pattern):
                continue
            self.unread.append(pattern)
            if pattern == own:
                del schema["pattern"]
            if pattern in names:
                del names[pattern]
                schema.pop("additionalProperties", None)
        return patterns

    def count_applied(self, levels: int) -> int:
        """Count the subschemas that may apply to data that is `levels` levels deep.

        A result above `MAX_APPLIED` is not exact. It only means that there are too many subschemas.
        """
        try:
            return self._count(self.root, levels, {})
        except RecursionError:
            return MAX_APPLIED + 1

    def _count(self, schema: Any, levels: int, known: dict[tuple[int, int], int]) -> int:
        if levels < 0 or not isinstance(schema, dict):
            return 0
        key = (id(cast(Schema, schema)), levels)
        if key not in known:
            known[key] = MAX_APPLIED + 1  # the count if the schema refers to itself
            if len(known) <= MAX_APPLIED:
                known[key] = self._count_parts(cast(Schema, schema), levels, known)
        return known[key]

    def _count_parts(self, schema: Schema, levels: int, known: dict[tuple[int, int], int]) -> int:
        again = _UNEVALUATED_COST if any(keyword in schema for keyword in _UNEVALUATED) else 1
        total = 1 + _count_required(schema)
        for keyword, value in schema.items():
            if keyword in _REFERENCES:
                targets = (self._count(target, levels, known) for target in self._targets(value))
                total += again * max(targets, default=MAX_APPLIED + 1)
            elif keyword not in _APART:
                is_down = keyword in _ONE_LEVEL_DOWN
                for part in _parts(keyword, value):
                    total += (1 if is_down else again) * self._count(part, levels - is_down, known)
            if total > MAX_APPLIED:
                break
        return total

    def _targets(self, reference: str) -> list[Any]:
        """Return all schemas that `reference` may refer to."""
        fragment = unquote(reference.partition("#")[2])
        if len(self._bases) > MAX_IDS:
            return []
        if not fragment:
            return self._bases
        if fragment.startswith("/"):
            return [found for base in self._bases if (found := follow_pointer(base, fragment)) is not None]
        return self._by_anchor.get(fragment, [])


def _parts(keyword: str, value: Any) -> Iterator[Schema]:
    """Yield the subschemas in `value`, which is the value of `keyword`. Unknown keywords are searched too."""
    if keyword in _DATA:
        return
    items: Any = [value]
    if isinstance(value, list):
        items = cast(list[Any], value)
    elif keyword in _NAMES_TO_SCHEMAS and isinstance(value, dict):
        items = cast(Schema, value).values()
    yield from (item for item in items if isinstance(item, dict))


def follow_pointer(base: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        try:
            base = base[int(name) if isinstance(base, list) else name]
        except (LookupError, ValueError, TypeError):
            return None
    return base


def _anchors(schema: Schema) -> set[str]:
    """Return the anchors of `schema`. A reference such as "#a" refers to the schema whose anchor is "a"."""
    names = (schema.get(keyword) for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"))
    return {name.rpartition("#")[2] for name in names if isinstance(name, str)}


def _count_required(schema: Schema) -> int:
    """Return how many property names `schema` can report as missing."""
    names: list[Any] = [schema.get("required")]
    for keyword in ("dependentRequired", "dependencies"):
        by_name = schema.get(keyword)
        names += cast(Schema, by_name).values() if isinstance(by_name, dict) else []
    return sum(len(cast(list[Any], some)) for some in names if isinstance(some, list))


@lru_cache(maxsize=1_000)
def _is_readable(pattern: str) -> bool:
    try:
        _validator({"pattern": pattern})
    except ValueError:
        return False
    return True
