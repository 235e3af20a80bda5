"""Functions that read and write JSON text.

Text is parsed with msgspec first, for speed. If msgspec rejects the text, Python's ``json`` parses it. Unlike msgspec,
``json`` accepts NaN, infinities, huge numbers and lone surrogates.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, wraps
from importlib import import_module
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from rxllm.values.errors import Path, ValidationError, place

T = TypeVar("T")

UNREADABLE = (ValueError, RecursionError)
"""The errors that `read_json` raises if the text is not JSON or is nested too deeply."""

MAX_DEPTH = 100
"""The maximum nesting depth of JSON data. Recursive functions might fail on deeper data."""

_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Constants that Python allows in JSON text. NaN is always the same object, so that parsing the same text twice gives
equal data."""


def json_text(value: Any) -> str:
    """Return `value` as JSON text; see `json_bytes`."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    """Return `value` as JSON, in UTF-8. NaN and the infinities become null.

    >>> json_text({"name": "caf\\udce9"})
    '{"name":"caf\ufffd"}'

    A lone surrogate becomes U+FFFD. Raises ``ValidationError("invalid_request")`` if `value` has no JSON form.
    """
    try:
        try:
            return msgspec.json.encode(value, enc_hook=_convert_object)
        except UnicodeEncodeError:
            return msgspec.json.encode(_well_formed(msgspec.to_builtins(value, enc_hook=_convert_object)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValidationError("invalid_request", f"the value has no JSON form: {error}") from error


def json_data(value: Any) -> Any:
    """Return `value` as JSON data.

    Models and dataclasses become dicts. Datetimes and Decimals become strings. An enum becomes its value.

    Raises ``ValidationError("invalid_request")`` if `value` has no JSON form.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_convert_object)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValidationError("invalid_request", f"the value has no JSON form: {error}") from error


def _convert_object(item: Any) -> Any:
    """Return JSON data for a pydantic, numpy or path object."""
    if is_pydantic(type(item)):
        return item.model_dump(mode="json")
    if isinstance(item, PurePath):
        return str(item)
    if hasattr(item, "dtype") and hasattr(item, "tolist"):
        return item.tolist()
    raise TypeError(f"{type(item).__name__} is not data")


def python_number(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def read_json(text: str | bytes | msgspec.Raw) -> Any:
    """Parse JSON text as Python's ``json`` does.

    >>> read_json('{"logprob": -Infinity}')
    {'logprob': -inf}

    A lone surrogate becomes U+FFFD. Raises ``ValueError`` if the text is not JSON. Raises ``RecursionError`` if the
    data is nested more than 100 levels deep.
    """
    source = text if isinstance(text, str) else bytes(text)
    try:
        return decode_json(source)
    except ValueError:
        return _check_depth(source, _well_formed(json.loads(source, parse_constant=_CONSTANTS.__getitem__)))


def decode_json(text: str | bytes) -> Any:
    """Parse standard JSON text. Raises the same errors as `read_json`."""
    return _check_depth(text, msgspec.json.decode(text))


def _check_depth(source: str | bytes, data: Any) -> Any:
    text = source if isinstance(source, str) else source.decode("latin-1")  # only the brackets are counted
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(data, MAX_DEPTH):
        raise RecursionError(f"nested more than {MAX_DEPTH} levels deep")
    return data


def is_deeper(data: Any, levels: int) -> bool:
    """Whether `data` is nested more than `levels` levels deep."""
    level: list[Any] = [data]
    for _ in range(levels):
        level = [item for inside in level for item in _items(inside)]
    return any(isinstance(item, dict | list) for item in level)


def _items(data: Any) -> Iterable[Any]:
    match data:
        case dict():
            return cast(dict[str, Any], data).values()
        case list():
            return cast(list[Any], data)
        case _:
            return ()


def unescaped(raw: str) -> str:
    """Decode the escapes in `raw`, which is a part of a JSON string.

    >>> unescaped("caf\\\\u00e9")
    'café'

    `raw` must not begin or end inside an escape.
    """
    return msgspec.json.decode(f'"{raw}"', type=str) if "\\" in raw else raw


def read_arguments(text: str) -> dict[str, Any] | None:
    """Parse a tool call's arguments. Return None if they are not a JSON object.

    >>> [read_arguments(text) for text in ('{"x": 1}', " ", "null", "[1]")]
    [{'x': 1}, {}, {}, None]
    """
    return {} if text.strip() in ("", "null") else read_object(text)


def read_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object. Return None if `text` is anything else."""
    try:
        data: Any = read_json(text)
    except UNREADABLE:
        return None
    return cast(dict[str, Any], data) if isinstance(data, dict) else None


def is_json(text: str | bytes) -> bool:
    try:
        read_json(text)
    except UNREADABLE:
        return False
    return True


def well_formed(text: str) -> str:
    """Replace lone surrogates with U+FFFD, and join surrogate pairs."""
    return text if is_encodable(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_encodable(text: str) -> bool:
    """Whether `text` can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_encodable(reason: str, **texts: str | None) -> None:
    """Raise ``ValidationError(reason)`` unless all `texts` can be encoded as UTF-8."""
    for name, text in texts.items():
        if text is not None and not text.isascii() and not is_encodable(text):
            fault = f"must not contain a lone surrogate: got {text[:80]!r}; write text.encode(errors='replace')"
            raise ValidationError(reason, errors=[((name,), f"{fault}.decode()")])


def _well_formed(data: Any) -> Any:
    match data:
        case str():
            return well_formed(data)
        case Mapping():
            pairs = cast(Mapping[Any, Any], data).items()
            return {_well_formed(key): _well_formed(item) for key, item in pairs}
        case list() | tuple():
            return [_well_formed(item) for item in cast(Iterable[Any], data)]
        case _:
            return data


def described(faults: list[tuple[Path, str]]) -> str:
    """Return a one-line description of all faults."""
    return "; ".join(f"{place(path)}: {fault}" if path else fault for path, fault in faults)


def faults_of(error: Any) -> list[tuple[Path, str]]:
    """Return the faults that a msgspec or pydantic error reports."""
    if callable(getattr(error, "errors", None)):  # a pydantic error
        entries = error.errors(include_url=False, include_context=False)
        return [(tuple(entry["loc"]), entry["msg"]) for entry in entries]
    fault, _, place = str(error).partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", place)
    return [(tuple(int(key) if key.isdigit() else key for key in keys), fault)]


# pydantic is imported only if the user's types need it.


def is_pydantic(cls: Any) -> bool:
    """Whether `cls` is a pydantic model or dataclass."""
    return hasattr(get_origin(cls) or cls, "__pydantic_validator__")


def brings_pydantic(hint: Any) -> bool:
    """Whether `hint` is or contains a pydantic type or annotation."""
    return "pydantic" in sys.modules and any(map(_is_of_pydantic, parts_of(hint)))


def parts_of(hint: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield `hint` and every type and annotation that it contains.

    If a class occurs several times, the annotations of its fields are yielded only once.
    """
    yield hint
    seen = set() if seen is None else seen
    cls: Any = get_origin(hint) or hint
    children = list(get_args(hint))
    if _has_fields(cls) and id(cls) not in seen:
        seen.add(id(cls))
        with suppress(Exception):  # an error here is reported when the schema is made
            children += get_type_hints(cls, include_extras=True).values()
    for child in children:
        yield from parts_of(child, seen)


def _has_fields(cls: Any) -> bool:
    has_fields = dataclasses.is_dataclass(cls) or is_typeddict(cls) or hasattr(cls, "_fields")
    return isinstance(cls, type) and has_fields


def _is_of_pydantic(part: Any) -> bool:
    module = part.__module__ if isinstance(part, type) else type(part).__module__
    is_own = module.partition(".")[0] in ("pydantic", "annotated_types")
    return is_own or is_pydantic(part) or hasattr(part, "__get_pydantic_core_schema__")


def is_field(value: Any) -> bool:
    """Whether `value` was made by ``pydantic.Field(...)``."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


def type_adapter(hint: Any) -> Any:
    return import_module("pydantic").TypeAdapter(hint)


def cached_by_type(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache the results of a function whose argument is a type. Results for unhashable types are not cached."""
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
