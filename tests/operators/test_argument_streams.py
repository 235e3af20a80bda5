"""Tools that read their arguments while the model writes them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import of

import rxllm
from rxllm import Stream, ToolContext, ask_user, tool
from rxllm import operators as ops
from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    StepCompleted,
    TextDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.operators import _argument_feed, _tool_step
from rxllm.values import Message, StreamError, Tool, ToolError
from tests.examples import examples
from tests.operators.journal import KeepingJournal
from tests.operators.support import Model, kinds, result, stepped
from tests.operators.tools import contents
from tests.waiting import until


@dataclass
class Line:
    number: int
    text: str


def saving(**flags: Any) -> tuple[Tool, list[Any]]:
    """A tool that notes what it reads, and when."""
    read: list[Any] = []

    @tool(eager=True, **flags)
    async def save(path: str, text: Stream[str]) -> str:
        """Write a file."""
        read.append(path)
        async for piece in text:
            read.append(piece)
        return f"{path}: {''.join(read[1:])}"

    return save, read


def pieces_of(arguments: Any, *cuts: int) -> list[str]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    ends = sorted({cut for cut in cuts if 0 < cut < len(text)})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def dictating(name: str, *pieces: str, until: Callable[[int], Any] = lambda number: asyncio.sleep(0)) -> Model:
    """A model that writes the arguments of one call in pieces, and waits after each."""

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield ToolCallStarted("c1", name)
        for number, piece in enumerate(pieces):
            yield ToolCallDelta("c1", piece)
            await until(number)
        raw = "".join(pieces)
        try:
            yield ToolCallCompleted("c1", name, json.loads(raw), raw)
        except ValueError:
            yield ToolCallCompleted("c1", name, {}, raw, {"error": "invalid_json"})
        yield TextDelta("So.")

    return model


def error_of(events: list[Event]) -> ToolError:
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert isinstance(completed.error, ToolError)
    return completed.error


# How they are declared


def test_the_model_is_told_a_string_or_an_array() -> None:
    @tool
    async def save(path: str, text: Annotated[Stream[str], "The text."], lines: Stream[Line]) -> None: ...

    properties = save.schema["properties"]
    assert properties["text"] == {"type": "string", "description": "The text."}
    assert properties["lines"]["type"] == "array"
    assert save.schema["required"] == ["path", "text", "lines"]


def test_the_items_of_a_stream_can_have_bounds() -> None:
    @tool(eager=True)
    async def add(numbers: Stream[Annotated[int, msgspec.Meta(le=5)]]) -> int:
        return sum([number async for number in numbers])

    for eager in (None, False):
        events = stepped(dictating("add", '{"numbers": [1', ", 6, 1]}"), add, eager=eager)
        assert "numbers.1" in error_of(events).message


async def plain_after(text: Stream[str], path: str) -> None: ...
def not_async(text: Stream[str]) -> None: ...
async def with_default(text: Stream[str] = None) -> None: ...  # type: ignore[assignment]
async def of_nothing(text: Stream) -> None: ...  # type: ignore[type-arg]
async def or_none(text: Stream[str] | None) -> None: ...
async def in_a_list(text: list[Stream[str]]) -> None: ...
async def bounded_text(text: Annotated[Stream[str], msgspec.Meta(max_length=5)]) -> None: ...
async def bounded_list(numbers: Annotated[Stream[int], msgspec.Meta(min_length=1)]) -> None: ...
async def bounded_by_pydantic(text: Annotated[Stream[str], pydantic.Field(pattern="a+")]) -> None: ...


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (plain_after, "put the ordinary parameter before 'text'"),
        (not_async, "must be declared with async def"),
        (with_default, r"write Stream\[str\]"),
        (of_nothing, r"write Stream\[str\]"),
        (or_none, r"write Stream\[str\].*do not make it optional"),
        (in_a_list, r"write Stream\[str\].*or wrap it in another type"),
        (bounded_text, "maxLength.*check them in the function"),
        (bounded_list, "minItems.*check them in the function"),
        (bounded_by_pydantic, "pattern.*check them in the function"),
    ],
)
def test_an_argument_that_cannot_be_fed_is_refused_with_a_remedy(function: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        tool(function)


def test_a_declared_tool_stays_a_function() -> None:
    save, _ = saving()

    async def call() -> str:
        return await save("a", Stream.of(of("b", "c")))  # type: ignore[operator]

    assert asyncio.run(call()) == "a: bc"


# How they are fed


def test_a_tool_reads_while_the_model_writes() -> None:
    save, read = saving()

    def is_read(number: int) -> Any:  # the model waits until the tool has read what it has written
        return until(lambda: len(read) > min(number, 3))

    pieces = '{"path": "a", "text": "', "One. ", "Two. ", "Three.", '"}'
    events = stepped(dictating("save", *pieces, until=is_read), save)
    assert read == ["a", "One. ", "Two. ", "Three."]
    assert contents(result(events)) == {"c1": "a: One. Two. Three."}
    order = kinds(events)
    assert order.index(ToolExecutionStarted) < order.index(ToolCallCompleted) < order.index(ToolExecutionCompleted)
    assert order.index(MessageCompleted) < order.index(ToolResultEncoded)


def test_it_starts_with_its_plain_arguments() -> None:
    save, _ = saving()
    (started,) = [
        e
        for e in stepped(dictating("save", '{"path": "a", "text": "', 'b"}'), save)
        if isinstance(e, ToolExecutionStarted)
    ]
    assert started.arguments == {"path": "a"}


def test_an_array_is_fed_item_by_item() -> None:
    seen: list[Any] = []

    @tool(eager=True)
    async def write(lines: Stream[Line]) -> int:
        async for line in lines:
            seen.append(line)
        return len(seen)

    def is_read(number: int) -> Any:
        return until(lambda: len(seen) >= min(number, 2))

    parts = [
        '{"lines": [',
        '{"number": 1, "text": "a"}',
        ', {"number": 2, "text": "}]\\""}',
        ', {"number": 3, "text": ""}]}',
    ]
    events = stepped(dictating("write", *parts, until=is_read), write)
    assert seen == [Line(1, "a"), Line(2, '}]"'), Line(3, "")]
    assert contents(result(events)) == {"c1": "3"}


def test_an_item_of_the_wrong_type_fails_the_call() -> None:
    @tool(eager=True)
    async def write(lines: Stream[Line]) -> None:
        async for _ in lines:
            pass

    events = stepped(dictating("write", '{"lines": [{"number": 1, "text": "a"}, ', '{"number": "x"}', "]}"), write)
    assert error_of(events).reason == "invalid_arguments"
    assert "lines.1" in error_of(events).message


@pytest.mark.parametrize("flags", [{}, {"eager": False}])
def test_whole_arguments_are_fed_at_once(flags: Any) -> None:
    save, read = saving()
    save = dataclasses.replace(save, **flags)

    async def whole(request: Any, call: Any) -> AsyncIterator[Event]:
        yield ToolCallStarted("c1", "save")
        raw = '{"path": "a", "text": "b"}'
        yield ToolCallDelta("c1", raw)
        yield ToolCallCompleted("c1", "save", json.loads(raw), raw)

    assert contents(result(stepped(whole, save))) == {"c1": "a: b"}
    assert read == ["a", "b"]


def test_a_tool_that_is_not_declared_waits_for_the_response() -> None:
    save, _ = saving()
    events = stepped(dictating("save", '{"path": "a", "text": "', 'b"}'), dataclasses.replace(save, eager=False))
    order = kinds(events)
    assert order.index(MessageCompleted) < order.index(ToolExecutionStarted)


def test_in_a_journaled_stream_it_gets_its_arguments_at_once() -> None:
    save, read = saving()
    model = rxllm.Fake([rxllm.ToolCall("c1", "save", {"path": "a", "text": "bc"})], "Done.")
    rxllm.stream(model, "Hi", tools=[save]).pipe(ops.journaled(KeepingJournal())).run()
    assert read == ["a", "bc"]


def test_a_stream_that_begins_before_the_plain_arguments_waits_for_them() -> None:
    save, read = saving()
    events = stepped(dictating("save", '{"text": "One. ', 'Two.", "pa', 'th": "a"', "}"), save)
    assert contents(result(events)) == {"c1": "a: One. Two."}
    assert read[0] == "a"


law = settings(deadline=None, max_examples=examples(100))
words = st.text(max_size=12)


@law
@given(words, words, st.lists(st.integers(), max_size=4), st.lists(st.integers(1, 80), max_size=8), st.booleans())
def test_however_it_is_cut_it_reads_what_is_written(
    path: str, text: str, numbers: list[int], cuts: list[int], escaped: bool
) -> None:
    """Law: fed in any pieces, a tool returns what it returns when it is fed at once."""
    raw = json.dumps({"path": path, "text": text, "numbers": numbers}, ensure_ascii=escaped)

    @tool(eager=True)
    async def save(path: str, text: Stream[str], numbers: Stream[int]) -> list[Any]:
        return [path, "".join([piece async for piece in text]), [number async for number in numbers]]

    events = stepped(dictating("save", *pieces_of(raw, *cuts)), save)
    late = stepped(dictating("save", raw), save, eager=False)
    assert (
        contents(result(events))
        == contents(result(late))
        == {"c1": json.dumps([path, text, numbers], ensure_ascii=False, separators=(",", ":"))}
    )
    assert result(events) == result(late)


# What fails


@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "a", "text": "b',
        '{"path": "a", "text": "b\\q"}',
        '{"path": "a", "text": "b"]',
        '{"path": "a", "text": "b", }',
        '{"path": "a", "text": "b"}} and more',
    ],
)
def test_malformed_json_fails_the_stream_with_a_typed_error(raw: str) -> None:
    save, _ = saving()
    for eager in (None, False):
        events = stepped(dictating("save", raw[:24], raw[24:]), save, eager=eager)
        assert error_of(events).reason == "invalid_arguments"


@pytest.mark.parametrize("text", ["1", '["b"]', "null", '{"b": 1}'])
def test_a_value_of_another_type_fails_the_call(text: str) -> None:
    save, _ = saving()
    events = stepped(dictating("save", '{"path": "a", "text": ', text, "}"), save)
    assert error_of(events).reason == "invalid_arguments"


def test_a_stream_that_is_written_twice_fails_the_call() -> None:
    save, _ = saving()
    events = stepped(dictating("save", '{"path": "a", "text": "b', '", "text": "c"}'), save)
    assert "text is written twice" in error_of(events).message


@pytest.mark.parametrize("name", ["path", "p\\u0061th"])
@pytest.mark.parametrize("value", ['"/etc/passwd"', "1", '["x"]', '{"x": 1}', "null", '"safe"'])
@pytest.mark.parametrize("cuts", [(), (30,), (36, 40), (41,)])
def test_a_plain_argument_that_is_written_again_fails_the_call(name: str, value: str, cuts: tuple[int, ...]) -> None:
    save, _ = saving()
    first = '{"path": "safe", "text": "hello'
    rest = f'", "{name}": {value}}}'
    whole = first + rest
    events = stepped(dictating("save", first, *pieces_of(rest, *(cut - 30 for cut in cuts))), save)
    assert "path is written twice" in error_of(events).message
    assert json.loads(whole)["path"] == json.loads(value)


def test_a_tool_that_ended_before_an_argument_is_written_again_has_failed() -> None:
    @tool(eager=True)
    async def first(path: str, text: Stream[str]) -> str:
        async for piece in text:
            return f"{path}: {piece}"
        return ""

    async def until(number: int) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    pieces = ['{"path": "safe", "text": "hello', '"', ', "path": "/etc/passwd"}']
    for policy in ("continue", "halt"):
        events = stepped(dictating("first", *pieces, until=until), first, on_tool_error=policy)
        assert "path is written twice" in error_of(events).message
        assert result(events).done == (policy == "halt")
    same = stepped(dictating("first", *pieces[:2], ', "path": "safe"}', until=until), first)
    assert contents(result(same))["c1"] == "safe: hello"


def test_a_plain_argument_that_is_written_again_before_the_tool_starts_is_what_runs_and_what_is_recorded() -> None:
    save, read = saving()
    events = stepped(dictating("save", '{"path": "a", "path": "b", "text": "c', '"}'), save)
    assert read[0] == "b"
    assert [e.arguments["path"] for e in events if isinstance(e, ToolExecutionStarted | ToolCallCompleted)] == [
        "b",
        "b",
    ]


def test_an_optional_argument_that_is_not_there_yet_makes_it_wait_for_the_call() -> None:
    @tool(eager=True)
    async def save(path: str, mode: str = "w", *, text: Stream[str]) -> str:
        return mode + "".join([piece async for piece in text])

    late = stepped(dictating("save", '{"path": "a", "text": "b', 'c"', ', "mode": "x"}'), save)
    assert [e.arguments for e in late if isinstance(e, ToolExecutionStarted)] == [{"path": "a", "mode": "x"}]
    omitted = stepped(dictating("save", '{"path": "a", "text": "b', 'c"', "}"), save)
    assert kinds(omitted).index(ToolCallCompleted) < kinds(omitted).index(ToolExecutionStarted)
    assert [contents(result(events))["c1"] for events in (late, omitted)] == ["xbc", "wbc"]


def test_a_missing_stream_fails_the_call() -> None:
    @tool(eager=True)
    async def save(text: Stream[str], more: Stream[str]) -> list[str]:
        return [*[piece async for piece in text], *[piece async for piece in more]]

    assert "more is missing" in error_of(stepped(dictating("save", '{"text": "', 'b"}'), save)).message


def test_a_response_that_fails_stops_the_tool() -> None:
    save, read = saving()

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        yield MessageStarted(Message("assistant"))
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"path": "a", "text": "b')
        while not read:
            await asyncio.sleep(0)
        yield ToolCallCompleted("c1", "save", {}, '{"path": "a", "text": "b', {"error": "incomplete"})
        yield ErrorEvent(StreamError("truncated"))

    events = stepped(model, save)
    assert isinstance(error_of(events), ToolError)
    assert result(events).tool_results == ()


@pytest.mark.parametrize("eager", [None, False])
def test_an_argument_can_be_read_once(eager: bool | None) -> None:
    @tool(eager=True)
    async def save(text: Stream[str]) -> str:
        assert [piece async for piece in text] == ["b"]
        return "".join([piece async for piece in text])

    events = stepped(dictating("save", '{"text": "', 'b"}'), save, eager=eager)
    assert "read only once" in error_of(events).message


# What identifies the call


def keyed(text: str, **options: Any) -> tuple[str, Any]:
    """The key of a call whose streams have been read, and its arguments as its context has them."""
    seen: list[Any] = []

    @tool(eager=True)
    async def save(context: ToolContext, path: str, text: Stream[str]) -> None:
        async for _ in text:
            pass
        seen.extend((context.idempotency_key, context.tool_call.arguments))

    stepped(dictating("save", '{"path": "a", "text": "', text, '"', "}"), save, **options)
    return seen[0], seen[1]


def test_a_call_has_the_same_key_and_arguments_early_and_late() -> None:
    assert keyed("b") == keyed("b", eager=False)
    assert keyed("b")[1] == {"path": "a", "text": "b"}
    assert keyed("b")[0] != keyed("c")[0]


def test_a_call_that_is_not_complete_has_no_key() -> None:
    @tool(eager=True)
    async def save(context: ToolContext, text: Stream[str]) -> str:
        return context.idempotency_key

    message = error_of(stepped(dictating("save", '{"text": "', "b", '"}'), save)).message
    assert "has no idempotency key yet" in message
    assert "first read all the streams to the end" in message


@pytest.mark.parametrize("eager", [None, False])
def test_the_error_policy_sees_the_whole_arguments(eager: bool | None) -> None:
    seen: list[Any] = []

    @tool(eager=True)
    async def save(path: str, text: Stream[str]) -> None:
        async for _ in text:
            pass
        raise ToolError("handler_raised", "no")

    def policy(call: Any, error: Any) -> Any:
        seen.append(call.arguments)
        return "continue"

    stepped(dictating("save", '{"path": "a", "text": "', 'b"}'), save, eager=eager, on_tool_error=policy)
    assert seen == [{"path": "a", "text": "b"}]


def test_a_call_that_is_complete_before_its_tool_starts_is_whole() -> None:
    """With one tool at a time, the second call is complete when its tool starts."""
    keys: list[str] = []

    @tool(eager=True)
    async def save(context: ToolContext, text: Stream[str]) -> None:
        if keys:
            keys.append(context.idempotency_key)
            return
        keys.append("first")
        while len(keys) < 2 and not WRITTEN.is_set():
            await asyncio.sleep(0)

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        for id in ("c1", "c2"):
            yield ToolCallStarted(id, "save")
            yield ToolCallDelta(id, '{"text": "')
            yield ToolCallDelta(id, id)
            await asyncio.sleep(0)
            yield ToolCallDelta(id, '"}')
            yield ToolCallCompleted(id, "save", {"text": id}, json.dumps({"text": id}))
        await asyncio.sleep(0)
        WRITTEN.set()

    WRITTEN.clear()
    stepped(model, save, max_concurrency=1)
    assert len(keys) == 2


# A tool that ends early


def test_a_tool_that_returns_early_does_not_stop_the_model() -> None:
    @tool(eager=True)
    async def save(path: str, text: Stream[str], context: ToolContext) -> Any:
        context.progress("that is enough")
        return path

    long = ["x" * 10] * 500
    events = stepped(dictating("save", '{"path": "a", "text": "', *long, '"}'), save)
    order = kinds(events)
    assert order.index(ToolProgress) < order.index(ToolCallCompleted) < order.index(ToolExecutionCompleted)
    assert kinds(events)[-2:] == [ToolResultEncoded, StepCompleted]
    assert result(events).response.output_text == "So."


def test_a_tool_that_asks_to_be_called_again_does_not_stop_the_model() -> None:
    """It needs its whole arguments when it is called with the answer."""

    @tool(eager=True)
    async def save(text: Stream[str]) -> Any:
        return ask_user("Which?", calls_again=True)

    events = stepped(dictating("save", '{"text": "', *["x" * 10] * 500, '"}'), save)
    assert result(events).response.output_text == "So."
    assert result(events).metadata["pending_question"] == "Which?"


# Arguments of any length


def listening(read: Callable[[Stream[int]], Any], eager: bool = True) -> Tool:
    async def add(numbers: Stream[int]) -> Any:
        return await read(numbers)

    return dataclasses.replace(tool(add), eager=eager)


async def total(numbers: Stream[int]) -> int:
    return sum([number async for number in numbers])


@pytest.mark.parametrize("eager", [pytest.param(True, marks=pytest.mark.judges), False])
def test_more_items_than_may_wait_arrive_whole(eager: bool) -> None:
    raw = json.dumps({"numbers": [1] * 70_000})
    events = stepped(dictating("add", raw), listening(total, eager))
    assert contents(result(events)) == {"c1": "70000"}


def test_other_tasks_run_while_a_long_delta_is_read() -> None:
    turns: list[int] = []

    async def total_by_turns(numbers: Stream[int]) -> int:
        count = 0
        async for _ in numbers:
            count += 1
        return count

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        numbers = [1] * 20_000
        raw = json.dumps({"numbers": numbers})
        yield ToolCallStarted("c1", "add")
        yield ToolCallDelta("c1", raw[:20])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        other = asyncio.create_task(count_turns(turns))
        yield ToolCallDelta("c1", raw[20:])
        await asyncio.sleep(0)
        other.cancel()
        yield ToolCallCompleted("c1", "add", {"numbers": numbers}, raw)

    events = stepped(model, listening(total_by_turns))
    assert contents(result(events)) == {"c1": "20000"}
    assert len(turns) >= 60_000 // _argument_feed.SLICE


async def count_turns(turns: list[int]) -> None:
    while True:
        turns.append(0)
        await asyncio.sleep(0)


def test_a_tool_that_does_not_read_holds_back_the_rest_of_a_long_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds: list[Any] = []
    make = _argument_feed.ArgumentFeed.__init__
    monkeypatch.setattr(
        _argument_feed.ArgumentFeed, "__init__", lambda feed, *args: feeds.append(feed) or make(feed, *args)
    )
    waiting: list[int] = []

    @tool(eager=True)
    async def save(text: Stream[str]) -> int:
        for _ in range(500):
            await asyncio.sleep(0)
        waiting.extend(sum(map(len, items.waiting)) for items in feeds[0]._items.values())
        return sum([len(piece) async for piece in text])

    events = stepped(dictating("save", '{"text": "', "x" * 3_000_000, '"}'), save)
    assert contents(result(events)) == {"c1": "3000000"}
    assert waiting[0] <= (_argument_feed.MOST + 1) * _argument_feed.SLICE


def test_arguments_that_are_nested_too_deeply_fail_the_call() -> None:
    raw = '{"numbers": [1, ' + "[" * 300
    events = stepped(dictating("add", *pieces_of(raw, 20, 40)), listening(total))
    assert error_of(events).reason == "invalid_arguments"


def test_calls_beyond_those_that_are_read_at_once_get_their_arguments_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tool_step, "MOST_LISTENING", 1)
    pieces: list[list[str]] = []

    @tool(eager=True)
    async def save(text: Stream[str]) -> str:
        read = [piece async for piece in text]
        pieces.append(read)
        return "".join(read)

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        for id in ("c1", "c2"):
            yield ToolCallStarted(id, "save")
        for piece in ('{"text": "', "a", "b", '"}'):
            for id in ("c1", "c2"):
                yield ToolCallDelta(id, piece)
                await asyncio.sleep(0)
        for id in ("c1", "c2"):
            yield ToolCallCompleted(id, "save", {"text": "ab"}, '{"text": "ab"}')

    assert contents(result(stepped(model, save))) == {"c1": "ab", "c2": "ab"}
    assert sorted(pieces) == [["a", "b"], ["ab"]]


# Back-pressure


def test_a_slow_tool_slows_the_model() -> None:
    written = 0
    most = 0

    @tool(eager=True)
    async def save(text: Stream[str]) -> int:
        nonlocal most
        count = 0
        async for piece in text:
            count += len(piece)
            if count == 1:
                for _ in range(2000):  # the model could write all of it meanwhile
                    await asyncio.sleep(0)
                most = written
        return count

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        nonlocal written
        yield ToolCallStarted("c1", "save")
        yield ToolCallDelta("c1", '{"text": "')
        for _ in range(1000):
            yield ToolCallDelta("c1", "x")
            written += 1
            await asyncio.sleep(0)
        yield ToolCallDelta("c1", '"}')
        yield ToolCallCompleted("c1", "save", {"text": "x" * 1000}, json.dumps({"text": "x" * 1000}))

    assert contents(result(stepped(model, save))) == {"c1": "1000"}
    assert 32 < most < 300


async def reads_in_another_order(first: Stream[str], second: Stream[str]) -> str:
    after = [piece async for piece in second]
    return f"{len(''.join(after))} {len(''.join([piece async for piece in first]))}"


async def reads_only_the_second(first: Stream[str], second: Stream[str]) -> str:
    return f"{len(''.join([piece async for piece in second]))} 300"


async def stops_reading_the_first(first: Stream[str], second: Stream[str]) -> str:
    async for _ in first:
        break
    return f"{len(''.join([piece async for piece in second]))} 300"


async def stops_reading_all(first: Stream[str], second: Stream[str]) -> str:
    for stream in (first, second):
        async for _ in stream:
            break
    while not WRITTEN.is_set():
        await asyncio.sleep(0)
    return "300 300"


WRITTEN = asyncio.Event()


@pytest.mark.parametrize(
    "function", [reads_in_another_order, reads_only_the_second, stops_reading_the_first, stops_reading_all]
)
def test_a_stream_that_is_not_read_does_not_hold_up_the_other(function: Callable[..., Any]) -> None:
    WRITTEN.clear()
    pieces = ['{"first": "', *["x"] * 300, '", "second": "', *["y"] * 300, '"}']

    async def until(number: int) -> None:
        await asyncio.sleep(0)
        if number == len(pieces) - 1:
            WRITTEN.set()

    declared = dataclasses.replace(tool(function), eager=True)
    events = stepped(dictating(declared.name, *pieces, until=until), declared)
    assert contents(result(events)) == {"c1": "300 300"}


def test_a_waiting_tool_does_not_hold_up_the_one_before_it() -> None:
    """With one tool at a time, the second call's text waits, and the first one's may still arrive."""

    @tool(eager=True)
    async def save(text: Stream[str]) -> int:
        return sum([len(piece) async for piece in text])

    async def model(request: Any, call: Any) -> AsyncIterator[Event]:
        for id in ("c1", "c2"):
            yield ToolCallStarted(id, "save")
            yield ToolCallDelta(id, '{"text": "')
        for _ in range(500):
            yield ToolCallDelta("c2", "x")
            await asyncio.sleep(0)
        for id, text in (("c1", ""), ("c2", "x" * 500)):
            yield ToolCallDelta(id, '"}')
            yield ToolCallCompleted(id, "save", {"text": text}, json.dumps({"text": text}))

    assert contents(result(stepped(model, save, max_concurrency=1))) == {"c1": "0", "c2": "500"}


def test_an_executor_can_bind_the_tool_itself() -> None:
    @tool(eager=True)
    async def save(path: str, text: rxllm.Stream[str], rows: rxllm.Stream[int]) -> list[Any]:
        return [path, [piece async for piece in text], [row async for row in rows]]

    model = rxllm.Fake([rxllm.ToolCall("c1", "save", {"path": "a", "text": "bc", "rows": [1, 2]})])
    step = rxllm.step(model, "Hi", tools=[save], tool_executor=lambda tool, given, context: tool.bind(given, context)())
    assert contents(step.run()) == {"c1": '["a",["bc"],[1,2]]'}
