"""Mutated JSON: whatever comes, the reader returns a value or raises ``ValidationError``, whose text any log takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rxllm.serializer import from_data, from_json, to_data, to_json
from rxllm.testing import strategies
from rxllm.values import LLMError, ValidationError, Value
from rxllm.values.codec import VALUE_CLASSES
from rxllm.values.errors import ERROR_CLASSES
from tests.examples import examples

HALF = "\ud83d"
TAGS = [*VALUE_CLASSES, *ERROR_CLASSES, "tuple", "map", "float", "bytes", "?", HALF]
KEYS = ["$", "type", "v", "id", "name", "reason", "items", "value", "base64", "metadata", "errors", "event", HALF]
JUNK: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**400, float("inf"), float("nan"), "", "x", HALF, f"a{HALF}\udc00", "nan", "AAA="),
    *({HALF: {"$": tag}} for tag in ("?", "ToolCall", "bytes", HALF)),
    *([], {}, [[]], [1, 2], {"a": 1}, {"type": "text_delta", "delta": 1}, {"type": HALF}, {"type": []}),
    *({"$": tag} for tag in TAGS),
    *({"$": tag, "reason": min(ERROR_CLASSES[tag].REASONS, default="")} for tag in ERROR_CLASSES),
    *({"$": "map", "items": items} for items in ([1], [[[], 1]], [[{"$": "map", "items": []}, 1]])),
    *({"$": "bytes", "base64": text} for text in ("!", HALF, "é")),
    *({"$": tag} for tag in (None, [], {}, 1)),
]
TEXTS = ['"', "{", "[", "\0", HALF, "\\u", "\\ud83d", "9" * 5_000, "[" * 5_000, "NaN", "", "\ufeff"]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The JSON data of a value, an error or an event, with a few things in it exchanged, added or taken away."""
    written = to_data(draw(strategies.values | strategies.errors | strategies.events))
    data = [json.loads(json.dumps(written, allow_nan=False))]
    for _ in range(draw(st.integers(1, 2))):
        *path, key = draw(st.sampled_from([path for path in places(data) if path]))
        holder, change = at(data, tuple(path)), draw(st.sampled_from(["exchange", "exchange", "add", "remove"]))
        if change == "remove" and holder is not data:
            del holder[key]
        elif change == "add" and isinstance(holder[key], dict):
            holder[key][draw(st.sampled_from(KEYS))] = junk(draw)
        else:
            holder[key] = junk(draw)
    return data[0]


def junk(draw: st.DrawFn) -> Any:
    return json.loads(json.dumps(draw(st.sampled_from(JUNK))))


classes = st.sampled_from([*[None] * 100, Value, LLMError, *VALUE_CLASSES.values(), *ERROR_CLASSES.values()])
bounded = settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def read(reader: Any, source: Any, cls: Any) -> None:
    """Read `source`; what is read can be written again, and what is raised can be logged and stored."""
    fault: ValidationError | None = None
    try:
        to_json(reader(source, cls))
    except ValidationError as error:
        fault = error
    if fault is not None:
        assert fault.errors
        str(fault).encode()
        assert from_json(to_json(fault)) == fault


@given(mutated(), classes)
@example({"$": "Message", "role": "user", "metadata": {HALF: {"$": "?"}}}, None)
@bounded
def test_mutated_data_is_read_or_refused(data: Any, cls: Any) -> None:
    read(from_data, data, cls)
    read(from_json, json.dumps(data), cls)


@given(mutated(), st.data())
@bounded
def test_mutated_text_is_read_or_refused(data: Any, draws: st.DataObject) -> None:
    text = json.dumps(data, ensure_ascii=draws.draw(st.booleans()))
    place = draws.draw(st.integers(0, len(text)))
    text = text[:place] + draws.draw(st.sampled_from(TEXTS)) + text[place + draws.draw(st.integers(0, 3)) :]
    read(from_json, text, None)
    read(from_json, text.encode(draws.draw(st.sampled_from(["utf-8", "utf-16", "utf-32-le"])), "surrogatepass"), None)


@given(st.binary(max_size=40))
@bounded
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    read(from_json, data, None)
