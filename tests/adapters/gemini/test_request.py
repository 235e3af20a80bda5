"""Values to the request: nothing is sent."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rxllm import keys
from rxllm.adapters.gemini import Gemini
from rxllm.values import (
    Call,
    EngineError,
    FilePart,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ValidationError,
    assistant,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)
from tests.adapters.sdk import assert_fits

VERTEX = "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/google"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}, "additionalProperties": False}
ADD = tool(name="add", description="Adds", schema=SCHEMA, handler=lambda arguments: None)
NOW = tool(name="now", description="", handler=lambda arguments: None)


def body(request: Request) -> dict[str, Any]:
    """The body, in the official SDK's eyes well-formed."""
    said = msgspec.json.decode(Gemini(api_key="k").build(request, Call()).content)
    parts = [("Content", content) for content in said["contents"]]
    parts += [("Content", said["systemInstruction"])] if "systemInstruction" in said else []
    parts += [("Tool", each) for each in said.get("tools", ())]
    parts += [("ToolConfig", said.get("toolConfig", {})), ("GenerationConfig", said.get("generationConfig", {}))]
    for name, part in parts:
        assert_fits("google.genai.types", name, part)
    return said


def asked(*messages: Message, model: str = "gemini-3-flash", **fields: Any) -> dict[str, Any]:
    return body(Request(messages, model, **fields))


def contents(*messages: Message, **fields: Any) -> list[dict[str, Any]]:
    return asked(*messages, **fields)["contents"]


def test_the_least_request():
    built = Gemini(api_key="k").build(Request((user("Hi"),), "gemini-3-flash"), Call())
    base = "https://generativelanguage.googleapis.com/v1beta"
    assert str(built.url) == f"{base}/models/gemini-3-flash:streamGenerateContent?alt=sse"
    assert built.headers["x-goog-api-key"] == "k"
    assert msgspec.json.decode(built.content) == {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


@pytest.mark.parametrize("model", ["models/m", "tunedModels/m"])
def test_a_model_with_its_collection(model: str):
    built = Gemini(api_key="k").build(Request((user("Hi"),), model), Call())
    assert built.url.path == f"/v1beta/{model}:streamGenerateContent"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("a/b?c#d", "models/a%2Fb%3Fc%23d"),
        ("..", "models/.."),
        ("../files", "models/..%2Ffiles"),
        ("tunedModels/../x?key=y", "tunedModels/%2E%2E/x%3Fkey%3Dy"),
        ("publishers/google/models/m@1", "publishers/google/models/m@1"),
        ("m:countTokens", "models/m%3AcountTokens"),
        ("größe", "models/gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_model_stays_in_its_place_of_the_path(model: str, path: str):
    built = Gemini(api_key="k").build(Request((user("Hi"),), model), Call())
    assert built.url.raw_path.decode() == f"/v1beta/{path}:streamGenerateContent?alt=sse"


def test_a_model_is_needed():
    with pytest.raises(EngineError) as caught:
        body(Request((user("Hi"),)))
    assert caught.value.reason == "missing_model"


def test_the_keys_places(monkeypatch: pytest.MonkeyPatch):
    def sent() -> str | None:
        return Gemini().build(Request((user("Hi"),), "m"), Call()).headers["x-goog-api-key"]

    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match="GOOGLE_API_KEY or GEMINI_API_KEY"):
        sent()
    monkeypatch.setenv("GEMINI_API_KEY", "a")
    assert sent() == "a"
    monkeypatch.setenv("GOOGLE_API_KEY", "b")
    assert sent() == "b"
    keys.put("google", "c")
    try:
        assert sent() == "c"
    finally:
        keys.delete("google")


@pytest.mark.parametrize(("key", "header"), [("ya29.t", "authorization"), ("AIzaX", "x-goog-api-key")])
def test_vertex(key: str, header: str):
    built = Gemini(base_url=VERTEX, api_key=key).build(Request((user("Hi"),), "gemini-2.5-pro"), Call())
    assert str(built.url) == f"{VERTEX}/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    assert built.headers[header].removeprefix("Bearer ") == key


def test_all_fields():
    said = asked(
        system("S"),
        user("Hi"),
        system("T"),
        tools=(ADD, NOW),
        tool_choice="add",
        temperature=0,
        max_tokens=5,
        stop=("a",),
        seed=0,
        reasoning_effort="low",
        response_format=json_schema("x", SCHEMA),
    )
    assert said == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "systemInstruction": {"parts": [{"text": "S"}, {"text": "T"}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "add", "description": "Adds", "parametersJsonSchema": SCHEMA},
                    {"name": "now", "description": ""},
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        "generationConfig": {
            "temperature": 0,
            "maxOutputTokens": 5,
            "stopSequences": ["a"],
            "seed": 0,
            "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
            "responseMimeType": "application/json",
            "responseJsonSchema": {**SCHEMA, "properties": {"a": {"type": "integer"}}},
        },
    }


def camel(said: Any) -> Any:
    """The SDK writes some names in snake_case; to the server they are the same."""
    match said:
        case dict():
            return {
                name[0] + name.title().replace("_", "")[1:] if "_" in name else name: camel(each)
                for name, each in said.items()
            }
        case list():
            return [camel(each) for each in said]
        case _:
            return said


@pytest.mark.judges
def test_the_sdk_asks_the_same():
    httpx = pytest.importorskip("httpx")
    genai, types = pytest.importorskip("google.genai"), pytest.importorskip("google.genai.types")
    sent: list[Any] = []
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}  # the SDK takes nulls out

    def answer(request: Any) -> Any:
        sent.append(request)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

    http = httpx.Client(transport=httpx.MockTransport(answer))
    client = genai.Client(api_key="k", http_options=types.HttpOptions(httpx_client=http))
    config = types.GenerateContentConfig(
        system_instruction=[types.Part(text="S")],
        temperature=0.5,
        max_output_tokens=5,
        stop_sequences=["a"],
        seed=1,
        response_mime_type="application/json",
        response_json_schema=schema,
        thinking_config=types.ThinkingConfig(thinking_level="HIGH", include_thoughts=True),
        tools=[
            types.Tool(
                function_declarations=[
                    types.FunctionDeclaration(name="add", description="Adds", parameters_json_schema=schema)
                ]
            )
        ],
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="AUTO")),
    )
    parts = [types.Part(text="see"), types.Part.from_bytes(data=b"\0", mime_type="image/png")]
    turn = types.Content(role="user", parts=parts)
    list(client.models.generate_content_stream(model="gemini-3-flash", contents=[turn], config=config))
    request = Request(
        (system("S"), user([TextPart("see"), ImagePart(Image.from_binary(b"\0", "image/png"))])),
        "gemini-3-flash",
        (tool(name="add", description="Adds", schema=schema, handler=lambda arguments: None),),
        "auto",
        0.5,
        5,
        ("a",),
        1,
        "high",
        json_schema("x", schema),
    )
    ours = Gemini(api_key="k").build(request, Call())
    # The SDK asks v1 since its version 3, rxllm v1beta, which has what is in preview.
    assert str(ours.url).replace("/v1beta/", "/v1/") == str(sent[0].url)
    assert ours.headers["x-goog-api-key"] == sent[0].headers["x-goog-api-key"]
    theirs = camel(msgspec.json.decode(sent[0].content))
    theirs["systemInstruction"].pop("role")
    assert msgspec.json.decode(ours.content) == theirs


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("none", "NONE"), ("required", "ANY")])
def test_tool_choice(choice: str, mode: str):
    assert asked(user("Hi"), tool_choice=choice)["toolConfig"] == {"functionCallingConfig": {"mode": mode}}
    given = {"functionCallingConfig": {"mode": "VALIDATED"}}
    assert asked(user("Hi"), tool_choice=given)["toolConfig"] == given


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini-2.5-flash", "high", {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-3-pro-preview", "none", {"thinkingLevel": "MINIMAL", "includeThoughts": False}),
        ("gemini-3-pro-preview", "max", {"thinkingLevel": "XHIGH", "includeThoughts": True}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-flash-latest", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
    ],
)
def test_reasoning_effort(model: str, effort: str, expected: dict[str, Any]):
    assert asked(user("Hi"), model=model, reasoning_effort=effort)["generationConfig"] == {"thinkingConfig": expected}


@pytest.mark.parametrize("wrong", [{"reasoning_effort": "much"}, {"response_format": "yaml"}])
def test_what_has_no_meaning(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        asked(user("Hi"), **wrong)


def test_json_without_a_schema():
    config = asked(user("Hi"), response_format={"type": "json_object"})["generationConfig"]
    assert config == {"responseMimeType": "application/json"}
    for text in ("text", {"type": "text"}):
        assert "generationConfig" not in asked(user("Hi"), response_format=text)


def test_options_are_merged_over_the_body():
    options = {
        "generationConfig": {"topP": 0.9, "seed": None},
        "tools": [{"googleSearch": {}}],
        "cachedContent": "cachedContents/1",
    }
    said = asked(user("Hi"), tools=(NOW,), temperature=1, seed=1, options=options)
    assert said["generationConfig"] == {"temperature": 1, "topP": 0.9}
    assert said["tools"] == [{"functionDeclarations": [{"name": "now", "description": ""}]}, {"googleSearch": {}}]
    assert said["cachedContent"] == "cachedContents/1"


def test_images(tmp_path: Path):
    file = tmp_path / "x.png"
    file.write_bytes(b"\1")
    parts = [
        ImagePart(Image.from_binary(b"\0", "image/png")),
        ImagePart(Image.from_base64("AAE=", "image/jpeg")),
        ImagePart(Image.from_file(file)),
        ImagePart(Image.from_url("https://x/y.png?z")),
        FilePart({"mime_type": "application/pdf", "data": b"\0"}),
        FilePart({"mime_type": "video/mp4", "url": "files/1"}),
    ]
    assert contents(user(parts))[0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
        {"inlineData": {"mimeType": "image/jpeg", "data": "AAE="}},
        {"inlineData": {"mimeType": "image/png", "data": "AQ=="}},
        {"fileData": {"fileUri": "https://x/y.png?z", "mimeType": "image/png"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "AA=="}},
        {"fileData": {"fileUri": "files/1", "mimeType": "video/mp4"}},
    ]
    with pytest.raises(ValidationError):
        contents(user([ImagePart(Image("base64", "AAE="))]))


A = ToolCall("a", "f", {"x": 1}, metadata={"google": {"id": "a", "thoughtSignature": "czE="}})
B = ToolCall("call_1", "g", {"y": 2})


def test_calls_and_results():
    said = contents(
        user("Hi"),
        Message("assistant", "", tool_calls=(A, B)),
        tool_result("a", {"r": 1}),
        tool_result("call_1", '{"error": "no"}'),
        user("So?"),
        Message(
            "assistant", "", tool_calls=(ToolCall("c", "h", {}, metadata={"google": {"thoughtSignature": "czI="}}),)
        ),
        Message("tool", (TextPart("5"), ImagePart(Image.from_binary(b"\0", "image/png"))), tool_call_id="c"),
    )
    assert said == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "f", "args": {"x": 1}, "id": "a"}, "thoughtSignature": "czE="},
                {"functionCall": {"name": "g", "args": {"y": 2}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"r": 1}, "id": "a"}},
                {"functionResponse": {"name": "g", "response": {"error": "no"}}},
            ],
        },
        {"role": "user", "parts": [{"text": "So?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "h", "args": {}}, "thoughtSignature": "czI="}]},
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "h",
                        "response": {"output": "5"},
                        "parts": [{"inlineData": {"mimeType": "image/png", "data": "AA=="}}],
                    }
                }
            ],
        },
    ]


def test_what_gemini_signed_goes_back_and_what_others_signed_does_not():
    code = {"executableCode": {"code": "1", "language": "PYTHON"}, "thoughtSignature": "czU="}
    parts = (
        ThinkingPart("others", "s", {"reasoning_details": []}),
        ThinkingPart("nobody's"),
        ThinkingPart("hm", "czE=", {"provider": "google"}),
        TextPart("a"),
        TextPart("b"),
        ProviderPart("google", {"thoughtSignature": "czI="}),
        ProviderPart("anthropic", {"type": "redacted_thinking"}),
        SourcePart({"url": "u"}),
        ProviderPart("google", code),
        ToolCallPart("s"),
        FilePart({"mime_type": "image/png", "data": b"\0", "thoughtSignature": "czM="}),
        FilePart({"mime_type": "image/png", "data": b"\1", "thought": True}),
        FilePart({"mime_type": "audio/pcm", "data": b"\2"}),
        ProviderPart("google", {"text": "", "thoughtSignature": "czQ="}),
    )
    server = ToolCall("s", "code_execution", metadata={"server": True})
    (said,) = contents(Message("assistant", parts, tool_calls=(server,)))
    assert said["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": "czE="},
        {"text": "a"},
        {"text": "b", "thoughtSignature": "czI="},
        code,
        {"inlineData": {"mimeType": "image/png", "data": "AA=="}, "thoughtSignature": "czM="},
        {"text": "", "thoughtSignature": "czQ="},
    ]


@pytest.mark.parametrize(
    ("model", "signed"), [("gemini-3-pro", True), ("gemini-flash-latest", True), ("gemini-2.5-pro", False)]
)
def test_a_thread_of_another_adapter(model: str, signed: bool):
    called = Message(
        "assistant",
        (TextPart("a"), ToolCallPart("x"), ToolCallPart("y")),
        tool_calls=(
            ToolCall("x", "f", {"q": 1}, '{"q": 1}'),
            ToolCall("y", "f", {}, ""),
        ),
    )
    said = contents(user("Hi"), called, tool_result("x", "1"), tool_result("y", "2"), assistant("ok"), model=model)
    first = {"functionCall": {"name": "f", "args": {"q": 1}}}
    mark = {"thoughtSignature": "skip_thought_signature_validator"} if signed else {}
    assert said[1]["parts"] == [{"text": "a"}, first | mark, {"functionCall": {"name": "f", "args": {}}}]
    assert [part["functionResponse"]["response"] for part in said[2]["parts"]] == [{"output": "1"}, {"output": "2"}]
    assert called.tool_calls[0].metadata == {}


def test_the_mark_of_unsigned_calls_is_sent_as_bytes():
    assert base64.urlsafe_b64decode("skip_thought_signature_validator")


def test_a_signature_whose_text_was_taken_away_stands_alone():
    (said,) = contents(Message("assistant", (ProviderPart("google", {"thoughtSignature": "czE="}), TextPart("a"))))
    assert said["parts"] == [{"text": "", "thoughtSignature": "czE="}, {"text": "a"}]


def test_empty_messages_are_left_out():
    assert contents(user(""), assistant(""), user("Hi")) == [{"role": "user", "parts": [{"text": "Hi"}]}]
