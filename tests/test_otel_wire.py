"""Traces on the wire: ``traceparent`` at the model's server, spans at a collector; and util-genai's beside ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from opentelemetry import baggage, context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import (
    FunctionToolDefinition,
    InputMessage,
    OutputMessage,
    TextPart,
    ToolCallRequestPart,
)

import rxllm
from rxllm import Engine, Fake, OpenAIChat, RetryPolicy, ToolCall, Usage, otel, web
from rxllm.testing.loopback import DONE, Loopback, Reply, chat, chat_chunk, chat_finish
from tests.spans import DOUBLE, Seen, double

pytestmark = pytest.mark.sockets

QUICK = RetryPolicy(base_delay=0, jitter=0)
BUSY = Reply(b'{"error": {"message": "busy"}}', status=503)


def asking(server: Loopback, seen: Seen, **options: Any) -> Engine:
    adapter = OpenAIChat(base_url=server.url, api_key="sk-canary", **options)
    return Engine(adapter, model="gpt-5", observers=[seen.observer], retry=QUICK)


def headers(server: Loopback, name: str = "traceparent") -> list[str | None]:
    return [request.headers.get(name) for request in server.requests]


def traceparent(span: Any) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


# traceparent


def test_every_attempt_sends_the_span_of_its_call() -> None:
    seen = Seen()
    with Loopback([BUSY, BUSY, Reply(chat("Hello"))]) as server:
        rxllm.generate(asking(server, seen), "Hi").run()
        token = context.attach(baggage.set_baggage("user", "u1"))
        rxllm.generate(asking(server, seen), "Hi").run()
        context.detach(token)
        first, second = [span.context for span in seen.spans]
        assert headers(server) == [traceparent(span) for span in (first, first, first, second)]
        assert headers(server, "baggage") == [None] * 4
    seen.close()


def test_the_calls_of_an_agent_send_their_own_spans() -> None:
    seen = Seen()
    with Loopback(Reply(chat("Roses."))) as server:
        poet = Engine(OpenAIChat(base_url=server.url), model="inner").as_tool(name="poet")
        rxllm.chat(seen.engine(ToolCall("c1", "poet", {"prompt": "Go"}), "Done."), "Hi", tools=[poet]).run()
        inner = seen.named("chat inner").context
        assert headers(server) == [traceparent(inner)]
    seen.close()


WIRES = {
    "anthropic": lambda url: rxllm.Anthropic(base_url=url, api_key="k"),
    "gemini": lambda url: rxllm.Gemini(base_url=url, api_key="k"),
    "ollama": lambda url: rxllm.Ollama(base_url=url),
    "responses": lambda url: rxllm.OpenAIResponses(base_url=url, api_key="k"),
}


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_sends_it(wire: str) -> None:
    seen = Seen()
    with Loopback(Reply(b"{}", status=400)) as server:
        engine = Engine(WIRES[wire](server.url), model="m", observers=[seen.observer], retry=False)
        with pytest.raises(rxllm.AdapterError):
            rxllm.generate(engine, "Hi").run()
        assert headers(server) == [traceparent(seen.named("chat m").context)]
    seen.close()


def test_a_call_for_images_sends_it() -> None:
    seen = Seen()
    with Loopback(Reply(b"{}", status=400)) as server:
        adapter = rxllm.images.OpenAIImages(base_url=server.url, api_key="k")
        engine = Engine(image_adapter=adapter, model="draw", observers=[seen.observer], retry=False)
        with pytest.raises(rxllm.ImageAdapterError):
            rxllm.generate_image(engine, "a kestrel").run()
        assert headers(server) == [traceparent(seen.named("generate_content draw").context)]
    seen.close()


def test_the_callers_own_header_wins() -> None:
    mine, seen = "00-" + "1" * 32 + "-" + "2" * 16 + "-01", Seen()
    with Loopback(Reply(chat("Hello"))) as server:
        rxllm.generate(asking(server, seen), "Hi", headers={"Traceparent": mine}).run()
        rxllm.generate(asking(server, seen, headers={"traceparent": mine}), "Hi").run()
        assert headers(server) == [mine, mine]
    seen.close()


def test_nothing_is_sent_where_nobody_traces() -> None:
    quiet = Seen(propagate=False)
    with Loopback(Reply(chat("Hello"))) as server:
        rxllm.generate(Engine(OpenAIChat(base_url=server.url), model="m"), "Hi").run()
        rxllm.generate(asking(server, quiet), "Hi").run()
        assert headers(server) == [None, None]
    quiet.close()


class Broken(rxllm.telemetry.Tracer):
    def __call__(self, value: Any) -> None: ...

    def request_headers(self, call_id: str) -> Mapping[str, str]:
        raise KeyError(call_id)


def test_a_tracer_that_fails_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Loopback(Reply(chat("Hello"))) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", observers=[Broken()])
        assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
    assert "an observer failed to handle a request" in caplog.text


# What only a server knows


def test_the_span_of_a_call_names_the_server_and_what_it_answered() -> None:
    seen = Seen()
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    with Loopback(Reply([chat_chunk("Hi"), chat_finish(usage=usage), DONE])) as server:
        rxllm.generate(asking(server, seen), "Hi").run()
        host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    attributes: Any = seen.named("chat gpt-5").attributes
    assert (attributes["server.address"], attributes["server.port"]) == (host, int(port))
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["gen_ai.response.id"]
    assert attributes["gen_ai.response.model"]
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert "sk-canary" not in seen.named("chat gpt-5").to_json()
    seen.close()


# At a collector


def test_a_collector_receives_the_trace_over_http() -> None:
    seen = Seen()
    with Loopback(Reply()) as collector:
        seen.provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")))
        rxllm.chat(seen.engine(DOUBLE, "42"), "Hi", tools=[double]).run()
        seen.close()
        bodies = [ExportTraceServiceRequest.FromString(request.body) for request in collector.requests]
    scopes = [scope for body in bodies for resource in body.resource_spans for scope in resource.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    assert {scope.scope.name for scope in scopes} == {"rxllm"}
    assert sorted(span.name for span in spans) == [
        "chat small",
        "chat small",
        "execute_tool double",
        "invoke_agent",
        "step",
        "step",
    ]
    assert len({span.trace_id for span in spans}) == 1
    ids = {span.span_id for span in spans}
    assert [span.name for span in spans if span.parent_span_id not in ids] == ["invoke_agent"]
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


# Beside opentelemetry-util-genai

OURS = {"gen_ai.conversation.id"}
"""On a tool's span: util-genai has it on those of calls and agents alone."""


@pytest.fixture
def _with_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")


def reference(seen: Seen) -> TelemetryHandler:
    return TelemetryHandler(tracer_provider=seen.provider, meter_provider=seen.meters)


def call_of(seen: Seen) -> None:
    """The same call as below, written by util-genai."""
    invocation = reference(seen).inference("openai", request_model="small", conversation_id="s1")
    invocation.temperature, invocation.max_tokens, invocation.seed = 0.5, 99, 1
    invocation.top_p, invocation.stop_sequences, invocation.reasoning_level = 0.9, ["x"], "low"
    invocation.input_messages = [InputMessage("user", [TextPart("Hi")])]
    invocation.system_instruction = [TextPart("Be brief.")]
    invocation.tool_definitions = [FunctionToolDefinition(double.name, double.description, double.schema)]
    invocation.record_stream_chunk()
    invocation.record_stream_chunk()
    invocation.input_tokens, invocation.output_tokens = 10, 5
    invocation.cache_read_input_tokens, invocation.cache_write_input_tokens, invocation.thinking_tokens = 4, 2, 3
    asked = ToolCallRequestPart({"x": 21}, "double", "c1")
    invocation.output_messages = [OutputMessage("assistant", [TextPart("Well"), asked], "tool_call")]
    invocation.stop()


def attributes_of(span: Any) -> dict[str, Any]:
    """The attributes, with messages read and what is None in util-genai left out."""
    times = {"gen_ai.response.time_to_first_chunk": 0.0}
    return {
        name: _dense(json.loads(value)) if name.endswith(("messages", "instructions", "definitions")) else value
        for name, value in {**span.attributes, **(times if times.keys() <= span.attributes.keys() else {})}.items()
    }


def _dense(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _dense(entry) for name, entry in value.items() if entry is not None}
    return [_dense(entry) for entry in value] if isinstance(value, list) else value


def openai(*script: Any) -> Fake:
    fake = Fake(*script)
    vars(fake)["provider"] = "openai"
    return fake


@pytest.mark.usefixtures("_with_content")
def test_a_call_is_what_util_genai_writes_of_it() -> None:
    seen, theirs = Seen(content=True), Seen()
    usage = Usage(10, 5, cached_input_tokens=4, cache_write_input_tokens=2, reasoning_tokens=3)
    engine = Engine(openai([usage, "Well", DOUBLE]), model="small", observers=[seen.observer])
    options: dict[str, Any] = {"temperature": 0.5, "max_tokens": 99, "seed": 1, "top_p": 0.9, "stop": "x"}
    question = [rxllm.system("Be brief."), rxllm.user("Hi")]
    rxllm.generate(
        engine, question, tools=[double], reasoning_effort="low", session_id="s1", request_id="r1", **options
    ).run()
    call_of(theirs)
    (mine,), (other,) = seen.spans, theirs.spans
    assert (mine.name, mine.kind) == (other.name, other.kind)
    assert attributes_of(mine) == attributes_of(other) | {"rxllm.request.id": "r1"}
    ours, points = seen.points(), theirs.points()
    assert {*ours} == {*points}
    assert {name: dict(found[0].attributes) for name, found in ours.items()} == {
        name: dict(found[0].attributes) for name, found in points.items()
    }
    assert {name: found[0].explicit_bounds for name, found in ours.items()} == {
        name: found[0].explicit_bounds for name, found in points.items()
    }
    seen.close()
    theirs.close()


@pytest.mark.usefixtures("_with_content")
def test_a_tool_and_an_agent_are_what_util_genai_writes_of_them() -> None:
    seen, theirs = Seen(content=True), Seen()
    poet = Engine(Fake("Roses."), model="inner").as_tool(name="poet", description="Write.")
    script = [ToolCall("c1", "poet", {"prompt": "Go"}), "Done."]
    rxllm.chat(seen.engine(*script), "Hi", tools=[poet], session_id="s1").run()
    handler = reference(theirs)
    with handler.tool("poet", tool_type="function") as ran:
        ran.tool_call_id, ran.tool_description = "c1", "Write."
        ran.arguments, ran.tool_result = {"prompt": "Go"}, "Roses."
        with handler.invoke_local_agent(agent_name="poet", conversation_id="s1") as agent:
            agent.finish_reasons = None
    for name in ("execute_tool poet", "invoke_agent poet"):
        mine, other = seen.named(name), theirs.named(name)
        assert mine.kind == other.kind
        own = {key: value for key, value in attributes_of(mine).items() if not key.startswith("rxllm.")}
        differing = OURS if name.startswith("execute") else set[str]()
        shared = {key: _same(value) for key, value in own.items() if key not in differing}
        assert shared == {key: _same(value) for key, value in attributes_of(other).items()}
    durations = {"gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"}
    bounds = {name: found[0].explicit_bounds for name, found in seen.points().items() if name in durations}
    assert bounds == {name: found[0].explicit_bounds for name, found in theirs.points().items()}
    seen.close()
    theirs.close()


def _same(value: Any) -> Any:
    """A value, read if it is JSON: util-genai writes it without spaces."""
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


def test_the_names_of_the_conventions_are_in_one_place() -> None:
    """Nothing else of the package writes one, and rxllm's do not come from the constants that are deprecated."""
    from pathlib import Path

    files = Path(otel.__file__).parent.rglob("*.py")
    assert [file.name for file in files if "gen_ai." in file.read_text()] == ["otel.py"]
    assert "semconv" not in Path(otel.__file__).read_text().replace("semantic-conventions", "")
    assert asdict(TextPart("a"))["type"] == "text"


# traceparent at the application's own server


def traced(app: Any, seen: Seen) -> Any:
    """What an instrumentation of ASGI does: the span of the request is the current one while `app` answers."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        sent = {name.decode(): value.decode() for name, value in scope["headers"]}
        with seen.tracer.start_as_current_span("POST", context=TraceContextTextMapPropagator().extract(sent)):
            await app(scope, receive, send)

    return wrapped


@pytest.mark.parametrize("streamed", [False, True, None])
def test_a_model_that_is_asked_for_a_request_is_in_its_trace(streamed: bool | None) -> None:
    seen = Seen()
    engine = seen.engine(DOUBLE, "42", tools=[double])

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await web.streaming_response(rxllm.stream(engine, "Hi"))(scope, receive, send)

    async def main() -> None:
        app = traced(bare if streamed is None else web.openai_app({"m": engine}), seen)
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": bool(streamed)}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
            assert (await client.post("/v1/chat/completions", json=body, headers=sent)).status_code == 200

    asyncio.run(main())
    assert {f"{span.context.trace_id:x}" for span in seen.spans} == {"a" * 32}
    post = seen.named("POST")
    chat: Any = seen.named("invoke_agent")
    assert chat.parent.span_id == post.context.span_id
    assert chat.end_time <= (post.end_time or 0)
    seen.close()
