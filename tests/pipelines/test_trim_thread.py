"""trim_thread: the newest whole exchanges, the system messages, and no more than a number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rxllm
from rxllm import (
    Engine,
    Fake,
    Message,
    Request,
    Thread,
    ToolCall,
    ValidationError,
    assistant,
    system,
    tool,
    tool_result,
    trim_thread,
    user,
    validate,
)
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.pipelines._long_threads import exchange_starts
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.values import Call, estimated_tokens, unanswered
from tests.pipelines.conversations import conversations, odd_conversations

WIRES = [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama]
limits = st.integers(1, 400)


def trimmed(messages: list[Message], tokens: int) -> list[Message]:
    return [*trim_thread(tokens=tokens)(Request(tuple(messages))).messages]


@given(conversations(), limits)
def test_it_is_the_system_messages_and_a_suffix_of_whole_exchanges_within_the_limit(
    messages: list[Message], tokens: int
) -> None:
    rest = trimmed(messages, tokens)
    starts = exchange_starts(messages)
    suffixes = [[m for i, m in enumerate(messages) if i >= start or m.role == "system"] for start in starts]
    assert rest in suffixes
    assert [m for m in rest if m.role == "system"] == [m for m in messages if m.role == "system"]
    assert rest == suffixes[-1] or estimated_tokens(Request(tuple(rest))) <= tokens
    longer = [suffix for suffix in suffixes if len(suffix) > len(rest)]
    assert all(estimated_tokens(Request(tuple(suffix))) > tokens for suffix in longer)


@given(conversations() | odd_conversations, limits)
def test_it_leaves_no_result_without_its_call_and_no_call_without_its_result(
    messages: list[Message], tokens: int
) -> None:
    try:
        validate.request(Request(tuple(messages)))
    except ValidationError:
        assume(False)
    before = {call.id for call in unanswered(Thread(tuple(messages)))}
    rest = trimmed(messages, tokens)
    validate.request(Request(tuple(rest)))
    after = {call.id for call in unanswered(Thread(tuple(rest)))}
    ids = [call.id for message in messages for call in message.tool_calls]
    # An id that comes again counts as answered by an earlier result, which may be gone.
    assert before <= after if len(ids) > len({*ids}) else before == after


@given(conversations() | odd_conversations, limits)
def test_trimming_again_changes_nothing(messages: list[Message], tokens: int) -> None:
    try:
        once = trimmed(messages, tokens)
    except ValidationError:
        assume(False)
        raise
    assert trimmed(once, tokens) == once


@given(conversations(), limits, st.sampled_from(WIRES))
def test_every_wire_takes_what_is_left(messages: list[Message], tokens: int, wire: Any) -> None:
    adapter = wire(api_key="k", base_url="http://127.0.0.1:1/v1")
    adapter.build(Request(tuple(trimmed(messages, tokens)), model="m"), Call())


def test_a_thread_that_fits_is_sent_as_it_is() -> None:
    request = Request((system("Be brief."), user("Hi"), assistant("Hello"), user("Bye")))
    assert trim_thread(tokens=1000)(request) is request


def test_tools_and_the_format_take_part_of_the_tokens() -> None:
    @tool
    def look(place: str) -> str:
        """Look at a place, which takes a description of some length to say well."""
        return place

    request = Request((user("Hi"), assistant("Hello"), user("Bye")))
    tokens = estimated_tokens(request)
    assert len(trim_thread(tokens=tokens)(request).messages) == 3
    assert len(trim_thread(tokens=tokens)(rxllm.request(request, tools=(look,))).messages) == 1
    city = rxllm.json_schema("city", {"type": "object"})
    assert len(trim_thread(tokens=tokens)(rxllm.request(request, response_format=city)).messages) == 1


def test_the_last_exchange_is_sent_however_long_with_all_its_tool_calls() -> None:
    call = Message("assistant", tool_calls=(ToolCall("a", "look"),))
    last = (user("word " * 100), call, tool_result("a", "word " * 100))
    request = Request((user("Hi"), assistant("Hello"), *last))
    assert trim_thread(tokens=10)(request).messages == last


def test_a_user_s_message_between_a_call_and_its_result_parts_nothing() -> None:
    call = Message("assistant", tool_calls=(ToolCall("a", "look"),))
    request = Request((user("Hi"), call, user("Well?"), tool_result("a", "word " * 100)))
    assert trim_thread(tokens=10)(request) is request


def test_the_thread_and_the_result_keep_every_message() -> None:
    @tool
    def look() -> str:
        return "seen"

    model = Fake(ToolCall("c1", "look"), "Done.")
    engine = Engine(model, tools=[look], prepare=[trim_thread(tokens=40)])
    result = rxllm.chat(engine, [user("word " * 100), assistant("Hello"), user("Look!")]).run()
    assert [message.role for message in result.thread] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [len(request.messages) for request in model.requests] == [1, 3]


@pytest.mark.parametrize("tokens", [0, -1, 1.5, None, True, "many"])
def test_a_limit_that_is_no_number_of_tokens_is_refused(tokens: Any) -> None:
    with pytest.raises(ValidationError, match="tokens must be an integer >= 1"):
        trim_thread(tokens=tokens)


def test_a_faulty_request_is_refused_with_its_own_fault() -> None:
    with pytest.raises(ValidationError, match="messages must not be empty"):
        rxllm.generate(Engine(Fake("Hi"), prepare=[trim_thread(tokens=9)]), Request()).run()
    with pytest.raises(ValidationError, match=r"messages\.0\.content must be text"):
        rxllm.generate(Engine(Fake("Hi"), prepare=[trim_thread(tokens=9)]), Request((Message("user", None),))).run()  # type: ignore[arg-type]


@pytest.mark.sockets
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("call", [rxllm.generate, rxllm.step, rxllm.chat, rxllm.session.start])
def test_a_slice_that_begins_with_a_result_is_refused_before_anything_is_sent(wire: Any, call: Any) -> None:
    asking = Message("assistant", tool_calls=(ToolCall("a", "look"),))
    thread = Thread((user("Look!"), asking, tool_result("a", "seen"), assistant("Done."), user("Again!")))
    with Loopback([Reply(endless())]) as server:
        engine = Engine(wire(base_url=server.url, api_key="k"), model="m")
        with pytest.raises(ValidationError, match=r"keep the assistant's message that contains the call"):
            call(engine, thread[2:]).run()
        assert server.requests == []
