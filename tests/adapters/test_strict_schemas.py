"""The schemas of typed answers and strict tools as each wire sends them: what the provider's strict mode accepts."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

import rxllm
from rxllm import Anthropic, Fake, Gemini, OpenAIChat, OpenAIResponses, Request, ValidationError, json_schema, user
from rxllm.adapters._sent_schemas import ANTHROPIC, GEMINI, OPENAI, narrowed
from rxllm.values import Call, Tool
from rxllm.values.schemas import as_response_format


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Link(pydantic.BaseModel):
    url: pydantic.HttpUrl
    path: Path
    secret: pydantic.SecretStr
    data: bytes
    tags: set[str]
    price: decimal.Decimal
    code: Annotated[str, pydantic.Field(pattern=r"^[a-z]+$", min_length=2, max_length=9)]
    shout: Annotated[str, pydantic.Field(json_schema_extra={"pattern": r"^(?!a)(?=b).*\1"})]
    count: Annotated[int, pydantic.Field(ge=1, lt=9, multiple_of=2)]
    some: Annotated[list[int], pydantic.Field(min_length=2, max_length=4)]
    kind: Literal["link"]
    color: Color
    at: dt.datetime
    day: dt.date | None = None
    length: dt.timedelta = dt.timedelta(1)
    host: IPv4Address | uuid.UUID | None = pydantic.Field(None, examples=["127.0.0.1"], deprecated=True)
    next: Link | None = None


class Text(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=5, pattern="^(?<=a)b")]
    score: Annotated[float, msgspec.Meta(gt=0, le=10)]
    tags: frozenset[str]
    id: uuid.UUID
    data: bytes
    pair: list[Literal[1, 2]]
    when: dt.datetime | None = None


@dataclass
class Plain:
    tags: set[int]
    amount: decimal.Decimal
    long: Annotated[list[str], msgspec.Meta(min_length=3)]
    text: Text


class Typed(TypedDict):
    tags: set[str]
    link: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri", "x-note": 1})]


TYPES: list[Any] = [
    Link,
    Text,
    Plain,
    Typed,
    list[Link],
    set[str],
    Text | None,
    Color,
    Annotated[int, msgspec.Meta(ge=1)],
]

# What the providers' pages list, written down a second time
EVERYWHERE = {
    "type",
    "title",
    "description",
    "enum",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
}
EVERYWHERE |= {"$ref", "$defs"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas in it."""
    if isinstance(schema, list):
        for item in schema:
            yield from nodes(item)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            is_named = name in ("properties", "$defs", "patternProperties")
            yield from nodes([*value.values()] if is_named else value if name not in ("enum", "const") else None)


def accepts_openai(schema: dict[str, Any]) -> None:
    for node in nodes(schema):
        assert node.keys() <= EVERYWHERE | NUMBERS | {"const", "pattern", "format", "minItems", "maxItems"}
        assert node.get("format", "date") in FORMATS
        assert not re.search(r"\(\?<?[=!]|\\1", node.get("pattern", ""))
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == [*node["properties"]]
        assert node.get("type") != "array" or node["items"]


def accepts_anthropic(schema: dict[str, Any]) -> None:
    for node in nodes(schema):
        assert node.keys() <= EVERYWHERE | {"const", "format", "minItems"}
        assert node.get("format", "date") in FORMATS | {"uri"}
        assert node.get("minItems", 0) in (0, 1)
        assert node.get("type") != "object" or node["additionalProperties"] is False


def accepts_gemini(schema: dict[str, Any]) -> None:
    for node in nodes(schema):
        assert node.keys() <= EVERYWHERE | {"format", "prefixItems", "minItems", "maxItems", "minimum", "maximum"}
        assert node.get("format", "date") in {"date-time", "date", "time"}


def body(adapter: Any, **fields: Any) -> dict[str, Any]:
    return json.loads(adapter.build(Request((user("Hi"),), "m", max_tokens=9, **fields), Call()).content)


CHAT, RESPONSES = OpenAIChat(api_key="k"), OpenAIResponses(api_key="k")


def asked(form: Any) -> dict[str, dict[str, Any]]:
    """The format as the wires send it."""
    form = as_response_format(form)
    anthropic = body(Anthropic(api_key="k"), response_format=form)["output_config"]["format"]
    return {
        "chat": body(CHAT, response_format=form)["response_format"]["json_schema"],
        "responses": body(RESPONSES, response_format=form)["text"]["format"],
        "anthropic": anthropic,
        "gemini": {"schema": body(Gemini(api_key="k"), response_format=form)["generationConfig"]["responseJsonSchema"]},
    }


@pytest.mark.parametrize("hint", TYPES, ids=repr)
def test_a_typed_answer_is_asked_for_as_the_provider_accepts_it(hint: Any):
    sent = asked(hint)
    for wire in ("chat", "responses"):
        assert sent[wire]["strict"] is True
        accepts_openai(sent[wire]["schema"])
    accepts_anthropic(sent["anthropic"]["schema"])
    accepts_gemini(sent["gemini"]["schema"])


def test_what_the_provider_accepts_is_still_sent():
    sent = {wire: form["schema"]["properties"] for wire, form in asked(Link).items()}
    assert sent["chat"] == sent["responses"]
    assert sent["chat"]["code"] == {"type": "string", "pattern": "^[a-z]+$"}
    assert sent["chat"]["count"] == {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "multipleOf": 2}
    assert sent["chat"]["some"] == {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}
    assert sent["chat"]["at"] == sent["gemini"]["at"] == {"type": "string", "format": "date-time"}
    assert sent["chat"]["url"] == {"type": "string"}
    assert sent["anthropic"]["url"] == {"type": "string", "format": "uri"}
    assert sent["gemini"]["kind"] == {"type": "string", "enum": ["link"]}
    assert sent["gemini"]["count"] == {"type": "integer", "minimum": 1}


@pytest.mark.parametrize(
    ("field", "wrong"), [("url", "no url"), ("code", "A"), ("count", 3), ("some", [1]), ("kind", "text")]
)
def test_the_answer_is_checked_against_the_whole_type(field: str, wrong: Any):
    right = {
        "url": "https://example.org",
        "path": "a",
        "secret": "s",
        "data": "d",
        "tags": ["a"],
        "price": "1",
        "code": "ab",
        "shout": "b",
        "count": 2,
        "some": [1, 2],
        "kind": "link",
        "color": "red",
        "at": "2026-01-01T00:00:00Z",
    }
    assert rxllm.generate(Fake(json.dumps(right)), "Hi", response_format=Link).run().parsed.count == 2
    with pytest.raises(ValidationError, match=field):
        rxllm.generate(Fake(json.dumps({**right, field: wrong})), "Hi", response_format=Link).run()


def test_a_tuple_is_a_list_of_its_types_where_tuples_are_unknown():
    pair = msgspec.defstruct("Pair", [("pair", tuple[int, str, int])])
    items = [{"type": "integer"}, {"type": "string"}]
    assert asked(pair)["anthropic"]["schema"]["properties"]["pair"] == {"type": "array", "items": {"anyOf": items}}
    assert asked(pair)["gemini"]["schema"]["properties"]["pair"]["prefixItems"] == [*items, {"type": "integer"}]


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
NOT_STRICT: dict[str, dict[str, Any]] = {
    "an optional property": {"type": "object", "properties": {"a": {"type": "string"}}},
    "an open object": {"type": "object"},
    "a map": {**OBJECT, "properties": {"a": {"type": "object", "additionalProperties": {"type": "integer"}}}},
    "anything": {**OBJECT, "properties": {"a": {"description": "anything"}}},
    "any items": {**OBJECT, "properties": {"a": {"type": "array"}}},
    "a combination": {**OBJECT, "properties": {"a": {"allOf": [{"type": "string"}, {"type": "string"}]}}},
    "patterns": {**OBJECT, "properties": {"a": {"type": "object", "patternProperties": {"x": {"type": "integer"}}}}},
    "no object": {"type": "array", "items": {"type": "integer"}},
    "no object in a definition": {**OBJECT, "$defs": {"D": {}}},
}


@pytest.mark.parametrize("schema", NOT_STRICT)
def test_a_schema_that_strict_mode_cannot_express_is_sent_whole_without_it(schema: str):
    sent = asked(json_schema("x", NOT_STRICT[schema]))
    for wire in ("chat", "responses"):
        assert (sent[wire]["schema"], sent[wire]["strict"]) == (NOT_STRICT[schema], False)


def test_a_schema_that_was_never_called_strict_stays_as_it_is():
    schema = {**OBJECT, "properties": {"a": {"type": "string", "format": "uri"}}}
    for wire in ("chat", "responses"):
        assert asked(json_schema("x", schema, strict=False))[wire]["schema"] == schema
    own = OpenAIChat(base_url="http://localhost:8080/v1")
    form = body(own, response_format=json_schema("x", schema))["response_format"]["json_schema"]
    assert (form["schema"], form["strict"]) == (schema, True), "another server may accept more"


def test_properties_and_data_that_are_called_like_words_stay():
    names = {name: {"type": "string"} for name in ("format", "minLength", "const", "default", "$ref", "properties")}
    schema = {"type": "object", "properties": names, "required": [*names], "additionalProperties": False}
    data = {"enum": [{"type": "object", "format": "uri"}, "x"]}
    for subset in (OPENAI, ANTHROPIC, GEMINI):
        assert narrowed(schema, subset) == schema
        assert narrowed(data, subset) == data


def test_one_of_becomes_any_of():
    schema = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "null"}]}
    for subset in (OPENAI, ANTHROPIC, GEMINI):
        assert narrowed(schema, subset) == {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    "pattern", [r"(?=a)", r"^(?!a)b", r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"(?P<x>a)(?P=x)", r"\\(?=a)"]
)
def test_openai_gets_no_pattern_that_looks_around(pattern: str):
    assert narrowed({"type": "string", "pattern": pattern}, OPENAI) == {"type": "string"}


@pytest.mark.parametrize("pattern", [r"^a+$", r"(?:a|b)", r"\(?=a", r"\\d", r"[0-9]{2}", r"(?P<x>a)", r"\\1"])
def test_openai_gets_every_other_pattern(pattern: str):
    schema = {"type": "string", "pattern": pattern}
    assert narrowed(schema, OPENAI) == schema
    assert narrowed(schema, ANTHROPIC) == {"type": "string"}


# Strict tools


def strict_tool(schema: dict[str, Any], **metadata: Any) -> Tool:
    return Tool("f", schema=schema, metadata={"strict": True, **metadata})


def test_a_strict_tool_is_sent_as_the_provider_accepts_it():
    url = {"type": "string", "format": "path", "minLength": 1, "pattern": "(?=a)"}
    schema = {"type": "object", "properties": {"url": url}, "required": ["url"]}
    sent = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    (entry,) = body(RESPONSES, tools=(strict_tool(schema),))["tools"]
    assert (entry["parameters"], entry["strict"]) == ({**sent, "additionalProperties": False}, True)
    (entry,) = body(Anthropic(api_key="k"), tools=(strict_tool(schema),))["tools"]
    assert (entry["input_schema"], entry["strict"]) == ({**sent, "additionalProperties": False}, True)


def test_a_tool_that_is_not_strict_is_sent_whole():
    schema = {"type": "object", "properties": {"url": {"type": "string", "format": "path"}}, "required": ["url"]}
    plain = Tool("f", schema=schema)
    assert body(RESPONSES, tools=(plain,))["tools"][0]["parameters"] == schema
    assert body(CHAT, tools=(plain,))["tools"][0]["function"]["parameters"] == schema
    assert body(Anthropic(api_key="k"), tools=(plain,))["tools"][0]["input_schema"] == schema


def test_a_strict_tool_with_an_optional_parameter_is_not_strict_for_openai():
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}
    (entry,) = body(RESPONSES, tools=(strict_tool(schema),))["tools"]
    assert (entry["parameters"], entry["strict"]) == (schema, False)
    (entry,) = body(Anthropic(api_key="k"), tools=(strict_tool(schema),))["tools"]
    assert entry["strict"] is True
    assert entry["input_schema"]["properties"] == {"a": {"type": "string"}}


def test_a_strict_tool_without_parameters_stays_strict():
    (entry,) = body(RESPONSES, tools=(strict_tool({}),))["tools"]
    assert (entry["parameters"], entry["strict"]) == (
        {"type": "object", "properties": {}, "additionalProperties": False},
        True,
    )
