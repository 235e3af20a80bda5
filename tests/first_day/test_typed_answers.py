"""Typed answers: what `response_format` takes, and the value that comes back."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pydantic
import pytest

import rxllm
from rxllm import Engine, Fake, ValidationError
from rxllm import operators as ops
from tests.programs import python


@dataclass
class City:
    name: str
    people: int = 0


@dataclass
class River:
    name: str
    length: float


class Place(TypedDict):
    name: str


class Peak(msgspec.Struct):
    height: int


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


Age = Annotated[int, pydantic.Field(ge=18)]
Grade = Annotated[int, msgspec.Meta(ge=1, le=6)]

TYPES: dict[str, tuple[Any, str, Any]] = {  # the type, the JSON of a value, the value
    "a list of dataclasses": (list[City], '[{"name": "Lima", "people": 10}]', [City("Lima", 10)]),
    "a list of TypedDicts": (list[Place], '[{"name": "Lima"}]', [{"name": "Lima"}]),
    "a list of Structs": (list[Peak], '[{"height": 8849}]', [Peak(8849)]),
    "a list of pydantic models": (list[Person], '[{"name": "Ada"}]', [Person(name="Ada")]),
    "a list of anything": (list, "[1, null]", [1, None]),
    "a pair": (tuple[str, int], '["a", 1]', ("a", 1)),
    "a set": (set[str], '["a"]', {"a"}),
    "a Literal": (Literal["yes", "no"], '"yes"', "yes"),
    "an enum": (Mood, '"bad"', Mood.BAD),
    "True or False": (bool, "true", True),
    "a whole number": (int, "42", 42),
    "a number": (float, "0.5", 0.5),
    "a text": (str, '"Lima"', "Lima"),
    "an optional dataclass": (City | None, '{"name": "Lima", "people": 1}', City("Lima", 1)),
    "None where there is nothing": (Optional[Person], "null", None),  # noqa: UP045
    "a union of plain types": (int | str, '"a"', "a"),
    "a union of dataclasses": (City | River, '{"name": "Nile", "length": 6650}', River("Nile", 6650)),
    "a list of a union of models": (list[Person | River], '[{"name": "Ada"}]', [Person(name="Ada")]),
    "a number with bounds": (Grade, "6", 6),
    "a number with bounds of pydantic's": (Age, "18", 18),
    "an annotation without a hash": (list[Annotated[int, {"unit": "m"}]], "[6]", [6]),
    "one on a dataclass": (Annotated[City, ["of the world"]], '{"name": "Lima", "people": 10}', City("Lima", 10)),
    "a mapping": (dict[str, int], '{"a": 1}', {"a": 1}),
    "a dataclass": (City, '{"name": "Lima", "people": 10}', City("Lima", 10)),
}

every_type = pytest.mark.parametrize(("wanted", "text", "value"), TYPES.values(), ids=TYPES)


def sent(response_format: Any) -> dict[str, Any]:
    """The `response_format` that the adapter gets."""
    fake = Fake("null")
    rxllm.stream_generate(fake, "Hi", response_format=response_format).run()
    form = fake.requests[0].response_format
    assert isinstance(form, dict)
    return form


def as_answered(response_format: Any, text: str) -> str:
    """The JSON `text` of a value as a provider returns it that enforces the schema."""
    return text if sent(response_format)["name"] != "answer" else f'{{"value": {text}}}'


@every_type
def test_the_model_is_asked_for_an_object_that_holds_the_value(wanted: Any, text: str, value: Any) -> None:
    schema = sent(wanted)["schema"]
    assert schema["type"] == "object"
    judge = pytest.importorskip("jsonschema").Draft202012Validator
    judge.check_schema(schema)
    judge(schema).validate(json.loads(as_answered(wanted, text)))


@every_type
def test_every_call_returns_the_value(wanted: Any, text: str, value: Any) -> None:
    engine = Engine(Fake(as_answered(wanted, text)))
    assert rxllm.generate(engine, "Hi", response_format=wanted).run().parsed == value
    assert rxllm.step(engine, "Hi", response_format=wanted).run().parsed == value
    assert rxllm.chat(engine, "Hi", response_format=wanted).run().parsed == value
    assert [r.parsed for r in rxllm.generate_many(engine, ["a", "b"], response_format=wanted)] == [value, value]
    assert rxllm.generate(engine.with_params(response_format=wanted), "Hi").run().parsed == value
    turn = rxllm.session.start(engine, "Hi", response_format=wanted).run()
    assert isinstance(turn.result, rxllm.ChatResult)
    assert turn.result.parsed == value


@every_type
def test_so_does_parsed_after_such_a_request_and_after_a_plain_one(wanted: Any, text: str, value: Any) -> None:
    typed = rxllm.stream_generate(Fake(as_answered(wanted, text)), "Hi", response_format=wanted)
    assert typed.pipe(ops.parsed(wanted)).run() == value
    assert rxllm.stream_generate(Fake(text), "Hi").pipe(ops.parsed(wanted)).run() == value


@every_type
def test_a_model_that_answers_with_the_bare_value_is_understood(wanted: Any, text: str, value: Any) -> None:
    assert rxllm.generate(Fake(f"```json\n{text}\n```"), "Hi", response_format=wanted).run().parsed == value


def test_the_elements_of_a_list_come_one_by_one() -> None:
    fake = Fake(['{"value": [{"name": "Li', 'ma"}, ', '{"name": "Oslo"}]}'])
    cities = rxllm.stream_generate(fake, "Two capitals", response_format=list[City]).pipe(ops.items(City, "value"))
    assert list(cities) == [City("Lima"), City("Oslo")]


@pytest.mark.parametrize(
    ("wanted", "text", "path", "fault"),
    [
        (list[City], '{"value": [{"name": 1}]}', (0, "name"), "Expected `str`"),
        (list[Person], '{"value": [{"name": "A"}]}', (0, "name"), "at least 2 characters"),
        (Literal["yes", "no"], '{"value": "maybe"}', (), "Invalid enum value 'maybe'"),
        (bool, '{"value": "true"}', (), "Expected `bool`"),
        (Grade, '{"value": 7}', (), "Expected `int` <= 6"),
        (Age, '{"value": 17}', (), "greater than or equal to 18"),
        (list[Age], '{"value": [17]}', (0,), "greater than or equal to 18"),
        (int, "I think so.", (), "malformed"),
    ],
)
def test_an_answer_that_does_not_fit_says_where(wanted: Any, text: str, path: Any, fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Fake(text), "Hi", response_format=wanted).run()
    assert caught.value.reason == "invalid_output"
    assert caught.value.errors[0][0] == path
    assert fault in caught.value.errors[0][1]
    assert caught.value.metadata["text"] == text


def test_a_constraint_of_pydantics_in_a_dataclass_is_checked() -> None:
    @dataclass
    class Adult:
        age: Annotated[int, pydantic.Field(ge=18)]

    with pytest.raises(ValidationError, match="greater than or equal to 18"):
        rxllm.generate(Fake('{"age": 17}'), "Hi", response_format=Adult).run()


def test_a_field_called_value_is_not_mistaken_for_the_object_around_the_answer() -> None:
    class Number(msgspec.Struct):
        value: int

    for text in ('{"value": 3}', '{"value": {"value": 3}}'):
        assert rxllm.generate(Fake(text), "Hi", response_format=Number | None).run().parsed == Number(3)
    assert rxllm.generate(Fake('{"value": 3}'), "Hi", response_format=Number).run().parsed == Number(3)
    numbers = rxllm.stream_generate(Fake('[{"value": 3}]'), "Hi").pipe(ops.items(dict[str, int] | int))
    assert list(numbers) == [{"value": 3}]


@pytest.mark.parametrize(
    "wanted", [complex, object, Any, enum.Enum, Literal[[1]], 3, object(), len, "json", {"type": "x"}]
)
def test_a_type_that_cannot_be_asked_for_is_refused_at_the_call(wanted: Any) -> None:
    with pytest.raises(ValidationError, match="response_format") as caught:
        rxllm.generate(Fake("Hi"), "Hi", response_format=wanted)
    assert caught.value.reason == "invalid_option"


# A raw schema needs the extra `schema`; everything above is checked without it.

WITHOUT_THE_EXTRA = """
import sys
sys.modules["jsonschema_rs"] = None
import rxllm
from rxllm import Fake, json_schema

print(rxllm.generate(Fake("[1]"), "Hi", response_format=list[int]).run().parsed)
for _ in range(2):
    print(rxllm.generate(Fake("[]"), "Hi", response_format=json_schema("city", {"type": "object"})).run().parsed)
"""


@pytest.mark.judges
def test_without_the_extra_a_raw_schema_is_not_checked_and_says_so_once() -> None:
    ran = python("-c", WITHOUT_THE_EXTRA)
    assert ran.returncode == 0
    assert ran.stdout.split() == ["[1]", "[]", "[]"]
    (warning,) = ran.stderr.splitlines()
    assert "not checked" in warning
    assert "json_schema(...)" in warning
    assert "pip install 'rxllm[schema]'" in warning


OPENAIS = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": {"type": "object"}}}


def test_openais_own_form_of_a_schema_is_taken() -> None:
    assert sent(OPENAIS) == rxllm.json_schema("city", {"type": "object"})
    engine = Engine(Fake('{"name": "Lima"}'))
    assert rxllm.generate(engine, "Hi", response_format=OPENAIS).run().parsed == {"name": "Lima"}
    assert rxllm.chat(engine, "Hi", response_format=OPENAIS).run().parsed == {"name": "Lima"}
    assert rxllm.generate(engine.with_params(response_format=OPENAIS), "Hi").run().parsed == {"name": "Lima"}
    request = rxllm.request("Hi", response_format=OPENAIS)
    assert rxllm.generate(engine, request).run().parsed == {"name": "Lima"}


def test_it_is_not_strict_unless_it_says_so_and_keeps_its_description() -> None:
    inner = {"name": "city", "description": "A city.", "schema": {"type": "object"}}
    assert sent({"type": "json_schema", "json_schema": inner}) == rxllm.json_schema(
        "city", {"description": "A city.", "type": "object"}, strict=False
    )


@pytest.mark.parametrize("inner", [{}, {"name": "city"}, {"schema": {}}, {"name": "city", "schema": {}, "more": 1}, 3])
def test_half_of_it_is_refused(inner: Any) -> None:
    with pytest.raises(ValidationError, match="response_format must be a type"):
        rxllm.generate(Fake("{}"), "Hi", response_format={"type": "json_schema", "json_schema": inner})


@pytest.mark.parametrize("wanted", [int, City, Person, list[int]])
@pytest.mark.parametrize("text", ['{"a":', '{"value": [2, 3', '{"name": "Li'])
def test_an_answer_that_breaks_off_is_told_to_be_incomplete(wanted: Any, text: str) -> None:
    with pytest.raises(ValidationError, match="the answer is not complete JSON: Input data was truncated"):
        rxllm.generate(Fake(text), "Hi", response_format=wanted).run()


@pytest.mark.parametrize(("wanted", "named"), [(int, "an int"), (City, "a City")])
def test_the_type_that_an_answer_is_not_has_its_article(wanted: Any, named: str) -> None:
    with pytest.raises(ValidationError, match=f"the answer is not {named}: "):
        rxllm.generate(Fake("true"), "Hi", response_format=wanted).run()


def test_a_wrong_answer_names_its_place_once() -> None:
    class Town(pydantic.BaseModel):
        inhabitants: int

    @dataclass
    class Village:
        inhabitants: int

    for target in (Town, Village):
        with pytest.raises(ValidationError) as caught:
            rxllm.generate(Fake('{"inhabitants": "many"}'), "Which?", response_format=target).run()
        assert str(caught.value).count("inhabitants") == 1
        assert caught.value.errors[0][0] == ("inhabitants",)
