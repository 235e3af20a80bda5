"""Traces and metrics: one well-formed trace for all that is called, however it ends, and nothing private in it."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import reactivex as rx
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from reactivex import operators as rx_ops
from reactivex.testing import TestScheduler

import rxllm
from rxllm import AdapterError, Engine, Fake, RetryPolicy, ToolCall, Usage, otel, tool
from rxllm import operators as ops
from rxllm.images import FakeImages
from rxllm.testing import World, simulate
from rxllm.testing.loopback import Loopback
from rxllm.values import Image
from tests.adapters.openai_responses import keeping
from tests.examples import examples, share
from tests.programs import python_without
from tests.spans import DOUBLE, Seen, assert_well_formed, double
from tests.waiting import PATIENCE, wait_until

DISPOSALS = int(os.environ.get("RXLLM_DISPOSALS", share(1000)))
QUICK = RetryPolicy(base_delay=0, jitter=0)


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    assert_well_formed(seen.spans)
    seen.close()


def agents(seen: Seen) -> Engine:
    """A model whose agent has an agent; these two engines have no observers."""
    poet = Engine(Fake("Roses."), model="inner").as_tool(name="poet", description="Write.")
    editor = Engine(Fake(ToolCall("c2", "poet", {"prompt": "Roses"}), "Fine."), model="middle", tools=[poet])
    return seen.engine(ToolCall("c1", "editor", {"prompt": "Go"}), "Done.", tools=[editor.as_tool(name="editor")])


# The shape of a trace


def test_a_chat_with_a_tool_is_one_trace(seen: Seen) -> None:
    rxllm.chat(seen.engine(DOUBLE, "42"), "Hi", tools=[double]).run()
    steps = [("step", ["chat small", "execute_tool double"]), ("step", ["chat small"])]
    assert seen.tree() == [("invoke_agent", steps)]


def test_agents_are_in_the_trace_at_every_depth(seen: Seen) -> None:
    rxllm.chat(agents(seen), "Hi").run()
    poet = ("execute_tool poet", [("invoke_agent poet", [("step", ["chat inner"])])])
    middle = [("step", ["chat middle", poet]), ("step", ["chat middle"])]
    editor = ("execute_tool editor", [("invoke_agent editor", middle)])
    assert seen.tree() == [("invoke_agent", [("step", ["chat small", editor]), ("step", ["chat small"])])]


def test_an_agent_that_has_the_same_observer_is_traced_once(seen: Seen) -> None:
    same = otel.traces(tracer_provider=seen.provider, meter_provider=seen.meters)
    poet = Engine(Fake("Roses."), model="inner", observers=[same]).as_tool(name="poet")
    rxllm.chat(seen.engine(ToolCall("c1", "poet", {"prompt": "Go"}), "Done."), "Hi", tools=[poet]).run()
    assert [span.name for span in seen.spans].count("chat inner") == 1
    assert len(seen.tree()) == 1


Call = Callable[[Seen], Any]


def raced(seen: Seen) -> Any:
    slow, fast = seen.engine([("delay", 3600.0), "a"]), seen.engine("b", model="fast")
    return rxllm.race(rxllm.stream_generate(slow, "Hi"), rxllm.stream_generate(fast, "Hi"))


def hedged(seen: Seen) -> Any:
    return rxllm.hedge(rxllm.stream_generate(seen.engine([("delay", 3600.0), "a"], ["b"]), "Hi"), after=0.01)


def replaced(seen: Seen) -> Any:
    other = Engine(Fake("b"), model="other")
    return rxllm.chat(seen.engine(AdapterError("timeout"), retry=False, operators=[ops.fallback(other)]), "Hi")


def retried(seen: Seen) -> Any:
    return rxllm.chat(seen.engine([AdapterError("timeout")], ["b"]), "Hi", retry=QUICK)


def cancelled(seen: Seen) -> Any:
    return rxllm.stream(seen.engine(["a", ("delay", 3600.0), "b"]), "Hi").pipe(rx_ops.take(2))


def cancelled_tool(seen: Seen) -> Any:
    slow = tool(name="double", handler=lambda arguments: rx.never())
    events = rxllm.stream(seen.engine(DOUBLE), "Hi", tools=[slow])
    return events.pipe(rx_ops.take_while(lambda event: not isinstance(event, rxllm.ToolExecutionStarted)))


def cancelled_agent(seen: Seen) -> Any:
    return rxllm.stream(agents(seen), "Hi").pipe(
        rx_ops.take_while(lambda event: not (isinstance(event, rxllm.Nested) and len(event.path) == 2))
    )


def timed_out_agent(seen: Seen) -> Any:
    poet = Engine(Fake([("delay", 3600.0), "a"]), model="inner").as_tool(name="poet")
    vars(poet)["timeout"] = 0.01
    return rxllm.chat(seen.engine(ToolCall("c1", "poet", {"prompt": "Go"}), "Done."), "Hi", tools=[poet])


def failed(seen: Seen) -> Any:
    return rxllm.chat(seen.engine(["a", rxllm.StreamError("truncated")]), "Hi")


def raised(seen: Seen) -> Any:
    def double(x: int) -> None:
        raise KeyError(x)

    return rxllm.chat(seen.engine(DOUBLE, "42"), "Hi", tools=[tool(double)])


def in_a_session(seen: Seen) -> Any:
    return rxllm.session.start(seen.engine("b"), "Hi", session_id="s1")


def stepped(seen: Seen) -> Any:
    return rxllm.step(seen.engine(DOUBLE), "Hi", tools=[double])


def drawn(seen: Seen) -> Any:
    image = Image.from_binary(b"GIF89a", "image/gif")
    engine = Engine(image_adapter=FakeImages(image), model="draw", observers=[seen.observer])
    return rxllm.generate_image(engine, "a kestrel", n=2)


CASES: list[Call] = [
    raced, hedged, replaced, retried, cancelled, cancelled_tool, cancelled_agent, timed_out_agent, failed, raised,
    in_a_session, stepped, drawn, lambda seen: rxllm.chat(agents(seen), "Hi"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("way", ["run", "await", "thread"])
def test_everything_is_one_well_formed_trace(seen: Seen, case: Call, way: str) -> None:
    async def main() -> None:
        with seen.tracer.start_as_current_span("request"):
            await case(seen).pipe(rx_ops.materialize(), rx_ops.to_list())

    def block() -> None:
        with seen.tracer.start_as_current_span("request"):
            case(seen).pipe(rx_ops.materialize(), rx_ops.to_list()).run()

    if way == "await":
        asyncio.run(main())
    elif way == "run":
        block()
    else:
        thread = threading.Thread(target=block)
        thread.start()
        thread.join(PATIENCE)
    ((root, inner),) = seen.tree()
    assert root == "request"
    assert inner


def test_calls_one_after_the_other_are_beside_one_another(seen: Seen) -> None:
    """The second is subscribed to where a tool of the first has ended."""
    chat = rxllm.stream(seen.engine(DOUBLE, "42"), "Hi", tools=[double], max_turns=1)
    with seen.tracer.start_as_current_span("request"):
        list(chat.pipe(rx_ops.concat(rxllm.stream_generate(seen.engine("b", model="next"), "Hi"))))
    assert seen.tree() == [
        ("request", [("invoke_agent", [("step", ["chat small", "execute_tool double"])]), "chat next"])
    ]


def test_a_batch_in_a_span_is_one_trace(seen: Seen, tmp_path: Path) -> None:
    """Also of calls that begin where others end, under a limit, and behind the opening of a journal."""
    limits = [ops.rate_limited(concurrent=1), ops.budget(rxllm.Budget(tokens=100_000))]
    engine = seen.engine("a", operators=limits)
    for asked, known in (["a", "b", "c"], []), (["c", "d"], ["c"]):
        with seen.tracer.start_as_current_span("batch"):
            assert len(list(rxllm.generate_many(engine, asked, journal=tmp_path / "out"))) == len(asked)
        assert seen.tree()[-1] == ("batch", ["chat small"] * (len(asked) - len(known)))


# What runs in a tool


def in_thread(seen: Seen) -> Any:
    def double(x: int) -> str:
        with seen.tracer.start_as_current_span("mine"):
            return rxllm.generate(seen.engine("b", model="inner"), "Hi").run().output_text

    return double


def on_loop(seen: Seen) -> Any:
    async def double(x: int) -> str:
        with seen.tracer.start_as_current_span("mine"):
            return (await rxllm.generate(seen.engine("b", model="inner"), "Hi")).output_text

    return double


def piecemeal(seen: Seen) -> Any:
    async def double(x: int) -> Any:
        with seen.tracer.start_as_current_span("mine"):
            yield (await rxllm.generate(seen.engine("b", model="inner"), "Hi")).output_text

    return double


@pytest.mark.parametrize("make", [in_thread, on_loop, piecemeal])
def test_spans_of_a_tools_function_are_inside_its_own(seen: Seen, make: Any) -> None:
    rxllm.chat(seen.engine(DOUBLE, "42"), "Hi", tools=[tool(make(seen))]).run()
    ((_, steps),) = seen.tree()
    assert steps[0] == ("step", ["chat small", ("execute_tool double", [("mine", ["chat inner"])])])


def test_the_current_span_of_the_program_stays_what_it_is(seen: Seen) -> None:
    current: list[Any] = []

    async def main() -> None:
        with seen.tracer.start_as_current_span("request") as request:
            async for _ in rxllm.stream(seen.engine(DOUBLE, "42"), "Hi", tools=[double]):
                current.append(trace.get_current_span())
            assert {*current} == {request}

    asyncio.run(main())
    assert len(current) > 5


def test_two_observers_write_a_whole_trace_each(seen: Seen) -> None:
    """Where a tool runs there is one current span, but each call is below the tool's span of its own observer."""
    second = Seen()

    async def double(x: int) -> str:
        return (await rxllm.generate(Engine(Fake("b"), model="inner", observers=observers), "Hi")).output_text

    for observers in ([seen.observer, second.observer], [second.observer, seen.observer]):
        engine = agents(seen)
        both = Engine(engine.adapter, model="small", tools=[*engine.tools, tool(double)], observers=observers)
        script = [ToolCall("c1", "editor", {"prompt": "Go"}), DOUBLE]
        rxllm.chat(Engine(Fake(script, "Done."), model="small", tools=both.tools, observers=observers), "Hi").run()
        rxllm.generate(Engine(Fake("b"), model="next", observers=observers), "Hi").run()
    assert seen.tree() == second.tree()
    assert ("execute_tool double", ["chat inner"]) in seen.tree()[0][1][0][1]
    second.close()


def test_the_calls_of_a_guard_and_a_preparation_are_beside_the_call(seen: Seen) -> None:
    judge = seen.engine("Fine.", model="judge")

    async def check(text: Any) -> None:
        await rxllm.generate(judge, "Is that right?")

    engine = seen.engine("One. ", operators=[ops.guard(check)], prepare=[rxllm.alongside(check)])
    rxllm.chat(engine, "Hi").run()
    with seen.tracer.start_as_current_span("request"):
        rxllm.stream(seen.engine("Two."), "Hi").pipe(ops.guard(check), ops.to_chat_result()).run()
    chat, request = seen.tree()
    assert chat == ("invoke_agent", [("step", ["chat small", "chat judge", "chat judge"])])
    assert request == ("request", [("invoke_agent", [("step", ["chat small"])]), "chat judge"])


# How spans end


def test_a_span_ends_where_its_stream_is_disposed(seen: Seen) -> None:
    events = rxllm.stream_generate(seen.engine([Usage(7, 3), "a", ("delay", 3600.0), "b"]), "Hi")
    assert list(events.pipe(rx_ops.take_while(lambda event: not isinstance(event, rxllm.TextDelta)))) != []
    span: Any = seen.named("chat small")
    assert span.attributes["rxllm.outcome"] == "cancelled"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"]) == (7, 3)
    assert "error.type" not in span.attributes
    assert span.status.status_code is StatusCode.UNSET


def test_a_span_says_what_failed_but_not_in_which_words(seen: Seen) -> None:
    failing = seen.engine(AdapterError("rate_limited", "you said: my question"), retry=False)
    with pytest.raises(AdapterError):
        rxllm.generate(failing, "Hi").run()
    span: Any = seen.named("chat small")
    assert span.attributes["error.type"] == "rate_limited"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)


@pytest.mark.sockets
def test_a_connection_that_is_replaced_is_an_event_of_the_call(seen: Seen) -> None:
    keeper = keeping.Keeper(keeping.number(keeping.text("2, ", "3.")), [1000])
    with Loopback(keeper) as server:
        rxllm.generate(keeping.engine(server, observers=[seen.observer]), "Hi").run()
    span: Any = seen.named("chat m")
    (event,) = span.events
    assert (event.name, event.attributes["error.type"]) == ("rxllm.reattached", "network_error")
    assert event.attributes["seconds"] >= 0


def test_a_call_has_the_first_change_of_its_request(seen: Seen) -> None:
    report = rxllm.values.PrefixReport("tools: add", {"messages.1.content.0": "tools: add"})

    async def adapter(request: Any, call: Any) -> Any:
        yield rxllm.MessageCompleted(rxllm.assistant("Hi"), "stop", metadata={"prefix": report})

    rxllm.generate(rxllm.Engine(adapter, model="small", observers=[seen.observer]), "Hi").run()
    assert seen.named("chat small").attributes["rxllm.prefix.first_change"] == "tools: add"  # type: ignore[index]


def test_retries_are_events_of_the_call(seen: Seen) -> None:
    retried(seen).run()
    span: Any = seen.named("chat small")
    (event,) = span.events
    assert (event.name, event.attributes["attempt"], event.attributes["error.type"]) == ("rxllm.retry", 1, "timeout")
    assert span.attributes["rxllm.attempts"] == 2
    assert span.status.status_code is StatusCode.UNSET


def test_the_first_chunk_is_timed_from_the_request_that_was_answered(seen: Seen) -> None:
    script = Fake(
        [("delay", 5.0), AdapterError("timeout")], [("delay", 3.0), "a", ("delay", 0.5), "b", ("delay", 1.5), "c"]
    )
    engine = Engine(script, model="small", observers=[seen.observer], retry=RetryPolicy(base_delay=20, jitter=0))
    TestScheduler().start(lambda: rxllm.stream_generate(engine, "Hi"))
    span: Any = seen.named("chat small")
    assert span.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(3.0)
    points = seen.points()
    assert points["gen_ai.client.operation.time_to_first_chunk"][0].sum == pytest.approx(3.0)
    gaps = points["gen_ai.client.operation.time_per_output_chunk"][0]
    assert (gaps.count, gaps.sum, gaps.max) == (2, pytest.approx(2.0), pytest.approx(1.5))
    assert points["gen_ai.client.operation.duration"][0].sum == pytest.approx(30.0)


def test_a_call_says_how_long_it_has_waited_for_its_turn() -> None:
    seen = Seen()
    engine = seen.engine([("delay", 3.0), "Hi"], operators=[ops.rate_limited(concurrent=1)])
    calls = [rxllm.stream_generate(engine, "Hi"), rxllm.stream(engine, "Hi"), rxllm.stream_generate(engine, "Hi")]
    TestScheduler().start(lambda: rx.merge(*calls))
    waits = [span.attributes.get("rxllm.queued") for span in seen.spans if span.name == "chat small"]  # type: ignore[union-attr]
    assert waits == [None, pytest.approx(3.0), pytest.approx(6.0)]
    seen.close()


def test_a_call_that_a_limiter_permits_says_how_long_that_took(seen: Seen) -> None:
    class Slow:
        async def acquire(self, tokens: int) -> None:
            await asyncio.sleep(5)

        def settle(self, permit: Any, tokens: int) -> None: ...

        def hold_back(self, seconds: float) -> None: ...

    async def ask(world: World) -> None:
        await rxllm.generate(seen.engine("Hi", operators=[ops.rate_limited(Slow())]), "Hi")

    simulate(ask, faults=())
    span: Any = seen.named("chat small")
    assert span.attributes["rxllm.queued"] == pytest.approx(5, abs=0.1)


def test_the_waits_between_attempts_are_not_queueing(seen: Seen) -> None:
    script = Fake([AdapterError("rate_limited", retry_after=5.0)], "Hi")
    engine = Engine(script, model="small", observers=[seen.observer], operators=[ops.rate_limited(concurrent=1)])
    TestScheduler().start(lambda: rxllm.stream_generate(engine, "Hi"))
    span: Any = seen.named("chat small")
    assert (span.attributes["rxllm.attempts"], "rxllm.queued" in span.attributes) == (2, False)


class Discarding(InMemorySpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


async def leave(seen: Seen, number: int) -> None:
    """Leave a chat after some of its events, or after some turns of the loop, wherever it is by then."""
    script: list[Any] = [DOUBLE, [AdapterError("timeout")], ["4", ("delay", 0.0), "2"]]
    engine = agents(seen) if number % 2 else seen.engine(*script, tools=[double])
    events = rxllm.stream(engine, "Hi", retry=RetryPolicy(base_delay=0, jitter=0))
    ended = asyncio.Event()
    last = 10**6 if number % 3 else 1 + number % 31
    subscription = events.pipe(rx_ops.take(last), rx_ops.finally_action(ended.set)).subscribe(
        on_error=lambda error: None
    )
    if number % 3:
        for _ in range(number % 23):
            await asyncio.sleep(0)
    else:
        await asyncio.wait_for(ended.wait(), PATIENCE)
    subscription.dispose()


@pytest.mark.judges
def test_no_span_is_open_after_many_disposals() -> None:
    seen = Seen(exporter=Discarding())

    async def main() -> None:
        for number in range(DISPOSALS):
            await leave(seen, number)
            assert seen.open.names == {}

    asyncio.run(main())
    seen.close()


@pytest.mark.judges
def test_no_span_is_open_after_disposals_from_another_thread() -> None:
    """An agent that begins at the same moment may end after its tool, but in the same trace."""
    seen = Seen()
    for number in range(100):
        got: list[Any] = []
        events = rxllm.stream(agents(seen), "Hi")
        subscription = events.subscribe(got.append, on_error=lambda error: None)  # runs on rxllm's own loop
        wait_until(got.__len__, lambda length, least=number % 36: length >= least)
        subscription.dispose()
    ids = {span.context.span_id for span in seen.spans}
    roots = [span.name for span in seen.spans if (span.parent.span_id if span.parent else None) not in ids]
    assert roots == ["invoke_agent"] * 100
    seen.close()


# Attributes


def test_the_attributes_of_a_call(seen: Seen) -> None:
    script = [Usage(10, 5, cached_input_tokens=4, cache_write_input_tokens=2, reasoning_tokens=3), "Hello"]
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 99,
        "stop": ["x"],
        "seed": 1,
        "reasoning_effort": "low",
    }
    notes = {"user": "u1", "tags": ["a"], "api_key": "sk-1"}
    engine = seen.engine(script, params={"options": {"top_k": 40}})
    options |= {"metadata": notes, "session_id": "s1", "request_id": "r1", "response_format": {"type": "json_object"}}
    list(rxllm.stream_generate(engine, "Hi", **options))
    span: Any = seen.named("chat small")
    assert span.kind is SpanKind.CLIENT
    attributes = dict(span.attributes)
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "Fake",
        "gen_ai.request.model": "small",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.request.seed": 1,
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "s1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_write.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "rxllm.request.id": "r1",
        "rxllm.metadata.user": "u1",
        "rxllm.metadata.tags": ("a",),
        "rxllm.metadata.api_key": "[key]",
    }


@pytest.mark.parametrize(
    ("note", "written"),
    [
        (True, True),
        (0.5, 0.5),
        ([1, 2], (1, 2)),
        (("a", "b"), ("a", "b")),
        ([], ()),
        ([1, "a"], '[1, "a"]'),
        ([True, 1], "[true, 1]"),
        ({"plan": "é", "secret": "sk-1"}, '{"plan": "é", "secret": "[key]"}'),
        ([{"a": 1}], '[{"a": 1}]'),
        ({"at": RetryPolicy()}, '{"at": "RetryPolicy"}'),
        (2**63 - 1, 2**63 - 1),
        (2**63, "9223372036854775808"),  # OTLP has 64 bits and UTF-8
        ([1, 2**63], "[1, 9223372036854775808]"),
        ("a\ud800", "a?"),
        (["\ud800"], '["?"]'),
    ],
)
def test_a_note_is_kept_as_an_attribute_can_have_it(seen: Seen, note: Any, written: Any) -> None:
    rxllm.generate(seen.engine("Hello"), "Hi", metadata={"note": note}).run()
    attributes: Any = seen.named("chat small").attributes
    found = attributes["rxllm.metadata.note"]
    assert (type(found), found) == (type(written), written)


@pytest.mark.parametrize("call", [rxllm.chat, rxllm.step, rxllm.generate])
def test_the_root_of_a_trace_has_the_notes_and_the_request_id_when_it_starts(call: Any) -> None:
    began: list[Any] = []

    class Starts(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            began.append((span.parent, dict(span.attributes)))

    seen = Seen()
    seen.provider.add_span_processor(Starts())
    engine = seen.engine("Hello", params={"metadata": {"tenant": "t0", "plan": "free"}})
    call(engine, "Hi", metadata={"tenant": "t1", "token": "x"}, request_id="r1").run()
    notes = {"rxllm.metadata.tenant": "t1", "rxllm.metadata.plan": "free", "rxllm.metadata.token": "[key]"}
    for _, attributes in began:
        assert attributes["rxllm.request.id"] == "r1"
        assert attributes.items() >= notes.items()
    assert began[0][0] is None
    seen.close()


def test_the_attributes_of_tools_steps_and_chats(seen: Seen) -> None:
    rxllm.chat(
        seen.engine([DOUBLE, Usage(1, 2)], ["42", Usage(3, 4)]), "Hi", tools=[double], session_id="s1", request_id="r1"
    ).run()
    ran: Any = seen.named("execute_tool double")
    assert ran.kind is SpanKind.INTERNAL
    assert ran.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "double",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.description": "Double it.",
        "gen_ai.conversation.id": "s1",
        "rxllm.request.id": "r1",
    }
    chat: Any = seen.named("invoke_agent")
    assert chat.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "s1",
        "rxllm.request.id": "r1",
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 6,
        "rxllm.chat.steps": 2,
        "rxllm.chat.halted_reason": "completed",
    }
    assert [span.attributes["rxllm.step.index"] for span in seen.spans if span.name == "step"] == [0, 1]  # type: ignore[index]


def test_the_attributes_of_images(seen: Seen) -> None:
    drawn(seen).run()
    attributes: Any = seen.named("generate_content draw").attributes
    assert (attributes["gen_ai.output.type"], attributes["gen_ai.request.choice.count"]) == ("image", 2)


# Metrics


def test_the_metrics_have_their_released_names(seen: Seen) -> None:
    rxllm.chat(seen.engine([DOUBLE, Usage(1, 2)], ["42", Usage(3, 4)]), "Hi", tools=[double]).run()
    points = seen.points()
    assert {*points} == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.operation.time_per_output_chunk",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
    }
    counted = points["gen_ai.client.token.usage"]
    tokens = {point.attributes["gen_ai.token.type"]: (point.count, point.sum) for point in counted}
    assert tokens == {"input": (2, 4), "output": (2, 6)}
    (duration,) = points["gen_ai.client.operation.duration"]
    assert duration.count == 2
    assert duration.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "Fake",
        "gen_ai.request.model": "small",
    }


def test_the_metrics_have_their_newest_names_where_that_is_opted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
    seen = Seen()
    rxllm.generate(seen.engine(["42", Usage(3, 4, cached_input_tokens=2)]), "Hi").run()
    with pytest.raises(AdapterError):
        rxllm.generate(seen.engine(AdapterError("timeout"), retry=False), "Hi").run()
    points = {name.removeprefix("gen_ai.client.inference."): found for name, found in seen.points().items()}
    assert (points["operation.input_tokens"][0].sum, points["operation.output_tokens"][0].sum) == (3, 4)
    used = {name.removeprefix("usage."): found[0] for name, found in points.items() if name.startswith("usage.")}
    assert {name: point.value for name, point in used.items()} == {
        "input_tokens": 3,
        "output_tokens": 4,
        "cache_read.input_tokens": 2,
    }
    assert used["input_tokens"].attributes["gen_ai.token.modality"] == "unknown"
    failures = {point.attributes.get("error.type") for point in points["duration"]}
    assert failures == {None, "timeout"}
    seen.close()


def test_costs_are_those_of_the_price_list() -> None:
    seen = Seen(cost=True)
    rxllm.generate(seen.engine(["42", Usage(1_000_000, 100_000)], model="claude-3-haiku-20240307"), "Hi").run()
    span: Any = seen.named("chat claude-3-haiku-20240307")
    assert "rxllm.usage.cost" not in span.attributes  # nobody knows the provider Fake
    haiku = Fake(["42", Usage(1_000_000, 100_000)])
    vars(haiku)["provider"] = "anthropic"
    rxllm.generate(Engine(haiku, model="claude-3-haiku-20240307", observers=[seen.observer]), "Hi").run()
    rxllm.generate(seen.engine(["42", Usage(1, 1, total_cost=0.5)]), "Hi").run()
    costs = [span.attributes.get("rxllm.usage.cost") for span in seen.spans]  # type: ignore[union-attr]
    assert costs == [None, 0.375, 0.5]
    assert sorted(point.value for point in seen.points()["rxllm.usage.cost"]) == [0.375, 0.5]
    seen.close()


# Content


def test_content_is_as_the_conventions_write_it() -> None:
    seen = Seen(content=True)
    asked = [rxllm.system("Be brief."), rxllm.user("Hi")]
    rxllm.chat(seen.engine([("thinking", "hm"), "Well", DOUBLE], "42"), asked, tools=[double]).run()
    first, second = [dict(span.attributes or {}) for span in seen.spans if span.name == "chat small"]
    question = {"role": "user", "parts": [{"type": "text", "content": "Hi"}]}
    call = {"type": "tool_call", "id": "c1", "name": "double", "arguments": {"x": 21}}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "Well"}, call]}
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "42"}]}
    assert read(first, "gen_ai.system_instructions") == [{"type": "text", "content": "Be brief."}]
    assert read(first, "gen_ai.input.messages") == [question]
    assert read(first, "gen_ai.output.messages") == [{**answer, "finish_reason": "tool_call"}]
    assert read(second, "gen_ai.input.messages") == [question, answer, result]
    assert read(first, "gen_ai.tool.definitions")[0]["name"] == "double"
    ran: Any = seen.named("execute_tool double").attributes
    assert (ran["gen_ai.tool.call.arguments"], ran["gen_ai.tool.call.result"]) == ('{"x": 21}', "42")
    assert "hm" not in repr([span.attributes for span in seen.spans])
    seen.close()


def read(attributes: Mapping[str, Any], name: str) -> Any:
    return json.loads(attributes[name])


def test_files_and_the_providers_own_calls_are_named_without_their_bytes() -> None:
    seen = Seen(content=True)
    picture = rxllm.user("Look", Image.from_binary(b"canary-bytes", "image/png"))
    search = rxllm.Message("assistant", tool_calls=(ToolCall("s1", "search", {"q": "x"}, metadata={"server": True}),))
    rxllm.generate(seen.engine("Nice."), [picture, search, rxllm.user("And?")]).run()
    attributes: Any = seen.named("chat small").attributes
    messages = read(attributes, "gen_ai.input.messages")
    assert messages[0]["parts"] == [{"type": "text", "content": "Look"}, {"type": "image"}]
    assert messages[1]["parts"][0]["type"] == "server_tool_call"
    seen.close()


@pytest.mark.parametrize(
    ("variable", "shown"), [("", False), ("NO_CONTENT", False), ("SPAN_ONLY", True), ("event_only", False)]
)
def test_content_is_opted_for_by_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, variable: str, shown: bool
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", variable)
    assert otel.traces().content is shown
    assert otel.traces(content=False).content is False


CANARY = "kestrel"
PIECES = st.sampled_from(
    [
        CANARY,
        ("thinking", CANARY),
        ToolCall("c1", "double", {"x": CANARY}),
        ToolCall("c2", "look", {"at": CANARY}),
        AdapterError("timeout", CANARY),
        rxllm.StreamError("truncated", CANARY),
        ValueError(CANARY),
        Usage(1, 2),
    ]
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(PIECES, max_size=3), min_size=1, max_size=3), st.integers(1, 12), st.booleans())
def test_nothing_private_is_written_unless_it_is_opted_for(scripts: Any, left: int, is_raised: bool) -> None:
    def look(at: str) -> str:
        if is_raised:
            raise ValueError(at)
        return CANARY

    seen = Seen()
    policy = RetryPolicy(max_attempts=2, base_delay=0, jitter=0)
    engine = Engine(Fake(scripts=scripts), model="small", observers=[seen.observer], retry=policy)
    question = [rxllm.system(CANARY), rxllm.user(CANARY)]
    options: dict[str, Any] = {"api_key": CANARY, "headers": {"x-title": CANARY}, "context": {"a": CANARY}}
    events = rxllm.stream(engine, question, tools=[double, tool(look)], options={"user": CANARY}, **options)
    list(events.pipe(rx_ops.take(left), rx_ops.materialize()))
    assert_well_formed(seen.spans)
    assert CANARY not in "".join(span.to_json() for span in seen.spans)
    assert CANARY not in repr(seen.reader.get_metrics_data())
    seen.close()


# The observer


def test_an_observer_is_copied_with_its_engine() -> None:
    observer = otel.traces(content=True)
    assert pickle.loads(pickle.dumps(observer)) == observer
    for traces in (otel.traces(tracer_provider=TracerProvider()), otel.traces(meter_provider=MeterProvider())):
        with pytest.raises(TypeError, match="cannot be pickled with its providers; omit tracer_provider"):
            pickle.dumps(traces)
    assert copy.deepcopy(Engine(Fake("a"), observers=[observer])).observers == (observer,)
    assert observer != otel.traces(content=False)


def test_an_observer_with_providers_of_its_own_stays_in_its_process(seen: Seen) -> None:
    with pytest.raises(TypeError, match="omit tracer_provider and meter_provider, and set OpenTelemetry's global"):
        pickle.dumps(seen.observer)


@pytest.mark.judges
def test_an_observer_that_arrives_where_opentelemetry_is_missing_says_what_to_install() -> None:
    data = pickle.dumps(otel.traces())
    program = f"import pickle, rxllm\ntry: pickle.loads({data!r})\nexcept rxllm.EngineError as error: print(error)"
    assert "pip install 'rxllm[otel]'" in python_without(["opentelemetry"], program).stdout


@pytest.mark.parametrize("options", [{"content": 1}, {"cost": "yes"}, {"propagate": None}, {"tracer_provider": "p"}])
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(rxllm.ValidationError, match=next(iter(options))):
        otel.traces(**options)
    with pytest.raises(TypeError, match=r"write observers=.rxllm.otel.traces"):
        otel.traces(contents=True)  # type: ignore[call-arg]


def test_a_long_chat_keeps_no_context_of_earlier_tools(seen: Seen) -> None:
    """The next step is subscribed to where a tool of the last one has ended."""
    depths: list[int] = []

    async def double(x: int) -> int:
        here, depth = context.get_current(), 0
        while (body := here.get("rxllm.otel/body")) is not None:
            here, depth = body.around, depth + 1  # type: ignore[attr-defined]
        depths.append(depth)
        return x

    rxllm.chat(seen.engine(*[DOUBLE] * 20, "42"), "Hi", tools=[tool(double)], max_turns=30).run()
    assert depths == [1] * 20


def test_what_cannot_be_written_does_not_keep_a_span_open() -> None:
    seen = Seen(content=True)
    loop: dict[Any, Any] = {}
    loop[("a",)] = loop

    def double(x: int) -> Any:
        return loop

    script = [DOUBLE, "42"]
    rxllm.chat(seen.engine(*script), "Hi\ud800", tools=[tool(double)], tool_result_encoder=lambda result: "odd").run()
    attributes: Any = seen.named("execute_tool double").attributes
    assert attributes["gen_ai.tool.call.result"] == "dict"
    assert len(seen.tree()) == 1
    seen.close()
