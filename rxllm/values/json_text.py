"""Read and write JSON text, describe the faults in data, and recognize pydantic's types.

Text is read with msgspec, which is fast. Text that msgspec rejects is read with Python's ``json`` module, which also
accepts NaN, infinities, very large numbers and lone surrogates.
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
"""The maximum nesting depth of data. Parsers accept deeper data, but recursive functions may fail on it."""

_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Constants outside standard JSON. There is a single NaN object, so reading the same text twice gives equal data."""


def json_text(value: Any) -> str:
    """Return `value` as JSON text; see `json_bytes`."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    """Return `value` as JSON. A lone surrogate becomes U+FFFD, and NaN becomes null.

    >>> json_text({"name": "caf\\udce9"})
    '{"name":"caf\ufffd"}'

    Raises ``ValidationError("invalid_request")`` for a value that has no JSON form.
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

    Models and dataclasses become dicts, datetimes and Decimals become strings, and an enum becomes its value.

    Raises ``ValidationError("invalid_request")`` for a value that has no JSON form.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_convert_object)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValidationError("invalid_request", f"the value has no JSON form: {error}") from error


def _convert_object(item: Any) -> Any:
    """Return JSON data for an object that msgspec cannot encode: a pydantic model, a path, a numpy number or array."""
    if is_pydantic(type(item)):
        return item.model_dump(mode="json")
    if isinstance(item, PurePath):
        return str(item)
    if hasattr(item, "dtype") and hasattr(item, "tolist"):  # a numpy number or array
        return item.tolist()
    raise TypeError(f"{type(item).__name__} is not data")


def python_number(value: Any) -> Any:
    """Convert a numpy number to a Python number, which JSON can express. Return any other value unchanged."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def read_json(text: str | bytes | msgspec.Raw) -> Any:
    """Return the data that Python's ``json`` reads from `text`, with U+FFFD in place of each lone surrogate.

    >>> read_json('{"logprob": -Infinity}')
    {'logprob': -inf}

    Raises ``ValueError`` if the text is not JSON, and ``RecursionError`` if it is nested more than 100 levels deep.
    """
    source = text if isinstance(text, str) else bytes(text)
    try:
        return decode_json(source)
    except ValueError:
        return _check_depth(source, _well_formed(json.loads(source, parse_constant=_CONSTANTS.__getitem__)))


def decode_json(text: str | bytes) -> Any:
    """Parse standard JSON text. For any other text, raise the same errors as `read_json`."""
    return _check_depth(text, msgspec.json.decode(text))


def _check_depth(source: str | bytes, data: Any) -> Any:
    text = source if isinstance(source, str) else source.decode("latin-1")  # only the brackets matter here
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(data, MAX_DEPTH):
        raise RecursionError(f"nested more than {MAX_DEPTH} levels deep")
    return data


def is_deeper(data: Any, levels: int) -> bool:
    """Whether the lists and dicts in `data` are nested more than `levels` levels deep."""
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
    """Decode the escapes in `raw`, text from inside a JSON string. It must not begin or end inside an escape.

    >>> unescaped("caf\\\\u00e9")
    'café'
    """
    return msgspec.json.decode(f'"{raw}"', type=str) if "\\" in raw else raw


def read_arguments(text: str) -> dict[str, Any] | None:
    """Parse a tool call's arguments. Return {} for blank text, and None for text that is not a JSON object."""
    try:
        arguments: Any = read_json(text) if text.strip() else {}
    except UNREADABLE:
        return None
    return cast(dict[str, Any], arguments) if isinstance(arguments, dict) else None


def is_json(text: str | bytes) -> bool:
    """Whether `text` is JSON."""
    try:
        read_json(text)
    except UNREADABLE:
        return False
    return True


def well_formed(text: str) -> str:
    """Return `text` as valid Unicode. A surrogate pair becomes one character, and a lone surrogate becomes U+FFFD."""
    return text if is_encodable(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_encodable(text: str) -> bool:
    """Whether `text` can be encoded as UTF-8, which is not possible if it contains surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_encodable(reason: str, **texts: str | None) -> None:
    """Raise ``ValidationError(reason)`` if any of `texts` contains a surrogate, which UTF-8 cannot encode."""
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


# Faults that msgspec and pydantic report


def described(faults: list[tuple[Path, str]]) -> str:
    """Describe the `faults` on one line."""
    return "; ".join(f"{place(path)}: {fault}" if path else fault for path, fault in faults)


def faults_of(error: Any) -> list[tuple[Path, str]]:
    """Return the faults that a msgspec or pydantic error reports, each with its path."""
    if callable(getattr(error, "errors", None)):  # a pydantic error
        entries = error.errors(include_url=False, include_context=False)
        return [(tuple(entry["loc"]), entry["msg"]) for entry in entries]
    fault, _, place = str(error).partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", place)
    return [(tuple(int(key) if key.isdigit() else key for key in keys), fault)]


# Support for pydantic's types. pydantic is imported only if the user's own types need it.


def is_pydantic(cls: Any) -> bool:
    """Whether `cls` is a pydantic model or dataclass, with or without type arguments."""
    return hasattr(get_origin(cls) or cls, "__pydantic_validator__")


def brings_pydantic(hint: Any) -> bool:
    """Whether any part of `hint` needs pydantic: a model, a pydantic type, or ``Annotated`` with a ``Field``."""
    return "pydantic" in sys.modules and any(map(_is_of_pydantic, parts_of(hint)))


def parts_of(hint: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield `hint` and, recursively, its type arguments, its ``Annotated`` metadata and the types of its fields.

    The fields of a class are yielded only once.
    """
    yield hint
    seen = set() if seen is None else seen
    cls: Any = get_origin(hint) or hint
    children = list(get_args(hint))
    if _has_fields(cls) and id(cls) not in seen:
        seen.add(id(cls))
        with suppress(Exception):  # a name that cannot be resolved is reported when the schema is made
            children += get_type_hints(cls, include_extras=True).values()
    for child in children:
        yield from parts_of(child, seen)


def _has_fields(cls: Any) -> bool:
    has_fields = dataclasses.is_dataclass(cls) or is_typeddict(cls) or hasattr(cls, "_fields")
    return isinstance(cls, type) and has_fields


def _is_of_pydantic(part: Any) -> bool:
    """Whether `part` is a pydantic model, type or annotation, such as ``EmailStr`` or ``Field``."""
    module = part.__module__ if isinstance(part, type) else type(part).__module__
    is_own = module.partition(".")[0] in ("pydantic", "annotated_types")
    return is_own or is_pydantic(part) or hasattr(part, "__get_pydantic_core_schema__")


def is_field(value: Any) -> bool:
    """Whether `value` is the result of ``pydantic.Field(...)``."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


def type_adapter(hint: Any) -> Any:
    """Return pydantic's ``TypeAdapter`` for `hint`."""
    return import_module("pydantic").TypeAdapter(hint)


def cached_by_type(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache the results of `function`, which takes a type.

    Results for unhashable types, such as an ``Annotated`` with unhashable metadata, are not cached.
    """
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
