"""Tools as people write them: what the model is told of a function, what the function receives, what becomes of it."""

from __future__ import annotations

import enum
import functools
import json
import logging
import pickle
import re
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MethodType
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from reactivex import of

import rxllm
from rxllm import Engine, EngineError, Fake, ToolCall, ToolContext, ToolError, ValidationError, chat, serializer, tool
from rxllm import operators as ops
from rxllm.events import ToolExecutionCompleted, ToolHalt, ToolProgress
from rxllm.testing import record, replay_file
from rxllm.values import as_tool
from tests.programs import python


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Item(pydantic.BaseModel):
    """Something to buy."""

    name: str = pydantic.Field(description="as in the catalogue")
    amount: int = pydantic.Field(default=1, ge=1)
    color: Color | None = None


class Order(pydantic.BaseModel):
    items: list[Item]
    due: datetime


@dataclass
class Place:
    city: str
    country: str = "NO"


class Window(TypedDict):
    start: date
    end: NotRequired[date]


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


def received(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Let a model call `function`, which returns its ``locals()``, and return what it got."""
    events = list(rxllm.stream(Fake(ToolCall("c1", "look", arguments), "Done."), "Hi", tools=[function]))
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    if completed.error is not None:
        raise completed.error
    return completed.result


def result_of(function: Any, **arguments: Any) -> str:
    """Let a model call `function`, and return what the model gets."""
    model = Fake(ToolCall("c1", as_tool(function).name, arguments), "Done.")
    return chat(model, "Hi", tools=[function]).run().thread[-2].text


# What the model is told


def test_a_pydantic_model_is_described_as_pydantic_describes_it() -> None:
    def order(order: Order, gift: bool = False) -> None: ...

    schema = as_tool(order).schema
    described = Order.model_json_schema()
    assert schema["properties"] == {
        "order": {"$ref": "#/$defs/Order"},
        "gift": {"type": "boolean", "default": False},
    }
    assert schema["required"] == ["order"]
    assert {name: part for name, part in schema["$defs"].items() if name != "Order"} == described.pop("$defs")
    assert schema["$defs"]["Order"] == described


def test_bounds_descriptions_and_defaults_are_told() -> None:
    def look(
        count: Annotated[int, pydantic.Field(ge=1, le=10, description="how many")],
        page: int = pydantic.Field(default=1, ge=1),
        size: Annotated[int, msgspec.Meta(ge=1, description="per page")] = 20,
        query: Annotated[str, "what to look for"] = "all",
        tags: list[Annotated[str, "one word"]] | None = None,
        place: Annotated[Place, "where"] = Place("Oslo"),  # noqa: B008
    ) -> None:
        """Look.

        Args:
            count: an explicit description wins over this one
            page: the page
        """

    schema = as_tool(look).schema
    assert schema["required"] == ["count"]
    assert schema["properties"] == {
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "description": "how many"},
        "page": {"type": "integer", "minimum": 1, "default": 1, "description": "the page"},
        "size": {"type": "integer", "minimum": 1, "default": 20, "description": "per page"},
        "query": {"type": "string", "default": "all", "description": "what to look for"},
        "tags": {
            "anyOf": [{"type": "array", "items": {"type": "string", "description": "one word"}}, {"type": "null"}]
        },
        "place": {"$ref": "#/$defs/Place", "description": "where", "default": {"city": "Oslo", "country": "NO"}},
    }


@pytest.mark.parametrize(
    "hint",
    [
        int,
        float,
        bool,
        str | None,
        int | str,
        list[int],
        dict[str, list[float]],
        set[str],
        datetime,
        datetime | None,
        list[datetime],
        date,
        timedelta,
        UUID,
        Path,
        dict[str, Annotated[int, msgspec.Meta(ge=1)]],
    ],
)
def test_plain_types_are_described_as_pydantic_describes_them(hint: Any) -> None:
    def look(it: Any) -> None: ...

    look.__annotations__["it"] = hint
    pydantic_own = pydantic.TypeAdapter(
        dict[str, Annotated[int, pydantic.Field(ge=1)]] if "Meta" in str(hint) else hint
    )
    assert as_tool(look).schema["properties"]["it"] == pydantic_own.json_schema()


def test_classes_of_both_worlds_may_share_a_name() -> None:
    class Shop(pydantic.BaseModel):
        place: Place

    def look(here: Place, shop: Shop) -> None: ...

    look.__annotations__ = {"here": Place, "shop": Shop}
    schema = as_tool(look).schema
    assert schema["properties"] == {"here": {"$ref": "#/$defs/Place"}, "shop": {"$ref": "#/$defs/pydantic_Shop"}}
    assert schema["$defs"]["pydantic_Shop"]["properties"] == {"place": {"$ref": "#/$defs/pydantic_Place"}}
    assert schema["$defs"].keys() == {"Place", "pydantic_Shop", "pydantic_Place"}


# What the function receives


def test_arguments_are_real_objects() -> None:
    def look(
        item: Item,
        items: dict[str, list[Item]],
        place: Place | None,
        window: Window,
        point: Point,
        color: Color,
        when: datetime,
        price: Decimal,
        id: UUID,
        file: Path,
        either: int | Literal["all"],
    ) -> dict[str, Any]:
        return locals()

    arguments = {
        "item": {"name": "hat", "color": "red"},
        "items": {"more": [{"name": "bag", "amount": 2}]},
        "place": {"city": "Oslo"},
        "window": {"start": "2026-01-01"},
        "point": {"x": 1},
        "color": "green",
        "when": "2026-01-01T10:00:00Z",
        "price": "9.90",
        "id": "12345678-1234-5678-1234-567812345678",
        "file": "notes.txt",
        "either": "all",
    }
    assert received(look, arguments) == {
        "item": Item(name="hat", color=Color.RED),
        "items": {"more": [Item(name="bag", amount=2)]},
        "place": Place("Oslo"),
        "window": {"start": date(2026, 1, 1)},
        "point": Point(1.0),
        "color": Color.GREEN,
        "when": datetime.fromisoformat("2026-01-01T10:00:00+00:00"),
        "price": Decimal("9.90"),
        "id": UUID("12345678-1234-5678-1234-567812345678"),
        "file": Path("notes.txt"),
        "either": "all",
    }


def test_a_missing_argument_has_its_default() -> None:
    def look(
        a: int = pydantic.Field(default=5, ge=1),
        b: Annotated[int, pydantic.Field(default=6)] = pydantic.Field(default=7),
        c: list[Item] = pydantic.Field(default_factory=list),  # noqa: B008
        d: Color = Color.RED,
        e: Annotated[int, pydantic.Field(default=8)] = 9,
    ) -> dict[str, Any]:
        return locals()

    assert received(look, {}) == {"a": 5, "b": 7, "c": [], "d": Color.RED, "e": 9}
    assert as_tool(look).schema["properties"]["d"]["default"] == "red"


class NoSeatsError(Exception):
    errors = ("no seats",)


class Seats(pydantic.BaseModel):
    count: int

    def model_post_init(self, context: Any) -> None:
        raise NoSeatsError("none is left")


@dataclass
class Chairs:
    count: int

    def __post_init__(self) -> None:
        raise NoSeatsError("none is left")


def test_a_type_may_refuse_arguments_with_any_error() -> None:
    def look(seats: Seats) -> None: ...

    with pytest.raises(ToolError, match="the arguments are invalid: seats: none is left"):
        received(look, {"seats": {"count": 2}})
    with pytest.raises(ValidationError, match="the answer is not a Chairs: none is left"):
        rxllm.generate(Fake('{"count": 2}'), "Hi", response_format=Chairs).run()


def test_wrong_arguments_are_told_to_the_model_by_path_and_fault() -> None:
    def look(order: Order, place: Place, count: Annotated[int, pydantic.Field(ge=1)], page: int = 1) -> None: ...

    with pytest.raises(ToolError) as caught:
        received(look, {"order": {"items": [{"amount": 0}], "due": "soon"}, "place": {"city": 5}, "page": "one"})
    assert caught.value.reason == "invalid_arguments"
    assert "http" not in caught.value.message
    assert caught.value.message.splitlines()[0].startswith(
        "the arguments are invalid: order.items.0.name: Field required"
    )
    for fault in (
        "items.0.amount: Input should be greater",
        "place.city: Expected `str`",
        "count: is missing",
        "page:",
    ):
        assert fault in caught.value.message


@pytest.mark.judges
def test_pydantic_is_imported_by_users_only() -> None:
    program = """
import sys, dataclasses, rxllm
@dataclasses.dataclass
class Place: city: str
@rxllm.tool
def look(place: Place) -> Place: return place
call = rxllm.ToolCall("c", "look", {"place": {"city": "Oslo"}})
print(rxllm.chat(rxllm.Fake(call, "Done."), "Hi", tools=[look]).run().thread[-2].text, "pydantic" in sys.modules)
"""
    assert python("-c", program).stdout == '{"city":"Oslo"} False\n'


# Results


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Item(name="hat", color=Color.RED), '{"name":"hat","amount":1,"color":"red"}'),
        ([Place("Oslo"), Point(1.0)], '[{"city":"Oslo","country":"NO"},{"x":1.0,"y":0.0}]'),
        ({"due": datetime(2026, 1, 1, 10), "item": Item(name="hat")}, None),
        (Decimal("9.90"), '"9.90"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Color.GREEN, '"green"'),
        ({1}, "[1]"),
        (Path("notes.txt"), '"notes.txt"'),
        ({date(2026, 1, 1): 3}, '{"2026-01-01":3}'),
    ],
    ids=str,
)
def test_results_are_sent_as_json_and_so_are_their_events(result: Any, text: str | None, tmp_path: Path) -> None:
    def look() -> Any:
        return result

    sent = result_of(look)
    assert text is None or sent == text
    event = ToolExecutionCompleted("c1", "look", result)
    again = serializer.from_json(serializer.to_json(event))
    assert again.result == json.loads(sent)
    assert serializer.from_json(serializer.to_json(again)) == again

    model = Fake(ToolCall("c1", "look", {}), "Done.")
    live = list(rxllm.stream(model, "Hi", tools=[look]).pipe(record(tmp_path / "chat.jsonl")))
    assert event in live  # the program gets the object
    assert len(list(replay_file(tmp_path / "chat.jsonl"))) == len(live)


def test_a_chat_that_a_tool_ends_with_a_model_has_json_too() -> None:
    def book() -> rxllm.values.Halt:
        return rxllm.halt("booked", Item(name="hat"))

    result = chat(Fake(ToolCall("c1", "book", {})), "Hi", tools=[book]).run()
    assert result.metadata["halt_result"] == Item(name="hat")
    again = serializer.from_json(serializer.to_json(result))
    assert again.metadata["halt_result"] == {"name": "hat", "amount": 1, "color": None}
    halted = serializer.from_json(serializer.to_json(ToolHalt("c1", "booked", Item(name="hat"))))
    assert halted.result == {"name": "hat", "amount": 1, "color": None}


def test_a_session_that_a_tool_has_halted_with_a_model_is_stored() -> None:
    def book() -> rxllm.values.Halt:
        return rxllm.halt("booked", Item(name="hat"))

    turn = rxllm.session.start(Fake(ToolCall("c1", "book", {})), "Hi", tools=[book]).run()
    again = serializer.from_json(serializer.to_json(turn))
    assert again.session.metadata["halt_result"] == {"name": "hat", "amount": 1, "color": None}


def test_so_is_one_in_which_a_tool_asks_the_user_about_a_model() -> None:
    def book() -> rxllm.values.Halt:
        return rxllm.ask_user("This one?", item=Item(name="hat"))

    data = {"item": {"name": "hat", "amount": 1, "color": None}}
    model = Fake(ToolCall("c1", "book", {}))
    turn = rxllm.session.start(model, "Hi", tools=[book]).run()
    assert turn.session.metadata["ask_user_opts"] == {"item": Item(name="hat")}
    again = serializer.from_json(serializer.to_json(turn))
    assert again.session.metadata["ask_user_opts"] == data
    events = [serializer.from_json(serializer.to_json(event)) for event in rxllm.stream(model, "Hi", tools=[book])]
    assert [event.opts for event in events if isinstance(event, rxllm.AskUserRequested)] == [data]
    assert serializer.from_json(serializer.to_json(book())).opts == data


@pytest.mark.parametrize("result", [threading.Lock(), print, open(__file__), (n for n in "a"), {"at": object()}])  # noqa: SIM115
def test_a_result_without_json_is_a_tool_error_with_its_remedy(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    def look(context: ToolContext) -> Any:
        return [result]

    model = Fake(ToolCall("c1", "look", {}), "Done.")
    assert chat(model, "Hi", tools=[look]).run().output_text == "Done."
    (line,) = [record.getMessage() for record in caplog.records if "look" in record.getMessage()]
    assert re.search(r"the result of the tool 'look' cannot be encoded .* or pass tool_result_enc", line)


# What is a tool


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, what: str) -> str:
        """Find a thing."""
        return f"{self.name}: {what}"

    @tool
    def sell(self, what: str, context: ToolContext) -> str:
        """Sell a thing."""
        return f"{self.name} sells {what}"

    @tool(approval=True)
    async def close(self, when: date) -> str:
        return f"{self.name} closes at {when.isoformat()}"

    @staticmethod
    @tool
    def greet(name: str) -> str:
        return f"Hi {name}"

    @tool
    @staticmethod
    def part(name: str) -> str:
        return f"Bye {name}"

    @classmethod
    def count(cls, upto: int) -> str:
        return cls.__name__ * upto

    @classmethod
    @tool
    def repeat(cls, upto: int) -> str:
        return cls.__name__ * upto

    def __call__(self, what: str) -> str:
        """Call the shop."""
        return f"{self.name} has {what}"


def test_the_methods_of_an_object_are_tools() -> None:
    shop = Shop("Kiwi")
    for method, text in [(shop.find, "Kiwi: milk"), (shop.sell, "Kiwi sells milk"), (shop, "Kiwi has milk")]:
        assert list(as_tool(method).schema["properties"]) == ["what"]
        assert result_of(method, what="milk") == text
    assert [as_tool(method).name for method in (shop.find, shop.sell, shop)] == ["find", "sell", "Shop"]
    assert [as_tool(method).description for method in (shop.find, shop)] == ["Find a thing.", "Call the shop."]
    assert result_of(shop.greet, name="Ada") == "Hi Ada"
    assert result_of(shop.part, name="Ada") == "Bye Ada"
    for method in (Shop.count, Shop.repeat, shop.repeat, MethodType(vars(Shop)["repeat"].__func__, Shop)):
        assert result_of(method, upto=2) == "ShopShop"
    assert (shop.close.approval, shop.close.name) == (True, "close")
    assert shop.sell("milk", None) == "Kiwi sells milk"  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [Shop.find, Shop.sell])
def test_a_method_without_its_object_is_refused(method: Any) -> None:
    with pytest.raises(ValidationError, match=r"is a method that is not bound to an object; pass obj\.(find|sell)$"):
        chat(Fake("Hi"), "Hi", tools=[method])
    with pytest.raises(EngineError, match=r"tools\[0\]: the tool '(find|sell)' is a method that is not bound"):
        Engine(Fake("Hi"), tools=(method,))


def test_a_partial_hides_what_it_fills_in() -> None:
    def find(database: Any, what: Annotated[str, "a thing"], limit: int = 3) -> str:
        """Find a thing."""
        return f"{what} in {database}, at most {limit}"

    for partial in (functools.partial(find, "db"), functools.partial(find, database="db")):
        made = as_tool(partial)
        assert (made.name, made.description, list(made.schema["properties"])) == (
            "find",
            "Find a thing.",
            ["what", "limit"],
        )
        assert made.schema["properties"]["what"]["description"] == "a thing"
        assert result_of(partial, what="milk") == "milk in db, at most 3"


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def test_a_function_may_stand_wherever_a_tool_may() -> None:
    made = rxllm.tool(double)
    for engine, options, request in [
        (Engine(Fake("Hi"), tools=(double,)), {}, "Hi"),  # type: ignore[arg-type]
        (Engine(Fake("Hi")).with_tools(double), {}, "Hi"),
        (Engine(Fake("Hi"), params={"tools": [double]}), {}, "Hi"),
        (Engine(Fake("Hi")), {"tools": [double]}, "Hi"),
        (Engine(Fake("Hi")), {}, rxllm.request("Hi", tools=[double])),
    ]:
        rxllm.generate(engine, request, **options).run()
        assert engine.adapter.requests[0].tools == (made,)
    source = rxllm.stream_generate(Fake(ToolCall("c1", "double", {"x": 21})), "Hi", tools=[double])
    assert source.pipe(ops.run_tools([double], thread="Hi"), ops.to_step_result()).run().tool_results[0].text == "42"


def test_an_engine_with_a_function_can_be_pickled() -> None:
    engine = pickle.loads(pickle.dumps(Engine(tools=(textwrap.dedent,))))  # type: ignore[arg-type]
    assert engine.tools == (tool(textwrap.dedent),)
    by_value = pickle.loads(pickle.dumps(tool(approval=True)(textwrap.dedent)))
    assert by_value == tool(approval=True)(textwrap.dedent)


def test_a_value_that_cannot_be_a_tool_says_what_to_write() -> None:
    for tools, message in [
        ([lambda x: x], "a lambda has no name; use def, or write tool"),
        ([functools.partial(lambda x, y: x, 1)], "a lambda has no name"),
        ([Shop], "must be a Tool or a function, not .*Shop"),
        (["double"], "must be a Tool or a function, not 'double'; make a tool with rxllm.tool"),
        (double, r"must be a list of tools or functions, as in tools=\[function\], not <function double"),
        ([print], r"the tool 'print' cannot have the parameter \*args"),
        ([max], "the tool 'max' has no readable signature; wrap it in your own function"),
    ]:
        with pytest.raises(ValidationError, match=message) as caught:
            chat(Fake("Hi"), "Hi", tools=tools)  # type: ignore[arg-type]
        assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("tools",))


def test_a_hint_that_cannot_be_resolved_is_named() -> None:
    class Local: ...

    def look(it: Local) -> None: ...

    with pytest.raises(
        TypeError, match="the tool 'look' has a hint that cannot be resolved: name 'Local' is not defined"
    ):
        tool(look)


@dataclass
class Connection:
    handle: complex


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (complex, "complex cannot be read from JSON; use plain data, or pass the object in ToolContext.context"),
        (Connection, "complex cannot be read from JSON"),
        (Item | Point, "Unable to generate pydantic-core schema for .*Point"),
        (
            msgspec.defstruct("Cart", [("item", Item)]),
            "Item is a pydantic type in a msgspec Struct; use a dataclass",
        ),
    ],
)
def test_a_type_that_no_json_can_be_read_as_is_named(hint: Any, message: str) -> None:
    def look(it: Any) -> None: ...

    look.__annotations__["it"] = hint
    with pytest.raises(TypeError, match=f"the tool 'look' has a parameter whose type has no JSON schema: {message}"):
        tool(look)


async def later(x: int) -> int:
    return 2 * x


def items(x: int) -> Iterator[int]:
    yield x
    yield 2 * x


async def late_items(x: int) -> AsyncIterator[int]:
    yield x
    yield 2 * x


def observed(x: int) -> Any:
    return of(x, 2 * x)


@pytest.mark.parametrize("function", [double, later, items, late_items, observed])
def test_functions_of_every_kind_run(function: Any) -> None:
    assert result_of(function, x=21) == "42"
    if function not in (double, later):
        model = Fake(ToolCall("c1", function.__name__, {"x": 21}), "Done.")
        events = rxllm.stream(model, "Hi", tools=[function]).to_list().run()
        assert [event.data for event in events if isinstance(event, ToolProgress)] == [21, 42]


# Bugs


def failing(x: int) -> int:
    raise KeyError(x)


def refusing(x: int) -> int:
    raise ToolError("handler_raised", "there is no such number")


def test_an_error_in_a_tool_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert result_of(failing, x=1) == '{"error":"KeyError: 1"}'
    (logged,) = [entry for entry in caplog.records if entry.name == "rxllm"]
    assert (logged.levelno, logged.getMessage()) == (logging.WARNING, "the tool 'failing' raised an error")
    assert "raise KeyError(x)" in caplog.text
    assert caplog.text.count('File "') == 1  # of rxllm's own frames, none


def test_a_tool_error_on_purpose_and_wrong_arguments_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert result_of(refusing, x=1) == '{"error":"there is no such number"}'
    assert "are invalid" in result_of(failing, x="one")
    assert [entry for entry in caplog.records if entry.name == "rxllm"] == []


def test_an_approver_s_bug_is_raised_and_never_told() -> None:
    def approve(call: ToolCall) -> bool:
        return call.arguments["amount"] < 5  # the argument is named x

    ran: list[int] = []

    @tool(approval=True)
    def pay(x: int) -> None:
        ran.append(x)

    for step in (0, 1):  # in the first step, and in a later one
        first = [ToolCall("c0", "double", {"x": 1})] * step
        script = [*first, ToolCall("c1", "pay", {"x": 1}), "Done."]
        with pytest.raises(KeyError, match="amount"):
            chat(Fake(*script), "Hi", tools=[pay, double], approve=approve).run()
        with pytest.raises(TypeError, match="approve must return True, False, text"):
            chat(Fake(*script), "Hi", tools=[pay, double], approve=lambda call: None).run()
    assert ran == []


def test_a_result_without_json_may_halt_the_chat_which_keeps_its_thread() -> None:
    def broken() -> Any:
        return object()

    model = Fake(ToolCall("c0", "double", {"x": 1}), ToolCall("c1", "broken", {}), "Done.")
    result = chat(model, "Hi", tools=[double, broken], on_tool_error="halt").run()
    assert (result.halted_reason, len(model.requests), len(result.steps)) == ("tool_error", 2, 2)


def test_a_tool_in_openai_s_form_says_how_it_is_written() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    function = {"name": "weather", "description": "The weather.", "parameters": schema}
    entry: Any = {"type": "function", "function": function}
    remedy = "write rxllm.tool(name=..., description=..., schema={...}, handler=function)"
    with pytest.raises(ValidationError) as of_the_call:
        rxllm.chat(Fake("Hello"), "Hi", tools=[entry])
    assert remedy in str(of_the_call.value)
    with pytest.raises(rxllm.EngineError) as of_the_engine:
        Engine(Fake("Hello"), tools=[entry])
    assert remedy in str(of_the_engine.value)

    weather = rxllm.tool(name="weather", description="The weather.", schema=schema, manual=True)
    result = rxllm.chat(Fake(ToolCall("c1", "weather", {})), "Hi", tools=[weather]).run()
    assert [call.name for call in result.pending_tool_calls] == ["weather"]


def test_a_chat_that_has_completed_has_nothing_to_resume() -> None:
    model = Fake("Hello", "Again")
    with pytest.raises(ValidationError, match="nothing to resume"):
        rxllm.resume(model, rxllm.chat(model, "Hi").run()).run()
    assert len(model.requests) == 1
