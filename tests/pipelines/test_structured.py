"""Structured answers: a class or a JSON schema as `response_format`, and the validated value that comes back."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rxllm
from rxllm import AdapterError, Engine, Fake, ToolCall, Usage, ValidationError
from rxllm import operators as ops

T = TypeVar("T")


@dataclass
class City:
    """A city of the world."""

    name: str
    population: int = 0
    districts: list[City] = field(default_factory=list)
    mayor: Annotated[Person | None, msgspec.Meta(description="Who governs it.")] = None


class Person(msgspec.Struct):
    name: str
    role: Literal["mayor", "deputy"] = "mayor"


class Place(TypedDict, total=False):
    name: str
    height: float


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    title: str = "none"
    rival: Model | None = None

    @pydantic.field_validator("name")
    @classmethod
    def is_capital(cls, name: str) -> str:
        if not name[0].isupper():
            raise ValueError("must be capitalised")
        return name


@pydantic.dataclasses.dataclass
class Checked:
    age: Annotated[int, pydantic.Field(ge=18)]


class Box(msgspec.Struct, Generic[T]):
    held: T


LIMA = '{"name": "Lima", "population": 10, "districts": [], "mayor": {"name": "Ana", "role": "deputy"}}'


def asked(response_format: Any) -> dict[str, Any]:
    """The `response_format` that an adapter sees."""
    fake = Fake([AdapterError("invalid_request")])
    with pytest.raises(AdapterError):
        rxllm.generate(fake, "Hi", response_format=response_format).run()
    (request,) = fake.requests
    assert isinstance(request.response_format, dict)
    return request.response_format


def answered(text: str, response_format: Any) -> Any:
    return rxllm.generate(Fake(text), "Hi", response_format=response_format).run().parsed


def refused(text: str, response_format: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        answered(text, response_format)
    assert caught.value.reason == "invalid_output"
    assert caught.value.metadata["text"] == text
    return caught.value


# What is asked for


def test_a_class_becomes_a_strict_json_schema() -> None:
    wanted = asked(City)
    assert (wanted["type"], wanted["name"], wanted["strict"]) == ("json_schema", "City", True)
    schema = wanted["schema"]
    assert schema["description"] == "A city of the world."
    assert schema["required"] == ["name", "population", "districts", "mayor"]
    assert schema["properties"]["districts"] == {"type": "array", "items": {"$ref": "#/$defs/City"}}
    assert schema["$defs"]["Person"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "role": {"enum": ["deputy", "mayor"]}},
        "required": ["name", "role"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("cls", [City, Person, Place, Model, Checked, Box[int]], ids=repr)
def test_every_schema_is_what_strict_providers_want(cls: Any) -> None:
    wanted = asked(cls)
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(wanted["schema"])
    assert wanted["strict"] is True
    assert wanted["schema"]["type"] == "object"
    for each in objects(wanted["schema"]):
        assert not each.keys() & {"default", "oneOf", "discriminator"}
        assert "$ref" not in each or len(each) == 1
        if each.get("type") == "object":
            assert each["additionalProperties"] is False
            assert each["required"] == list(each["properties"])


def objects(schema: Any) -> list[dict[str, Any]]:
    """`schema` and those in it, the names of properties and definitions left out."""
    if isinstance(schema, list):
        return [found for each in schema for found in objects(each)]
    if not isinstance(schema, dict):
        return []
    named = [each for name in ("properties", "$defs") for each in schema.get(name, {}).values()]
    return [schema, *objects(named), *objects([v for k, v in schema.items() if k not in ("properties", "$defs")])]


def test_properties_may_be_called_like_keywords() -> None:
    made = msgspec.defstruct("Odd", [("default", str), ("title", int, 3), ("properties", bool, True)])
    assert asked(made)["schema"]["required"] == ["default", "title", "properties"]
    assert answered('{"default": "a", "title": 1, "properties": false}', made) == made("a", 1, False)


def test_what_cannot_be_strict_is_not_called_so() -> None:
    assert asked(msgspec.defstruct("Open", [("counts", dict[str, int])]))["strict"] is False
    assert asked(msgspec.defstruct("Open", [("anything", Any)]))["strict"] is False


def test_json_schemas_and_plain_formats_are_passed_as_they_are() -> None:
    for wanted in ({"type": "json_object"}, rxllm.json_schema("x", {"type": "array", "title": "X"}, strict=False)):
        assert asked(wanted) == wanted


@pytest.mark.parametrize("function", [rxllm.step, rxllm.chat, rxllm.stream, rxllm.stream_generate])
def test_the_other_calls_ask_for_it_too(function: Any) -> None:
    fake = Fake(LIMA)
    function(fake, "Hi", response_format=City).run()
    assert fake.requests[0].response_format == asked(City)


def test_an_engines_format_serves_every_call() -> None:
    engine = Engine(Fake(LIMA)).with_params(response_format=City)
    assert rxllm.generate(engine, "Hi").run().parsed == msgspec.json.decode(LIMA, type=City)
    assert rxllm.generate(engine, "Hi", response_format="text").run().parsed is None


@pytest.mark.parametrize("wrong", [complex, enum.Enum, 3, object(), lambda text: text])
def test_what_is_no_format_raises_at_the_call(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="response_format"):
        rxllm.generate(Fake("Hi"), "Hi", response_format=wrong)


def test_a_class_without_a_json_schema_raises_at_the_call() -> None:
    @dataclass
    class Strange:
        held: complex

    with pytest.raises(ValidationError, match=r"Strange.*has no JSON schema") as caught:
        rxllm.chat(Fake("Hi"), "Hi", response_format=Strange)
    assert caught.value.errors[0][0] == ("response_format",)


# What comes back


@pytest.mark.parametrize(
    ("cls", "text", "value"),
    [
        (City, LIMA, City("Lima", 10, [], Person("Ana", "deputy"))),
        (Person, '{"name": "Ana"}', Person("Ana")),
        (Place, '{"height": 2.5}', {"height": 2.5}),
        (Model, '{"name": "Ada", "rival": {"name": "Bo"}}', Model(name="Ada", rival=Model(name="Bo"))),
        (Checked, '{"age": 18}', Checked(18)),
        (Box[int], '{"held": 3}', Box(3)),
        (rxllm.json_schema("x", {"type": "array"}), "[1, 2]", [1, 2]),
        ({"type": "json_object"}, '{"a": 1}', {"a": 1}),
        ("text", "{}", None),
        ({"type": "text"}, "{}", None),
    ],
)
def test_the_answer_is_a_validated_value(cls: Any, text: str, value: Any) -> None:
    assert answered(text, cls) == value


@pytest.mark.parametrize(
    "fenced", ["```json\n{}\n```", "```\n{}\n```\n", "  ```JSON\n{}```", "```json {} ```", "\n{}\n", "```{}```"]
)
def test_a_markdown_fence_round_the_json_is_taken_off(fenced: str) -> None:
    assert answered(fenced.format(LIMA), City) is not None
    assert answered(fenced.replace("{}", LIMA), City).name == "Lima"
    assert answered(fenced, {"type": "json_object"}) == {}


def test_several_answers_are_validated_each() -> None:
    fake = Fake([LIMA], ["I do not know."])
    right, wrong = rxllm.generate_many(fake, ["a", "b"], response_format=City, concurrency=1)
    assert right.parsed == msgspec.json.decode(LIMA, type=City)
    assert isinstance(wrong.error, ValidationError)
    assert wrong.error.metadata["text"] == "I do not know."


def test_the_fold_reads_by_the_same_format() -> None:
    events = rxllm.stream_generate(Fake(LIMA), "Hi", response_format=City)
    assert events.pipe(ops.to_response(City)).run() == rxllm.generate(Fake(LIMA), "Hi", response_format=City).run()
    schema = rxllm.json_schema("x", {"required": ["height"]})
    with pytest.raises(ValidationError, match='"height" is a required property'):
        events.pipe(ops.to_response(schema)).run()


def test_calls_and_failed_answers_are_not_read() -> None:
    called = rxllm.generate(Fake(ToolCall("c1", "f")), "Hi", tools=[rxllm.tool(name="f")], response_format=City).run()
    assert (called.parsed, called.finish_reason) == (None, "tool_calls")
    broken = rxllm.generate(Fake(["{", ("error", "timeout")]), "Hi", response_format=City).run()
    assert (broken.parsed, broken.error) == (None, AdapterError("timeout", provider="fake"))


@given(st.builds(Person, st.text(), st.sampled_from(["mayor", "deputy"])), st.booleans())
def test_what_was_encoded_comes_back_equal(person: Person, fenced: bool) -> None:
    text = msgspec.json.encode(person).decode()
    assert answered(f"```json\n{text}\n```" if fenced else text, Person) == person


# What does not fit


@pytest.mark.parametrize(
    ("cls", "text", "path", "what"),
    [
        (City, "Lima.", (), "malformed"),
        (City, "", (), "truncated"),
        (City, '{"name": "Lima"', (), "truncated"),
        (City, '{"name": 3}', ("name",), "Expected `str`"),
        (City, '{"name": "L", "districts": [{"name": 3}]}', ("districts", 0, "name"), "Expected `str`"),
        (Model, '{"name": "Ada", "rival": {"name": "bo"}}', ("rival", "name"), "capitalised"),
        (Checked, '{"age": 17}', ("age",), "greater than or equal to 18"),
        ({"type": "json_object"}, "[]", (), "not of type 'object'"),
        (rxllm.json_schema("x", {"properties": {"a": {"items": {"type": "null"}}}}), '{"a": [1]}', ("a", 0), "null"),
    ],
)
def test_a_mismatch_is_an_error_that_says_where_and_keeps_the_text(cls: Any, text: str, path: Any, what: str) -> None:
    error = refused(text, cls)
    assert error.errors[0][0] == path
    assert what in error.errors[0][1]
    assert what in str(error)


def test_a_mismatch_says_what_it_cost_and_why_it_ended() -> None:
    fake = Fake(['{"name": ', Usage(3, 2), ("finish", "length")])
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(fake, "Hi", response_format=Person).run()
    assert caught.value.metadata == {"text": '{"name": ', "finish_reason": "length", "usage": Usage(3, 2)}
    assert rxllm.serializer.from_json(rxllm.serializer.to_json(caught.value)) == caught.value


def test_reactivexs_retry_asks_again_for_an_answer_that_fits() -> None:
    fake = Fake(["No."], ['{"name": "Ana"}'])
    response = rxllm.generate(fake, "Hi", response_format=Person).retry(2).run()
    assert (response.parsed, len(fake.requests)) == (Person("Ana"), 2)


def test_without_jsonschema_an_answer_is_read_and_not_held_against_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    wanted = rxllm.json_schema("x", {"type": "object"})
    assert answered("[]", wanted) == []
    refused("Hi", wanted)


@pytest.mark.parametrize("module", ["jsonschema_rs", "no_such_module"])
def test_a_json_object_is_one_with_and_without_jsonschema(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert answered("{}", {"type": "json_object"}) == {}
    assert refused("[]", {"type": "json_object"}).errors == (((), "[] is not of type 'object'"),)


WITHOUT_JSONSCHEMA = """
import sys
sys.modules["jsonschema_rs"] = None
import rxllm
from rxllm import Fake, ToolCall, json_schema, tool

rxllm.generate(Fake("{}"), "Hi", response_format={"type": "json_object"}).run()

@tool
def double(x: int) -> int:
    return 2 * x

rxllm.chat(Fake(ToolCall("c1", "double", {"x": 1}), "Done."), "Hi", tools=[double]).run()
agent = rxllm.Engine(Fake("Hello")).as_tool(name="agent", description="Greets.")
rxllm.chat(Fake(ToolCall("c1", "agent", {"prompt": "Hi"}), "Done."), "Hi", tools=[agent]).run()
print("nothing yet", file=sys.stderr)
for _ in range(2):
    rxllm.generate(Fake("[]"), "Hi", response_format=json_schema("x", {"type": "object"})).run()
    echo = tool(name="echo", schema={"type": "object", "required": ["x"]}, handler=lambda arguments: arguments)
    rxllm.chat(Fake(ToolCall("c1", "echo", {}), "Done."), "Hi", tools=[echo]).run()
"""


@pytest.mark.judges
def test_without_jsonschema_what_is_not_checked_is_logged_once() -> None:
    command = [sys.executable, "-c", WITHOUT_JSONSCHEMA]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    first, second = ran.stderr.splitlines()
    assert first == "nothing yet"
    assert "jsonschema-rs is not installed" in second
    assert "answers in json_schema(...) format" in second
    assert "arguments to tools" in second
    assert "pip install 'rxllm[schema]'" in second


def test_a_schema_that_is_none_says_so_and_nothing_is_fetched() -> None:
    assert "type" in refused("{}", rxllm.json_schema("x", {"type": "strange"})).message
    assert (
        "Retrieval is disabled" in refused("{}", rxllm.json_schema("x", {"$ref": "http://localhost:9/x.json"})).message
    )


# The arguments of tools made from a schema

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}


def told(arguments: dict[str, Any], **options: Any) -> tuple[list[Any], Any]:
    """What the handler was given, and what the model is told."""
    seen: list[Any] = []
    weather = rxllm.tool(name="weather", schema=WEATHER, handler=lambda arguments: seen.append(arguments))
    fake = Fake([ToolCall("c1", "weather", arguments)], "Done.")
    result = rxllm.chat(fake, "Hi", tools=[weather], **options).run()
    return seen, json.loads(result.steps[0].tool_results[0].text)


def test_arguments_that_fit_the_schema_reach_the_handler() -> None:
    assert told({"city": "Lima", "days": 2}) == ([{"city": "Lima", "days": 2}], None)


@pytest.mark.parametrize("options", [{}, {"tool_executor": lambda tool, arguments, context: tool.handler(arguments)}])
def test_the_model_is_told_what_does_not_fit_and_nothing_runs(options: Any) -> None:
    seen, said = told({"city": 3, "days": 0}, **options)
    assert seen == []
    assert 'city: 3 is not of type "string"' in said["error"]
    assert "days: 0 is less than the minimum of 1" in said["error"]


def test_without_jsonschema_arguments_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    assert told({"city": 3})[0] == [{"city": 3}]


def test_many_answers_keep_what_a_wrong_one_said() -> None:
    @dataclass
    class Place:
        name: str

    (response,) = rxllm.generate_many(Fake(["nope", Usage(3, 1)]), ["Where?"], response_format=Place)
    assert (response.output_text, response.usage, response.finish_reason) == ("nope", Usage(3, 1), "error")
    assert response.error is not None
    assert response.error.reason == "invalid_output"
