"""``stream`` with a format: the result of ``ChatCompleted`` is what ``chat`` returns, in this process only."""

from __future__ import annotations

import logging
import pickle
import re
from dataclasses import dataclass
from typing import Any

import pytest
from reactivex import from_iterable
from reactivex import operators as rx

import rxllm
from rxllm import ChatCompleted, ChatResult, Engine, ErrorEvent, Fake, Session, Thread, ToolCall, serializer, session
from rxllm import operators as ops
from rxllm.events import unparsed
from rxllm.web import encode, for_client


@dataclass
class City:
    name: str


CHANCE = re.compile("[0-9a-f]{32}")
"""Ids that are made by chance."""

LIMA = '{"name": "Lima"}'
ANSWERS: dict[str, Any] = {
    "a fitting answer": [LIMA],
    "an answer that does not fit": ["Lima."],
    "an answer after tools": [ToolCall("c1", "look", {}), LIMA],
    "a refused answer": [["No.", ("finish", "content_filter")]],
    "a cut answer": [['{"na', ("finish", "length")]],
    "a halted chat": [ToolCall("c1", "ask", {})],
    "a failed chat": [["Li", rxllm.AdapterError("provider_unavailable")]],
}


def look() -> str:
    """Look."""
    return "sunny"


TOOLS = [rxllm.tool(look), rxllm.tool(name="ask", manual=True)]
OPTIONS: dict[str, Any] = {"tools": TOOLS, "response_format": City, "retry": False}


def last(events: Any) -> ChatCompleted:
    *_, end = list(events)
    assert isinstance(end, ChatCompleted)
    return end


@pytest.mark.parametrize("name", ANSWERS)
def test_the_last_event_of_a_typed_stream_has_the_result_of_chat(name: str) -> None:
    streamed = last(rxllm.stream(Fake(*ANSWERS[name]), "Hi", **OPTIONS)).result
    result = rxllm.chat(Fake(*ANSWERS[name]), "Hi", **OPTIONS).run()
    assert streamed == result
    assert (streamed.parsed, streamed.error, streamed.steps) == (result.parsed, result.error, result.steps)


@pytest.mark.parametrize("name", ANSWERS)
def test_folding_a_typed_stream_gives_the_result_of_chat_with_and_without_parse(name: str) -> None:
    events = list(rxllm.stream(Fake(*ANSWERS[name]), "Hi", **OPTIONS))
    result = rxllm.chat(Fake(*ANSWERS[name]), "Hi", **OPTIONS).run()
    for fold in (ops.to_chat_result("Hi"), ops.to_chat_result("Hi", parse=City)):
        assert from_iterable(events).pipe(fold).run() == result
    state = from_iterable(events).pipe(rx.reduce(rxllm.StreamCollector.apply_event, rxllm.StreamCollector())).run()
    assert from_iterable(state.to_events()).pipe(rx.last()).run() == events[-1]


@pytest.mark.parametrize("name", ANSWERS)
def test_parsing_adds_no_event_and_changes_no_other(name: str) -> None:
    plain = {**OPTIONS, "response_format": None}
    typed = [*rxllm.stream(Fake(*ANSWERS[name]), "Hi", **OPTIONS)]
    untyped = [*rxllm.stream(Fake(*ANSWERS[name]), "Hi", **plain)]
    assert [unparsed(event) for event in typed] == untyped
    assert sum(isinstance(event, ErrorEvent) for event in typed) == (name == "a failed chat")


@pytest.mark.parametrize("name", ANSWERS)
def test_json_holds_the_result_as_it_was_before_it_was_parsed(name: str) -> None:
    typed = last(rxllm.stream(Fake(*ANSWERS[name]), "Hi", **OPTIONS))
    untyped = last(rxllm.stream(Fake(*ANSWERS[name]), "Hi", **{**OPTIONS, "response_format": None}))
    assert serializer.to_json(typed) == serializer.to_json(untyped)
    assert serializer.from_json(serializer.to_json(typed)) == untyped
    assert pickle.loads(pickle.dumps(typed)) == typed


@pytest.mark.parametrize("protocol", ["rxllm", "ui", "ag-ui"])
@pytest.mark.parametrize("name", ["a fitting answer", "an answer that does not fit"])
def test_clients_receive_what_they_received_before(name: str, protocol: str) -> None:
    for operators in ((for_client(), encode(protocol)), (encode(protocol),)):
        typed, untyped = (
            list(rxllm.stream(Fake(*ANSWERS[name]), "Hi", **{**OPTIONS, "response_format": form}).pipe(*operators))
            for form in (City, None)
        )
        assert CHANCE.sub("id", repr(typed)) == CHANCE.sub("id", repr(untyped))


def test_operators_pass_the_parsed_result_on_and_verify_accepts_it() -> None:
    typed = rxllm.stream(Fake(LIMA), "Hi", **OPTIONS).pipe(ops.verify())
    assert last(typed).result.parsed == City("Lima")
    raced = last(rxllm.Stream.of(typed.pipe(ops.race(typed))))
    assert (raced.result.parsed, raced.unparsed and raced.unparsed.parsed) == (City("Lima"), None)


def test_text_that_is_rewritten_is_not_parsed_behind_its_back() -> None:
    typed = rxllm.stream(Fake(LIMA), "Hi", **OPTIONS).pipe(ops.map_text(lambda text: text.replace("Lima", "[city]")))
    end = last(typed)
    assert "Lima" not in repr(end)
    assert end.result.output_text == '{"name": "[city]"}'


def test_the_text_of_an_answer_that_does_not_fit_can_still_be_read() -> None:
    typed = rxllm.stream(Fake("Lima."), "Hi", **OPTIONS)
    assert typed.pipe(ops.to_text()).run() == "Lima."
    assert "".join(typed.pipe(ops.text())) == "Lima."


def test_a_session_s_events_have_the_parsed_result_and_the_session_continues() -> None:
    events = session.stream_start(Fake("Lima."), "Hi", response_format=City)
    assert last(events).result.error is not None
    turn = events.pipe(ops.to_session(Session())).run()
    assert turn.session.status == "completed"
    typed = events.pipe(ops.to_session(Session(), parse=City)).run()
    assert isinstance(typed.result, ChatResult)
    assert typed.result.error is not None
    assert typed.session == turn.session


def test_a_resumed_stream_has_the_result_of_resume() -> None:
    fake = Fake(ToolCall("c1", "ask", {}), LIMA, LIMA)
    halted = rxllm.chat(fake, "Hi", **OPTIONS).run()
    resumed = last(rxllm.stream_resume(fake, halted, results={"c1": "sunny"}, **OPTIONS))
    assert resumed.result.parsed == City("Lima")
    assert resumed.result == rxllm.resume(fake, halted, results={"c1": "sunny"}, **OPTIONS).run()


def test_repeat_until_halt_parses_by_hand_too() -> None:
    fake = Fake(LIMA)

    def ask(thread: Thread) -> Any:
        return rxllm.stream_step(fake, thread, response_format=City)

    thread = Thread().add_user("Hi")
    by_hand = ask(thread).pipe(ops.repeat_until_halt(ask, parse=City))
    assert last(by_hand) == last(rxllm.stream(fake, "Hi", response_format=City))
    with pytest.raises(rxllm.ValidationError, match="parse"):
        ops.repeat_until_halt(ask, parse=7)  # pyright: ignore[reportArgumentType]


def test_observers_and_logs_are_told_what_they_were_told_before(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    engine = Engine(Fake("Lima."), observers=(told.append,))
    with caplog.at_level(logging.DEBUG, "rxllm"):
        assert last(rxllm.stream(engine, "Hi", response_format=City)).result.error is not None
    (finished,) = [entry for entry in told if type(entry).__name__ == "ChatFinished"]
    assert (finished.halted_reason, finished.error) == ("completed", None)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
