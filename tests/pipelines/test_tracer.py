"""What a tracer needs of telemetry: details, content where it asks for it, agents, headers, and a context for tools."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

import pytest
from reactivex import operators as rx
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, RetryPolicy, ToolCall, tool
from rxllm.images import FakeImages
from rxllm.telemetry import CallDetails, CallFinished, CallStarted, ImagesFinished, ToolFinished, ToolStarted, Tracer
from rxllm.testing.marbles import record
from rxllm.values import Call, Image, Request

marked: contextvars.ContextVar[str] = contextvars.ContextVar("marked", default="")


class Noting(Tracer):
    """Keeps the values, and marks the context of each tool."""

    def __init__(self, content: bool = False) -> None:
        self.content = content
        self.values: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.values.append(value)
        if isinstance(value, ToolStarted):
            marked.set(value.tool_call_id)

    def request_headers(self, call_id: str) -> Mapping[str, str]:
        return {"x-call": call_id}

    def of(self, kind: type[Any]) -> list[Any]:
        return [value for value in self.values if type(value) is kind]


@tool
def double(x: int) -> int:
    """Double it."""
    return 2 * x


DOUBLE = ToolCall("c1", "double", {"x": 21})


# Details


@pytest.mark.sockets
def test_the_start_of_a_call_has_its_parameters_its_server_and_the_callers_notes() -> None:
    noting = Noting()
    adapter = rxllm.OpenAIChat(base_url="http://user:secret@127.0.0.1:1/v1", api_key="sk-1")
    engine = Engine(adapter, model="m", observers=[noting], retry=False, params={"max_tokens": 9})
    options: dict[str, Any] = {"temperature": 0.5, "response_format": list[int], "session_id": "s1"}
    with pytest.raises(AdapterError):
        rxllm.generate(engine, "Hi", metadata={"user": "u1", "token": "t"}, **options).run()
    (started,) = noting.of(CallStarted)
    assert started.details == CallDetails(
        parameters={"temperature": 0.5, "max_tokens": 9, "response_format": "json"},
        metadata={"user": "u1", "token": "[key]"},
        address="127.0.0.1",
        port=1,
    )
    assert {value.session_id for value in noting.values} == {"s1"}
    assert "secret" not in repr(noting.values)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://api.example", ("api.example", 443)),
        ("http://[::1]:8080/v1", ("::1", 8080)),
        ("ftp://x", ("x", None)),
        ("http://x:port", (None, None)),
        (None, (None, None)),
    ],
)
def test_any_adapter_may_have_an_address(url: Any, server: Any) -> None:
    noting, fake = Noting(), Fake("a")
    vars(fake)["base_url"] = url
    rxllm.generate(Engine(fake, observers=[noting]), "Hi").run()
    details = noting.of(CallStarted)[0].details
    assert (details.address, details.port) == server


def test_the_chunks_of_the_answer_are_timed_from_its_own_request() -> None:
    noting = Noting()
    script = [[("delay", 5.0), AdapterError("timeout")], [("delay", 3.0), "a", ("delay", 1.0), "b"]]
    engine = Engine(Fake(*script), observers=[noting], retry=RetryPolicy(base_delay=20, jitter=0))
    record(TestScheduler(), lambda: rxllm.stream_generate(engine, "Hi"), None)
    details = noting.of(CallFinished)[0].details
    assert (details.attempts, details.chunks) == (2, (3.0, 4.0))


def test_each_subscription_counts_its_own_attempts() -> None:
    noting = Noting()
    answer = rxllm.generate(Engine(Fake(["a"], ["b"]), observers=[noting]), "Hi")
    answer.run()
    answer.run()
    assert [(end.details.attempts, len(end.details.chunks)) for end in noting.of(CallFinished)] == [(1, 1), (1, 1)]


def test_chunks_are_not_counted_for_plain_observers() -> None:
    values: list[Any] = []
    rxllm.generate(Engine(Fake("Hello"), observers=[values.append]), "Hi").run()
    assert values[-1].details == CallDetails(attempts=1)


def test_images_have_details_too() -> None:
    noting = Noting()
    fake = FakeImages(rxllm.ImageAdapterError("rate_limited"), Image.from_binary(b"GIF89a", "image/gif"))
    engine = Engine(image_adapter=fake, observers=[noting], retry=RetryPolicy(base_delay=0, jitter=0))
    rxllm.generate_image(engine, "a kestrel", metadata={"user": "u1"}).run()
    (end,) = noting.of(ImagesFinished)
    assert (end.details.attempts, end.details.metadata) == (2, {"user": "u1"})


# Content


def test_content_is_for_the_tracers_that_ask_for_it() -> None:
    asking, other, plain = Noting(content=True), Noting(), list[Any]()
    script = [("thinking", "a kestrel"), "Well", DOUBLE]
    engine = Engine(Fake(script, "42"), observers=[other, asking, plain.append])
    rxllm.chat(engine, [rxllm.system("Be brief."), rxllm.user("Hi")], tools=[double], metadata={"note": "n"}).run()
    first, second = (start.content for start in asking.of(CallStarted))
    assert first == Request(messages=(rxllm.system("Be brief."), rxllm.user("Hi")), tools=(double,))
    answer = rxllm.Message("assistant", "Well", tool_calls=(DOUBLE,))
    assert [end.content.text for end in asking.of(CallFinished)] == ["Well", "42"]
    assert [call.id for call in asking.of(CallFinished)[0].content.tool_calls] == ["c1"]
    assert [message.text for message in second.messages] == ["Be brief.", "Hi", answer.text, "42"]
    assert [value.content for value in (*asking.of(ToolStarted), *asking.of(ToolFinished))] == [{"x": 21}, 42]
    assert "kestrel" not in repr(asking.values)
    assert not [value for value in (*other.values, *plain) if getattr(value, "content", None) is not None]


def test_an_answer_of_reasoning_alone_has_no_content() -> None:
    asking = Noting(content=True)
    rxllm.generate(Engine(Fake([("thinking", "hm")]), observers=[asking]), "Hi").run()
    assert asking.of(CallFinished)[0].content is None


# Tools


def test_a_tool_is_described_and_an_agent_is_one() -> None:
    noting = Noting()
    poet = Engine(Fake("Roses.")).as_tool(name="poet", description="Write.")
    calls = [DOUBLE, ToolCall("c2", "poet", {"prompt": "Go"})]
    rxllm.step(Engine(Fake(calls), observers=[noting]), "Hi", tools=[double, poet]).run()
    found = {start.tool: (start.description, start.is_agent) for start in noting.of(ToolStarted)}
    assert found == {"double": ("Double it.", False), "poet": ("Write.", True)}


def test_a_tracer_follows_agents_and_other_observers_do_not() -> None:
    noting, plain = Noting(), list[Any]()
    inner = Engine(Fake("Roses."), model="inner").as_tool(name="poet")
    middle = Engine(Fake(ToolCall("c2", "poet", {"prompt": "Go"}), "Fine."), model="middle", tools=[inner])
    script = [ToolCall("c1", "editor", {"prompt": "Go"}), "Done."]
    engine = Engine(Fake(*script), model="outer", observers=[noting, plain.append])
    rxllm.chat(engine, "Hi", tools=[middle.as_tool(name="editor")]).run()
    assert [start.model for start in noting.of(CallStarted)] == ["outer", "middle", "inner", "middle", "outer"]
    assert {value.path for value in noting.values} == {(), ("c1",), ("c1", "c2")}
    assert {value.path for value in plain} == {()}


def test_a_tracer_that_the_agent_has_too_is_told_once() -> None:
    noting = Noting()
    poet = Engine(Fake("Roses."), model="inner", observers=[noting]).as_tool(name="poet")
    engine = Engine(Fake(ToolCall("c1", "poet", {"prompt": "Go"}), "Done."), observers=[noting])
    rxllm.chat(engine, "Hi", tools=[poet]).run()
    assert [start.model for start in noting.of(CallStarted)].count("inner") == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_set_when_a_tool_starts_holds_for_the_tool_alone(is_async: bool) -> None:
    marks: list[str] = []

    def look() -> str:
        marks.append(marked.get())
        return "seen"

    async def look_later() -> str:
        return look()

    seen = tool(look_later if is_async else look)
    calls = [ToolCall(id, seen.name) for id in ("c1", "c2")]
    rxllm.chat(Engine(Fake(calls, "Done."), observers=[Noting()]), "Hi", tools=[seen]).run()
    assert sorted(marks) == ["c1", "c2"]
    assert marked.get() == ""


def test_an_agent_ends_before_its_tool_that_has_timed_out() -> None:
    noting = Noting()
    poet = Engine(Fake([("delay", 99.0), "Roses."]), model="inner").as_tool(name="poet")
    vars(poet)["timeout"] = 5.0
    engine = Engine(Fake(ToolCall("c1", "poet", {"prompt": "Go"}), "Done."), observers=[noting])
    record(TestScheduler(), lambda: rxllm.chat(engine, "Hi", tools=[poet]), None)
    ends = [(type(value).__name__, value.outcome) for value in noting.values if hasattr(value, "outcome")]
    inner = [("CallFinished", "cancelled"), ("StepFinished", "cancelled"), ("ChatFinished", "cancelled")]
    assert ends[1:5] == [*inner, ("ToolFinished", "failed")]


# Headers


def test_each_attempt_has_the_headers_of_its_call() -> None:
    noting, calls = Noting(), list[Call]()
    fake = Fake([AdapterError("timeout")], ["a"])

    class Listening:
        def stream(self, request: Request, call: Call) -> Any:
            calls.append(call)
            return fake.stream(request, call)

    engine = Engine(Listening(), observers=[noting], retry=RetryPolicy(base_delay=0, jitter=0))
    rxllm.generate(engine, "Hi", headers={"x-mine": "1"}).run()
    (started,) = noting.of(CallStarted)
    assert [call.trace_headers for call in calls] == [{"x-call": started.id}] * 2
    assert [call.headers for call in calls] == [{"x-mine": "1"}] * 2
    assert "x-call" not in repr(calls)


def test_plain_observers_send_nothing() -> None:
    calls: list[Call] = []

    class Listening:
        def stream(self, request: Request, call: Call) -> Any:
            calls.append(call)
            return Fake("a").stream(request, call)

    rxllm.generate(Engine(Listening(), observers=[print]), "Hi").pipe(rx.ignore_elements(), rx.materialize()).run()
    assert calls[0].trace_headers == {}
