"""compact_thread: a summary by a model in place of older exchanges, made once and kept in the thread."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import of

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Custom,
    Engine,
    Fake,
    Message,
    MessageStarted,
    Request,
    Session,
    Thread,
    ToolCall,
    Usage,
    UsageUpdated,
    ValidationError,
    assistant,
    compact_thread,
    serializer,
    session,
    system,
    tool,
    tool_result,
    trim_thread,
    user,
    validate,
)
from rxllm import operators as ops
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.engine import Prepared
from rxllm.pipelines._long_threads import QUESTION
from rxllm.testing import World, simulate, simulate_cancels, simulate_many
from rxllm.testing.loopback import Loopback, Reply, chat, endless
from rxllm.values import Call, TokenCount, estimated_tokens, unanswered
from tests.examples import examples, share
from tests.pipelines.conversations import conversations
from tests.testing.simulated import engine_of, slowly
from tests.waiting import turns, until

LONG = "word " * 40  # 54 tokens with its message
OLD = (system("Be brief."), user(LONG), assistant(LONG), user("And?"), assistant("Then."), user("Why?"))
SPENT = Usage(input_tokens=50, output_tokens=5, total_tokens=55)


def summarizer(*texts: str) -> Fake:
    """A model that counts its calls, with a usage for each."""
    numbered = iter(texts or (f"Summary {i}." for i in range(1, 100)))
    return Fake(lambda request: [next(numbered), UsageUpdated(SPENT)])


def engine_with(model: Any, summaries: Any, **opts: Any) -> Engine:
    return Engine(model, prepare=[compact_thread(summaries, **{"at": 100, "keep": 1, **opts})])


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


def summary_of(message: Message | None) -> Any:
    assert message is not None
    return message.metadata.get("summary")


# What is sent, and what is kept


def test_the_model_gets_the_system_messages_the_summary_and_the_kept_exchanges() -> None:
    model, summaries = Fake("Because."), summarizer()
    result = rxllm.chat(engine_with(model, summaries), Thread(OLD)).run()
    assert texts(model.requests[0]) == ["Be brief.", QUESTION, "Summary 1.", "Why?"]
    assert [m.role for m in model.requests[0].messages] == ["system", "user", "assistant", "user"]
    assert result.thread.messages[:-1] == OLD
    assert summary_of(result.thread.last)["text"] == "Summary 1."
    assert summary_of(result.thread.last)["messages"] == 4  # without the system message


def test_the_summary_is_of_the_older_messages_and_their_tool_calls() -> None:
    summaries = summarizer()
    call = Message("assistant", tool_calls=(ToolCall("c1", "look", {"at": "fox"}),))
    picture = rxllm.values.FilePart({"mime_type": "application/pdf", "name": "a.pdf", "data": b"%PDF"})
    thread = (
        system("Be brief."),
        Message("user", (rxllm.values.TextPart("Read"), picture)),
        call,
        tool_result("c1", "seen"),
        assistant(LONG),
        user("Why?"),
    )
    rxllm.chat(engine_with(Fake("Because."), summaries, instructions="Sum up."), thread).run()
    asked = summaries.requests[0]
    assert [message.role for message in asked.messages] == ["system", "user"]
    assert asked.messages[0].text == "Sum up."
    lines = asked.messages[1].text.split("\n\n")
    called = 'assistant calls look({"at":"fox"})'
    assert lines == ["user: Read [file a.pdf]", called, "result of look: seen", f"assistant: {LONG.strip()}"]


def test_a_short_request_is_sent_as_it_is() -> None:
    model, summaries = Fake("Because."), summarizer()
    result = rxllm.chat(engine_with(model, summaries, at=1000), Thread(OLD)).run()
    assert model.requests[0].messages == OLD
    assert summaries.requests == []
    assert summary_of(result.thread.last) is None


def test_the_last_exchanges_are_never_summed_up_however_long() -> None:
    model, summaries = Fake("Because."), summarizer()
    rxllm.chat(engine_with(model, summaries, at=1, keep=3), Thread(OLD)).run()
    assert model.requests[0].messages == OLD
    assert summaries.requests == []


def test_usage_that_comes_as_a_raw_chunk_counts_too() -> None:
    model = Fake(["Because.", rxllm.RawChunk("usage", {"input_tokens": 7})])
    response = rxllm.generate(engine_with(model, summarizer()), Thread(OLD)).run()
    assert response.usage.input_tokens == 57


@given(conversations(min_exchanges=1), st.integers(1, 200), st.integers(1, 3))
@settings(max_examples=examples(50))
def test_a_compacted_thread_is_lawful_and_its_last_exchanges_are_as_they_were(
    messages: list[Message], at: int, keep: int
) -> None:
    model, summaries = Fake("Because."), summarizer()
    result = rxllm.generate(engine_with(model, summaries, at=at, keep=keep), Request(tuple(messages))).run()
    sent = model.requests[0]
    validate.request(sent)
    assert unanswered(Thread(sent.messages)) == ()
    assert [m for m in sent.messages if m.role == "system"] == [m for m in messages if m.role == "system"]
    users = [m for m in messages if m.role == "user"]
    assert [m for m in sent.messages if m.role == "user"][-min(keep, len(users)) :] == users[-keep:]
    assert (summary_of(result.message) is None) == (summaries.requests == [])
    for wire in (OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama):
        wire(api_key="k", base_url="http://127.0.0.1:1/v1").build(replace(sent, model="m"), Call())


# It is made once


@pytest.mark.parametrize("through_json", [False, True])
def test_over_a_session_of_twenty_turns_it_is_made_once(through_json: bool) -> None:
    model, summaries = Fake(lambda request: "Yes. " * 10), summarizer()
    engine = engine_with(model, summaries, at=500, keep=2)
    chat, compacted = Session(), 0
    for turn in range(20):
        turned = session.reply(engine, chat, f"Question {turn}? " * 4).run()
        chat = turned.session
        if through_json:
            chat = serializer.from_json(serializer.to_json(chat))
            assert chat == turned.session
        compacted += summary_of(chat.thread.last) is not None
    assert len(chat.messages) == 40
    assert (len(summaries.requests), compacted) == (1, 1)
    assert max(map(estimated_tokens, model.requests)) <= 500
    assert texts(model.requests[-1])[1] == "Summary 1."


def test_the_steps_of_a_chat_share_it() -> None:
    @tool
    def look() -> str:
        return "seen"

    model, summaries = Fake(ToolCall("c1", "look"), ToolCall("c2", "look"), "Done."), summarizer()
    result = rxllm.chat(engine_with(model, summaries), Thread(OLD), tools=[look]).run()
    assert len(summaries.requests) == 1
    assert [texts(request)[:3] for request in model.requests] == [["Be brief.", QUESTION, "Summary 1."]] * 3
    assert [summary_of(message) is not None for message in result.thread.messages[6:]] == [True] + [False] * 4
    assert result.usage == SPENT


def test_passing_the_limit_again_sums_up_the_summary_and_later_messages() -> None:
    model, summaries = Fake(lambda request: LONG), summarizer()
    engine = engine_with(model, summaries, at=120)
    result = rxllm.chat(engine, Thread(OLD)).run()
    for question in ("One?", "Two?", "Three?", "Four?"):
        result = rxllm.chat(engine, result + question).run()
    assert len(summaries.requests) == 3
    first, second = (request.messages[1].text for request in summaries.requests[:2])
    assert first.startswith("user: word")
    assert second.startswith("summary of what came before: Summary 1.\n\nuser: ")
    assert "And?" not in second
    assert texts(model.requests[-1])[2] == "Summary 3."
    assert [summary_of(m)["messages"] for m in result.thread if summary_of(m)] == [4, 8, 12]


def test_messages_that_were_changed_are_summed_up_anew() -> None:
    model, summaries = Fake(lambda request: "Because."), summarizer()
    engine = engine_with(model, summaries)
    result = rxllm.chat(engine, Thread(OLD)).run()
    first, *rest = result.thread.messages[1:]
    changed = Thread((OLD[0], replace(first, content=LONG + "!"), *rest)) + "And now?"
    rxllm.chat(engine, changed).run()
    assert len(summaries.requests) == 2
    assert not summaries.requests[1].messages[1].text.startswith("summary")


def test_another_system_message_and_other_metadata_change_nothing() -> None:
    model, summaries = Fake(lambda request: "Because."), summarizer()
    engine = engine_with(model, summaries)
    result = rxllm.chat(engine, Thread(OLD)).run()
    first, *rest = result.thread.messages[1:]
    again = Thread((system("Be verbose."), system("Today is Monday."), replace(first, metadata={"seen": True}), *rest))
    rxllm.chat(engine, again + "And now?").run()
    assert len(summaries.requests) == 1
    assert texts(model.requests[1])[:4] == ["Be verbose.", "Today is Monday.", QUESTION, "Summary 1."]


def foreign(messages: int) -> dict[str, Any]:
    return {"messages": messages, "digest": "", "text": "x"}


@pytest.mark.parametrize("noted", [3, None, {}, {"messages": 4}, *map(foreign, (-1, 0, 4, 9))])
def test_metadata_that_is_no_summary_is_left_alone(noted: Any) -> None:
    model, summaries = Fake("Because."), summarizer()
    thread = Thread((*OLD[:-2], replace(OLD[-2], metadata={"summary": noted}), OLD[-1]))
    rxllm.chat(engine_with(model, summaries), thread).run()
    assert texts(model.requests[0])[2] == "Summary 1."


# It is told


@pytest.mark.parametrize("call", [rxllm.stream_generate, rxllm.stream_step, rxllm.stream])
def test_it_is_told_by_a_lawful_event_behind_the_start_and_by_the_usage(call: Any) -> None:
    answer = ["Because.", UsageUpdated(Usage(input_tokens=7, output_tokens=2, total_tokens=9))]
    events = list(call(engine_with(Fake(answer), summarizer()), Thread(OLD)).pipe(ops.verify()))
    assert isinstance(events[0], MessageStarted)
    event = events[1]
    assert isinstance(event, Custom)
    assert event.name == "thread_compacted"
    assert event.data["messages"] == 4
    assert event.data["tokens_after"] < 100 < event.data["tokens_before"]
    assert event.data["usage"] == SPENT
    assert [serializer.from_json(serializer.to_json(each)) for each in events] == events
    usages = [each.usage for each in events if isinstance(each, UsageUpdated)]
    assert usages == [SPENT, SPENT + Usage(input_tokens=7, output_tokens=2, total_tokens=9)]


def test_a_result_is_the_fold_of_its_stream() -> None:
    def engine() -> Engine:
        return engine_with(Fake("Because."), summarizer())

    folded = rxllm.stream(engine(), Thread(OLD), request_id="r").pipe(ops.to_chat_result()).run()
    result = rxllm.chat(engine(), Thread(OLD), request_id="r").run()
    assert result == folded
    assert isinstance(result, ChatResult)
    assert result.usage == SPENT


def test_an_answer_that_begins_again_is_told_again() -> None:
    turns = Fake(["Be", ("error", AdapterError("network_error"))], "Because.")
    engine = replace(engine_with(turns, summarizer()), operators=(ops.restart({"base_delay": 0}),), retry=False)
    events = list(rxllm.stream_generate(engine, Thread(OLD)).pipe(ops.verify()))
    names = [each.name for each in events if isinstance(each, Custom)]
    assert names == ["thread_compacted", "step_abandoned", "thread_compacted"]
    assert of(*events).pipe(ops.to_response()).run().usage == SPENT


def test_the_cost_of_an_answer_that_never_begins_is_in_its_error() -> None:
    model = Fake(AdapterError("authentication_failed"))
    with pytest.raises(AdapterError) as caught:
        rxllm.generate(engine_with(model, summarizer()), Thread(OLD)).run()
    assert caught.value.reason == "authentication_failed"
    assert caught.value.metadata["usage"] == SPENT


def test_any_function_of_prepare_may_tell_in_this_way() -> None:
    def retrieve(request: Request) -> Prepared:
        found = replace(request, messages=(system("Foxes are red."), *request.messages))
        return Prepared(found, {"documents": ["fox.txt"]}, Custom("retrieved", 1), Usage(input_tokens=3))

    model = Fake(["Red.", UsageUpdated(Usage(input_tokens=4))])
    engine = Engine(model, prepare=[retrieve, trim_thread(tokens=1000)])
    events = list(rxllm.stream_generate(engine, "What colour?").pipe(ops.verify()))
    assert events[1] == Custom("retrieved", 1)
    folded = of(*events).pipe(ops.to_response()).run()
    assert folded.message is not None
    assert folded.message.metadata["documents"] == ["fox.txt"]
    assert folded.usage == Usage(input_tokens=7)


@pytest.mark.parametrize(
    "notes", [{"metadata": [1]}, {"event": "found"}, {"event": rxllm.TextDelta("x")}, {"usage": 3}]
)
def test_invalid_notes_of_a_prepared_request_are_refused(notes: Any) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(notes))} must be"):
        Prepared(Request(), **notes)
    with pytest.raises(ValidationError, match=r"prepare\.0 must be a function that returns a Request"):
        rxllm.generate(Engine(Fake("Hi"), prepare=[lambda request: Prepared("Hi")]), "Hi").run()  # type: ignore[arg-type]


# It fails


BROKEN = Fake(["Half", ("error", AdapterError("network_error"))])


@pytest.mark.parametrize("summaries", [Fake(AdapterError("rate_limited")), BROKEN, Fake("")])
def test_a_summary_that_fails_is_the_call_s_error(summaries: Any) -> None:
    model = Fake("Because.")
    with pytest.raises(AdapterError):
        rxllm.chat(engine_with(model, Engine(summaries, retry=False)), Thread(OLD)).run()
    assert model.requests == []


def test_or_the_call_goes_on_with_the_whole_thread_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model, summaries = Fake("Because."), Engine(Fake(AdapterError("rate_limited")), retry=False)
    with caplog.at_level(logging.WARNING, "rxllm"):
        events = list(rxllm.stream(engine_with(model, summaries, on_error="continue"), Thread(OLD)).pipe(ops.verify()))
    assert events[1] == Custom("thread_compaction_failed", {"error": AdapterError("rate_limited")})
    assert serializer.from_json(serializer.to_json(events[1])) == events[1]
    assert model.requests[0].messages == OLD
    assert "could not be summarized" in caplog.text


def test_a_second_summary_that_fails_leaves_the_first() -> None:
    model, summaries = Fake(lambda request: LONG), Fake("First.", AdapterError("rate_limited"))
    engine = engine_with(model, Engine(summaries, retry=False), on_error="continue")
    result = rxllm.chat(engine, Thread(OLD)).run()
    rxllm.chat(engine, result + "And now?").run()
    assert texts(model.requests[1])[:4] == ["Be brief.", QUESTION, "First.", "Why?"]


# Counting


@pytest.mark.parametrize("kind", ["number", "value", "stream", "async"])
def test_the_tokens_may_be_counted(kind: str) -> None:
    seen: list[Request] = []

    def count(request: Request) -> Any:
        seen.append(request)
        return {"number": 101, "value": TokenCount(101), "stream": of(TokenCount(101))}.get(kind) or later()

    async def later() -> int:
        await asyncio.sleep(0)
        return 101

    model, summaries = Fake("Because."), summarizer()
    rxllm.chat(engine_with(model, summaries, count=count), OLD).run()
    assert texts(model.requests[0])[2] == "Summary 1."
    assert [request.messages for request in seen] == [OLD]
    few = Fake("Because.")
    rxllm.chat(engine_with(few, summaries, count=lambda request: of(TokenCount(100))), OLD).run()
    assert few.requests[0].messages == OLD


def test_a_count_that_is_no_number_is_the_developer_s_error() -> None:
    with pytest.raises(ValidationError, match="count must be a function that returns a TokenCount"):
        rxllm.chat(engine_with(Fake("Because."), summarizer(), count=lambda request: "many"), OLD).run()


# Bad arguments


@pytest.mark.parametrize(
    ("opts", "fault"),
    [
        ({"at": 0}, "at must be an integer >= 1"),
        ({"keep": 0}, "keep must be an integer >= 1"),
        ({"keep": "all"}, "keep must be an integer >= 1"),
        ({"on_error": "ignore"}, 'on_error must be "raise" or "continue"'),
        ({"instructions": None}, "instructions must be a string"),
        ({"count": 3}, "count must be a function"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_wrong_arguments_raise_at_once(opts: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        compact_thread(Fake("Hi"), **{"at": 100, "keep": 1, **opts})


def test_unknown_options_raise_at_once() -> None:
    with pytest.raises(rxllm.EngineError, match="colour"):
        compact_thread(Fake("Hi"), at=100, colour="red")  # type: ignore[call-arg]


def test_a_call_without_a_result_is_refused_however_long_the_thread() -> None:
    call = Message("assistant", LONG, tool_calls=(ToolCall("c1", "look"),))
    thread = Thread((user(LONG), call, user("And?"), assistant("Then."), user("Why?")))
    with pytest.raises(rxllm.EngineError, match="unanswered tool calls"):
        rxllm.chat(engine_with(Fake("Because."), summarizer()), thread).run()


# Nothing is left


@pytest.mark.judges
def test_many_summaries_that_fail_or_are_cancelled_leave_nothing() -> None:
    async def main() -> None:
        failing = engine_with(Fake("Because."), Engine(Fake(lambda request: AdapterError("rate_limited")), retry=False))
        stuck = engine_with(Fake("Because."), Fake(lambda request: ["Once", ("delay", 60)]))
        threads = threading.active_count()
        for _ in range(share(1000)):
            with pytest.raises(AdapterError):
                await rxllm.generate(failing, Thread(OLD))
            subscription = rxllm.stream(stuck, Thread(OLD)).subscribe()
            await turns(1)
            subscription.dispose()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert threading.active_count() <= threads

    asyncio.run(main())


async def compacting_chat(world: World) -> str:
    summaries = engine_of(world.serve(slowly))
    answers = engine_of(world.serve(Reply(chat("Because."))), prepare=[compact_thread(summaries, at=100, keep=1)])
    result = await rxllm.chat(answers, Thread(OLD))
    return result.output_text


@pytest.mark.judges
def test_a_cancel_at_any_await_leaves_no_socket_and_no_task() -> None:
    assert simulate(compacting_chat, faults=()).value == "Because."
    assert len(simulate_cancels(compacting_chat)) > 10
    simulate_many(compacting_chat, range(20))


# Sockets


def conversation_of(server: Loopback, other: Loopback) -> Any:
    summaries = Engine(OpenAIChat(base_url=server.url), model="small")
    engine = Engine(OpenAIChat(base_url=other.url), model="big", prepare=[compact_thread(summaries, at=100, keep=1)])
    return rxllm.stream(engine, Thread(OLD))


@pytest.mark.sockets
def test_a_dispose_during_the_summary_closes_its_connection_and_asks_nobody_else() -> None:
    with Loopback(Reply(endless())) as server, Loopback(Reply(chat("Because."))) as other:
        heard = threading.Event()
        subscription = conversation_of(server, other).subscribe(lambda _: heard.set(), lambda _: heard.set())
        server.wait_requests(1)
        subscription.dispose()
        assert server.connections[0].wait_closed() is not False
        assert not heard.is_set()
        assert other.requests == []


@pytest.mark.sockets
def test_a_cancelled_task_closes_the_summary_s_connection() -> None:
    async def main(server: Loopback, other: Loopback) -> None:
        task = asyncio.ensure_future(conversation_of(server, other).pipe(ops.to_chat_result()))
        await asyncio.to_thread(server.wait_requests, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.connections[0].wait_closed)

    with Loopback(Reply(endless())) as server, Loopback(Reply(chat("Because."))) as other:
        asyncio.run(main(server, other))
        assert other.requests == []


@pytest.mark.sockets
def test_the_summary_is_an_ordinary_call_over_its_own_wire() -> None:
    with Loopback(Reply(chat("They talked."))) as server, Loopback(Reply(chat("Because."))) as other:
        result = conversation_of(server, other).pipe(ops.to_chat_result()).run()
        assert result.output_text == "Because."
        assert json.loads(server.requests[0].body)["model"] == "small"
        sent = json.loads(other.requests[0].body)["messages"]
        assert [message["content"] for message in sent] == ["Be brief.", QUESTION, "They talked.", "Why?"]
