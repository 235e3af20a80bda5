"""Corrections that the user types while the model speaks: `steer` and `steer_at` of chats."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import reactivex
from reactivex import Subject, from_iterable, never, of
from reactivex import operators as rx
from reactivex.disposable import Disposable
from reactivex.scheduler import NewThreadScheduler
from reactivex.testing import ReactiveTest, TestScheduler

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    Fake,
    Message,
    Session,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    serializer,
    session,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Steered,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from rxllm.runtime import Stream
from rxllm.testing import World, assert_operator, simulate_cancels, simulate_many
from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk, endless
from rxllm.testing.marbles import START, cold, record
from rxllm.values import ChatResult
from tests.closing import assert_closes
from tests.examples import share
from tests.operators.threads import together
from tests.runtime.support import model
from tests.testing.simulated import engine_of, is_answered, with_tools
from tests.waiting import PATIENCE, turns, until

CALL = ToolCall("c1", "double", {"x": 21})
STORY = ["Once upon a time. ", "There was ", "a fox. It", " ran. ", "The end."]


@tool
def double(x: int) -> int:
    return 2 * x


class Typist:
    """A user who types each text when an event comes that fits; by default at the delta that is named."""

    def __init__(self, *plan: tuple[Any, str | Message]) -> None:
        self.steer: Subject[str | Message] = Subject()
        self._plan = list(plan)
        self.events: list[Event] = []

    def see(self, event: Event) -> None:
        self.events.append(event)
        for when, text in list(self._plan):
            if when(event) if callable(when) else getattr(event, "delta", None) == when:
                self._plan.remove((when, text))
                self.steer.on_next(text)


def kind(cls: type[Event]) -> Callable[[Event], bool]:
    return lambda event: type(event) is cls


def play(script: Any, *plan: tuple[Any, str | Message], **options: Any) -> tuple[Typist, ChatResult, Fake]:
    """A chat that is steered as planned. What it emits keeps all rules."""
    typist, fake = Typist(*plan), script if isinstance(script, Fake) else Fake(*script)
    options.setdefault("tools", [double])
    source = rxllm.stream(fake, "Hi", steer=typist.steer, **options).pipe(ops.verify())
    result: Any = source.pipe(ops.tap(typist.see)).run().result  # type: ignore[union-attr]
    assert not typist.steer.observers
    assert reduce(StreamCollector.apply_event, typist.events, StreamCollector()).to_chat_result() == result
    return typist, result, fake


def texts(result: Any) -> list[tuple[str, str]]:
    thread = result if isinstance(result, Thread) else result.thread
    return [(message.role, message.text) for message in thread]


def steered(typist: Typist) -> list[tuple[str, bool]]:
    return [(event.message.text, event.used) for event in typist.events if isinstance(event, Steered)]


# At the end of a sentence


def test_a_correction_stops_the_model_at_the_end_of_its_sentence() -> None:
    typist, result, fake = play([STORY, "A wolf."], ("There was ", "A wolf!"))
    assert texts(result) == [
        ("user", "Hi"),
        ("assistant", "Once upon a time. There was a fox. "),
        ("user", "A wolf!"),
        ("assistant", "A wolf."),
    ]
    assert steered(typist) == [("A wolf!", True)]
    assert fake.requests[1].messages == result.thread.messages[:3]
    first = result.steps[0].response
    assert (first.finish_reason, first.raw_finish_reason) == ("stop", "steered")
    assert (result.halted_reason, len(result.steps), result.metadata) == ("completed", 2, {})


def test_the_events_say_where_it_ends_and_what_follows() -> None:
    typist, _, _ = play([STORY, "A wolf."], ("There was ", "A wolf!"))
    kinds = [type(event).__name__ for event in typist.events]
    assert kinds == [
        *("MessageStarted", "TextDelta", "TextDelta", "TextDelta", "TextCompleted", "MessageCompleted"),
        *("StepCompleted", "Steered"),
        *("MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted", "StepCompleted", "ChatCompleted"),
    ]
    assert [event.delta for event in typist.events if isinstance(event, TextDelta)] == [
        *("Once upon a time. ", "There was ", "a fox. ", "A wolf.")
    ]


@pytest.mark.parametrize(
    ("pieces", "when", "said"),
    [
        (["Aye. ", "Bee. "], "Aye. ", "Aye. "),  # the next sentence shows that this one has ended
        (["Aye. Bee", " sees. Dee. E"], "Aye. Bee", "Aye. Bee sees. "),  # two ends in one piece: at the first
        (["A ", "b ", "c"], "A ", "A b c"),  # no end comes: the model stops
        (["Ask Dr", ". ", "Who. ", "Or not."], "Ask Dr", "Ask Dr. Who. "),
        (["One\n", "\n", "Two\n"], "One\n", "One\n\n"),
        (["你好。", "再见。"], "你好。", "你好。"),
    ],
)
def test_no_sentence_is_cut_in_half(pieces: list[str], when: str, said: str) -> None:
    _, result, _ = play([pieces, "Yes."], (when, "Stop"))
    assert [text for role, text in texts(result) if role == "assistant"] == [said, "Yes."]


@pytest.mark.parametrize("cut", range(1, 40))
def test_the_place_does_not_depend_on_the_pieces(cut: int) -> None:
    text = "The first one is said. Mr. Fox has the second. The third is too much."
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    _, result, _ = play(Fake([("delay", 0), *pieces], ["Ok."]), (kind(MessageStarted), "Stop"))
    assert texts(result)[1] == ("assistant", "The first one is said. ")


def test_several_messages_before_one_end_are_applied_together_and_in_order() -> None:
    plan = [("There was ", "A wolf!"), ("There was ", user("Grey.")), ("There was ", "Old.")]
    typist, result, fake = play([STORY, "Ok."], *plan)
    assert steered(typist) == [("A wolf!", True), ("Grey.", True), ("Old.", True)]
    assert [message.text for message in fake.requests[1].messages[2:]] == ["A wolf!", "Grey.", "Old."]
    assert len(result.steps) == 2


def test_each_end_takes_the_messages_that_have_come_since() -> None:
    _, result, _ = play([STORY, ["A wolf. ", "He ", "howls. ", "Loud."], "Ok."], ("There was ", "1"), ("He ", "2"))
    assert [text for _, text in texts(result)[1:]] == [
        *("Once upon a time. There was a fox. ", "1", "A wolf. He howls. ", "2", "Ok.")
    ]


def test_a_message_at_the_subscription_stops_the_first_sentence() -> None:
    result = rxllm.chat(Fake(STORY, "Ok."), "Hi", steer=of("Briefly!")).run()
    assert [text for _, text in texts(result)] == ["Hi", "Once upon a time. ", "Briefly!", "Ok."]


def test_of_its_usage_only_what_has_arrived_counts() -> None:
    script = [[Usage(7, 2), "Aye. ", "Bee. ", "Sea.", Usage(7, 9)], ["Ok.", Usage(20, 1)]]
    _, result, _ = play(script, ("Aye. ", "Stop"))
    assert [step.response.usage for step in result.steps] == [Usage(7, 2), Usage(20, 1)]
    assert result.usage == Usage(27, 3)


def test_the_kept_message_has_what_every_provider_takes_back() -> None:
    thought = ("thinking", "Hm.")
    _, result, _ = play([[thought, "Aye. ", "Bee. ", "Sea."], "Ok."], ("Aye. ", "Stop"))
    first = result.steps[0]
    assert first.response.message is not None
    assert [type(part).__name__ for part in first.response.message.parts] == ["ThinkingPart", "TextPart"]
    kept = first.thread.last
    assert kept is not None
    assert getattr(kept.parts[0], "signature", "") is None
    assert kept.text == "Aye. "


# What is never interrupted


def test_thinking_goes_on_to_its_end_and_then_to_the_end_of_a_sentence() -> None:
    script = [[("thinking", "Let me. "), ("thinking", "See. "), "Aye. ", "Bee."], "Ok."]
    typist, result, _ = play(script, (kind(ThinkingDelta), "Stop"))
    assert [event.delta for event in typist.events if isinstance(event, ThinkingDelta)] == ["Let me. ", "See. "]
    assert texts(result)[1] == ("assistant", "Aye. ")


def test_the_model_does_not_begin_to_think_again() -> None:
    script = [["Aye. ", ("thinking", "Hm."), "Bee."], "Ok."]
    typist, result, _ = play(script, ("Aye. ", "Stop"))
    assert not any(isinstance(event, ThinkingDelta) for event in typist.events)
    assert texts(result)[1] == ("assistant", "Aye. ")


def test_a_response_with_nothing_but_thinking_is_not_cut() -> None:
    _, result, _ = play([[("thinking", "Aye. "), ("thinking", "Bee. ")], "Ok."], (kind(ThinkingDelta), "Stop"))
    assert result.steps[0].response.raw_finish_reason != "steered"
    assert result.output_text == "Ok."


def test_a_correction_before_a_call_comes_in_time() -> None:
    typist, result, _ = play([["I will double. ", CALL], "Ok."], ("I will double. ", "Don't!"))
    assert not any(isinstance(event, ToolCallStarted | ToolExecutionStarted) for event in typist.events)
    assert [text for _, text in texts(result)[1:]] == ["I will double. ", "Don't!", "Ok."]


def test_once_a_call_has_begun_a_correction_waits_for_the_step() -> None:
    script = [["Well. ", CALL, "More. ", "And more. "], "Ok."]
    typist, result, _ = play(script, (kind(ToolCallStarted), "Stop"))
    assert texts(result) == [
        ("user", "Hi"),
        ("assistant", "Well. More. And more. "),
        ("tool", "42"),
        ("user", "Stop"),
        ("assistant", "Ok."),
    ]
    assert [type(event) for event in typist.events].count(ToolExecutionCompleted) == 1


@pytest.mark.parametrize("steer_at", ["sentence", "step"])
@pytest.mark.parametrize("when", [ToolExecutionStarted, ToolExecutionCompleted, StepCompleted])
def test_while_tools_run_it_waits_and_none_runs_twice(steer_at: Any, when: type[Event]) -> None:
    runs: list[int] = []

    @tool(name="double")
    async def slow(x: int) -> int:
        runs.append(x)
        await turns()
        return 2 * x

    calls = [CALL, ToolCall("c2", "double", {"x": 2})]
    typist, result, _ = play([calls, "Ok."], (kind(when), "Stop"), steer_at=steer_at, tools=[slow])
    assert sorted(runs) == [2, 21]
    assert [role for role, _ in texts(result)] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert steered(typist) == [("Stop", True)]


def test_a_pause_of_the_provider_is_gone_on_with_first() -> None:
    script = [["Searching.", ("finish", "pause_turn")], ["Found. ", "It", ("finish", "stop")], "Ok."]
    _, result, _ = play(script, (kind(MessageCompleted), "Stop"), steer_at="step")
    assert [role for role, _ in texts(result)] == ["user", "assistant", "assistant", "user", "assistant"]


# At the end of a step


def test_at_a_step_the_model_finishes_and_a_chat_that_would_have_completed_goes_on() -> None:
    typist, result, _ = play([STORY, "A wolf."], ("There was ", "A wolf!"), steer_at="step")
    assert texts(result)[1] == ("assistant", "".join(STORY))
    assert (steered(typist), result.output_text) == ([("A wolf!", True)], "A wolf.")


@pytest.mark.parametrize("steer_at", ["sentence", "step"])
def test_a_message_in_the_handler_of_the_last_event_of_a_step_is_in_time(steer_at: Any) -> None:
    typist, result, _ = play(["Aye.", "Ok."], (kind(StepCompleted), "More"), steer_at=steer_at)
    assert (steered(typist), result.output_text) == ([("More", True)], "Ok.")


def test_a_message_in_the_handler_of_its_own_event_waits_for_the_next_end() -> None:
    typist, result, _ = play(
        ["Aye.", "Bee.", "Sea."], (kind(StepCompleted), "1"), (kind(Steered), "2"), steer_at="step"
    )
    assert steered(typist) == [("1", True), ("2", True)]
    assert [text for _, text in texts(result)[1:]] == ["Aye.", "1", "Bee.", "2", "Sea."]


def test_an_answer_in_a_format_is_not_cut_by_default() -> None:
    schema = rxllm.json_schema("answer", {"type": "object"})
    script = ['{"text": "One. Two. Three."}', '{"text": "Ok."}']
    _, result, _ = play(script, (kind(MessageStarted), "Stop"), response_format=schema)
    assert texts(result)[1] == ("assistant", script[0])
    assert result.output_text == script[1]


# Too late


def unused(result: ChatResult) -> list[str]:
    return [message.text for message in result.metadata.get("unused_steering", ())]


def late(script: Any, when: Any, **options: Any) -> tuple[Typist, ChatResult, Fake]:
    """Play a chat for which the message "Late" comes too late; it is told once, before the end."""
    typist, result, fake = play(script, (when, "Late"), **options)
    assert steered(typist) == [("Late", False)]
    assert [type(event) for event in typist.events[-2:]] == [Steered, ChatCompleted]
    assert unused(result) == ["Late"]
    assert "Late" not in [text for _, text in texts(result)]
    assert serializer.from_json(serializer.to_json(result)) == result
    return typist, result, fake


@tool(approval=True, name="double")
def guarded(x: int) -> int:
    return 2 * x


ASKING = tool(name="double", handler=lambda arguments: rxllm.ask_user("Which?"))
HALTING = tool(name="double", handler=lambda arguments: rxllm.halt("found"))


@pytest.mark.parametrize("steer_at", ["sentence", "step"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tools": [guarded]}, "approval"),
        ({"tools": [ASKING]}, "ask_user"),
        ({"tools": [HALTING]}, "found"),
        ({"tools": [tool(name="double", manual=True)]}, "manual_tool_calls"),
        ({"mode": "manual"}, "manual_tool_calls"),
        ({"tools": []}, "error"),
        ({"halt_when": lambda step: True}, "halt_when"),
        ({"max_turns": 1}, "max_turns"),
    ],
)
def test_a_chat_that_halts_for_its_caller_stays_halted(options: Any, reason: str, steer_at: Any) -> None:
    _, result, fake = late([["Well. ", CALL]], kind(ToolCallStarted), steer_at=steer_at, **options)
    assert result.halted_reason == reason
    assert len(fake.requests) == 1


def test_a_budget_that_is_used_up_is_not_passed() -> None:
    engine = Engine(Fake("word " * 500), operators=[ops.budget(tokens=100)])
    result = rxllm.chat(engine, "Hi", steer=of("Late"), steer_at="step").run()
    assert (result.halted_reason, unused(result), len(result.steps)) == ("budget", ["Late"], 1)


@pytest.mark.parametrize("steer_at", ["sentence", "step"])
def test_on_the_last_turn_nothing_is_cut(steer_at: Any) -> None:
    _, result, _ = late([STORY], "There was ", max_turns=1, steer_at=steer_at)
    assert (result.output_text, result.halted_reason) == ("".join(STORY), "completed")


def test_a_step_after_a_correction_is_a_turn() -> None:
    plan = [("Aye. ", "1"), ("Sea. ", "2")]
    typist, result, _ = play([["Aye. ", "Bee."], ["Sea. ", "Dee."]], *plan, max_turns=2)
    assert steered(typist) == [("1", True), ("2", False)]
    assert (len(result.steps), result.output_text) == (2, "Sea. Dee.")


def test_halt_when_decides_about_a_step_whose_chat_would_go_on() -> None:
    steps: list[str] = []

    def halt_when(step: Any) -> bool:
        steps.append(step.response.output_text)
        return len(steps) == 2

    script = [["Aye. ", "Bee."], ["Sea. ", "Dee."]]
    typist, result, _ = play(script, ("Aye. ", "1"), ("Sea. ", "2"), halt_when=halt_when)
    assert (steps, result.halted_reason) == (["Aye. ", "Sea. "], "halt_when")
    assert steered(typist) == [("1", True), ("2", False)]


def test_a_second_pass_for_the_format_is_not_steered() -> None:
    options = {"response_format": rxllm.json_schema("a", {"type": "object"}), "structured_finalize": True}
    _, result, _ = late(
        ["Aye. Bee.", '{"a": "Sea. Dee. End."}'], lambda event: getattr(event, "delta", "")[:1] == "{", **options
    )
    assert result.output_text == '{"a": "Sea. Dee. End."}'


def test_a_first_pass_is() -> None:
    options = {"response_format": rxllm.json_schema("a", {"type": "object"}), "structured_finalize": True}
    script = [["Aye. ", "Bee."], "Sea.", "{}"]
    typist, result, _ = play(script, ("Aye. ", "Stop"), steer_at="sentence", **options)
    assert steered(typist) == [("Stop", True)]
    assert [text for role, text in texts(result) if role == "assistant"] == ["Aye. ", "Sea.", "{}"]


def test_a_message_stays_in_the_thread_if_the_model_fails_to_answer_it() -> None:
    script = Fake(scripts=[["Aye. ", "Bee."], [AdapterError("invalid_request")]])
    typist, result, _ = play(script, ("Aye. ", "Stop"), (kind(ErrorEvent), "Late"))
    assert (result.halted_reason, [text for _, text in texts(result)]) == ("error", ["Hi", "Aye. ", "Stop"])
    assert (steered(typist), unused(result)) == ([("Stop", True), ("Late", False)], ["Late"])


def test_after_the_end_nobody_listens() -> None:
    typist, _, _ = play(["Aye."], (kind(ChatCompleted), "Late"))
    assert steered(typist) == []


# What `steer` may be


@pytest.mark.parametrize("text", ["", "  \n", user(""), Message("user", ())])
def test_a_blank_message_is_ignored(text: Any) -> None:
    typist, result, _ = play([STORY], ("There was ", text))
    assert (steered(typist), result.output_text) == ([], "".join(STORY))


def test_a_message_may_be_a_picture_alone() -> None:
    picture = user("", "https://example.com/a.png")
    _, result, _ = play([["Aye. ", "Bee."], "Ok."], ("Aye. ", picture))
    assert result.thread[2] == picture


@pytest.mark.parametrize("item", [3, None, b"x", Message("assistant", "Hi"), Message("tool", "x", tool_call_id="c1")])
def test_an_item_that_is_no_user_message_ends_the_chat(item: Any) -> None:
    typist = Typist(("There was ", item))
    source = rxllm.stream(Fake(STORY), "Hi", steer=typist.steer).pipe(ops.tap(typist.see))
    with pytest.raises(ValidationError, match=r"steer must be an Observable of strings or user messages") as caught:
        source.run()
    assert (caught.value.reason, caught.value.errors[0][0]) == ("invalid_option", ("steer",))
    assert not any(isinstance(event, ChatCompleted) for event in typist.events)
    assert not typist.steer.observers


@pytest.mark.sockets
def test_an_error_of_steer_ends_the_chat_and_closes_the_call() -> None:
    steer: Subject[str] = Subject()
    error = LookupError("mine")

    def see(event: Event) -> None:
        if isinstance(event, TextDelta):
            steer.on_error(error)

    def fail(server: Loopback) -> None:
        with pytest.raises(LookupError, match="mine"):
            rxllm.stream(model(server), "Hi", steer=steer).pipe(ops.tap(see)).run()

    assert_closes(fail, Reply(endless(lambda i: chat_chunk("word "))))


def test_an_error_at_the_subscription_ends_the_chat() -> None:
    with pytest.raises(LookupError):
        rxllm.chat(Fake("Hi"), "Hi", steer=reactivex.throw(LookupError("mine"))).run()


def test_more_messages_than_a_user_types_are_refused() -> None:
    with pytest.raises(StreamError, match="1024 messages from steer are already waiting for the next step") as caught:
        rxllm.chat(Fake("Hi"), "Hi", steer=from_iterable("x" * 2000)).run()
    assert caught.value.reason == "overflow"


@pytest.mark.parametrize("steer", [of("Stop"), from_iterable(["Stop"]), never().pipe(rx.start_with("Stop"))])
def test_its_end_does_not_matter(steer: Any) -> None:
    result = rxllm.chat(Fake([("delay", 0.001), "Aye. ", "Bee."], "Ok."), "Hi", steer=steer).run()
    assert [text for _, text in texts(result)[1:]] == ["Aye. ", "Stop", "Ok."]


@pytest.mark.parametrize(("name", "value"), [("steer", "Stop"), ("steer", ["Stop"]), ("steer_at", "word")])
def test_nonsense_is_refused_at_the_call(name: str, value: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: rxllm.stream(Fake("Hi"), "Hi", **{name: value}),
        lambda: rxllm.chat(Fake("Hi"), "Hi", **{name: value}),
        lambda: rxllm.resume(Fake("Hi"), "Hi", **{name: value}),
        lambda: ops.repeat_until_halt(lambda thread: never(), **{name: value}),
    ]
    for call in calls:
        with pytest.raises(ValidationError, match=name) as caught:
            call()
        assert [path for path, _ in caught.value.errors] == [(name,)]


def test_a_model_may_write_the_corrections() -> None:
    """Their own calls are not part of the chat."""
    ids: list[str | None] = []
    together = threading.Barrier(2)  # the chat may end, and its corrections with it, before the other one asks a tool

    def note(arguments: Any, context: Any) -> None:
        ids.append(context.request_id)
        together.wait(PATIENCE)

    look = tool(name="double", handler=note)
    words = rxllm.chat(Fake(CALL, "Briefly!"), "What next?", tools=[look]).map(lambda result: result.output_text)
    source = rxllm.chat(Fake(CALL, "Aye."), "Hi", tools=[look], steer=words, steer_at="step")
    source.run()
    assert len(set(ids)) == len(ids) == 2


# Threads, time, demand, and who leaves


def test_any_thread_may_type() -> None:
    steer: Subject[str] = Subject()
    speaking, typed = threading.Event(), threading.Event()

    def type_it() -> None:
        speaking.wait(PATIENCE)
        steer.on_next("Stop")
        typed.set()

    @tool(name="double")
    def wait(x: int) -> int:
        speaking.set()
        typed.wait(PATIENCE)
        return x

    results: list[Any] = []
    source = rxllm.chat(Fake(CALL, "Ok."), "Hi", tools=[wait], steer=steer)
    together(type_it, lambda: results.append(source.run()))
    assert [role for role, _ in texts(results[0])] == ["user", "assistant", "tool", "user", "assistant"]


def test_a_source_on_another_thread_is_read() -> None:
    typed = threading.Event()
    steer = of("Stop").pipe(rx.subscribe_on(NewThreadScheduler()), rx.do_action(on_completed=typed.set))

    async def tell(request: Any, call: Any) -> AsyncIterator[Event]:
        if len(request.messages) == 1:
            await until(typed.is_set)
            yield TextDelta("Aye. ")
            yield TextDelta("Bee.")
        else:
            yield TextDelta("Ok.")

    result = rxllm.chat(tell, "Hi", steer=steer).run()
    assert [text for _, text in texts(result)[1:]] == ["Aye. ", "Stop", "Ok."]


def test_time_is_that_of_the_subscription() -> None:
    scheduler = TestScheduler()
    fake = Fake(["Aye. ", ("delay", 5), "Bee. ", ("delay", 5), "Sea."], ["Ok."])
    steer = cold(scheduler, "---a--", {"a": "Stop"})
    source = rxllm.stream(fake, "Hi", steer=steer)
    notes = record(scheduler, lambda: source, 100)
    place = next(tick for tick, _, event in notes if isinstance(event, Steered))
    assert place == 5
    assert len(fake.requests) == 2
    assert steer.subscriptions == [ReactiveTest.subscribe(START, START + 5)]


def test_the_model_waits_for_a_slow_reader_and_the_user_does_not() -> None:
    steer: Subject[str] = Subject()
    events: list[Event] = []
    story = [f"Sentence {i}. " for i in range(500)]
    for event in rxllm.stream(Fake(story, "Ok."), "Hi", steer=steer):
        if not events:
            rxllm.generate(Fake(story), "Hi").run()  # a whole second answer, on the same loop
            steer.on_next("Stop")
        events.append(event)
    assert sum(isinstance(event, TextDelta) for event in events) < 130  # what has waited, and a sentence
    assert isinstance(events[-1], ChatCompleted)
    assert events[-1].result.output_text == "Ok."


@pytest.mark.parametrize("kind_of_event", [TextDelta, StepCompleted, Steered, ChatCompleted])
def test_a_dispose_inside_any_event_leaves_nothing(kind_of_event: type[Event]) -> None:
    steer: Subject[str] = Subject()
    fake, events = Fake([("delay", 0.001), "Aye. ", "Bee. ", "Sea."], ["Dee. ", "End."]), list[Event]()

    async def main() -> None:
        left = asyncio.Event()

        def see(event: Event) -> None:
            events.append(event)
            if len(events) == 2:
                steer.on_next("Stop")
            if type(event) is kind_of_event:
                subscription.dispose()
                left.set()

        subscription = rxllm.stream(fake, "Hi", steer=steer).subscribe(see)
        await until(left.is_set)
        assert not steer.observers
        steer.on_next("Late")
        await turns()

    asyncio.run(main())
    assert type(events[-1]) is kind_of_event
    assert len(fake.requests) == (1 if kind_of_event is not ChatCompleted else 2)


def test_a_subscriber_that_raises_at_a_correction_gets_it_once() -> None:
    errors: list[Exception] = []

    def see(event: Event) -> None:
        if isinstance(event, Steered):
            raise LookupError("mine")

    async def main() -> None:
        rxllm.stream(Fake(["Aye. ", "Bee."], "Ok."), "Hi", steer=of("Stop")).subscribe(see, errors.append)
        await until(lambda: bool(errors))

    asyncio.run(main())
    assert [type(error) for error in errors] == [LookupError]


def test_each_subscription_listens_for_itself() -> None:
    source = rxllm.chat(Fake(scripts=[["Aye. ", "Bee."], ["Ok."]] * 2), "Hi", steer=of("Stop"))
    assert source.run() == source.run()


def test_the_operator_keeps_the_contract() -> None:
    def step(thread: Thread) -> Stream[Event]:
        return rxllm.stream_generate(Fake("Ok."), thread).pipe(ops.run_tools(thread=thread))

    def make(max_turns: int) -> Any:
        until_halt = ops.repeat_until_halt(step, steer=at_once, max_turns=max_turns)
        return lambda source: source.pipe(ops.run_tools(thread=Thread((user("Hi"),))), until_halt)

    at_once = reactivex.create(lambda observer, _: observer.on_next("Stop") or Disposable())
    assert_operator(lambda: make(max_turns=1))
    assert_operator(lambda: make(max_turns=2))


# Connections


@pytest.mark.sockets
def test_the_connection_is_closed_at_the_cut() -> None:
    """The next step is the next call."""
    steer: Subject[str] = Subject()
    closed: list[str | None] = []

    def answer(request: Any) -> Reply:
        if len(request.json["messages"]) > 1:
            return Reply(chat("Ok."))
        return Reply(endless(lambda i: chat_chunk(f"Sentence {i}. ")))

    def see(event: Event) -> None:
        if isinstance(event, TextDelta) and event.delta.startswith("Sentence 9."):
            steer.on_next("Stop")
        if isinstance(event, TextDelta) and event.delta == "Ok.":
            closed.append(server.connections[0].closed_by)

    async def main() -> None:
        result = (await rxllm.stream(model(server), "Hi", steer=steer).pipe(ops.tap(see))).result  # type: ignore[union-attr]
        assert texts(result)[1][1] == "".join(f"Sentence {i}. " for i in range(10))
        assert result.output_text == "Ok."

    with Loopback(answer) as server:
        asyncio.run(main())
    assert closed == ["client"]


async def steering(world: World) -> None:
    def answer(request: Any) -> Reply:
        if len(request.json["messages"]) == 1 or is_answered(request):
            return Reply([chat_chunk("One. "), Pause(0.3), chat_chunk("Two. "), Pause(0.3), *chat("Three.")])
        return with_tools(request)

    @tool(name="double")
    async def slow(x: int) -> int:
        """Double a number."""
        await asyncio.sleep(0.5)
        return 2 * x

    steer = reactivex.interval(0.4).pipe(rx.map(str), rx.take(4))
    engine = engine_of(world.serve(answer), tools=[slow])
    result = await world.cancellable(rxllm.chat(engine, "Hi", steer=steer, max_turns=6))
    if result is not None:
        typed = [text for role, text in texts(result) if role == "user"][1:] + unused(result)
        assert typed == [str(i) for i in range(len(typed))]


@pytest.mark.judges
def test_nothing_is_left_behind_whatever_happens() -> None:
    simulate_many(steering, range(40))
    simulate_cancels(steering)


@pytest.mark.judges
def test_many_steered_chats_leave_nothing() -> None:
    steer: Subject[str] = Subject()

    async def main() -> None:
        before = len(asyncio.all_tasks()), threading.active_count()
        for i in range(share(1000)):
            model = Fake([("delay", 0.0001), "Aye. ", "Bee."], "Ok.")
            source = rxllm.chat(model, "Hi", steer=steer.start_with("Stop"))
            if i % 2:
                assert (await source).output_text == "Ok."
            else:
                subscription = source.subscribe()
                await turns(i % 50)
                subscription.dispose()
        await until(lambda: (len(asyncio.all_tasks()), threading.active_count()), before.__eq__)

    asyncio.run(main())
    assert not steer.observers


# By hand, resumed, and in sessions


def test_by_hand_it_is_the_same() -> None:
    def ask(thread: Thread) -> Stream[Event]:
        return rxllm.stream_generate(fake, thread).pipe(ops.run_tools([double], thread=thread))

    fake = Fake(STORY, "Ok.")
    by_hand = ask(Thread((user("Hi"),))).pipe(ops.repeat_until_halt(ask, steer=of("Stop"), steer_at="sentence"))
    assert list(by_hand) == list(rxllm.stream(Fake(STORY, "Ok."), "Hi", steer=of("Stop")))


def test_a_chat_that_goes_on_is_steered_too() -> None:
    fake = Fake(CALL, ["It is 42. ", "Well."], "Ok.")
    halted = rxllm.chat(fake, "Hi", tools=[guarded]).run()
    typist = Typist((kind(ToolExecutionStarted), "1"), ("It is 42. ", "2"))
    source = rxllm.stream_resume(fake, halted, approvals={"c1": True}, tools=[guarded], steer=typist.steer)
    result = source.pipe(ops.verify(), ops.tap(typist.see)).run().result  # type: ignore[union-attr]
    assert [text for _, text in texts(result)[2:]] == ["42", "1", "It is 42. ", "2", "Ok."]


def test_a_chat_inside_a_tool_is_not_steered_by_the_one_around_it() -> None:
    @tool(name="double")
    def inner(x: int) -> Stream[str]:
        return rxllm.chat(Fake(["Aye. ", "Bee. ", "Sea."]), "Hi").map(lambda result: result.output_text)

    _, result, _ = play([CALL, "Ok."], (kind(ToolExecutionStarted), "Stop"), tools=[inner])
    assert texts(result)[2] == ("tool", "Aye. Bee. Sea.")


def test_a_session_keeps_what_the_user_has_typed() -> None:
    turn = session.reply(Fake(STORY, "Ok."), Session(), "Hi", steer=of("Stop")).run()
    assert texts(turn.session.thread) == [
        *(("user", "Hi"), ("assistant", "Once upon a time. ")),
        *(("user", "Stop"), ("assistant", "Ok.")),
    ]
    assert serializer.from_json(serializer.to_json(turn)) == turn


@pytest.mark.parametrize(("events", "last"), [(6, "Stop"), (7, "Stop"), (8, "Dee. ")])
def test_a_turn_that_is_left_after_a_correction_has_it(events: int, last: str) -> None:
    source = session.stream_reply(Fake(["Aye. ", "Bee."], ["Dee. ", "End."]), Session(), "Hi", steer=of("Stop"))
    seen: Sequence[Event] = list(source.pipe(rx.take(events + 1)))
    assert any(isinstance(event, Steered) for event in seen)
    turn = Stream.of(from_iterable(seen)).pipe(ops.to_session(Session(), keep_partial=True)).run()
    assert turn.session.thread.last is not None
    assert turn.session.thread.last.text == last


# The fold


def test_the_fold_has_a_correction_at_once_and_unfolds_it() -> None:
    typist, _, _ = play([["Aye. ", "Bee."], "Ok."], ("Aye. ", "Stop"))
    place = next(i for i, event in enumerate(typist.events) if isinstance(event, Steered)) + 1
    state = reduce(StreamCollector.apply_event, typist.events[:place], StreamCollector())
    assert state.to_chat_result().thread.messages[-1] == user("Stop")
    unfolded = state.to_events()
    assert unfolded[-1] == Steered(user("Stop"))
    assert reduce(StreamCollector.apply_event, unfolded, StreamCollector()) == state


def test_an_unused_one_is_not_in_the_thread() -> None:
    state = StreamCollector(Thread((user("Hi"),))).apply_event(Steered(user("Late"), used=False))
    assert state.to_chat_result().thread == Thread((user("Hi"),))
    assert state.to_events() == [Steered(user("Late"), used=False)]


def test_a_watcher_who_comes_late_sees_it() -> None:
    async def main() -> list[Event]:
        steer: Subject[str] = Subject()
        shared = rxllm.stream(Fake(["Aye. ", "Bee."], "Ok."), "Hi", steer=of("Stop")).pipe(ops.share_folded(None))
        await shared
        assert not steer.observers
        return [event async for event in shared]

    events = asyncio.run(main())
    assert Steered(user("Stop")) in events
    assert [event.text for event in events if isinstance(event, TextCompleted)] == ["Aye. ", "Ok."]
