"""Faults: pairs of a path and a code for what is wrong there, how to find them, and how to say them in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast, get_args, get_type_hints

from rxllm.values.argument_checks import must_be
from rxllm.values.codec import hint_text
from rxllm.values.errors import Path

Fault = tuple[Path, str]

_EXPECTED = {
    "temperature out_of_range": "a number from 0 to 2",
    "top_p out_of_range": "a number above 0, up to 1",
    "must_be_positive": "a whole number of at least 1",
    "too_large": "a whole number of at most 63 bits",
    "response_format invalid_shape": "'text', {'type': 'json_object'} or json_schema(...)",
    "size invalid_shape": "a pair of a width and a height, or a word of the provider",
    "invalid_type": "text, a tuple of parts or, in a tool result, a dict",
    "invalid_part_type": "a part, such as TextPart(...)",
    "invalid_format": "1 to 64 letters, digits, _ or -",
    "not_a_string": "a string",
    "not_a_map": "a mapping",
    "invalid_image": "an Image, made by Image.from_file or another of its constructors",
}
"""What a value with this fault must be; some codes mean something else in each field."""

_STATEMENTS = {
    "empty": "must not be empty",
    "duplicate_name": "must not hold two tools of the same name",
    "reserved_tool_name": "must not be auto, none or required, which tool_choice reserves",
    "requires_json_schema": "requires response_format=json_schema(...)",
    "required": "must be the id of the tool call that the message answers",
    "result_without_call": "must be the id of a tool call in an earlier message; keep the assistant's message with the "
    "call, or leave its results out too, as rxllm.trim_thread does",
    "required_for_status": "must be set while the session has this status",
    "error_required_for_status": "must hold an 'error' while the session has this status",
    "required_for_operation": "must be set for this operation",
    "not_allowed_for_operation": "must not be set for this operation",
    "must_be_empty": "must be empty to generate an image",
    "invalid_count": "must hold at least one image to edit, and exactly one for a variation",
}
"""What to say of the faults whose value is missing, or says nothing."""


def each_of(name: str, items: Any, faults_of: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    """Yield the faults of all `items` of the field `name`, which must be a tuple."""
    if not isinstance(items, tuple):
        yield (name,), "wrong_type"
        return
    for i, item in enumerate(cast(tuple[Any, ...], items)):
        yield from (((name, i, *path), fault) for path, fault in faults_of(item))


def number_faults(name: str, value: Any, is_allowed: Callable[[float], bool], fault: str) -> Iterator[Fault]:
    """Yield `fault` for a number that is not allowed; None is always allowed."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield (name,), "wrong_type"
    elif value != value or not is_allowed(value):  # NaN; math.isnan raises for large whole numbers
        yield (name,), fault


def whole_faults(name: str, value: Any, is_allowed: Callable[[float], bool], fault: str) -> Iterator[Fault]:
    """Yield `fault` for a whole number that is not allowed; None is always allowed."""
    if isinstance(value, float):
        yield (name,), "wrong_type"
    elif isinstance(value, int) and value.bit_length() > 63:  # no provider reads it, and msgspec does not write it
        yield (name,), "too_large"
    else:
        yield from number_faults(name, value, is_allowed, fault)


def in_words(root: Any, path: Path, code: str, expected: str) -> str:
    """Return a fault of `root`, which must be the `expected`: the place, what must be there, and what is there."""
    place = ".".join(map(str, path)) or "value"
    if code in _STATEMENTS:
        return f"{place} {_STATEMENTS[code]}"
    name, value, hint = "", root, None
    for key in path:
        if isinstance(key, str):
            hint = get_type_hints(cast(type[Any], type(value))).get(key)
            name, value = key, getattr(value, key)
        else:
            value, hint = value[key], next(iter(get_args(hint)), None)
    typed = expected if not path else "of another type" if hint is None else hint_text(hint)
    return f"{place} {must_be(_EXPECTED.get(f'{name} {code}') or _EXPECTED.get(code, typed), value)}"
