"""A chat that has halted goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import reactivex
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    EngineError,
    Fake,
    LLMError,
    Thread,
    ToolCall,
    ToolContext,
    Usage,
    ValidationError,
    ask_user,
    halt,
    serializer,
    tool,
)
from rxllm import operators as ops
from rxllm.events import (
    ChatCompleted,
    ErrorEvent,
    Event,
    MessageStarted,
    StepCompleted,
    ToolApprovalRequested,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
)
from rxllm.pipelines import resume, stream_resume
from tests.examples import examples
from tests.laws import scripts
from tests.waiting import wait_until

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    RUNS.clear()


@tool(approval=True)
def pay(amount: int = 1) -> str:
    RUNS.append(f"pay {amount}")
    return f"paid {amount}"


@tool(approval=True)
def fail() -> str:
    raise ValueError("no\nmore")


@tool(approval=True)
def stop() -> Any:
    return halt("found", 42)


@tool
def ask() -> Any:
    return ask_user("Which one?", choices=[1, 2])


@tool
def double(x: int) -> int:
    RUNS.append(f"double {x}")
    return 2 * x


sign = tool(name="sign", manual=True)
TOOLS = [pay, fail, stop, ask, double, sign]


def call(name: str, id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def halted(*calls: ToolCall, **options: Any) -> ChatResult:
    """A chat that has halted with these calls, from JSON."""
    result = rxllm.chat(Fake([Usage(5, 2), *calls]), "Hi", tools=TOOLS, **options).run()
    return serializer.from_json(serializer.to_json(result), ChatResult)


def contents(result: ChatResult) -> list[tuple[str | None, Any]]:
    return [(message.tool_call_id, message.content) for message in result.thread if message.role == "tool"]


# Answers


def test_a_result_answers_a_manual_call() -> None:
    result = resume(Fake("Signed."), halted(call("sign")), results={"c1": "ok"}, tools=TOOLS).run()
    assert (result.halted_reason, result.output_text, contents(result)) == ("completed", "Signed.", [("c1", "ok")])
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]


def test_a_mapping_is_told_as_json() -> None:
    given = {"c1": {"name": "Ada", "when": [1, None]}}
    result = resume(Fake("Thanks."), halted(call("sign")), results=given, tools=TOOLS).run()
    assert contents(result) == [("c1", '{"name":"Ada","when":[1,null]}')]


def test_an_approved_call_runs_once_and_its_result_is_told() -> None:
    waiting = halted(call("pay", amount=7))
    assert RUNS == []
    fake = Fake("Thanks.")
    result = resume(fake, waiting, approvals={"c1": True}, tools=TOOLS).run()
    assert (RUNS, contents(result), result.output_text) == (["pay 7"], [("c1", "paid 7")], "Thanks.")
    assert fake.requests[0].messages == result.thread.messages[:-1]


@pytest.mark.parametrize(("verdict", "because"), [(False, "it was not approved"), ("too dear", "too dear")])
def test_a_denied_call_does_not_run_and_the_model_is_told_why(verdict: Any, because: str) -> None:
    events = list(stream_resume(Fake("Pity."), halted(call("pay")), approvals={"c1": verdict}, tools=TOOLS))
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert (RUNS, getattr(completed.error, "reason", None)) == ([], "denied")
    assert ToolResultEncoded("c1", f'{{"error":"the call was denied: {because}"}}') in events
    assert events[-1].result.output_text == "Pity."


def test_a_denial_is_what_a_live_denial_is() -> None:
    waiting = halted(call("pay"))
    live = rxllm.chat(Fake([Usage(5, 2), call("pay")], "Pity."), "Hi", tools=TOOLS, approve=lambda call: "no").run()
    later = resume(Fake("Pity."), waiting, approvals={"c1": "no"}, tools=TOOLS).run()
    assert (later.thread, later.halted_reason) == (live.thread, live.halted_reason)


def test_denials_are_failures_to_the_policy() -> None:
    result = resume(Fake("x"), halted(call("pay")), approvals={"c1": False}, tools=TOOLS, on_tool_error="halt").run()
    assert (result.halted_reason, result.metadata) == ("tool_error", {"halt_tool_call_id": "c1"})


def test_all_kinds_at_once_keep_the_order_of_the_calls() -> None:
    waiting = halted(call("pay", "a"), call("sign", "b"), call("double", "c", x=2), call("pay", "d", amount=2))
    answers: dict[str, Any] = {"approvals": {"d": "no", "a": True}, "results": {"b": "signed"}}
    result = resume(Fake("All done."), waiting, **answers, tools=TOOLS).run()
    assert RUNS == ["double 2", "pay 1"]
    assert contents(result) == [
        ("a", "paid 1"),
        ("b", "signed"),
        ("c", "4"),
        ("d", '{"error":"the call was denied: no"}'),
    ]
    assert result.steps[0].tool_results == tuple(m for m in result.thread if m.role == "tool")


def test_calls_left_by_manual_mode_may_be_run_or_answered() -> None:
    waiting = halted(call("double", "a", x=3), call("pay", "b"), mode="manual")
    result = resume(Fake("6."), waiting, approvals={"a": True}, results={"b": "later"}, tools=TOOLS).run()
    assert (RUNS, contents(result)) == (["double 3"], [("a", "6"), ("b", "later")])


def test_a_tool_that_fails_when_it_is_approved_is_told_as_ever() -> None:
    result = resume(Fake("Oh."), halted(call("fail")), approvals={"c1": True}, tools=TOOLS).run()
    assert contents(result) == [("c1", '{"error":"ValueError: no"}')]


def test_approve_may_answer_what_is_left_to_it() -> None:
    source = stream_resume(
        Fake("Paid."), halted(call("pay")), tools=TOOLS, approve=lambda call: call.arguments.get("amount", 1) < 5
    )
    kinds = [type(event) for event in source]
    assert kinds[:3] == [ToolApprovalRequested, ToolExecutionStarted, ToolExecutionCompleted]


def test_an_approved_call_is_not_asked_for_again() -> None:
    kinds = [type(e) for e in stream_resume(Fake("x"), halted(call("pay")), approvals={"c1": True}, tools=TOOLS)]
    assert kinds[:4] == [ToolExecutionStarted, ToolExecutionCompleted, ToolResultEncoded, StepCompleted]
    assert kinds[-1] is ChatCompleted


# Edits


def test_an_approval_may_edit_the_arguments() -> None:
    waiting = halted(call("pay", amount=700))
    fake = Fake("Thanks.")
    events = list(stream_resume(fake, waiting, approvals={"c1": {"amount": 7}}, tools=TOOLS))
    assert ToolExecutionStarted("c1", "pay", {"amount": 7}) in events
    assert not any(isinstance(event, ToolApprovalRequested) for event in events)
    result = events[-1].result
    assert (RUNS, contents(result)) == (["pay 7"], [("c1", "paid 7")])
    assert result.thread[1] == waiting.thread[1] == fake.requests[0].messages[1]


def test_an_edit_is_what_a_live_edit_is() -> None:
    script: Any = [Usage(5, 2), call("pay")]
    live = rxllm.chat(Fake(script, "Thanks."), "Hi", tools=TOOLS, approve=lambda call: {"amount": 3}).run()
    later = resume(Fake("Thanks."), halted(call("pay")), approvals={"c1": {"amount": 3}}, tools=TOOLS).run()
    assert (later.thread, later.halted_reason) == (live.thread, live.halted_reason)
    assert RUNS == ["pay 3", "pay 3"]


def test_any_call_that_runs_here_may_be_edited() -> None:
    waiting = halted(call("double", "a", x="two"), call("pay", "b"), mode="manual")
    result = resume(Fake("6."), waiting, approvals={"a": {"x": 3}, "b": {}}, tools=TOOLS).run()
    assert (sorted(RUNS), contents(result)) == (["double 3", "pay 1"], [("a", "6"), ("b", "paid 1")])


def test_a_tool_of_an_edited_call_sees_the_edit() -> None:
    seen: list[Any] = []

    @tool(approval=True)
    def look(at: str, context: ToolContext) -> str:
        seen.append((at, context.tool_call.arguments))
        return "seen"

    waiting = rxllm.chat(Fake(call("look", at="x")), "Hi", tools=[look]).run()
    resume(Fake("x"), waiting, approvals={"c1": {"at": "y"}}, tools=[look]).run()
    assert seen == [("y", {"at": "y"})]


@pytest.mark.parametrize(
    ("edit", "at"), [({"amount": "much"}, "amount"), ({"amont": 1}, "amont"), ({"amount": object()}, None)]
)
def test_an_edit_that_does_not_fit_is_refused_before_any_tool_runs(edit: Any, at: str | None) -> None:
    waiting, fake = halted(call("pay", "a"), call("pay", "b")), Fake("never asked")
    with pytest.raises(ValidationError, match=r"approvals\.b edits the arguments of the tool call b") as caught:
        resume(fake, waiting, approvals={"a": True, "b": edit}, tools=TOOLS).run()
    path = ("approvals", "b", at) if at else ("approvals", "b")
    assert (caught.value.reason, [where for where, _ in caught.value.errors]) == ("invalid_option", [path])
    assert (RUNS, fake.requests) == ([], [])


def test_an_edit_that_does_not_fit_is_refused_before_a_policy_hears_of_a_denial() -> None:
    heard: list[ToolCall] = []
    answers: dict[str, Any] = {"approvals": {"a": False, "b": {"amont": 1}}}
    with pytest.raises(ValidationError, match="did you mean 'amount'"):
        resume(
            Fake("x"),
            halted(call("pay", "a"), call("pay", "b")),
            **answers,
            tools=TOOLS,
            on_tool_error=lambda call, error: heard.append(call) or "continue",
        ).run()
    assert heard == []


def test_a_manual_call_cannot_be_edited() -> None:
    with pytest.raises(ValidationError, match="manual"):
        resume(Fake("x"), halted(call("sign")), approvals={"c1": {"x": 1}}, tools=TOOLS).run()


def test_a_mapping_that_changes_later_reaches_no_event() -> None:
    edit: dict[str, Any] = {"parts": [1]}

    @tool(approval=True)
    def send(parts: list[int]) -> int:
        edit["parts"].append(2)
        return len(parts)

    waiting = rxllm.chat(Fake(call("send", parts=[])), "Hi", tools=[send]).run()
    events = list(stream_resume(Fake("x"), waiting, approvals={"c1": edit}, tools=[send]))
    assert ToolExecutionStarted("c1", "send", {"parts": [1]}) in events
    assert contents(events[-1].result) == [("c1", "1")]


def test_an_approver_may_be_too_late_here_too() -> None:
    result = resume(
        Fake("Pity."),
        halted(call("pay"), call("sign", "c2")),
        results={"c2": "ok"},
        tools=TOOLS,
        approve=lambda call: reactivex.never(),
        approve_timeout=0.01,
    ).run()
    assert "no answer within 0.01 s" in contents(result)[0][1]
    assert (RUNS, result.output_text) == ([], "Pity.")


def test_calls_that_an_approver_leaves_again_halt_again_beside_a_question() -> None:
    waiting = halted(call("ask", "a"), call("pay", "b"), call("pay", "c", amount=2))
    leave: Any = lambda call: halt("approval") if call.id == "b" else True  # noqa: E731
    result = resume(Fake("never asked"), waiting, tools=TOOLS, approve=leave).run()
    assert (result.halted_reason, [each.id for each in result.pending_tool_calls]) == ("ask_user", ["b"])
    assert (RUNS, result.pending_question) == (["pay 2"], "Which one?")


# What a resumed chat is


def test_it_is_the_fold_of_its_stream() -> None:
    waiting = halted(call("pay"))
    arguments: dict[str, Any] = {"approvals": {"c1": True}, "tools": TOOLS}
    streamed = stream_resume(Fake("Thanks."), waiting, **arguments, emit_text_deltas=False).pipe(ops.to_chat_result())
    assert streamed.run() == resume(Fake("Thanks."), waiting, **arguments).run()


def test_the_first_step_is_the_one_that_had_halted_without_its_usage() -> None:
    waiting = halted(call("pay"))
    result = resume(Fake([Usage(9, 1), "Thanks."]), waiting, approvals={"c1": True}, tools=TOOLS).run()
    first, second = result.steps
    assert (first.response.tool_calls, first.response.finish_reason) == (waiting.pending_tool_calls, "tool_calls")
    assert (first.response.usage, second.response.usage, result.usage) == (Usage(), Usage(9, 1), Usage(9, 1))
    assert first.thread.messages == result.thread.messages[:-1]


def test_max_turns_counts_the_models_turns_alone() -> None:
    fake = Fake(lambda request: call("double", f"d{len(request.messages)}", x=1))
    result = resume(fake, halted(call("sign")), results={"c1": "ok"}, tools=TOOLS, max_turns=2).run()
    assert (result.halted_reason, len(fake.requests), len(result.steps)) == ("max_turns", 2, 3)


def test_a_thread_will_do_as_well_as_a_result() -> None:
    waiting = halted(call("sign"))
    one, other = (
        resume(Fake("x"), given, results={"c1": "ok"}, tools=TOOLS).run() for given in (waiting, waiting.thread)
    )
    assert one == other


def test_a_plain_thread_of_messages_goes_on() -> None:
    thread = Thread((rxllm.user("Hi"), rxllm.Message("assistant", tool_calls=(call("sign"),))))
    kinds = [type(event) for event in stream_resume(Fake("x"), thread, results={"c1": "ok"}, tools=TOOLS)]
    assert kinds[:3] == [ToolResultEncoded, StepCompleted, MessageStarted]


def test_where_nothing_is_open_it_is_a_chat() -> None:
    resumed = resume(Fake("Hello"), "Hi").run()
    assert resumed == rxllm.chat(Fake("Hello"), "Hi").run()


def test_answers_of_none_are_not_set() -> None:
    answers = {"approvals": {"c1": True}, "results": None}
    assert resume(Fake("x"), halted(call("pay")), tools=TOOLS, **answers).run().output_text == "x"
    assert resume(Fake("x"), "Hi", approvals=None, results=None).run() == rxllm.chat(Fake("x"), "Hi").run()
    session = rxllm.Session(thread=Thread() + "Hi")
    assert rxllm.session.resume(Fake("x"), session, approvals=None, results=None).run().output_text == "x"


def test_it_may_halt_again_and_go_on_again() -> None:
    fake = Fake(call("pay", "c2"), "Done.")
    again = resume(fake, halted(call("sign")), results={"c1": "ok"}, tools=TOOLS).run()
    assert (again.halted_reason, [each.id for each in again.pending_tool_calls]) == ("approval", ["c2"])
    assert resume(fake, again, approvals={"c2": True}, tools=TOOLS).run().output_text == "Done."


def test_a_halt_of_an_approved_tool_halts_the_chat() -> None:
    fake = Fake("never asked")
    result = resume(
        fake, halted(call("stop"), call("pay", "c2")), approvals={"c1": True, "c2": True}, tools=TOOLS
    ).run()
    assert (result.halted_reason, result.metadata) == ("found", {"halt_tool_call_id": "c1", "halt_result": 42})
    assert (RUNS, contents(result), fake.requests) == (["pay 1"], [("c1", "42"), ("c2", "paid 1")], [])


def test_a_question_stays_open_while_the_calls_beside_it_are_answered() -> None:
    waiting = halted(call("ask", "a"), call("sign", "b"))
    assert (waiting.halted_reason, [each.id for each in waiting.pending_tool_calls]) == ("ask_user", ["b"])
    fake = Fake("The first, then.")
    result = resume(fake, waiting, results={"b": "ok"}, tools=TOOLS).run()
    assert (result.halted_reason, result.pending_question, fake.requests) == ("ask_user", "Which one?", [])
    assert contents(result) == [("a", "<awaiting user response>"), ("b", "ok")]
    assert result.thread.last == waiting.thread.last
    assert rxllm.chat(fake, result.thread.add_user("The first"), tools=TOOLS).run().output_text == "The first, then."


def test_an_answered_question_does_not_halt_again() -> None:
    waiting = halted(call("ask", "a"), call("sign", "b"))
    result = resume(Fake("Good."), waiting.thread.add_user("The first"), results={"b": "ok"}, tools=TOOLS).run()
    assert [message.role for message in result.thread] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_tools_know_their_call_and_context() -> None:
    seen: list[Any] = []

    @tool(approval=True)
    def look(context: ToolContext) -> str:
        seen.append((context.tool_call.id, context.context, context.session_id, context.request_id))
        return "seen"

    waiting = rxllm.chat(Fake(call("look")), "Hi", tools=[look]).run()
    options: dict[str, Any] = {"context": {"user": "ada"}, "session_id": "s", "request_id": "r"}
    resume(Fake("x"), waiting, approvals={"c1": True}, tools=[look], **options).run()
    assert seen == [("c1", {"user": "ada"}, "s", "r")]


# Failures


def test_the_results_of_tools_are_kept_where_the_model_then_fails() -> None:
    failure = AdapterError("authentication_failed")
    events = list(stream_resume(Fake(failure), halted(call("pay")), approvals={"c1": True}, tools=TOOLS))
    assert events[-2] == ErrorEvent(failure)
    result = events[-1].result
    assert (result.halted_reason, result.error, contents(result)) == ("error", failure, [("c1", "paid 1")])
    assert resume(Fake("Now."), result, tools=TOOLS).run().output_text == "Now."
    assert RUNS == ["pay 1"]


@pytest.mark.parametrize("function", [stream_resume, resume])
@pytest.mark.parametrize(
    ("answers", "refusal"),
    [
        ({}, "missing_tool_results"),
        ({"approvals": {"zz": True}}, "invalid_option"),
        ({"approvals": {"c1": {"amount": "much"}}}, "invalid_option"),
        ({"approvals": {"c1": True}, "tools": []}, "unknown_tool"),
    ],
)
def test_answers_that_do_not_fit_are_refused_at_the_call(function: Any, answers: Any, refusal: str) -> None:
    """So that a server can refuse them before it returns a stream."""
    with pytest.raises(LLMError) as caught:
        function(Fake("x"), halted(call("pay")), **{"tools": TOOLS} | answers)
    assert caught.value.reason == refusal


def test_calls_without_an_answer_are_named_and_nothing_runs() -> None:
    waiting = halted(call("sign", "a"), call("pay", "b"), call("pay", "c"))
    with pytest.raises(EngineError) as caught:
        resume(Fake("x"), waiting, approvals={"b": True}, tools=TOOLS).run()
    assert caught.value.reason == "missing_tool_results"
    assert caught.value.metadata == {"tool_call_ids": ["a", "c"], "tool_names": ["sign", "pay"]}
    assert "sign (a)" in caught.value.message
    assert "pay (c)" in caught.value.message
    assert RUNS == []


@pytest.mark.parametrize(
    ("answers", "path"),
    [
        ({"results": {"zz": "ok", "c1": "ok"}}, ("results", "zz")),
        ({"approvals": {"zz": True}, "results": {"c1": "ok"}}, ("approvals", "zz")),
        ({"approvals": {"c1": True}, "results": {"c1": "ok"}}, ("approvals", "c1")),
    ],
)
def test_an_id_of_no_open_call_is_refused(answers: Any, path: tuple[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        resume(Fake("x"), halted(call("pay")), **answers, tools=TOOLS).run()
    assert (caught.value.reason, [at for at, _ in caught.value.errors]) == ("invalid_option", [path])
    assert RUNS == []


def test_so_it_is_where_no_call_is_open() -> None:
    fake = Fake("x")
    with pytest.raises(ValidationError, match="none"):
        resume(fake, "Hi", results={"c1": "ok"}).run()
    assert fake.requests == []


def test_a_manual_call_cannot_be_approved_but_denied() -> None:
    waiting = halted(call("sign"))
    with pytest.raises(ValidationError, match="manual"):
        resume(Fake("x"), waiting, approvals={"c1": True}, tools=TOOLS).run()
    denied = resume(Fake("Pity."), waiting, approvals={"c1": "not today"}, tools=TOOLS).run()
    assert contents(denied) == [("c1", '{"error":"the call was denied: not today"}')]


def test_an_approved_tool_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match="'pay'") as caught:
        resume(Fake("x"), halted(call("pay")), approvals={"c1": True}).run()
    assert caught.value.reason == "unknown_tool"


@pytest.mark.parametrize(
    "answers",
    [{"approvals": {"c1": 1}}, {"approvals": ["c1"]}, {"results": {"c1": 42}}, {"results": "ok"}, {"approvals": ()}],
)
def test_answers_of_the_wrong_type_raise_at_the_call(answers: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        resume(Fake("x"), "Hi", **answers)
    assert caught.value.reason == "invalid_option"


def test_unknown_options_raise_at_the_call() -> None:
    with pytest.raises(EngineError) as caught:
        resume(Fake("x"), "Hi", temprature=1)  # type: ignore[call-arg]
    assert caught.value.reason == "unknown_option"


def test_nothing_runs_before_subscribe_and_once_per_subscription() -> None:
    source = resume(Fake("x"), halted(call("pay")), approvals={"c1": True}, tools=TOOLS)
    assert RUNS == []
    assert source.run() == source.run()
    assert RUNS == ["pay 1", "pay 1"]


def test_a_subscriber_that_raises_gets_it_once() -> None:
    def refuse(event: Event) -> None:
        raise ValueError("no")

    fake = Fake("x")
    source = stream_resume(fake, halted(call("pay")), approvals={"c1": True}, tools=TOOLS)
    with pytest.raises(ValueError, match="no"):
        source.pipe(ops.tap(refuse, ToolExecutionStarted)).run()
    assert fake.requests == []


def test_observers_hear_of_the_chat_and_its_steps_once_each() -> None:
    told: list[Any] = []
    engine = rxllm.Engine(Fake("Thanks."), tools=tuple(TOOLS), observers=(told.append,))
    resume(engine, halted(call("pay")), approvals={"c1": True}).run()
    names = [type(each).__name__ for each in told]
    assert [names.count(f"{what}Started") for what in ("Chat", "Step", "Tool", "Call")] == [1, 2, 1, 1]
    assert [names.count(f"{what}Finished") for what in ("Chat", "Step", "Tool", "Call")] == [1, 2, 1, 1]


def test_disposing_ends_the_tools_that_run() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    @tool(approval=True)
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = rxllm.chat(Fake(call("wait")), "Hi", tools=[wait]).run()
    fake = Fake("never asked")
    subscription = stream_resume(fake, waiting, approvals={"c1": True}, tools=[wait]).subscribe()
    wait_until(begun.is_set)
    subscription.dispose()
    wait_until(cancelled.is_set)
    assert fake.requests == []


# Laws


@settings(deadline=None, max_examples=examples(60))
@given(scripts.scripts, scripts.chat_options, st.data())
def test_any_halted_chat_can_go_on(script: Any, options: Any, data: st.DataObject) -> None:
    """Law: a chat that halts with pending calls, written to JSON and resumed with an answer to each, asks the model
    with a thread in which every call is answered once; result = fold of the events.
    """
    approver = options.pop("approve", None)
    engine = rxllm.Engine(scripts.fake(script), tools=tuple(scripts.TOOLS), retry=False)
    try:
        waiting = rxllm.chat(engine, "Hi", **options).run()
    except rxllm.LLMError:
        return
    waiting = serializer.from_json(serializer.to_json(waiting), ChatResult)
    if waiting.halted_reason == "completed":  # there is nothing to resume
        return
    left = {call.id for call in waiting.pending_tool_calls if approver and call.name == "approval"}
    results = {call.id: "ok" for call in waiting.pending_tool_calls if call.id not in left}
    model = Fake("Thanks.")
    after = rxllm.Engine(model, tools=tuple(scripts.TOOLS))
    if left:
        options = {"results": results, "approve": approver}
        decided = stream_resume(after, waiting, **options).pipe(ops.to_chat_result()).run()
        assert decided == resume(after, waiting, **options).run()
        assert {call.id for call in decided.pending_tool_calls} <= left
        results |= dict.fromkeys(left, "ok")
        model = Fake("Thanks.")
        after = rxllm.Engine(model, tools=tuple(scripts.TOOLS))
    result = stream_resume(after, waiting, results=results).pipe(ops.to_chat_result()).run()
    assert result == resume(after, waiting, results=results).run()
    answered = [message.tool_call_id for message in result.thread if message.role == "tool"]
    calls = [c.id for m in result.thread for c in m.tool_calls if not c.metadata.get("server")]
    agents = {id.partition("/")[0] for id in [result.pending_tool_call_id or ""] if "/" in id}
    assert answered == [id for id in calls if id not in agents]
    while result.halted_reason == "ask_user":
        result = serializer.from_json(serializer.to_json(result))
        result = resume(after, result, results={result.pending_tool_call_id: "Lima"}).run()
    assert not any("agents" in message.metadata for message in result.thread)
    assert model.requests
