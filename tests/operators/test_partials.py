from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Never, NewType, NotRequired, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import Subject, from_iterable
from typing_extensions import TypedDict

from rxllm import Fake, ToolCall, ValidationError, chat, generate, stream, stream_generate, tool
from rxllm import operators as ops
from rxllm.events import ErrorEvent, MessageCompleted, MessageStarted, StepRestarted, TextCompleted, TextDelta
from rxllm.testing import assert_operator, events
from rxllm.testing.event_checks import played
from rxllm.testing.marbles import check
from rxllm.values import Message, Partial, StreamError
from tests.operators.scripts import pieces, said, through
from tests.operators.support import json_values


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    name: str
    price: float | None
    colour: Colour


@dataclass
class Order:
    id: int
    note: str
    placed: date
    mood: Literal["calm", "cross"]
    express: bool
    items: list[Item]
    tags: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


class OrderDict(TypedDict):
    id: int
    note: str
    placed: date
    mood: Literal["calm", "cross"]
    express: bool
    items: list[Item]
    tags: dict[str, list[str]]


class OrderModel(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId", validation_alias=pydantic.AliasChoices("orderId", "id"))
    note: str
    placed: date
    mood: Literal["calm", "cross"]
    express: bool
    items: list[Item]
    tags: dict[str, list[str]]


class Seen(TypedDict):
    city: str
    year: NotRequired[int]


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(alias="townName")
    size: Annotated[int, pydantic.Field(gt=0)]
    seen: list[Seen] = []


class Towns(pydantic.RootModel[list[Town]]):
    pass


class Open(pydantic.BaseModel, extra="allow"):
    known: int


class Point(NamedTuple):
    x: int
    label: str


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T
    more: list[T]


class Wire(msgspec.Struct, rename="camel"):
    full_name: str


ORDER = '{"id": 12, "note": "fr\\u00e9", "placed": "2026-01-02", "mood": "calm", "express": true, "items": []}'


def partials(hint: Any, *deltas: str) -> list[Any]:
    return through(ops.partials(hint), said(deltas))


def growing(hint: Any, *deltas: str) -> list[Any]:
    """The partials before the end of an answer that may not fit."""
    seen: list[Any] = []
    from_iterable(map(TextDelta, deltas)).pipe(ops.partials(hint)).subscribe(seen.append, lambda error: None)
    return [partial for partial in seen if partial.state == "growing"]


def parts(partial: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """`partial` and all that is in it, as it stands in the text."""
    yield path, partial
    names = partial.keys() or range(len(partial))
    for name in names:
        yield from parts(partial[name], (*path, name))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key] if isinstance(value, dict | list | tuple) else getattr(value, key)
    return value


# What shows


VALUES: dict[str, Any] = {
    "a": TextDelta('{"city": "Li'),
    "b": TextDelta('ma", "year": 20'),
    "c": TextDelta("26}"),
}


def test_a_partial_comes_with_each_delta_that_adds_to_it_and_the_last_is_done() -> None:
    first, second, third, fourth = partials(Seen, '{"city": "Li', 'ma", "year": 20', "26", "}", " ")
    assert first.so_far == {"city": "Li"}
    assert second.so_far == {"city": "Lima"}
    assert third.so_far == fourth.so_far == {"city": "Lima", "year": 2026}
    assert [partial.state for partial in (first, second, third, fourth)] == ["growing", "growing", "growing", "done"]
    assert [partial["city"].state for partial in (first, second)] == ["growing", "done"]
    assert [partial["year"].state for partial in (first, second, third)] == ["missing", "missing", "done"]
    assert [partial.value for partial in (first, third, fourth)] == [None, None, {"city": "Lima", "year": 2026}]


def test_a_dispose_ends_it() -> None:
    shown = lambda source: source.pipe(ops.partials(Seen)).map(lambda partial: partial.so_far)  # noqa: E731
    one, two = {"city": "Li"}, {"city": "Lima"}
    check(shown, "-a-b-c-|", "^---!", "-1-2", **VALUES, **{"1": one, "2": two})


def test_a_streamed_error_is_raised() -> None:
    error = StreamError("truncated")
    shown = lambda source: source.pipe(ops.partials(Seen)).map(lambda partial: partial.so_far)  # noqa: E731
    check(shown, "-a-e|", "^--!", "-1-X", **{**VALUES, "e": ErrorEvent(error), "X": error, "1": {"city": "Li"}})


def test_it_keeps_the_rules_of_operators() -> None:
    assert_operator(lambda: ops.partials(Seen), events=said(['{"city": "L', 'ima"', ', "year": 1', "}"]))


def test_numbers_and_literals_show_when_they_are_whole() -> None:
    seen = partials(Order, *ORDER)
    assert {partial["id"].so_far for partial in seen} == {None, 12}
    assert {partial["express"].value for partial in seen} == {None, True}
    assert {partial["mood"].text for partial in seen} == {"", "calm"}
    assert {partial["placed"].value for partial in seen} == {None, date(2026, 1, 2)}
    assert list(dict.fromkeys(partial["note"].text for partial in seen)) == ["", "f", "fr", "fr\u00e9"]


@pytest.mark.parametrize("number", ["-0.5e-3", "1E5", "0", "-12", "1.50", "123456789012345678901234567890"])
def test_a_number_may_be_cut_anywhere(number: str) -> None:
    seen = partials(list[float], *f"[{number}, 1]")
    assert {partial[0].value for partial in seen} == {None, float(number)}
    assert [partial.so_far for partial in seen] == [[], [json.loads(number)], *[[json.loads(number), 1]] * 2]


def test_parts_at_every_depth_have_a_state_and_a_typed_value() -> None:
    text = '{"id": 1, "items": [{"name": "a", "price": null, "colour": "red"}, {"name": "b", "colour": "bl'
    order = growing(Order, text)[-1]
    assert order["items"].state == "growing"
    assert order["items"][0].state == "done"
    assert order["items"][0].value == Item("a", None, Colour.RED)
    assert order["items"][0]["colour"].value is Colour.RED
    assert order["items"][0]["colour"].so_far == "red"
    assert order["items"][0]["price"].state == "done"
    assert order["items"][-1].so_far == {"name": "b"}
    assert order["items"][-1]["colour"].state == "missing"
    assert order["items"][2]["name"].state == "missing"
    assert [item["name"].text for item in order["items"]] == ["a", "b"]
    assert (len(order["items"]), len(order["items"][1]), len(order["note"])) == (2, 1, 0)
    assert order.keys() == ("id", "items")
    assert "items" in order
    assert "note" not in order
    assert order["id"]
    assert not order["note"]
    assert order["note"].text == order["id"].text == ""


def test_a_partial_never_changes() -> None:
    text = '{"id": 1, "note": "ab", "items": [{"name": "x"}, {"name": "y"}], "tags": {"k": ["v"], "k": ["w"]}}'
    seen: list[tuple[Any, Any]] = []
    source = from_iterable(map(TextDelta, text)).pipe(ops.partials(Order))
    source.subscribe(lambda partial: seen.append((partial, snapshot(partial))), lambda error: None)
    assert len(seen) == 30
    assert all(snapshot(partial) == before for partial, before in seen)


def snapshot(partial: Any) -> Any:
    return repr([(path, part.state, part.so_far, part.text, part.value) for path, part in parts(partial)])


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda partial: pickle.loads(pickle.dumps(partial))])
def test_a_partial_can_be_copied_and_pickled(again: Any) -> None:
    for partial in partials(Item, '{"name": "a', '", "price": 1', '.5, "colour": "red"}'):
        assert again(partial) == partial
        assert snapshot(again(partial)) == snapshot(partial)


def test_a_key_that_is_repeated_begins_anew() -> None:
    first, second, third, _ = partials(dict[str, str], '{"a": "one", ', '"a": "tw', 'o"}')
    assert [partial["a"].text for partial in (first, second, third)] == ["one", "tw", "two"]
    assert [partial["a"].state for partial in (first, second, third)] == ["done", "growing", "done"]
    assert third.so_far == {"a": "two"}
    assert len(third) == 1


def test_what_the_type_does_not_know_is_there_too() -> None:
    seen = partials(Seen, '{"city": "Lima", "odd": [1, ', "2]}")
    assert seen[0]["odd"].so_far == [1]
    assert seen[-1].value == {"city": "Lima"}


def test_a_field_that_there_is_not_is_a_key_error_which_names_those_there_are() -> None:
    (partial,) = partials(Seen, '{"city": "Lima"}')[-1:]
    with pytest.raises(KeyError, match=r"Seen has no field 'citi' \(did you mean 'city'"):
        partial["citi"]
    with pytest.raises(KeyError, match="the fields are city, year"):
        partial["population"]
    with pytest.raises(AttributeError, match=r"write partial\['city'\]"):
        partial.city  # pyright: ignore
    with pytest.raises(AttributeError, match="no attribute 'population'"):
        partial.population  # pyright: ignore


def test_partials_are_equal_if_they_show_the_same_of_the_same_type() -> None:
    one, other = partials(Seen, '{"city": "Li', 'ma"}'), partials(Seen, '{"city": "Li', 'ma"}')
    assert one == other
    assert one[0] != one[1] != one[0]["city"]
    assert one[0] != partials(dict[str, str], '{"city": "Li', 'ma"}')[0]
    assert one[0] != "a string"
    assert repr(one[0]) == "Partial(growing, {'city': 'Li'})"


# Types


def test_fields_of_a_model_have_the_names_of_the_class() -> None:
    seen = partials(Town, '{"townName": "Li', 'ma", "size": 3, "seen": [{"city": "x"', "}]}")
    assert [partial["name"].text for partial in seen[:2]] == ["Li", "Lima"]
    assert seen[0].so_far == {"townName": "Li"}
    assert seen[1].keys() == ("name", "size", "seen")
    assert seen[-1].value == Town(townName="Lima", size=3, seen=[{"city": "x"}])
    assert seen[-2]["seen"][0].value == {"city": "x"}
    assert partials(Wire, '{"fullName": "Ann"', "}")[0]["full_name"].text == "Ann"


@pytest.mark.parametrize(
    ("hint", "text", "path", "value"),
    [
        (list[int], '{"value": [1, 2', (0,), 1),
        (list[int], "[1, 2", (0,), 1),
        (Item | None, '{"value": {"name": "a", "price": 1', ("name",), "a"),
        (tuple[str, date], '{"value": ["a", "2026-01-02"', (1,), date(2026, 1, 2)),
        (Point, '{"value": [3, "a', (0,), 3),
        (dict[str, Decimal], '{"a": "1.50", "b', ("a",), Decimal("1.50")),
        (Box[Colour], '{"inside": "red", "more": ["blue", ', ("more", 0), Colour.BLUE),
        (Box[Colour], '{"inside": "red", "more": ["blue", ', ("inside",), Colour.RED),
        (Box, '{"inside": "red", "more": [', ("inside",), "red"),
        (Town | Item, '{"name": "a", "price": 1.5, ', ("price",), 1.5),
        (NewType("Id", Item), '{"name": "a", "price": 1.5, ', ("price",), 1.5),
        (Towns, '{"value": [{"townName": "Lima", "size": 3}', (0,), Town(townName="Lima", size=3)),
        (Open, '{"known": 1, "more": 2, ', ("more",), 2),
        (Open, '{"known": 1, "more": 2, ', ("other",), None),
        (Item, '{"name": "a", "price": "dear", ', ("price",), "dear"),
        (Order, '{"id": "x", "items": {"a": 1, ', ("items",), None),
        (dict[str, Any], '{"a": {"b": [true], ', ("a", "b", 0), True),
    ],
)
def test_a_finished_part_has_the_type_of_its_annotation(
    hint: Any, text: str, path: tuple[Any, ...], value: Any
) -> None:
    partial = growing(hint, text)[-1]
    for key in path:
        partial = partial[key]
    assert partial.value == value
    assert type(partial.value) is type(value)


@pytest.mark.parametrize("hint", [Literal["ab"], Colour, date, bytes, Literal["ab"] | None, list[Colour]])
def test_strings_that_stand_for_something_else_do_not_grow(hint: Any) -> None:
    seen = growing(dict[str, hint], '{"a": "r', "e", "d")
    assert [(partial["a"].state, partial.so_far) for partial in seen] == [("missing", {})]


# Fences, wrappers, prose


@pytest.mark.parametrize("before", ["", "```json\n", "```", "  \n", "```JSON "])
@pytest.mark.parametrize("after", ["", "\n```", "  \n"])
def test_a_fence_is_no_part_of_it(before: str, after: str) -> None:
    if ("```" in before) != ("```" in after):
        return
    seen = partials(Seen, *f'{before}{{"city": "x"}}{after}')
    assert seen[-1].value == {"city": "x"}
    assert seen[-1]["city"].text == "x"
    assert len(seen) == 5


def test_the_answer_may_be_the_value_of_an_object() -> None:
    seen = partials(list[str], '{"val', 'ue": ["a', '"', "]", "}")
    assert [partial.so_far for partial in seen] == [["a"], ["a"], ["a"]]
    assert seen[-1].value == ["a"]
    assert [partial.so_far for partial in partials(str, '"a', 'b"')] == ["a", "ab", "ab"]
    assert [partial.so_far for partial in partials(int, '{"value": 4', "2", "}")] == [42, 42]
    assert [partial.so_far for partial in partials(int, "4", "2")] == [42]


def test_an_object_that_has_a_field_value_is_no_wrapper() -> None:
    @dataclass
    class Reading:
        value: int
        unit: str

    seen = partials(Reading | None, '{"value": 3', ', "unit": "', 'm"}')
    assert seen[-1].value == Reading(3, "m")
    assert seen[-1]["unit"].text == "m"
    assert seen[-1].so_far == {"value": 3, "unit": "m"}


FAULTY = [
    "",
    "Hello",
    "Here you are: {}",
    '{"city": "Lima"} and so on',
    '{"city": "Lima"',
    '{"city": "Li',
    '{"city": 3}',
    '{"year": 3}',
    "[1]",
    "true story",
    '{"city": "a\nb"}',
    '{"city": "\\x"}',
    '{"city": "\\ud83d"}',
    '{"city": "\\udc00"}',
    '{"city": "\\ud83dx"}',
    '{"city": "\ud83d"}',
    '{"city": "x",}',
    '{"city" "x"}',
    '{city: "x"}',
    '{"city": "x"]',
    '{"city": "x", "year": 1.}',
    '{"city": "x", "year": -}',
    '{"city": "x", "year": 1e}',
    '{"city": "x", "year": 01}',
    '{"city": "x", "year": nul}',
    '{"city": "x" "year": 1}',
    '{"city": "x", "more": ' + "[" * 5000,
    '{"city": "x", "year": ' + "1" * 5000 + "}",
]


@pytest.mark.parametrize("hint", [Seen, Town, list[str], Order])
@pytest.mark.parametrize("text", FAULTY)
def test_an_answer_that_does_not_fit_ends_as_parsed_does(text: str, hint: Any) -> None:
    source = stream_generate(Fake([*text[:200], text[200:]]), "Hi")
    with pytest.raises(ValidationError) as theirs:
        source.pipe(ops.parsed(hint)).run()
    with pytest.raises(ValidationError) as refusal:
        source.pipe(ops.partials(hint)).run()
    assert refusal.value == theirs.value
    assert refusal.value.reason == "invalid_output"


def test_nothing_shows_from_the_first_fault_on() -> None:
    partial = growing(Seen, '{"city": "Lima", ', "year: 3}", '{"city": "Oslo"}')[-1]
    assert partial.so_far == {"city": "Lima"}


@pytest.mark.parametrize("escape", [r"\x", r"\u12x4", r"\ud800x", r"\udc00", "\n"])
def test_a_broken_escape_is_a_fault_and_what_came_before_it_shows(escape: str) -> None:
    partial = growing(Seen, f'{{"city": "Li{escape}ma', '", "year": 3}')[-1]
    assert (partial["city"].text, partial.so_far) == ("Li", {"city": "Li"})


@pytest.mark.judges
def test_deep_nesting_is_no_recursion() -> None:
    partial = growing(dict[str, Any], '{"a": ', "[" * 50_000)[-1]
    assert partial.so_far is None  # no parser reads as deep
    assert partial["a"].state == "growing"
    for _ in range(100):
        partial = partial["a" if "a" in partial.keys() else 0]  # noqa: SIM118
    assert partial.state == "growing"


@pytest.mark.parametrize("wrong", ["City", json.loads, {"type": "json_object"}, None, 3])
def test_what_is_no_type_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="must be a type") as refusal:
        ops.partials(wrong)
    assert refusal.value.reason == "invalid_option"


def test_a_type_that_json_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(ValidationError, match="type that JSON can be parsed into"):
        ops.partials(Never)  # pyright: ignore


# Events


def test_a_restart_begins_anew() -> None:
    events = [TextDelta('{"city": "Li'), StepRestarted("again", 2), *said(['{"city": "O', 'slo"}'])[1:]]
    assert [partial.so_far["city"] for partial in through(ops.partials(Seen), events)] == ["Li", "O", "Oslo", "Oslo"]


def test_each_message_of_a_chat_begins_anew() -> None:
    look = tool(name="look", handler=lambda arguments: "42")
    fake = Fake(["not JSON", ToolCall("c1", "look", {})], ['{"city": "L', 'ima"}'])
    seen = played(stream(fake, "Hi", tools=[look]).pipe(ops.partials(Seen)))
    assert [partial.so_far for partial in seen] == [{"city": "L"}, {"city": "Lima"}, {"city": "Lima"}]
    assert seen[-1].value == {"city": "Lima"}


def test_a_response_that_calls_tools_ends_as_parsed_does() -> None:
    with pytest.raises(ValidationError, match="calls tools instead"):
        through(ops.partials(Seen), events("Let me see", ToolCall("c1", "look", {})))


def test_a_block_that_was_completed_otherwise_than_it_grew_is_the_answer() -> None:
    text = '{"city": "Oslo"}'
    events = [MessageStarted(Message("assistant")), TextDelta('{"city": "Li'), TextCompleted(text)]
    events.append(MessageCompleted(Message("assistant", text), "stop"))
    seen = through(ops.partials(Seen), events)
    assert seen[-1]["city"].text == "Oslo"
    assert seen[-1].value == {"city": "Oslo"}


def test_without_deltas_it_comes_at_once() -> None:
    source = stream_generate(Fake(['{"city": ', '"Lima"}']), "Hi", emit_text_deltas=False)
    assert [partial.state for partial in source.pipe(ops.partials(Seen))] == ["growing", "done"]


def test_the_value_is_that_of_the_response_and_of_a_chat() -> None:
    fake = Fake('{"value": [{"name": "a", "price": 1.5, "colour": "red"}]}')
    value = stream_generate(fake, "Hi", response_format=list[Item]).pipe(ops.partials(list[Item])).run().value
    assert value == generate(fake, "Hi", response_format=list[Item]).run().parsed
    assert value == chat(fake, "Hi", response_format=list[Item]).run().parsed


# Laws


items = st.builds(Item, st.text(max_size=6), st.none() | st.floats(-1e6, 1e6), st.sampled_from(Colour))
orders = st.builds(
    Order,
    st.integers(),
    st.text(max_size=12),
    st.dates(),
    st.sampled_from(["calm", "cross"]),
    st.booleans(),
    st.lists(items, max_size=3),
    st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=4), max_size=2), max_size=3),
)


def written(order: Order, ascii: bool, indent: int | None) -> str:
    def default(value: Any) -> Any:
        return value.value if isinstance(value, Enum) else str(value)

    return json.dumps(asdict(order), ensure_ascii=ascii, indent=indent, default=default)


def finished(seen: list[Partial[Any]]) -> list[tuple[Any, ...]]:
    """The paths of the parts that are done, in the order in which they were."""
    return list(dict.fromkeys(path for partial in seen for path, part in inside_out(partial) if part.state == "done"))


def inside_out(partial: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """As `parts`, but what is in a part comes before it, as it is done before it."""
    for name in partial.keys() or range(len(partial)):
        yield from inside_out(partial[name], (*path, name))
    yield path, partial


@given(st.sampled_from([Order, OrderDict, OrderModel]), orders, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_any_cutting_gives_the_same_finished_parts(
    hint: Any, order: Order, ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    text = written(order, ascii, indent)
    seen = partials(hint, *data.draw(pieces(text)))
    assert seen[-1].state == "done"
    assert seen[-1].value == through(ops.parsed(hint), said([text]))[0]
    assert seen[-1].so_far == json.loads(text)
    assert finished(seen) == finished(partials(hint, text))
    for before, after in pairwise(seen):
        assert_grows(before, after)
    for partial in seen:
        for path, part in parts(partial):
            if part.state == "done":
                assert part.value == at(seen[-1].value, path)


def assert_grows(before: Partial[Any], after: Partial[Any]) -> None:
    """Every part goes from missing to growing to done, and only adds to its text."""
    states = ["missing", "growing", "done"]
    for path, part in parts(before):
        later: Any = after
        for key in path:
            later = later[key]
        assert states.index(part.state) <= states.index(later.state)
        assert later.text.startswith(part.text)
        if part.state == "done":
            assert (later.value, later.so_far) == (part.value, part.so_far)


@given(json_values, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_any_json_is_read(value: Any, ascii: bool, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps({"a": value}, ensure_ascii=ascii, indent=indent)
    seen = partials(dict[str, Any], *data.draw(pieces(text)))
    assert seen[-1].value == seen[-1].so_far == json.loads(text)
    for path, part in parts(seen[-1]):
        assert part.so_far == at(seen[-1].value, path)


@given(st.text(alphabet='{}[]",:\\u12dDea8 \n-.tn`', max_size=40), st.data())
def test_any_text_ends_as_parsed_does(text: str, data: st.DataObject) -> None:
    cut = data.draw(pieces(text))
    assert ending(ops.partials(dict[str, Any]), cut) == ending(ops.parsed(dict[str, Any]), cut)


def ending(operator: Any, deltas: list[str]) -> Any:
    try:
        value = through(operator, said(deltas))[-1]
    except ValidationError as error:
        return error
    return value.value if isinstance(value, Partial) else value


# BAML's own partial parser, as it answers for every beginning of two texts


@dataclass
class Bought:
    name: str
    price: float | None
    colour: Literal["Red", "Blue"]


@dataclass
class Basket:
    id: int
    note: str
    mood: Literal["calm", "cross"]
    express: bool
    items: list[Bought]
    tags: dict[str, list[str]]


def as_baml(value: dict[str, Any] | None) -> dict[str, Any]:
    """What is missing is None there, or empty if it is a list or a map."""
    empty = {"id": None, "note": None, "mood": None, "express": None, "items": [], "tags": {}}
    shown = empty | (value or {})
    return shown | {"items": [{"name": None, "price": None, "colour": None} | item for item in shown["items"]]}


@pytest.mark.parametrize("case", json.loads(Path(__file__).with_name("baml_partials.json").read_text()))
def test_of_every_beginning_the_same_shows_as_in_baml(case: Any) -> None:
    """Recorded from baml-py 0.226.3, ``b.parse_stream``; only it shows true and false at their last letter already."""
    text, changes = case["text"], dict(case["shown"])
    seen: list[Any] = []
    theirs: dict[str, Any] = {}
    source = Subject[Any]()
    source.pipe(ops.partials(Basket)).subscribe(seen.append)
    for end, character in enumerate(text, 1):
        source.on_next(TextDelta(character))
        theirs |= changes.get(end, {})
        if not text[:end].endswith(("true", "false")):
            assert as_baml(seen[-1].so_far if seen else None) == theirs
