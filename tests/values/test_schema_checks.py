"""Data are checked by any JSON schema, in a moment, whoever wrote it; jsonschema is the judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rxllm
from rxllm.values import as_response_format, schema_checks, schema_faults
from rxllm.values.schema_checks import _compiled


def faults(schema: Any, data: Any) -> list[str]:
    return [fault for _, fault in schema_faults(schema, data)]


def is_valid(schema: Any, data: Any) -> bool:
    """The verdict of jsonschema, whose formats take a second to import."""
    jsonschema, referencing = pytest.importorskip("jsonschema"), pytest.importorskip("referencing")
    return jsonschema.Draft202012Validator(schema, registry=referencing.Registry()).is_valid(data)


def nested(levels: int, inside: Any = 1) -> Any:
    for _ in range(levels):
        inside = {"x": inside}
    return inside


# What a fault says


@pytest.mark.parametrize(
    ("schema", "data", "fault"),
    [
        ({"type": "string"}, 1, '1 is not of type "string"'),
        ({"enum": ["S", "M", 1, "k", None]}, "L", '"L" is not one of ["S","M",1,"k",null]'),
        ({"required": ["size"]}, {}, '"size" is a required property'),
        ({"pattern": "^a"}, "b", '"b" does not match "^a"'),
        ({"minimum": 3}, 1, "1 is less than the minimum of 3"),
        ({"additionalProperties": False}, {"b": 1}, "1 is not allowed here"),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            "Additional properties are not allowed ('b' was unexpected)",
        ),
    ],
)
def test_a_fault_names_what_is_expected(schema: Any, data: Any, fault: str) -> None:
    assert faults(schema, data) == [fault]


def test_each_fault_has_its_place() -> None:
    schema = {"properties": {"a": {"items": {"properties": {"b": {"type": "string"}}}}}, "required": ["c"]}
    places = [place for place, _ in schema_faults(schema, {"a": [{}, {"b": 1}, {"b": 2}]})]
    assert sorted(places) == [(), ("a", 1, "b"), ("a", 2, "b")]


def test_a_long_value_is_clipped() -> None:
    (fault,) = faults({"type": "integer"}, "secret" * 1_000)
    assert len(fault) == 200


def test_large_data_have_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"required": ["a", "b"]}
    assert len(faults(schema, {})) == 2
    monkeypatch.setattr(schema_checks, "MAX_COPIED", 10)
    assert faults(schema, {"c": "long" * 10}) == ['"a" is a required property']
    assert faults(schema, {"a": 1, "b": "long" * 10}) == []


# Dialects


@pytest.mark.parametrize("dialect", ["http://example.com/own", "http://json-schema.org/draft-03/schema#", ""])
def test_an_unknown_dialect_is_read_as_the_newest(dialect: str) -> None:
    schema = {"$schema": dialect, "prefixItems": [{"type": "string"}]}
    assert faults(schema, [1]) == ['1 is not of type "string"']


def test_a_known_dialect_is_followed() -> None:
    schema = {"items": [{"type": "string"}]}
    assert faults({"$schema": "http://json-schema.org/draft-07/schema#", **schema}, [1])
    with pytest.raises(ValueError, match="is not of types"):
        schema_faults(schema, [1])


@pytest.mark.parametrize("draft", ["draft-07", "draft-04"])
@pytest.mark.parametrize(
    "own", [{"format": "date"}, {"contentEncoding": "base64"}, {"contentMediaType": "application/json"}]
)
def test_formats_and_encodings_are_not_checked(draft: str, own: Any) -> None:
    assert faults({"$schema": f"http://json-schema.org/{draft}/schema#", **own}, "{?") == []
    assert faults(own, "{?") == []


# Data that are not quite JSON


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "string"}, "\ud800"),
        ({"type": "object", "required": ["1"]}, {1: 2}),
        ({"type": "array", "items": {"type": "integer"}}, (1, 2)),
        ({"type": "string"}, b"bytes"),
        pytest.param({"type": "integer"}, 10**5_000, id="a long number"),
    ],
)
def test_data_are_checked_as_json_holds_them(schema: Any, data: Any) -> None:
    assert faults(schema, data) == []
    assert len(faults({"type": "boolean"}, data)) == 1


def test_nan_is_not_a_number() -> None:
    assert faults({"type": "number"}, float("nan")) == ['null is not of type "number"']


@pytest.mark.parametrize("data", [{"a": object()}, nested(400)])
def test_a_value_that_is_not_json_is_a_fault(data: Any) -> None:
    (fault,) = faults({"additionalProperties": {"type": "string"}}, data)
    assert "JSON" in fault or "is not of type" in fault


# References


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.json", "https://127.0.0.1:9/x.json", "file:///etc/hostname"])
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(ValueError, match="Retrieval is disabled"):
        schema_faults({"$ref": address}, 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a/b": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}},
        {"$defs": {"a": {"$anchor": "n", "type": "string"}}, "properties": {"x": {"$ref": "#n"}}},
        {
            "$id": "http://x/s",
            "$defs": {"a": {"$id": "item", "type": "string"}},
            "properties": {"x": {"$ref": "item"}},
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"$id": "#n", "type": "string"}},
            "properties": {"x": {"$ref": "#n"}},
        },
    ],
)
def test_references_inside_the_schema_are_followed(schema: Any) -> None:
    assert schema_faults(schema, {"x": 1}) == [(("x",), '1 is not of type "string"')]


def test_a_schema_that_is_in_itself_checks_data_at_any_depth() -> None:
    for tree in ({"$ref": "#"}, {"$dynamicRef": "#n"}):
        schema = {"$dynamicAnchor": "n", "type": "object", "properties": {"x": tree}}
        assert schema_faults(schema, nested(90)) == [(("x",) * 90, '1 is not of type "object"')]


# Patterns


def test_a_pattern_takes_no_longer_than_its_text() -> None:
    assert faults({"pattern": "^(a+)+$"}, "a" * 100_000) == []
    assert faults({"pattern": "^(a+)+$"}, "a" * 100_000 + "!")


@pytest.mark.parametrize("pattern", ["(", "[a", "*a", "a{2,1}"])
def test_a_pattern_that_cannot_be_read_is_left_out_and_logged_once(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"properties": {"x": {"pattern": pattern, "maxLength": 3}}}
    _compiled.cache_clear()
    for _ in range(2):
        assert faults(schema, {"x": "no"}) == []
        assert faults(schema, {"x": "long"}) == ['"long" is longer than 3 characters']
    assert [record.getMessage() for record in caplog.records] == [
        "some patterns of a JSON schema are not checked, because they cannot be read, "
        f"or they follow the first 100 patterns: {pattern!r}"
    ]


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"not": {"pattern": "(?=x)x"}}, "y"),
        ({"not": {"$ref": "#/$defs/p"}, "$defs": {"p": {"pattern": "(?=x)x"}}}, "y"),
        ({"oneOf": [{"pattern": "(?=x)x"}, {"type": "string"}]}, "y"),
        ({"if": {"pattern": "(?=x)x"}, "then": {"type": "integer"}}, "y"),
        ({"patternProperties": {"(?=x)x": {}}, "additionalProperties": False}, {"x": 1}),
        ({"patternProperties": {"(?=x)x": {}}, "unevaluatedProperties": False}, {"x": 1}),
        ({"contains": {"pattern": "(?=x)x"}, "maxContains": 1}, ["x", "y"]),
    ],
)
def test_without_its_pattern_a_schema_refuses_nothing_more(schema: Any, data: Any) -> None:
    assert faults(schema, data) == []
    assert is_valid(schema, data)


# Hostile schemas


def branches(number: int, keyword: str = "allOf", last: Any = False) -> dict[str, Any]:
    """A schema whose `last` part applies 2 to the power of `number` times."""
    parts = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(number)}
    return {"$defs": {**parts, f"d{number}": last}, "$ref": "#/$defs/d0"}


def named(keyword: str, prefix: str, definitions: str) -> dict[str, Any]:
    """The same with other ways to refer to a part."""
    parts = {f"d{n}": {keyword: f"{prefix}d{n}", "allOf": [{"$ref": f"#d{n + 1}"}] * 2} for n in range(40)}
    return {definitions: {**parts, "d40": {keyword: f"{prefix}d40", "type": "string"}}, "$ref": "#d0"}


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"x": {}}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


def all_to_all(number: int) -> dict[str, Any]:
    names = [f"#/$defs/a{n}" for n in range(number)]
    return {"$defs": {f"a{n}": {"allOf": [{"$ref": name} for name in names]} for n in range(number)}, "$ref": names[0]}


def chain(number: int) -> dict[str, Any]:
    parts = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"type": "null"}]} for n in range(number)}
    return {"$defs": {**parts, f"d{number}": False}, "$ref": "#/$defs/d0"}


MANY = [str(number) for number in range(500_000)]
HOSTILE = {
    **{f"branches of {keyword}": branches(40, keyword) for keyword in ("allOf", "anyOf", "oneOf")},
    "branches of a field": {"properties": {"x": branches(40)["$defs"]["d0"]}, "$defs": branches(40)["$defs"]},
    "anchors": named("$anchor", "", "$defs"),
    "ids of draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", **named("$id", "#", "definitions")},
    "all to all": all_to_all(40),
    "a long chain": chain(3_000),
    "unevaluated": unevaluated(40),
    "twice at each level": {
        "$defs": {"a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}}},
        "$ref": "#/$defs/a",
    },
    "itself twice": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "many fields": {"properties": {name: {"type": "string"} for name in MANY}},
    "many fields in a small text": {"properties": {name: {} for name in MANY[:9_000]}},
    "many required": {"required": MANY},
    "many required in a small text": {"required": MANY[:100_000]},
    "many required of another": {"dependentRequired": {"x": MANY[:100_000]}},
    "many ids": {"$defs": {name: {"$id": f"http://x/{name}"} for name in MANY[:5_000]}, "$ref": "http://x/1"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_not_checked_and_the_log_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    _compiled.cache_clear()
    for _ in range(2):
        assert schema_faults(HOSTILE[name], nested(60)) == []
    (record,) = caplog.records
    assert "not checked" in record.getMessage() or "too many branches" in record.getMessage()
    assert len(record.getMessage()) < 200


@pytest.mark.parametrize(
    "schema",
    [
        *(branches(8, keyword) for keyword in ("allOf", "anyOf", "oneOf")),
        unevaluated(4),
        chain(250),
        {"required": MANY[:1_500]},
        {"properties": {str(n): {"pattern": f"(a{{1,100}}){{1,{n % 90 + 1}}}x{n}"} for n in range(900)}, "not": {}},
    ],
)
def test_a_large_schema_is_checked_in_a_moment(schema: Any) -> None:
    schema_faults(schema, {"y": ["x" * 100] * 1_000})
    schema_faults(schema, {"y": 1})


def test_data_are_checked_to_the_depth_that_takes_a_moment() -> None:
    schema = {**HOSTILE["twice at each level"], "required": ["y"]}
    assert faults(schema, nested(3)) == ['"y" is a required property']
    assert faults(schema, nested(50)) == []


def test_a_schema_is_compiled_once_and_the_number_kept_is_bounded() -> None:
    _compiled.cache_clear()
    for _ in range(3):
        schema_faults({"type": "string"}, 1)
    assert (_compiled.cache_info().misses, _compiled.cache_info().maxsize) == (1, 256)


def test_a_schema_that_is_changed_checks_as_it_is_now() -> None:
    schema = {"type": "string"}
    assert faults(schema, 1)
    schema["type"] = "integer"
    assert faults(schema, 1) == []


# The judge


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 2.5]) | st.text("ab1é ", max_size=4),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
KEYWORDS: dict[str, Any] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=4),
    "const": VALUES,
    "minimum": st.integers(-2, 2),
    "exclusiveMaximum": st.integers(-2, 2),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": st.integers(0, 3),
    "maxLength": st.integers(0, 3),
    "pattern": st.sampled_from(["^a", "b$", "[ab]+", "^(a|b){1,2}$", "a.b"]),
    "minItems": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "uniqueItems": st.booleans(),
    "required": st.lists(NAMES, max_size=2, unique=True),
    "maxProperties": st.integers(0, 2),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]),
}


def with_parts(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(part, min_size=1, max_size=2)
    by_name = st.dictionaries(NAMES, part, max_size=3)
    parts: dict[str, Any] = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), some),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), part),
        **dict.fromkeys(("propertyNames", "unevaluatedItems", "unevaluatedProperties"), part),
        **dict.fromkeys(("properties", "dependentSchemas"), by_name),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), part, max_size=2),
    }
    return st.fixed_dictionaries({}, optional={**parts, "type": KEYWORDS["type"], "required": KEYWORDS["required"]})


FLAT = st.booleans() | st.fixed_dictionaries({}, optional={k: v for k, v in KEYWORDS.items() if k != "$ref"})
REFERENCES = st.fixed_dictionaries({"$ref": KEYWORDS["$ref"]})
PARTS = st.recursive(FLAT | REFERENCES, with_parts, max_leaves=6)
SCHEMAS = st.builds(lambda root, a, b: {**root, "$defs": {"a": a, "b": b}}, with_parts(PARTS), PARTS, FLAT)
"""Draft 2020-12, with references."""


@pytest.mark.judges
@given(SCHEMAS, VALUES)
@example({"type": "integer"}, 1.0)
@example({"const": 1}, True)
@example({"enum": [0]}, False)
@example({"uniqueItems": True}, [1, True])
@example({"additionalProperties": False, "patternProperties": {"^a": {}}}, {"ab": 1, "b": 1})
def test_the_verdict_is_that_of_jsonschema(schema: Any, data: Any) -> None:
    checked = _compiled(schema_checks.json_bytes(schema))
    if checked.depth < schema_checks.MAX_DEPTH:  # a part applies itself, in which jsonschema would recurse for ever
        return
    assert (schema_faults(schema, data) == []) == is_valid(schema, data)


@dataclass
class Step:
    """A step of a plan, with steps inside."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=2)]
    kind: Literal["a", "b"]
    weight: float | None = None
    inside: list[Step] = field(default_factory=list["Step"])


@rxllm.tool
def book(a: str, b: list[int], c: dict[str, float] | None = None, name: Literal["a", "b"] = "a") -> str:
    """Book a room."""
    return a


OWN = [book.schema, *(as_response_format(kind)["schema"] for kind in (Step, list[int], Step | None, Literal["a", 1]))]
FIELDS = st.sampled_from(["a", "b", "c", "name", "kind", "weight", "inside", "value"])
ANSWERS = st.recursive(
    VALUES, lambda inside: st.dictionaries(FIELDS, inside, max_size=4) | st.lists(inside, max_size=2), max_leaves=12
)
FITTING = [
    {"a": "x", "b": [1, 2], "c": None, "name": "b"},
    {"name": "ab", "kind": "a", "weight": 1, "inside": [{"name": "b", "kind": "b", "weight": None, "inside": []}]},
    {"value": [1, 2]},
    {"value": "a"},
    {"value": None},
]


@pytest.mark.parametrize("schema", OWN)
@given(data=st.data())
def test_the_verdict_over_rxllms_own_schemas_is_that_of_jsonschema(schema: Any, data: st.DataObject) -> None:
    fitting = dict(data.draw(st.sampled_from(FITTING)))
    changed = data.draw(st.dictionaries(st.sampled_from([*fitting]), ANSWERS, max_size=2))
    value = data.draw(st.sampled_from([{**fitting, **changed}]) | ANSWERS)
    assert (schema_faults(schema, value) == []) == is_valid(schema, value)


@pytest.mark.parametrize("schema", OWN)
def test_each_of_them_takes_some_data(schema: Any) -> None:
    assert [] in [schema_faults(schema, value) for value in FITTING]


DIFFERENCES = [
    ({"multipleOf": 0.1}, 0.3, True),  # in floating point 0.3 is not a multiple of 0.1
    ({"pattern": r"^\d+$"}, "\u0967", False),  # ECMAScript's digits are ASCII, and so are the letters of \w
    ({"pattern": r"^\w$"}, "é", False),
    ({"pattern": "^a$"}, "a\n", False),  # Python's $ is also before a last line break
    ({"type": "number"}, float("nan"), False),
    ({"type": "array"}, (1, 2), True),
]


@pytest.mark.parametrize(("schema", "data", "fits"), DIFFERENCES)
def test_where_the_verdict_is_not_that_of_jsonschema(schema: Any, data: Any, fits: bool) -> None:
    assert (schema_faults(schema, data) == []) == fits
    assert is_valid(schema, data) != fits
