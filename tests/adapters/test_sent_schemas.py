"""The schemas of tools as each wire sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rxllm import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses, Request, tool, user
from rxllm.values import Call, Tool
from tests.adapters.test_parts import local

WIRES: dict[str, Any] = {
    "chat": OpenAIChat(api_key="k"),
    "a chat server of one's own": OpenAIChat(base_url="http://localhost:8080/v1"),
    "responses": OpenAIResponses(api_key="k"),
    "ollama": Ollama(),
    "local": local(),
    "anthropic": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
}
WITH_PROPERTIES = ["chat", "a chat server of one's own", "responses", "ollama", "local"]

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
WITHOUT_PROPERTIES: dict[str, Any] = {
    "$ref": {"$ref": "#/$defs/Q", "$defs": {"Q": QUERY}},
    "anyOf": {"type": "object", "anyOf": [QUERY, {"type": "object", "properties": {"id": {"type": "integer"}}}]},
    "oneOf": {"oneOf": [QUERY]},
    "allOf": {"allOf": [QUERY]},
}
OPEN: dict[str, Any] = {
    "numbers": {"type": "object", "additionalProperties": {"type": "number"}},
    "anything": {"type": "object", "additionalProperties": {}},
    "true": {"type": "object", "properties": {}, "additionalProperties": True},
    "patterns": {"type": "object", "patternProperties": {"^x-": {"type": "string"}}},
}
NO_ARGUMENTS: dict[str, Any] = {
    "nothing": {},
    "an object": {"type": "object"},
    "no properties": {"type": "object", "properties": {}, "required": []},
    "closed": {"type": "object", "properties": {}, "additionalProperties": False},
    "described": {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Now", "description": "The time"},
    "nulls": {"type": "object", "properties": None, "required": None},
}


def schema_sent(wire: str, tools: Tool) -> dict[str, Any] | None:
    (entry,) = body(wire, tools)["tools"]
    entry = entry.get("functionDeclarations", [entry])[0]
    entry = entry.get("function", entry)
    names = ("parameters", "input_schema", "parametersJsonSchema")
    return next((entry[name] for name in names if name in entry), None)


def body(wire: str, *tools: Tool, **fields: Any) -> dict[str, Any]:
    request = Request((user("Hi"),), "m", tools=tools, max_tokens=9, **fields)
    return json.loads(WIRES[wire].build(request, Call()).content)


def of(schema: dict[str, Any]) -> Tool:
    return tool(name="f", schema=schema, handler=lambda arguments: None)


@pytest.mark.parametrize("schema", NO_ARGUMENTS)
@pytest.mark.parametrize("wire", WITH_PROPERTIES)
def test_a_tool_without_arguments_has_empty_properties(wire: str, schema: str):
    sent = schema_sent(wire, of(NO_ARGUMENTS[schema]))
    assert sent is not None
    assert (sent["type"], sent["properties"], sent.get("required", [])) == ("object", {}, [])


def test_the_two_least_schemas_are_one():
    for wire in WITH_PROPERTIES:
        for schema in ({}, {"type": "object"}):
            assert schema_sent(wire, of(schema)) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("wire", WITH_PROPERTIES)
def test_an_object_of_any_names_has_properties_too(wire: str):
    for schema in OPEN.values():
        assert schema_sent(wire, of(schema)) == {"properties": {}, **schema}


@pytest.mark.parametrize("schema", WITHOUT_PROPERTIES)
@pytest.mark.parametrize("wire", [*WITH_PROPERTIES, "gemini"])
def test_a_schema_that_refers_to_others_stays_as_it_is(wire: str, schema: str):
    assert schema_sent(wire, of(WITHOUT_PROPERTIES[schema])) == WITHOUT_PROPERTIES[schema]


@pytest.mark.parametrize("schema", OPEN)
def test_gemini_gets_every_schema_that_allows_an_argument(schema: str):
    assert schema_sent("gemini", of(OPEN[schema])) == OPEN[schema]
    assert schema_sent("gemini", of(QUERY)) == QUERY


@pytest.mark.parametrize("schema", NO_ARGUMENTS)
def test_gemini_gets_no_schema_for_a_tool_without_arguments(schema: str):
    assert schema_sent("gemini", of(NO_ARGUMENTS[schema])) is None


@pytest.mark.parametrize("wire", WIRES)
def test_a_function_without_parameters_is_a_tool_without_arguments(wire: str):
    @tool
    def now() -> str:
        return "noon"

    sent = schema_sent(wire, now)
    assert sent is None if wire == "gemini" else sent == {"type": "object", "properties": {}, "required": []}
