"""The real model, in this process: skipped where xllamacpp is not installed or the weights cannot be had."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest
from reactivex import Subject

import rxllm
from rxllm import Engine, compact_thread, count_tokens, operators, session
from rxllm.adapters.local import Local
from rxllm.adapters.local.server import find_weights
from rxllm.collector import StreamCollector
from rxllm.events import Event, MessageCompleted, TextDelta, ToolCallDelta, UsageUpdated
from rxllm.runtime import run
from rxllm.values import Call, EngineError, Message, Request, Response, Session, Tool, system, tool, tool_result, user
from tests.programs import python
from tests.wire.lawful import lawful

pytestmark = pytest.mark.judges

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")

PRIMES = Request((user("Name three primes."),), max_tokens=24, temperature=0.0, seed=1)
STORY = Request((user("Write a very long story of a fox."),), options={"ignore_eos": True}, max_tokens=1500)


@pytest.fixture(scope="module")
def local() -> Local:
    try:
        find_weights()
    except EngineError as error:
        pytest.skip(str(error))
    return Local()


def events(local: Local, request: Request) -> list[Event]:
    made: list[Event] = run(local.stream(request, Call()).to_list())
    lawful(made)
    return made


def respond(local: Local, request: Request) -> Response[Any]:
    state = StreamCollector()
    for event in events(local, request):
        state = state.apply_event(event)
    return state.to_response()


@tool
def get_weather(city: str) -> str:
    """The current weather in a city."""
    return f"sunny in {city}"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_text_streams_and_folds(local: Local, capfd: pytest.CaptureFixture[str]) -> None:
    made = events(local, PRIMES)
    deltas = [event.delta for event in made if isinstance(event, TextDelta)]
    assert len(deltas) > 3
    response = respond(local, PRIMES)
    assert response.output_text
    assert response.finish_reason in ("stop", "length")
    assert response.usage.input_tokens
    assert 0 < (response.usage.output_tokens or 0) <= 24
    assert response.model
    assert "/" not in response.model
    assert capfd.readouterr() == ("", "")


def test_the_token_limit_is_a_finish_reason(local: Local) -> None:
    assert respond(local, Request(STORY.messages, max_tokens=5)).finish_reason == "length"


def test_two_streams_at_once(local: Local) -> None:
    async def both() -> list[list[Event]]:
        return await asyncio.gather(*(_collected(local, PRIMES) for _ in range(2)))

    for made in asyncio.run(both()):
        lawful(made)
        assert isinstance(made[-1], MessageCompleted)
        assert any(isinstance(event, UsageUpdated) for event in made)


async def _collected(local: Local, request: Request) -> list[Event]:
    return [event async for event in local.stream(request, Call())]


def test_cancelling_stops_the_server(local: Local) -> None:
    async def cancelled() -> bool:
        async for event in local.stream(STORY, Call()):
            if isinstance(event, TextDelta):
                break
        for _ in range(50):
            async with httpx.AsyncClient(trust_env=False) as client:
                slots: Any = (await client.get(local.base_url.removesuffix("/v1") + "/slots")).json()
            if not any(slot["is_processing"] for slot in slots):
                return True
            await asyncio.sleep(0.1)
        return False

    assert asyncio.run(cancelled())


@pytest.mark.judges
@pytest.mark.parametrize(
    ("given", "question", "arguments"),
    [
        (get_weather, "What is the weather in Paris?", {"city": "Paris"}),
        (get_weather, "Tell me the weather in Berlin.", {"city": "Berlin"}),
        (add, "What is 19 plus 23?", {"a": 19, "b": 23}),
        (add, "Add 17 and 25.", {"a": 17, "b": 25}),
    ],
)
def test_a_tool_is_called_and_its_result_told(
    local: Local, given: Tool, question: str, arguments: dict[str, Any]
) -> None:
    request = Request((user(question),), tools=(given,))
    made = events(local, request)
    assert any(isinstance(event, ToolCallDelta) for event in made)
    response = respond(local, request)
    assert [(call.id, call.name, call.arguments) for call in response.tool_calls] == [("call_0", given.name, arguments)]
    assert response.finish_reason == "tool_calls"
    assert response.output_text == ""
    result = "sunny" if given is get_weather else "42"
    assert isinstance(response.message, Message)
    answer = respond(
        local, Request((*request.messages, response.message, tool_result("call_0", result)), tools=(given,))
    )
    assert answer.finish_reason == "stop"
    assert result in answer.output_text.lower()


@pytest.mark.judges
def test_a_correction_stops_the_model_and_is_answered(local: Local) -> None:
    steer = Subject[str]()

    def type_once(event: Event) -> None:
        if isinstance(event, TextDelta) and steer.observers and "." in event.delta:
            steer.on_next("Stop. Name a colour, in one word.")
            steer.on_completed()

    options: Any = {"max_tokens": 120, "temperature": 0.0, "seed": 1}
    thread = [user("Write a long story of a fox.")]
    source = rxllm.stream(local, thread, steer=steer, **options).pipe(operators.tap(type_once))
    result: Any = source.run().result  # type: ignore[union-attr]
    assert [message.role for message in result.thread] == ["user", "assistant", "user", "assistant"]
    first, second = (step.response for step in result.steps)
    assert first.raw_finish_reason == "steered"
    assert first.output_text.rstrip()[-1] in '.!?"'
    assert second.output_text
    assert result.halted_reason == "completed"


def test_no_tool_is_called_under_none(local: Local) -> None:
    request = Request((user("Say hello."),), tools=(add,), tool_choice="none", max_tokens=20)
    assert respond(local, request).tool_calls == ()


def test_the_chosen_tool_is_called(local: Local) -> None:
    request = Request((user("Tell me of Rome."),), tools=(add, get_weather), tool_choice="get_weather")
    assert [call.name for call in respond(local, request).tool_calls] == ["get_weather"]


@tool
def book(where: str, guests: int, meal: str | None = None, tags: list[str] = []) -> str:  # noqa: B006
    """Book a table."""
    return where


@tool
def now() -> str:
    """The time now."""
    return "noon"


@pytest.mark.judges
def test_richer_schemas_are_grammars_too(local: Local) -> None:
    request = Request((system("Be brief."), user("Book a table for 4 at Luigi's.")), tools=(book, now))
    (call,) = respond(local, request).tool_calls
    assert call.name in ("book", "now")
    assert "error" not in call.metadata
    (timed,) = respond(local, Request((user("What is the time?"),), tools=(now,))).tool_calls
    assert (timed.name, timed.arguments) == ("now", {})


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not a file") as caught:
        run(Local(tmp_path / "nowhere.gguf").stream(PRIMES, Call()))
    assert caught.value.reason == "invalid_engine"


LEFT_ALIVE = """
import rxllm.adapters.local as local, threading, time
from rxllm.values import Call, Request, user
came = threading.Event()
request = Request((user("Write a very long story."),), options={"ignore_eos": True}, max_tokens=%d)
def subscribe():
    local.Local().stream(request, Call()).subscribe(lambda event: came.set())
subscribe()
assert came.wait(60)
"""


@pytest.mark.judges
@pytest.mark.parametrize("tokens", [1, 30])
def test_a_program_ends_cleanly_with_a_stream_alive(local: Local, tokens: int) -> None:
    program = textwrap.dedent(LEFT_ALIVE % tokens)
    ended = python("-W", "error", "-c", program, cwd=Path(__file__).parents[2])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.judges
def test_it_counts_and_sums_up_a_conversation(local: Local) -> None:
    summaries = Engine(local, params={"temperature": 0.0, "seed": 0, "max_tokens": 24})
    compact = compact_thread(summaries, at=100, keep=1, count=lambda request: count_tokens(local, request))
    engine = Engine(local, params={"temperature": 0.0, "seed": 0, "max_tokens": 16}, prepare=[compact])
    turn = session.reply(engine, Session(), "My dog is called Rex. " * 12).run()
    assert "summary" not in turn.session.messages[-1].metadata  # the only exchange is kept
    turn = session.reply(engine, turn, "What is my dog called?").run()
    assert "summary" in turn.session.messages[-1].metadata
    assert (turn.session.status, len(turn.session.messages)) == ("completed", 4)
