"""Agents: chats that are tools of another chat. What is seen of them, what they use, and how they end."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
from reactivex import operators as rx

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Engine,
    EngineError,
    Fake,
    Thread,
    ToolCall,
    ToolContext,
    ToolError,
    Usage,
    ValidationError,
    halt,
    serializer,
    system,
    tool,
    user,
)
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Nested,
    StepCompleted,
    TextDelta,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
)
from rxllm.tools import AgentTool

ROSES = ToolCall("c1", "poet", {"prompt": "On roses"})


def poet(*script: Any, **options: Any) -> AgentTool:
    return Engine(Fake(*(script or ("Roses are red.",)))).as_tool(name="poet", **options)


def parent(*calls: ToolCall, answer: str = "Done.") -> Fake:
    """A model that makes `calls` and then answers, however often it is asked."""
    return Fake(lambda request: list(calls) if request.messages[-1].role == "user" else answer)


def result_text(result: ChatResult, id: str = "c1") -> str:
    return next(message.text for message in result.thread if message.tool_call_id == id)


# What is seen


def test_all_events_of_an_agent_are_in_the_stream_under_its_call() -> None:
    alone = list(rxllm.stream(Fake("Roses are red."), "On roses"))
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[poet()]))
    nested = [event for event in events if isinstance(event, Nested)]
    assert [event.event for event in nested] == alone
    assert {event.path for event in nested} == {("c1",)}
    kinds = [type(event) for event in events]
    started, completed = kinds.index(ToolExecutionStarted), kinds.index(ToolExecutionCompleted)
    assert kinds[started + 1 : completed] == [Nested] * len(nested)
    assert events[completed] == ToolExecutionCompleted("c1", "poet", "Roses are red.")


def test_they_come_as_they_are_made() -> None:
    async def main() -> str:
        more = asyncio.Event()

        @tool
        async def wait() -> str:
            await more.wait()
            return "waited"

        agent = Engine(Fake(["Hm. ", ToolCall("w", "wait")], "Now."), tools=[wait]).as_tool(name="poet")
        async for event in rxllm.stream(parent(ROSES), "Go", tools=[agent]):
            if isinstance(event, Nested) and isinstance(event.event, ToolExecutionStarted):
                more.set()  # nobody would, if the events came at the agent's end
            if isinstance(event, ChatCompleted):
                return event.result.output_text
        return ""

    assert asyncio.run(main()) == "Done."


def test_an_agent_of_an_agent_has_both_calls_in_its_path() -> None:
    inner = Engine(Fake("Deep.")).as_tool(name="inner")
    outer = Engine(Fake(ToolCall("x", "inner", {"prompt": "go"}), "Middle."), tools=[inner]).as_tool(name="poet")
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[outer]))
    nested = [event for event in events if isinstance(event, Nested)]
    assert list(dict.fromkeys(event.path for event in nested)) == [("c1",), ("c1", "x")]
    assert not any(isinstance(event.event, Nested) for event in nested)
    texts = [(event.path, event.event.delta) for event in nested if isinstance(event.event, TextDelta)]
    assert texts == [(("c1", "x"), "Deep."), (("c1",), "Middle.")]
    assert events == list(events_of_json(events))
    list(rxllm.Stream.of(rx_of(events)).pipe(ops.verify()))


def events_of_json(events: list[Any]) -> Any:
    return serializer.from_json(serializer.to_json(events))


def rx_of(events: list[Any]) -> Any:
    from reactivex import from_iterable

    return from_iterable(events)


def test_two_agents_of_one_step_run_side_by_side() -> None:
    async def main() -> ChatResult:
        together = asyncio.Barrier(2)

        @tool
        async def meet() -> str:
            await together.wait()
            return "met"

        def agent(name: str) -> AgentTool:
            return Engine(Fake(ToolCall("m", "meet"), f"{name} done"), tools=[meet]).as_tool(name=name)

        calls = [ToolCall("a", "ann", {"prompt": "go"}), ToolCall("b", "bob", {"prompt": "go"})]
        return await rxllm.chat(parent(*calls), "Go", tools=[agent("ann"), agent("bob")])

    result = asyncio.run(main())
    assert [result_text(result, id) for id in "ab"] == ["ann done", "bob done"]


def test_by_hand_it_is_the_same() -> None:
    model = parent(ROSES)

    def ask(thread: Thread) -> Any:
        return rxllm.stream_generate(model, thread, tools=[agent]).pipe(
            ops.run_tools([agent], thread=thread, engine=model)
        )

    agent = poet()
    thread = Thread() + "Go"
    assert list(ask(thread).pipe(ops.repeat_until_halt(ask))) == list(rxllm.stream(model, thread, tools=[agent]))


# What the model of the agent is asked, and what it answers


def test_a_prompt_is_the_users_message_behind_the_system_prompt() -> None:
    model = Fake("Roses.")
    agent = Engine(model).as_tool(name="poet", system="You are a poet.")
    rxllm.chat(parent(ROSES), "Go", tools=[agent]).run()
    assert model.requests[0].messages == (system("You are a poet."), user("On roses"))


def test_other_arguments_are_sent_as_json() -> None:
    model = Fake("Roses.")
    schema = {"type": "object", "properties": {"flower": {"type": "string"}, "lines": {"type": "integer"}}}
    agent = Engine(model).as_tool(name="poet", schema=schema)
    rxllm.chat(parent(ToolCall("c1", "poet", {"flower": "rose", "lines": 2})), "Go", tools=[agent]).run()
    assert model.requests[0].messages == (user('{"flower":"rose","lines":2}'),)


def test_arguments_that_do_not_fit_go_back_to_the_model() -> None:
    model = Fake("Roses.")
    agent = Engine(model).as_tool(name="poet")
    result = rxllm.chat(parent(ToolCall("c1", "poet", {"prompt": 5})), "Go", tools=[agent]).run()
    assert "the arguments are invalid" in result_text(result)
    assert model.requests == []


def test_the_answer_is_the_parsed_value() -> None:
    @dataclass
    class Poem:
        title: str

    agent = poet('{"title": "Roses"}', response_format=Poem)
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[agent]))
    completed = next(event for event in events if isinstance(event, ToolExecutionCompleted))
    assert completed.result == Poem("Roses")
    assert next(event.content for event in events if isinstance(event, ToolResultEncoded)) == '{"title":"Roses"}'


def test_the_options_are_those_of_a_chat() -> None:
    model = Fake("Roses.")
    agent = Engine(model, params={"seed": 1}).as_tool(name="poet", temperature=0.5, seed=None, max_tokens=9)
    rxllm.chat(parent(ROSES), "Go", tools=[agent]).run()
    request = model.requests[0]
    assert (request.temperature, request.seed, request.max_tokens) == (0.5, 1, 9)


# What it uses


def test_the_usage_of_agents_is_their_parents_too() -> None:
    inner = Engine(Fake(["Deep.", Usage(100, 0)])).as_tool(name="inner")
    calls = [ToolCall("x", "inner", {"prompt": "go"}), Usage(10, 0)]
    outer = Engine(Fake(calls, ["Middle.", Usage(20, 0)]), tools=[inner]).as_tool(name="poet")
    model = Fake([ROSES, Usage(1, 0)], ["Done.", Usage(2, 0)])
    result = rxllm.chat(model, "Go", tools=[outer]).run()
    first, last = result.steps
    assert (first.response.usage, first.agent_usage, first.usage) == (Usage(1, 0), Usage(130, 0), Usage(131, 0))
    assert (last.agent_usage, last.usage) == (Usage(), Usage(2, 0))
    assert result.usage == Usage(133, 0)
    assert serializer.from_json(serializer.to_json(result)) == result


def test_the_usage_of_a_chat_that_is_cut_has_the_steps_of_its_agents() -> None:
    inner = Engine(Fake(["Roses.", Usage(100, 0)])).as_tool(name="poet")
    model = Fake([ROSES, Usage(1, 0)], "Done.")
    cut = rxllm.stream(model, "Go", tools=[inner]).pipe(
        rx.take_while(lambda event: not isinstance(event, ToolExecutionCompleted)),
        ops.to_chat_result(Thread() + "Go"),
    )
    assert cut.run().usage == Usage(101, 0)


# What it inherits


def test_ids_context_and_approval_are_inherited() -> None:
    seen: list[Any] = []

    @tool(approval=True)
    def look(context: ToolContext) -> str:
        seen.append((context.request_id, context.session_id, dict(context.context)))
        return "looked"

    inner = Engine(Fake(ToolCall("y", "look"), "Deep."), tools=[look], context={"depth": 2}).as_tool(name="inner")
    outer = Engine(Fake(ToolCall("x", "inner", {"prompt": "go"}), "Middle."), tools=[inner]).as_tool(
        name="poet", context={"who": "poet"}
    )
    result = rxllm.chat(
        parent(ROSES),
        "Go",
        tools=[outer],
        request_id="r",
        session_id="s",
        context={"who": "parent", "user": "ada"},
        approve=lambda call: True,
    ).run()
    assert result.output_text == "Done."
    assert seen == [("r/c1/x", "s", {"who": "poet", "user": "ada", "depth": 2})]


def test_an_approver_of_its_own_wins() -> None:
    @tool(approval=True)
    def look() -> str:
        return "looked"

    agent = Engine(Fake(ToolCall("y", "look"), "Middle."), tools=[look]).as_tool(
        name="poet", approve=lambda call: "no!"
    )
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[agent], approve=lambda call: True))
    failed = [event.event for event in events if isinstance(event, Nested)]
    errors = [event.error for event in failed if isinstance(event, ToolExecutionCompleted)]
    assert [error and error.reason for error in errors] == ["denied"]


def test_a_timeout_of_its_own_bounds_the_approver_that_it_inherits() -> None:
    @tool(approval=True)
    def look() -> str:
        return "looked"

    async def never(call: ToolCall) -> bool:
        await asyncio.Event().wait()
        return True

    agent = Engine(Fake(ToolCall("y", "look"), "Middle."), tools=[look]).as_tool(name="poet", approve_timeout=0.01)
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[agent], approve=never))
    nested = [event.event for event in events if isinstance(event, Nested)]
    errors = [event.error for event in nested if isinstance(event, ToolExecutionCompleted)]
    assert [error and error.reason for error in errors] == ["denied"]


def test_agents_inside_agents_are_bounded() -> None:
    deepest = Engine(Fake("Deep."))
    for _ in range(60):
        deepest = Engine(parent(ROSES, answer="Up."), tools=[deepest.as_tool(name="poet")])
    events = list(rxllm.stream(deepest, "Go"))
    assert events[-1].result.output_text == "Up."  # type: ignore[union-attr]
    nested = [(event.path, event.event) for event in events if isinstance(event, Nested)]
    ends = [(len(path), event.error) for path, event in nested if isinstance(event, ToolExecutionCompleted)]
    assert [(depth, str(error)) for depth, error in ends if error is not None] == [
        (
            16,
            "the agent 'poet' is nested more than 16 tool calls deep; nest fewer agents",
        )
    ]


def test_telemetry_links_the_agent_to_its_tool() -> None:
    told: list[Any] = []
    agent = Engine(Fake("Roses."), observers=[told.append]).as_tool(name="poet")
    rxllm.chat(Engine(parent(ROSES), observers=[told.append]), "Go", tools=[agent], request_id="r").run()
    started = {type(event).__name__: event for event in told if event.path == () and hasattr(event, "tool_call_id")}
    chats = [event for event in told if type(event).__name__ == "ChatStarted"]
    assert [chat.request_id for chat in chats] == ["r", "r/c1"]
    assert [chat.path for chat in chats] == [(), ("c1",)]
    assert chats[1].parent_id == started["ToolStarted"].id


def test_the_usage_in_telemetry_is_that_of_the_results() -> None:
    told: list[Any] = []
    agent = Engine(Fake(["Roses.", Usage(5, 6)])).as_tool(name="poet")
    model = Fake([ROSES, Usage(1, 2)], ["Done.", Usage(3, 4)])
    result = rxllm.chat(Engine(model, observers=[told.append]), "Go", tools=[agent]).run()
    steps = [event.usage for event in told if type(event).__name__ == "StepFinished"]
    chats = [event.usage for event in told if type(event).__name__ == "ChatFinished"]
    assert steps == [step.usage for step in result.steps] == [Usage(6, 8), Usage(3, 4)]
    assert chats == [result.usage] == [Usage(9, 12)]


# How it ends


def test_an_agent_that_fails_is_an_error_for_the_model(caplog: Any) -> None:
    agent = poet(AdapterError("rate_limited", "slow\ndown"), retry=False)
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[agent]))
    completed = next(event for event in events if isinstance(event, ToolExecutionCompleted))
    assert isinstance(completed.error, ToolError)
    assert completed.error.reason == "handler_raised"
    assert completed.error.message == "the agent 'poet' failed: AdapterError: slow"
    assert isinstance(completed.error.__cause__, AdapterError)
    assert events[-1].result.output_text == "Done."  # type: ignore[union-attr]
    assert not caplog.records


def _refuse(call: ToolCall) -> Any:
    raise AdapterError("unknown", "the desk is closed")


@pytest.mark.parametrize("first", [[], [ToolCall("x", "add")]])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("approve", "error"),
    [
        (lambda call: None, TypeError),
        (lambda call: {"amuont": 1}, ValidationError),
        (_refuse, AdapterError),
    ],
)
def test_what_an_approver_has_wrong_is_never_for_a_model(
    approve: Any, error: Any, depth: int, first: list[Any]
) -> None:
    @tool(approval=True)
    def pay(amount: int = 5) -> str:
        return "paid"

    @tool
    def add() -> str:
        return "added"

    turns = [*first, ToolCall("y", "pay"), "Paid."]
    chat = Engine(Fake(lambda request: turns[sum(message.role == "assistant" for message in request.messages)]))
    chat = chat.with_tools(pay, add)
    for _ in range(depth):
        chat = Engine(parent(ROSES), tools=[chat.as_tool(name="poet")])
    with pytest.raises(error):
        rxllm.chat(chat, "Go", approve=approve).run()


@pytest.mark.parametrize(
    "script",
    [
        [["Roses", ("error", "provider_unavailable")]],
        [ToolCall("x", "nothing"), AdapterError("invalid_request")],
        [[ToolCall("x", "look")], AdapterError("invalid_request")],
    ],
)
def test_also_one_that_fails_later(script: list[Any]) -> None:
    look = tool(name="look", handler=lambda arguments: "looked")
    result = rxllm.chat(parent(ROSES), "Go", tools=[poet(*script, tools=[look], retry=False)]).run()
    assert result.halted_reason == "completed"
    assert "error" in result_text(result)


def test_and_one_whose_answer_does_not_parse() -> None:
    events = list(rxllm.stream(parent(ROSES), "Go", tools=[poet("no JSON", response_format=list[int])]))
    completed = next(event for event in events if isinstance(event, ToolExecutionCompleted))
    assert completed.error is not None
    assert isinstance(completed.error.__cause__, ValidationError)
    assert completed.error.__cause__.reason == "invalid_output"


def test_the_policy_for_errors_is_the_parents() -> None:
    agent = poet(AdapterError("rate_limited"), retry=False)
    result = rxllm.chat(parent(ROSES), "Go", tools=[agent], on_tool_error="halt").run()
    assert result.halted_reason == "tool_error"


def test_the_bug_of_an_approver_is_for_the_developer() -> None:
    @tool(approval=True)
    def look() -> str:
        return "looked"

    def approve(call: ToolCall) -> bool:
        raise ZeroDivisionError("a bug")

    agent = Engine(Fake(ToolCall("y", "look"), "Middle."), tools=[look]).as_tool(name="poet")
    with pytest.raises(ZeroDivisionError):
        rxllm.chat(parent(ROSES), "Go", tools=[agent], approve=approve).run()


@pytest.mark.parametrize("before", [(), (ToolCall("y0", "look", {"at": "x"}),)])
def test_an_edit_that_fits_no_tool_is_for_the_developer(before: tuple[ToolCall, ...]) -> None:
    """In the agent's first step, and in a later one, in which its chat ends with a result."""

    @tool
    def look(at: str) -> str:
        return "looked"

    @tool(approval=True)
    def pay(amount: int) -> str:
        return "paid"

    agent = Engine(Fake(*before, ToolCall("y", "pay", {"amount": 5}), "Middle."), tools=[look, pay])
    asks = parent(ROSES)
    with pytest.raises(ValidationError, match="did you mean 'amount'"):
        rxllm.chat(asks, "Go", tools=[agent.as_tool(name="poet")], approve=lambda call: {"amont": 3}).run()
    assert len(asks.requests) == 1  # the model is not told


def test_an_agent_that_stops_short_says_so() -> None:
    look = tool(name="look", handler=lambda arguments: "looked")
    agent = Engine(Fake(lambda request: ToolCall(f"y{len(request.messages)}", "look")), tools=[look])
    result = rxllm.chat(parent(ROSES), "Go", tools=[agent.as_tool(name="poet", max_turns=2)]).run()
    assert result_text(result) == '{"output_text":"","halted_reason":"max_turns"}'
    stops = tool(name="look", handler=lambda arguments: halt("found", {"x": 1}))
    result = rxllm.chat(parent(ROSES), "Go", tools=[agent.with_tools(stops, replace=True).as_tool(name="poet")]).run()
    assert result_text(result) == '{"output_text":"","halted_reason":"found","halt_result":{"x":1}}'
    early = agent.as_tool(name="poet", halt_when=lambda step: True)
    assert '"halted_reason":"halt_when"' in result_text(rxllm.chat(parent(ROSES), "Go", tools=[early]).run())


def test_an_agent_has_no_timeout_unless_it_is_given_one() -> None:
    from rxllm.testing import simulate

    async def app(world: Any) -> str:
        @tool
        async def sleep() -> str:
            await asyncio.sleep(3600)
            return "slept"

        agent = Engine(Fake(ToolCall("y", "sleep"), "Rested."), tools=[sleep]).as_tool(name="poet", tool_timeout=None)
        return result_text(await rxllm.chat(parent(ROSES), "Go", tools=[agent], tool_timeout=1.0))

    assert simulate(app, faults=()).value == "Rested."


def test_no_executor_runs_an_agent() -> None:
    ran: list[str] = []

    def execute(tool: Any, arguments: Any, context: Any) -> str:
        ran.append(tool.name)
        return "executed"

    look = tool(name="look", handler=lambda arguments: "looked")
    model = parent(ROSES, ToolCall("c2", "look"))
    result = rxllm.chat(model, "Go", tools=[poet(), look], tool_executor=execute).run()
    assert (ran, result_text(result), result_text(result, "c2")) == (["look"], "Roses are red.", "executed")


# The tool as a value


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": ""}, ValidationError),
        ({"name": 5}, ValidationError),
        ({"name": "a", "schema": "string"}, ValidationError),
        ({"name": "a", "system": 5}, ValidationError),
        ({"name": "a", "temperature": "hot"}, ValidationError),
        ({"name": "a", "no_such_option": 5}, EngineError),
        ({"name": "a", "api_key": "sk-secret"}, EngineError),
    ],
)
def test_bad_arguments_raise_at_the_call(arguments: Any, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught:
        Engine(Fake("Hi")).as_tool(**arguments)
    assert "sk-secret" not in str(caught.value)


def test_it_is_pickled_and_copied_as_its_engine_is() -> None:
    agent = Engine("openai:gpt-5", params={"headers": {"x-api-key": "secret", "x-team": "a"}}).as_tool(
        name="poet", description="Write.", temperature=0.5
    )
    for other in (pickle.loads(pickle.dumps(agent)), copy.deepcopy(agent), copy.copy(agent)):
        assert (other.name, other.description, other.schema) == ("poet", "Write.", agent.schema)
        assert other.engine.params["temperature"] == 0.5
    assert b"secret" not in pickle.dumps(agent)
    assert repr(agent) == "AgentTool('poet', 'Write.')"
    with pytest.raises(ValidationError, match="Engine has no JSON form"):
        serializer.to_json(agent)


def test_an_agent_may_itself_need_an_approval() -> None:
    agent = replace(poet(), approval=True)
    halted = rxllm.chat(parent(ROSES), "Go", tools=[agent]).run()
    assert (halted.halted_reason, [call.id for call in halted.pending_tool_calls]) == ("approval", ["c1"])
    done = rxllm.resume(parent(ROSES), halted, approvals={"c1": True}, tools=[agent]).run()
    assert result_text(done) == "Roses are red."


# Events as the progress of any tool


def test_a_tool_that_returns_a_stream_of_events_can_be_recorded() -> None:
    @tool(name="poet")
    async def ask(prompt: str) -> Any:
        async for event in rxllm.stream(Fake(["Roses", ("error", "provider_unavailable")]), prompt, retry=False):
            yield event
        yield "It failed."

    events = list(rxllm.stream(parent(ROSES), "Go", tools=[ask]))
    progress = [event for event in events if isinstance(event, ToolProgress)]
    assert any(isinstance(event.data, ErrorEvent) for event in progress)
    again = [serializer.from_json(serializer.to_json(event)) for event in progress]
    deltas = [event.data["delta"] for event in again[:-1] if event.data["type"] == "text_delta"]
    assert deltas == ["Roses"]
    assert again[-1].data == "It failed."


def test_nothing_is_logged_about_an_agent(caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG, "rxllm"):
        rxllm.chat(parent(ROSES), "Go", tools=[poet()]).run()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_step_of_agents_is_verified() -> None:
    events = rxllm.stream(parent(ROSES), "Go", tools=[poet()]).pipe(ops.verify())
    kinds = [type(event) for event in events]
    assert kinds.count(StepCompleted) == 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "prompt: is missing; pass the task as text"),
        ({"prompt": 5}, "prompt: must be text, not 5"),
        ({"q": "hi"}, "q: is not an argument; the only argument is prompt"),
        ({"prompt": "hi", "q": "hi"}, "q: is not an argument; the only argument is prompt"),
    ],
)
def test_a_call_that_does_not_fit_asks_no_agent(arguments: dict[str, Any], fault: str) -> None:
    inside = Fake("Hello")
    agent = Engine(inside).as_tool(name="agent", description="Greets.")
    result = rxllm.chat(Fake(ToolCall("c1", "agent", arguments), "Oh."), "Hi", tools=[agent]).run()
    assert (fault in result.steps[0].tool_results[0].text, inside.requests) == (True, [])
