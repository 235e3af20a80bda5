"""Unfolding is the inverse of the fold, at every cut of every stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Engine, Fake, RetryPolicy, ToolCall, serializer, tool
from rxllm import operators as ops
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.collector import StreamCollector
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    Nested,
    StepCompleted,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionStarted,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.values import Message, StreamError, Thread, Usage, user
from tests.corpus import recordings
from tests.examples import examples
from tests.laws import scripts
from tests.laws.support import THREAD, check_laws, fold

law = settings(deadline=None, max_examples=examples(100))


cuts = st.floats(0, 1)


def position(cut: float, events: Sequence[Event]) -> int:
    return round(cut * len(events))


def events_of(function: Any, script: Any, **options: Any) -> list[Event]:
    engine = Engine(
        scripts.fake(script),
        tools=tuple(scripts.TOOLS),
        retry=RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0),
    )
    return list(function(engine, THREAD, **options).pipe(ops.errors_as_events()))


@pytest.mark.parametrize("function", [rxllm.stream_generate, rxllm.stream_step, rxllm.stream])
@law
@given(scripts.scripts, cuts)
def test_every_script_unfolds_at_every_cut(function: Any, script: Any, cut: float) -> None:
    events = events_of(function, script)
    check_laws(events, position(cut, events), lawful=not has_failed(events))


def has_failed(events: list[Event]) -> bool:
    """Whether the stream failed before its first event: its error is no event of its own."""
    return isinstance(events[0], ErrorEvent)


@law
@given(st.lists(strategies.lawful_events, min_size=1, max_size=3), cuts)
def test_every_response_unfolds_at_every_cut(responses: list[list[Event]], cut: float) -> None:
    events = responses[-1]
    check_laws(events, position(cut, events))
    restarted = [event for response in responses for event in (*response, StepRestarted("again", 1))]
    check_laws(restarted, position(cut, restarted), lawful=False)


@settings(deadline=None, max_examples=examples(200))
@given(strategies.lawful_chats, cuts)
def test_every_chat_with_agents_unfolds_at_every_cut(events: list[Event], cut: float) -> None:
    check_laws(events, position(cut, events))


@law
@given(strategies.event_lists, cuts)
def test_any_events_in_any_order_unfold_at_every_cut(events: list[Event], cut: float) -> None:
    check_laws(events, position(cut, events), lawful=False)


near = st.sampled_from([None, "a", "b"])
muddle = st.lists(
    st.one_of(
        st.builds(TextDelta, st.sampled_from(["", "x"]), near),
        st.builds(ThinkingDelta, st.sampled_from(["", "y"]), near),
        st.builds(TextCompleted, st.sampled_from(["", "X"]), near),
        st.builds(ThinkingCompleted, st.sampled_from(["", "Y"]), st.none(), st.none(), near),
        st.builds(ToolCallStarted, st.sampled_from("ab"), st.sampled_from("fg")),
        st.builds(ToolCallDelta, st.sampled_from("ab"), st.sampled_from(["", "{}"])),
        st.builds(ToolCallCompleted, st.sampled_from("ab"), st.just("f"), st.just({}), st.sampled_from(["", "{}"])),
        st.builds(MessageStarted, st.builds(Message, st.just("assistant"), st.sampled_from(["", "m"]))),
        st.builds(
            MessageCompleted,
            st.builds(Message, st.just("assistant")),
            strategies.finish_reasons,
            st.sampled_from([None, "raw"]),
            st.dictionaries(st.sampled_from("kl"), st.integers(0, 2), max_size=1),
        ),
        st.builds(ErrorEvent, st.sampled_from([StreamError("truncated"), StreamError("cancelled")])),
        st.builds(UsageUpdated, st.sampled_from([Usage(), Usage(1), Usage(2)])),
        st.builds(ToolResultEncoded, st.sampled_from("ab"), st.just("r")),
        st.builds(StepRestarted, st.just("again"), st.just(2)),
        st.just(TextDelta(None)),  # pyright: ignore[reportArgumentType] malformed
        strategies.step_results.map(StepCompleted),
        strategies.chat_results.map(ChatCompleted),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=examples(200))
@given(muddle, st.integers(0, 12))
def test_blocks_that_are_muddled_unfold_at_every_cut(events: list[Event], cut: int) -> None:
    check_laws(events, cut, lawful=False)


@law
@given(scripts.scripts, cuts)
def test_the_unfolded_events_are_exact_in_json(script: Any, cut: float) -> None:
    events = events_of(rxllm.stream, script)
    unfolded = fold(events[: position(cut, events)]).to_events()
    assert [serializer.from_json(serializer.to_json(event)) for event in unfolded] == unfolded


DECODERS: dict[str, Any] = {
    "openai-chat": ChatDecoder,
    "openai-responses": ResponsesDecoder,
    "anthropic-messages": MessagesDecoder,
    "gemini": GeminiDecoder,
    "ollama-chat": OllamaDecoder,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("api", "decoder"), DECODERS.items(), ids=str)
def test_every_recording_unfolds_anywhere(api: str, decoder: Any) -> None:
    for number, recording in enumerate(recordings(api)):
        reading = decoder()
        events = [*reading.feed(recording.body), *reading.close()]
        for cut in {number % len(events), (7 * number + 3) % len(events), len(events)}:
            check_laws(events, cut)


def pause() -> str:
    return "ok"


def of_chat(pieces: int) -> list[Event]:
    call = [
        ("tool_call_delta", {"id": "c1", "name": "pause", "arguments_delta": delta})
        for delta in ("{", *" " * pieces, "}")
    ]
    script = [["a"] * pieces + [("thinking", "b")] * pieces + call, ["c"] * pieces]
    return list(rxllm.stream(Fake(scripts=script), THREAD, tools=[tool(pause)]))


def test_the_length_is_independent_of_the_number_of_deltas() -> None:
    few, many = of_chat(2), of_chat(500)
    assert len(many) > 1500
    assert len(fold(few).to_events()) == len(fold(many).to_events()) == 17
    for share in (0.1, 0.3, 0.5, 0.8):
        assert len(fold(many[: position(share, many)]).to_events()) <= 17


def test_a_chat_unfolds_to_each_block_call_and_result_once() -> None:
    unfolded = fold(of_chat(3)).to_events()
    assert [type(event).__name__ for event in unfolded] == [
        *("MessageStarted", "TextDelta", "TextCompleted", "ThinkingDelta", "ThinkingCompleted"),
        *("ToolCallStarted", "ToolCallDelta", "ToolCallCompleted", "MessageCompleted"),
        *("ToolResultEncoded", "StepCompleted"),
        *("MessageStarted", "TextDelta", "TextCompleted", "MessageCompleted", "StepCompleted", "ChatCompleted"),
    ]


def asking(*agent: Any, tools: Any = ()) -> list[Event]:
    """A chat that asks one agent, whose script is `agent`."""
    asked = Engine(Fake(scripts=list(agent)), tools=tools).as_tool(name="ask", description="Ask.")
    call = ToolCall("c1", "ask", {"prompt": "?"})
    return list(rxllm.stream(Fake(scripts=[[call], ["done"]]), THREAD, tools=[asked]))


def names(events: Sequence[Event]) -> list[str]:
    return ["." + type(event.event).__name__ if isinstance(event, Nested) else type(event).__name__ for event in events]


def agents_texts(events: Sequence[Event]) -> list[tuple[tuple[str, ...], str]]:
    nested = [event for event in events if isinstance(event, Nested)]
    return [(event.path, event.event.delta) for event in nested if isinstance(event.event, TextDelta)]


def test_an_agent_unfolds_inside_its_tool_call() -> None:
    events = asking(["a"] * 50)
    step = next(place for place, event in enumerate(events) if isinstance(event, StepCompleted))
    unfolded = check_laws(events, step)
    assert names(unfolded) == [
        *("MessageStarted", "ToolCallStarted", "ToolCallDelta", "ToolCallCompleted", "MessageCompleted"),
        *("ToolExecutionStarted", ".MessageStarted", ".TextDelta", ".TextCompleted", ".MessageCompleted"),
        *(".StepCompleted", ".ChatCompleted", "ToolExecutionCompleted", "ToolResultEncoded"),
    ]
    assert agents_texts(unfolded) == [(("c1",), "a" * 50)]
    assert check_laws(events, len(events))[: len(unfolded)] == unfolded


def test_what_an_agent_says_goes_on() -> None:
    events = asking(["Hel", "lo", "!"])
    cut = names(events).index(".TextCompleted") - 1
    unfolded = check_laws(events, cut)
    assert names(unfolded)[-3:] == ["ToolExecutionStarted", ".MessageStarted", ".TextDelta"]
    assert agents_texts(unfolded) == [(("c1",), "Hello")]


def test_an_agent_that_fails_has_failed_in_the_unfolded_events() -> None:
    events = asking(["Hel", ("error", "timeout")])
    unfolded = check_laws(events, len(events))
    assert "ToolExecutionCompleted" in names(unfolded)


def test_a_tool_is_kept_while_it_runs() -> None:
    events = of_chat(1)
    started = next(place for place, event in enumerate(events) if isinstance(event, ToolExecutionStarted))
    assert check_laws(events, started + 1)[-1] == events[started]
    assert events[started] not in check_laws(events, started + 2)


def test_the_tools_and_agents_of_an_agent_unfold_too() -> None:
    inner = Engine(Fake(scripts=[["deep"]])).as_tool(name="dig", description="Dig.")
    calls = [ToolCall("a", "dig", {"prompt": "?"}), ToolCall("b", "pause")]
    events = asking(calls, ["up"], tools=[inner, tool(pause)])
    for cut in range(len(events) + 1):
        check_laws(events, cut)
    assert agents_texts(fold(events).to_events()) == [(("c1", "a"), "deep"), (("c1",), "up")]


def test_the_state_of_an_agent_is_bounded_by_its_blocks() -> None:
    few, many = (fold(asking(["a"] * length)[:-3]) for length in (2, 500))
    assert len(few.to_events()) == len(many.to_events())


def test_a_reader_of_the_unfolded_events_reads_all_steps() -> None:
    from reactivex import from_iterable

    from rxllm.runtime import Stream

    unfolded = Stream.of(from_iterable(fold(of_chat(3)).to_events()))
    assert "".join(unfolded.pipe(ops.text())) == "aaaccc"
    assert "".join(unfolded.pipe(ops.thinking())) == "bbb"
    assert list(unfolded.pipe(ops.tool_calls())) == [ToolCall("c1", "pause", {}, "{   }")]


def test_what_is_open_goes_on() -> None:
    state = fold([MessageStarted(Message("assistant")), *map(TextDelta, "Hel")])
    assert state.to_events() == [MessageStarted(Message("assistant")), TextDelta("Hel")]
    rest = [*map(TextDelta, "lo"), TextCompleted("Hello")]
    assert fold(rest, fold(state.to_events())).current_text == "Hello"


def test_the_thread_of_the_beginning_is_not_in_the_events() -> None:
    other = Thread((user("Another"),))
    state = StreamCollector(other).apply_event(TextDelta("Hi"))
    assert fold(state.to_events(), StreamCollector(other)) == state
    assert fold(state.to_events()) != state


def test_a_completed_step_brings_its_own_thread() -> None:
    state = fold(of_chat(1))
    assert fold(state.to_events(), StreamCollector()) == state


def test_nothing_unfolds_to_nothing() -> None:
    assert StreamCollector().to_events() == []
    assert fold([TextDelta("Hi"), StepRestarted("again", 1)]).to_events() == []


def test_a_restarted_step_leaves_nothing_but_that_it_has_begun() -> None:
    chat = of_chat(1)
    step = next(place for place, event in enumerate(chat) if isinstance(event, StepCompleted)) + 1
    events = [*chat[:step], MessageStarted(Message("assistant")), TextDelta("void"), StepRestarted("again", 1)]
    unfolded = check_laws([*events, *chat[step:]], len(events))
    assert unfolded[-1] == StepRestarted("", 1)


def test_an_unfolded_error_keeps_its_place() -> None:
    call = ToolCall("c1", "nobody")
    events = list(rxllm.stream_step(Fake(call), THREAD))
    unfolded = check_laws(events, len(events))
    assert [type(event) for event in unfolded[-3:]] == [MessageCompleted, ErrorEvent, StepCompleted]
