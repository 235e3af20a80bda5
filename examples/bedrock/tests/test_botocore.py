"""botocore judges: it builds the same requests, validates every body, and reads the same events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import botocore.auth
import botocore.session
import pytest
import rxllm
from botocore.credentials import Credentials
from botocore.validate import ParamValidator
from rxllm import (
    Message,
    RawChunk,
    Request,
    Tool,
    ToolCall,
    assistant,
    json_schema,
    system,
    tool_result,
    user,
)
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import FilePart, Image, ImagePart, ProviderPart, TextPart, ThinkingPart
from wire import BEGIN, SIGNATURE, call_frames, delta, end, recordings, start, stop

from rxllm_bedrock import Bedrock

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{CLAUDE}"
REGION = "us-east-1"
KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-session-token")
PNG = b"\x89PNG..."
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
HI = {"role": "user", "content": [{"text": "Hi"}]}
CACHE = {"cachePoint": {"type": "default"}}
LOOK = {"toolSpec": {"name": "look", "description": "Look.", "inputSchema": {"json": SCHEMA}}}
GUARDRAIL = {"guardrailIdentifier": "g1", "guardrailVersion": "1", "trace": "enabled", "streamProcessingMode": "async"}
look = Tool("look", "Look.", SCHEMA)
called = Message("assistant", "", tool_calls=(ToolCall("c1", "look", {"place": "Oslo"}),))
thought = ThinkingPart("Hm.", SIGNATURE, {"provider": "bedrock"})
redacted = ThinkingPart("", None, {"provider": "bedrock", "redactedContent": "c2VjcmV0"})

CALLED = {
    "role": "assistant",
    "content": [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"place": "Oslo"}}}],
}


def result(*content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": list(content), **more}}]}


def request(*messages: Message, **fields: Any) -> Request:
    return Request(messages or (user("Hi"),), CLAUDE, **fields)


REQUESTS: dict[str, tuple[Request, dict[str, Any]]] = {
    "text": (
        request(system("Be brief."), user("Hi"), temperature=0.5, top_p=0.9, max_tokens=9, stop=("x",)),
        {
            "system": [{"text": "Be brief."}],
            "messages": [HI],
            "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["x"]},
        },
    ),
    "turns": (
        request(user("Hi"), user("  "), user("You"), assistant("Yes?"), system("Be brief."), user("Go on.")),
        {
            "messages": [
                {"role": "user", "content": [{"text": "Hi"}, {"text": "You"}]},
                {"role": "assistant", "content": [{"text": "Yes?"}]},
                {"role": "user", "content": [{"text": "<system>Be brief.</system>"}, {"text": "Go on."}]},
            ]
        },
    ),
    "tools": (
        request(tools=(look,), tool_choice="look"),
        {"messages": [HI], "toolConfig": {"tools": [LOOK], "toolChoice": {"tool": {"name": "look"}}}},
    ),
    "any tool": (
        request(
            tools=(look, Tool("g", metadata={"bedrock": {"systemTool": {"name": "nova_grounding"}}})),
            tool_choice="required",
        ),
        {
            "messages": [HI],
            "toolConfig": {"tools": [LOOK, {"systemTool": {"name": "nova_grounding"}}], "toolChoice": {"any": {}}},
        },
    ),
    "no tool": (request(tools=(look,), tool_choice="none"), {"messages": [HI]}),
    "tool results": (
        request(
            user("Hi"), called, tool_result("c1", {"sky": "grey"}), user("And now?"), tools=(look,), tool_choice="auto"
        ),
        {
            "messages": [
                HI,
                CALLED,
                {"role": "user", "content": [*result({"json": {"sky": "grey"}})["content"], {"text": "And now?"}]},
            ],
            "toolConfig": {"tools": [LOOK], "toolChoice": {"auto": {}}},
        },
    ),
    "a failed tool": (
        request(user("Hi"), called, Message("tool", "No.", tool_call_id="c1", metadata={"is_error": True})),
        {"messages": [HI, CALLED, result({"text": "No."}, status="error")]},
    ),
    "images": (
        request(
            user("Look!", Image.from_binary(PNG, "image/png")),
            called,
            Message("tool", (ImagePart(Image.from_binary(PNG, "image/jpeg")),), tool_call_id="c1"),
        ),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"text": "Look!"}, {"image": {"format": "png", "source": {"bytes": PNG}}}],
                },
                CALLED,
                result({"image": {"format": "jpeg", "source": {"bytes": PNG}}}),
            ]
        },
    ),
    "documents": (
        request(
            Message(
                "user",
                (
                    FilePart({"mime_type": "application/pdf", "data": b"%PDF", "name": "a_b  (1).pdf"}),
                    TextPart("Sum up."),
                ),
            )
        ),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"document": {"format": "pdf", "name": "a b (1) pdf", "source": {"bytes": b"%PDF"}}},
                        {"text": "Sum up."},
                    ],
                }
            ]
        },
    ),
    "thinking": (
        request(
            user("Hi"), Message("assistant", (thought, redacted, TextPart("Hi!"))), user("Hi"), reasoning_effort="low"
        ),
        {
            "messages": [
                HI,
                {
                    "role": "assistant",
                    "content": [
                        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": SIGNATURE}}},
                        {"reasoningContent": {"redactedContent": b"secret"}},
                        {"text": "Hi!"},
                    ],
                },
                HI,
            ],
            "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        },
    ),
    "another provider's thinking": (
        request(
            user("Hi"),
            Message("assistant", (ThinkingPart("Hm.", "s", {"provider": "gemini"}), TextPart("Hi!"))),
            user("Hi"),
        ),
        {"messages": [HI, {"role": "assistant", "content": [{"text": "Hi!"}]}, HI]},
    ),
    "cache points": (
        request(
            Message("system", "Be brief.", metadata={"cache": True}),
            Message("user", (TextPart("Hi", {"cache": "5m"}),), metadata={"cache": "1h"}),
            tools=(Tool("look", "Look.", SCHEMA, metadata={"cache": True}),),
        ),
        {
            "system": [{"text": "Be brief."}, CACHE],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"text": "Hi"},
                        {"cachePoint": {"type": "default", "ttl": "5m"}},
                        {"cachePoint": {"type": "default", "ttl": "1h"}},
                    ],
                }
            ],
            "toolConfig": {"tools": [LOOK, CACHE]},
        },
    ),
    "guardrails": (
        request(
            Message("user", (ProviderPart("bedrock", {"guardContent": {"text": {"text": "Hi"}}}),)),
            options={
                "guardrailConfig": GUARDRAIL,
                "additionalModelRequestFields": {"top_k": 9},
                "inferenceConfig": {"topP": 1.0},
            },
            max_tokens=9,
        ),
        {
            "messages": [{"role": "user", "content": [{"guardContent": {"text": {"text": "Hi"}}}]}],
            "inferenceConfig": {"maxTokens": 9, "topP": 1.0},
            "guardrailConfig": GUARDRAIL,
            "additionalModelRequestFields": {"top_k": 9},
        },
    ),
    "a response format": (
        request(response_format=json_schema("place", SCHEMA)),
        {
            "messages": [HI],
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {"jsonSchema": {"name": "place", "schema": json.dumps(SCHEMA, separators=(",", ":"))}},
                }
            },
        },
    ),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of botocore's signatures."""
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: datetime(2026, 11, 26, 12, 0, 0))


SESSION = botocore.session.Session()
SHAPE: Any = SESSION.get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape


class Judge:
    """botocore's client for the server at `url`. If it has a `body`, it sends this body in place of its own."""

    def __init__(self, url: str) -> None:
        self.body: bytes | None = None
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        keys = dict(zip(names, KEYS, strict=True))
        self._client = SESSION.create_client("bedrock-runtime", region_name=REGION, endpoint_url=url, **keys)
        self._client.meta.events.register("before-sign.bedrock-runtime.ConverseStream", self._replace_body)

    def converse(self, **parameters: Any) -> list[Any]:
        return list(self._client.converse_stream(**parameters)["stream"])

    def _replace_body(self, request: Any, **_: Any) -> None:
        request.data = self.body or request.data


def ours(url: str) -> Bedrock:
    return Bedrock(base_url=url, region=REGION, credentials=Credentials(*KEYS))


REPLY = Reply([BEGIN, delta(0, text="Hi"), *end()], headers={"content-type": "application/vnd.amazon.eventstream"})
SIGNED = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with Loopback(REPLY) as running:
        yield running


@pytest.fixture(scope="module")
def judge(server: Loopback) -> Judge:
    return Judge(server.url)


@pytest.mark.parametrize("model", [CLAUDE, PROFILE], ids=["id", "arn"])
@pytest.mark.parametrize("case", REQUESTS)
def test_botocore_sends_the_same_request(case: str, model: str, server: Loopback, judge: Judge) -> None:
    request, parameters = REQUESTS[case]
    list(rxllm.stream_generate(ours(server.url), request, model=model))
    ours_sent = server.requests[-1]
    for body in (None, ours_sent.body):  # the second time, it also signs the same bytes
        judge.body = body
        judge.converse(modelId=model, **parameters)
    *_, own, same = server.requests
    assert (ours_sent.method, ours_sent.path, ours_sent.json) == (own.method, own.path, own.json)
    assert {name: ours_sent.headers[name] for name in SIGNED} == {name: same.headers[name] for name in SIGNED}


def faults(request: Request) -> str:
    """Return what botocore's service model finds wrong with our body for `request`."""
    body = json.loads(Bedrock(api_key="k", region=REGION).build(request, rxllm.values.Call()).content)
    return ParamValidator().validate({"modelId": CLAUDE, **body}, SHAPE).generate_report()


@pytest.mark.parametrize("case", REQUESTS)
def test_botocore_validates_our_bodies(case: str) -> None:
    assert faults(REQUESTS[case][0]) == ""


def test_botocore_reads_the_same_events() -> None:
    usage = {
        "inputTokens": 3,
        "outputTokens": 5,
        "totalTokens": 10,
        "cacheReadInputTokens": 2,
        "cacheWriteInputTokens": 0,
    }
    frames = [
        BEGIN,
        delta(0, reasoningContent={"text": "Hm."}),
        delta(0, reasoningContent={"signature": SIGNATURE}),
        stop(0),
        delta(1, text="Ünd "),
        delta(1, text="so."),
        delta(1, citation={"title": "T", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}),
        stop(1),
        *call_frames(2, ToolCall("c1", "look", {"place": "Oslo"})),
        start(3, toolUse={"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use"}),
        delta(3, toolUse={"input": '{"q": 1}'}),
        stop(3),
        start(4, toolResult={"toolUseId": "s1", "type": "nova_grounding_result", "status": "success"}),
        delta(4, toolResult=[{"json": {"n": 1}}]),
        stop(4),
        *end("tool_use", usage, trace={"guardrail": {"actionReason": "none"}}, serviceTier={"type": "default"}),
    ]
    expect_same_events(b"".join(frames))


def test_botocore_reads_the_same_events_in_recorded_streams() -> None:
    streams = [data for features, data in recordings() if features.startswith("bedrock-converse-stream")]
    assert len(streams) >= 20
    for data in streams:
        expect_same_events(data)


def expect_same_events(data: bytes) -> None:
    with Loopback(Reply(data, headers=REPLY.headers)) as server:
        theirs = Judge(server.url).converse(modelId=CLAUDE, messages=[HI])
        events = list(rxllm.stream_generate(ours(server.url), "Hi", model=CLAUDE, include_raw_chunks=True))
    assert [{event.kind: known(event.data)} for event in events if isinstance(event, RawChunk)] == theirs


def known(data: Any) -> Any:
    """Return `data` without fields that botocore leaves out: padding, and counters that it does not know."""
    if not isinstance(data, dict):
        return data
    return {name: known(value) for name, value in data.items() if name not in ("p", "serverToolUsage")}
