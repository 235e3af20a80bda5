"""The key of a tool call: equal whenever the same call is run, and different for every other one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import AdapterError, ChatResult, Engine, Fake, RetryPolicy, ToolCall, ToolContext, serializer, tool
from rxllm import operators as ops
from rxllm.pipelines import resume
from rxllm.runtime import Stream
from rxllm.testing import strategies
from rxllm.tools._caller import idempotency_key
from rxllm.values import Image, ImagePart, Message, Thread, tool_result, user
from tests.examples import examples
from tests.operators.tools import calling

AT_ONCE = RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0)

KEYS: dict[str, list[str]] = {}


@pytest.fixture(autouse=True)
def no_keys() -> None:
    KEYS.clear()


@tool(approval=True)
def pay(context: ToolContext, amount: int = 5) -> str:
    KEYS.setdefault(context.tool_call.id, []).append(context.idempotency_key)
    return f"paid {amount}"


def call(id: str = "c1", amount: int = 5) -> ToolCall:
    return ToolCall(id, "pay", {"amount": amount})


def keys(*turns: Any, thread: Any = "Pay!", **options: Any) -> dict[str, list[str]]:
    """The keys of the calls of a chat, by their ids."""
    KEYS.clear()
    rxllm.chat(Fake(*turns, "Done."), thread, tools=[pay], **{"approve": lambda call: True, **options}).run()
    return dict(KEYS)


def key(*turns: Any, **options: Any) -> str:
    ((only,),) = keys(*turns or (call(),), **options).values()
    return only


# Equal


def test_it_is_text_that_a_header_can_hold() -> None:
    assert len(key()) == 32
    assert set(key()) <= set("0123456789abcdef")


def test_the_same_call_of_the_same_conversation_has_the_same_key() -> None:
    assert key(session_id="s") == key(session_id="s", request_id="another", context={"user": "ada"})
    assert key() == key(temperature=0.5)


def test_it_is_equal_after_a_retry_of_the_step() -> None:
    flaky = Engine(Fake(AdapterError("rate_limited"), call(), "Done."), retry=AT_ONCE)
    rxllm.chat(flaky, "Pay!", tools=[pay], approve=lambda call: True).run()
    assert {"c1": [key()]} == KEYS


def test_it_is_equal_in_a_step_that_begins_again() -> None:
    model = Fake(["Let", ("error", "provider_unavailable")], call(), "Done.")
    broken = Engine(model, operators=(ops.restart(AT_ONCE),))
    rxllm.chat(broken, "Pay!", tools=[pay], approve=lambda call: True).run()
    assert {"c1": [key()]} == KEYS


def test_watchers_of_one_shared_run_see_one_key() -> None:
    async def main() -> None:
        chat = rxllm.stream(Fake(call(), "Done."), "Pay!", tools=[pay], approve=lambda call: True)
        shared = Stream.of(chat.share())
        await asyncio.gather(*(watcher.to_future() for watcher in [shared.pipe(ops.to_chat_result())] * 2))

    asyncio.run(main())
    assert {"c1": [key()]} == KEYS


def test_it_is_equal_when_a_halted_chat_is_resumed_from_json() -> None:
    alive = keys(call("a"), [call("b"), call("c")], session_id="s")
    halted = rxllm.chat(Fake(call("a")), "Pay!", tools=[pay], session_id="s").run()
    options: dict[str, Any] = {"tools": [pay], "session_id": "s"}
    KEYS.clear()
    for ids in (["a"], ["b", "c"]):
        halted = serializer.from_json(serializer.to_json(halted), ChatResult)
        model = Fake([call("b"), call("c")] if ids == ["a"] else "Done.")
        halted = resume(model, halted, approvals=dict.fromkeys(ids, True), **options).run()
    assert alive == KEYS


def test_it_is_equal_when_calls_beside_it_were_answered_and_the_chat_has_gone_on() -> None:
    sign = tool(name="sign", manual=True)
    turn = [ToolCall("s", "sign"), call()]
    halted = rxllm.chat(Fake(turn), "Pay!", tools=[pay, sign]).run()
    thread = halted.thread + tool_result("s", "signed") + "Go on!"
    resume(Fake("Done."), thread, approvals={"c1": True}, tools=[pay, sign]).run()
    assert {"c1": [key()]} == KEYS


def test_an_edit_keeps_it() -> None:
    edited = key(approve=lambda call: {"amount": 1})
    halted = rxllm.chat(Fake(call()), "Pay!", tools=[pay]).run()
    KEYS.clear()
    resume(Fake("Done."), halted, approvals={"c1": {"amount": 2}}, tools=[pay]).run()
    assert KEYS == {"c1": [edited]} == {"c1": [key()]}


def test_metadata_does_not_count() -> None:
    thread = Thread((user("Pay!"),))
    noted = Thread((replace(user("Pay!"), metadata={"agents": {}}),), {"x": 1})
    assert key(thread=thread) == key(thread=noted) == key(thread="Pay!")


def test_a_thread_that_was_kept_as_openais_dicts_has_the_same_keys() -> None:
    earlier = rxllm.chat(Fake(call("a"), "Done."), "Pay!", tools=[pay], approve=lambda call: True).run().thread
    thread = earlier + "More!"
    assert key(thread=thread) == key(thread=Thread.from_openai(thread.to_openai()))


def test_behind_a_pipe_by_hand_it_is_that_of_the_facade() -> None:
    thread = Thread((user("Pay!"),))
    calling(call()).pipe(ops.run_tools([pay], thread=thread, approve=lambda call: True)).run()
    assert {"c1": [key()]} == KEYS


# Different


def test_two_calls_of_one_response_differ_even_with_equal_names_and_arguments() -> None:
    one, other = keys([call("a"), call("b")]).values()
    assert one != other


def test_a_call_differs_by_its_session_thread_id_name_and_arguments() -> None:
    image = ImagePart(Image.from_url("https://example.com/bill.png"))
    all_keys = [
        key(),
        key(session_id="s1"),
        key(session_id="s2"),
        key(call("c2")),
        key(call(amount=6)),
        key(ToolCall("c1", "pay")),
        key(thread="Pay now!"),
        key(thread=Thread() + "Hi" + Message("assistant", "Hi!") + "Pay!"),
        key(thread=Thread((Message("user", (image,)),))),
        key(thread=Thread((Message("user", (replace(image, image=Image.from_url("https://example.com/2.png")),)),))),
    ]
    assert len({*all_keys}) == len(all_keys)


def test_the_same_id_in_a_later_step_is_another_call() -> None:
    thread = Thread((user("Pay!"),))
    later = thread + Message("assistant", tool_calls=(call(),)) + tool_result("c1", "paid")
    assert len({idempotency_key(call(), before, None, None) for before in (thread, later, later + "More!")}) == 3


# Nested


def paying(prompt: str = "Pay!") -> Any:
    """A chat that pays, as the handler of a tool."""

    def handle(arguments: Any) -> Any:
        chat = rxllm.chat(Fake(call("nested"), "Done."), prompt, tools=[pay], approve=lambda call: True)
        return chat.map(lambda result: result.output_text)

    return handle


def nested_key(id: str = "outer", thread: str = "Do it!", **options: Any) -> str:
    KEYS.clear()
    delegate = tool(name="delegate", handler=paying())
    rxllm.chat(Fake(ToolCall(id, "delegate"), "Done."), thread, tools=[delegate], **options).run()
    ((only,),) = KEYS.values()
    return only


def test_a_call_in_a_tool_differs_by_all_that_is_around_it() -> None:
    plain = key(call("nested"))
    around = [
        nested_key(),
        nested_key("other"),
        nested_key(thread="Do something else!"),
        nested_key(session_id="s1"),
        nested_key(session_id="s2"),
    ]
    assert len({plain, *around}) == 1 + len(around)
    assert nested_key(session_id="s1") == around[3]


def test_two_agents_of_one_response_have_different_keys_and_so_on_at_any_depth() -> None:
    def delegating(depth: int) -> Any:
        def handle(arguments: Any) -> Any:
            inner = tool(name="delegate", handler=delegating(depth - 1) if depth else paying())
            chat = rxllm.chat(
                Fake([ToolCall("a", "delegate"), ToolCall("b", "delegate")], "Done."), "Go!", tools=[inner]
            )
            return chat.map(lambda result: result.output_text)

        return handle

    delegating(2)({}).run()
    assert len(KEYS["nested"]) == len({*KEYS["nested"]}) == 8


def test_a_step_after_a_tool_is_not_inside_it() -> None:
    delegate = tool(name="delegate", handler=paying())
    turns = [ToolCall("outer", "delegate"), call("after"), "Done."]
    result = rxllm.chat(Fake(*turns), "Do it!", tools=[delegate, pay], approve=lambda call: True).run()
    before = Thread(result.thread.messages[:3])
    assert KEYS["after"] == [idempotency_key(call("after"), before, None, None)]


# A context by hand


def test_a_context_by_hand_may_have_a_key() -> None:
    assert ToolContext(call()).idempotency_key == ""
    assert ToolContext(call(), make_key=lambda: "k1").idempotency_key == "k1"


def test_the_key_is_made_when_it_is_read_and_once() -> None:
    made: list[str] = []
    context = ToolContext(call(), make_key=lambda: made.append("k") or "k")
    assert made == []
    assert (context.idempotency_key, context.idempotency_key, made) == ("k", "k", ["k"])


# Law


@settings(deadline=None, max_examples=examples(100))
@given(strategies.threads, strategies.tool_calls, st.lists(strategies.tool_calls, max_size=2), st.none() | st.text())
def test_a_thread_that_has_gone_on_in_json_gives_the_same_key(
    before: Thread, made: ToolCall, beside: list[ToolCall], session_id: str | None
) -> None:
    """Law: what follows the call, JSON and metadata leave its key as it is."""
    alive = idempotency_key(made, before, session_id, None)
    siblings = [other for other in beside if other.id != made.id]
    earlier = {other.id for message in before for other in message.tool_calls}
    answered = {message.tool_call_id for message in before}
    if made.id in earlier | answered or made.metadata.get("server"):
        return
    after = before + Message("assistant", "I", tool_calls=(*siblings, made), metadata={"agents": 1})
    after += [tool_result(other.id, "done") for other in siblings]
    after = serializer.from_json(serializer.to_json(after), Thread)
    again = serializer.from_json(serializer.to_json(made), ToolCall)
    assert idempotency_key(again, after, session_id, None) == alive
