"""What a subscription knows of the chat, step and tool that it is made for, and what it must not know."""

from __future__ import annotations

from typing import Any

import pytest
from reactivex import concat
from reactivex import operators as rx

import rxllm
from rxllm import Engine, Fake, Thread, ToolCall, ToolContext, Usage, tool, user
from rxllm import operators as ops
from rxllm.events import MessageCompleted
from rxllm.runtime import NO_SCOPE, Scope, Stream, current_scope, scoped, within
from rxllm.telemetry import CallStarted, ChatStarted, StepStarted, ToolStarted

THREAD = Thread((user("Hi"),))


def peek(seen: list[Scope]) -> Any:
    """An adapter that notes the scope it is subscribed in."""

    async def adapter(request: Any, call: Any) -> Any:
        seen.append(current_scope.get())
        yield rxllm.TextDelta("Hi")

    return adapter


def test_there_is_none_outside() -> None:
    assert current_scope.get() is NO_SCOPE
    rxllm.chat(Fake("Hi"), "Hi").run()
    assert current_scope.get() is NO_SCOPE


def test_below_a_model_source_are_the_path_and_the_parent_only() -> None:
    seen: list[Scope] = []
    source = rxllm.stream_generate(peek(seen), THREAD)
    with within(Scope(request_id="r1", path=("c1",), usage=Usage(1))):
        scoped(source, Scope(request_id="r2", parent_id="p", path=("c1",))).run()
    assert seen == [Scope(parent_id="p", path=("c1",))]


def test_of_several_models_below_the_thread_that_is_passed_counts() -> None:
    step = rxllm.stream_generate(Fake("a"), THREAD).pipe(
        ops.only(rxllm.TextDelta),
        ops.continue_with(
            lambda last: rxllm.stream_generate(Fake("b"), "Other") if last == rxllm.TextDelta("a") else None
        ),
        ops.run_tools(thread=THREAD),
        ops.to_step_result(),
    )
    assert step.run().thread[0] == user("Hi")


def test_a_chat_inside_a_tool_inherits_nothing_but_its_path_and_key() -> None:
    seen: list[Scope] = []
    contexts: list[ToolContext] = []

    @tool
    async def research(context: ToolContext) -> str:
        contexts.append(context)
        seen.append(current_scope.get())
        budgeted = Engine(Fake(["A long answer", Usage(1, 5)]), operators=[ops.budget(tokens=50)])
        inner = await rxllm.chat(budgeted, "Inner?")
        assert inner.thread[0] == user("Inner?")
        return str(inner.final_response.metadata["budget"]["tokens_spent"])

    model = Fake([ToolCall("c1", "research"), Usage(100, 100)], "Done.")
    result = rxllm.chat(model, "Outer?", tools=[research], request_id="r1", session_id="s1").run()
    assert result.steps[0].tool_results[0].text == "6"
    assert seen == [Scope(parent_id="/c1", path=("c1",), tool_key=contexts[0].make_key)]
    assert (contexts[0].request_id, contexts[0].session_id) == ("r1", "s1")


@pytest.mark.parametrize("answer", [True, False])
def test_a_chat_inside_approve_belongs_to_the_step_not_to_a_tool_that_may_never_start(answer: bool) -> None:
    told: list[Any] = []
    careful = tool(name="careful", handler=lambda arguments: "done", approval=True)

    async def approve(call: ToolCall) -> bool:
        await rxllm.chat(Engine(Fake("Yes."), observers=[told.append]), "May it?")
        return answer

    engine = Engine(Fake(ToolCall("c1", "careful"), "Done."), observers=[told.append])
    rxllm.chat(engine, "Hi", tools=[careful], approve=approve).run()
    inner = [value for value in told if isinstance(value, ChatStarted)][1]
    step = next(value for value in told if isinstance(value, StepStarted))
    assert (inner.parent_id, inner.path) == (step.id, ())


def test_every_depth_has_its_path_and_its_parent() -> None:
    told: list[Any] = []

    @tool
    async def inner() -> str:
        return "in"

    @tool
    def outer() -> Stream[Any]:
        model = Engine(Fake(ToolCall("i", "inner"), "Inner done."), observers=[told.append])
        return rxllm.chat(model, "Inner?", tools=[inner]).map(lambda result: result.output_text)

    engine = Engine(Fake(ToolCall("o", "outer"), "Done."), observers=[told.append])
    rxllm.chat(engine, "Outer?", tools=[outer]).run()
    starts = [value for value in told if isinstance(value, CallStarted | StepStarted | ChatStarted | ToolStarted)]
    parents = {value.id: value for value in starts}
    lineage: list[list[str]] = []
    for value in starts:
        names: list[str] = []
        while value is not None:
            names.append(type(value).__name__.removesuffix("Started"))
            value = parents.get(value.parent_id or "")
        lineage.append(names)
    around = ["Step", "Chat"]
    within_tool = ["Chat", "Tool", "Step", "Chat"]
    assert lineage == [
        ["Chat"],
        around,
        ["Call", *around],
        ["Tool", *around],
        within_tool,
        ["Step", *within_tool],
        ["Call", "Step", *within_tool],
        ["Tool", "Step", *within_tool],
        ["Step", *within_tool],
        ["Call", "Step", *within_tool],
        around,
        ["Call", *around],
    ]
    assert {value.path for value in starts} == {(), ("o",)}
    ended = [value for value in told if type(value).__name__.endswith("Finished")]
    assert sorted(value.id for value in ended) == sorted(parents)


@pytest.mark.parametrize("many", ["hedge", "race", "generate_many"])
def test_calls_at_the_same_time_can_be_told_apart(many: str) -> None:
    told: list[Any] = []
    first = ["a"] if many == "generate_many" else [("delay", 3600.0), "a"]
    engine = Engine(Fake(scripts=[first, ["b"]]), observers=[told.append])
    source = rxllm.stream_generate(engine, "Hi", request_id="r1")
    run: dict[str, Any] = {
        "hedge": lambda: rxllm.hedge(source, 0.01),
        "race": lambda: rxllm.race(source, source),
        "generate_many": lambda: rxllm.generate_many(engine, ["a", "b"], request_id="r1"),
    }
    run[many]().run()
    starts = [value for value in told if isinstance(value, CallStarted)]
    assert len(starts) == 2
    assert len({value.id for value in starts}) == 2
    assert {value.request_id for value in starts} == {"r1"}


@pytest.mark.parametrize("name", ["fallback", "retry_before_content", "restart", "hedge"])
def test_a_later_attempt_belongs_where_the_first_did(name: str) -> None:
    """It is subscribed where an earlier one has failed, which is in another context."""
    told: list[Any] = []
    failing = [*(["Hel"] if name == "restart" else []), ("error", "timeout")]
    engine = Engine(Fake(scripts=[failing, ["Hello"]]), observers=[told.append], retry=False)
    events = rxllm.stream_generate(engine, THREAD)
    policy = {"base_delay": 0, "jitter": 0}
    again: dict[str, Any] = {
        "fallback": ops.fallback(events),
        "retry_before_content": ops.retry_before_content(policy),
        "restart": ops.restart(policy),
        "hedge": ops.hedge(5.0),
    }
    with within(Scope(request_id="r1", parent_id="p")):
        assert events.pipe(again[name], ops.to_text()).run() == "Hello"
    starts = [value for value in told if isinstance(value, CallStarted)]
    assert [(value.request_id, value.parent_id) for value in starts] == [("r1", "p")] * 2


def after_another(engine: Engine, then: Engine, how: str) -> Stream[Any]:
    """A chat of `then`, or of `engine` again, that begins where one of `engine` has ended."""
    first, second = rxllm.chat(engine, "First?", tools=[look], max_turns=1), rxllm.chat(then, "Second?")
    failed = first.map(lambda result: result.final_response.parsed["missing"])
    return {
        "concat": lambda: Stream.of(concat(first, second)),
        "flat_map": lambda: first.pipe(rx.flat_map(lambda result: second)),
        "repeat": lambda: first.pipe(rx.repeat(2)),
        "retry": lambda: failed.pipe(rx.retry(2), rx.catch(second)),
        "continue_with": lambda: first.pipe(
            ops.continue_with(lambda last: second if last.steps[0].tool_results else None)
        ),
    }[how]()


FOLLOWING = ["concat", "flat_map", "repeat", "retry", "continue_with"]


@tool
def look() -> str:
    return "seen"


@pytest.mark.parametrize("how", FOLLOWING)
def test_a_chat_after_another_is_not_inside_its_tools(how: str) -> None:
    told: list[Any] = []
    observers = [told.append]
    silent = [] if how in ("concat", "flat_map", "continue_with") else observers
    model = Engine(Fake(scripts=[[ToolCall("c1", "look")], [ToolCall("c1", "look")]]), observers=silent)
    after_another(model, Engine(Fake("Second."), observers=observers), how).run()
    assert {value.path for value in told} == {()}
    if silent == []:
        assert [value.parent_id for value in told if isinstance(value, ChatStarted)] == [None]


@pytest.mark.parametrize("how", FOLLOWING)
def test_a_chat_after_another_has_no_parent_and_its_own_request_id(how: str) -> None:
    told: list[Any] = []
    model = Engine(Fake(scripts=[[ToolCall("c1", "look")], [ToolCall("c1", "look")]]), observers=[told.append])
    after_another(model, Engine(Fake("Second."), observers=[told.append]), how).run()
    chats = [value for value in told if isinstance(value, ChatStarted)]
    assert {chat.parent_id for chat in chats} == {None}
    assert len({chat.request_id for chat in chats}) == len(chats) >= 2


@pytest.mark.parametrize(
    "observers",
    [
        [],
        [lambda value: None],
    ],
)
def test_a_call_by_an_adapter_has_its_own_request_id(observers: Any) -> None:
    seen: list[str | None] = []

    async def adapter(request: Any, call: Any) -> Any:
        seen.append(current_scope.get().request_id)
        yield rxllm.TextDelta("Hi")

    rxllm.chat(Engine(adapter, observers=observers), "Hi").run()
    assert seen == [None]


def test_a_retry_by_reactivex_knows_the_earlier_steps() -> None:
    """It subscribes again where the failed call has ended."""
    script = [[ToolCall("c1", "look"), Usage(60, 0)], [("error", "timeout")], ["Done.", Usage(60, 0)]]
    engine = Engine(Fake(scripts=script), operators=[ops.budget(tokens=100)], retry=False)

    def ask(thread: Thread) -> Stream[Any]:
        answer = rxllm.stream_generate(engine, thread)
        return answer.pipe(ops.raise_errors(), rx.retry(2), ops.run_tools([look], thread=thread))

    result = ask(THREAD).pipe(ops.repeat_until_halt(ask), ops.to_chat_result()).run()
    assert result.final_response.metadata["budget"]["tokens_spent"] == 120


def test_the_functions_of_a_chat_and_its_subscriber_are_not_part_of_its_steps() -> None:
    seen: list[Scope] = []

    def note(value: Any) -> bool:
        seen.append(current_scope.get())
        return False

    def ask(thread: Thread) -> Stream[Any]:
        note(thread)
        return rxllm.stream_generate(model, thread).pipe(ops.run_tools([look], thread=thread))

    model = Fake(ToolCall("c1", "look"), "Done.")
    until_halt = ops.repeat_until_halt(ask, halt_when=note)
    rxllm.stream_generate(model, THREAD).pipe(ops.run_tools([look], thread=THREAD), until_halt, ops.tap(note)).run()
    assert len(seen) > 10
    assert all(scope is NO_SCOPE for scope in seen)


def test_nothing_of_it_travels_in_events() -> None:
    events = list(rxllm.stream(Fake("Hello"), "My question"))
    completed = [event for event in events if isinstance(event, MessageCompleted)]
    assert "My question" not in repr(completed)
    assert "r1" not in repr(list(rxllm.stream_generate(Fake("Hello"), "Hi", request_id="r1")))
