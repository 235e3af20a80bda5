"""Values to Ollama's request: nothing is sent."""

from __future__ import annotations

import json
import os
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rxllm.adapters.ollama import Ollama
from rxllm.adapters.ollama.request import ollama_body
from rxllm.values import (
    Call,
    EngineError,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolCallPart,
    ValidationError,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)
from tests.corpus import recordings

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
ADD = tool(name="add", description="Adds", schema=SCHEMA, handler=lambda arguments: None)
NOW = tool(name="now", handler=lambda arguments: None)


def asked(*messages: Message, **fields: Any) -> dict[str, Any]:
    return msgspec.json.decode(Ollama().build(Request(messages, "m", **fields), Call()).content)


def test_the_least_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    built = Ollama().build(Request((user("Hi"),), "m"), Call())
    assert str(built.url) == "http://localhost:11434/api/chat"
    assert "authorization" not in built.headers
    assert msgspec.json.decode(built.content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }


def test_a_key_is_sent_where_there_is_one():
    built = Ollama(base_url="https://ollama.com/", api_key="k").build(Request((user("Hi"),), "m"), Call())
    assert str(built.url) == "https://ollama.com/api/chat"
    assert built.headers["authorization"] == "Bearer k"


def test_a_model_is_needed():
    with pytest.raises(EngineError) as caught:
        Ollama().build(Request((user("Hi"),)), Call())
    assert caught.value.reason == "missing_model"


def test_all_fields():
    said = asked(
        user("Hi"),
        tools=(ADD,),
        temperature=0,
        max_tokens=5,
        stop=("a",),
        seed=0,
        reasoning_effort="high",
        response_format=json_schema("x", SCHEMA),
    )
    function = {"name": "add", "description": "Adds", "parameters": SCHEMA}
    assert {name: held for name, held in said.items() if name not in ("model", "messages", "stream")} == {
        "tools": [{"type": "function", "function": function}],
        "think": "high",
        "format": SCHEMA,
        "options": {"temperature": 0, "num_predict": 5, "stop": ["a"], "seed": 0},
    }


@pytest.mark.parametrize(
    ("effort", "think"),
    [
        ("none", False),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_reasoning_effort(effort: str, think: Any):
    assert asked(user("Hi"), reasoning_effort=effort)["think"] == think


@pytest.mark.parametrize("wrong", [{"reasoning_effort": "much"}, {"response_format": "yaml"}])
def test_what_has_no_meaning(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        asked(user("Hi"), **wrong)


def test_json_without_a_schema():
    assert asked(user("Hi"), response_format={"type": "json_object"})["format"] == "json"
    for text in ("text", {"type": "text"}):
        assert "format" not in asked(user("Hi"), response_format=text)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("auto", ["add", "now"]), ("required", ["add", "now"]), ("none", []), ("now", ["now"])],
)
def test_tool_choice(choice: str, names: list[str]):
    said = asked(user("Hi"), tools=(ADD, NOW), tool_choice=choice)
    assert [each["function"]["name"] for each in said.get("tools", [])] == names


def test_options_are_merged_over_the_body():
    options = {"options": {"num_ctx": 8192, "seed": None}, "keep_alive": "5m", "think": True}
    said = asked(user("Hi"), temperature=0.5, seed=1, options=options)
    assert (said["options"], said["keep_alive"], said["think"]) == ({"temperature": 0.5, "num_ctx": 8192}, "5m", True)


def test_the_messages_of_a_tool_run():
    parts = (ThinkingPart("hm", None, {"provider": "ollama"}), TextPart("a"), ToolCallPart("a"))
    server = ToolCall("s", "h", metadata={"server": True})
    told = Message("assistant", parts, tool_calls=(ToolCall("a", "f", {"x": 1}, '{"x": 1}'), server))
    said = asked(system("S"), user("Hi"), told, tool_result("a", {"r": 1}), tool_result("b", "2"))["messages"]
    assert said == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}],
            "thinking": "hm",
        },
        {"role": "tool", "content": '{"r":1}', "tool_call_id": "a", "tool_name": "f"},
        {"role": "tool", "content": "2", "tool_call_id": "b", "tool_name": "b"},
    ]


def test_what_others_thought_is_left_out():
    parts = (ThinkingPart("hm"), ThinkingPart("hm", "s", {"provider": "anthropic"}), ProviderPart("google", {}))
    assert asked(Message("assistant", (*parts, TextPart("a"))))["messages"] == [{"role": "assistant", "content": "a"}]


def test_images(tmp_path: Path):
    file = tmp_path / "x.png"
    file.write_bytes(b"\1")
    parts = [TextPart("see"), ImagePart(Image.from_binary(b"\0", "image/png"))]
    parts += [ImagePart(Image.from_base64("AAE=", "image/png")), ImagePart(Image.from_file(file))]
    (said,) = asked(user(parts))["messages"]
    assert said == {"role": "user", "content": "see", "images": ["AA==", "AAE=", "AQ=="]}
    with pytest.raises(ValidationError):  # the server fetches nothing
        asked(user([ImagePart(Image.from_url("https://x/y.png"))]))


@cache
def bodies() -> dict[str, dict[str, Any]]:
    """The recorded requests by the names of their streams, where they were kept."""
    root = Path(os.environ["RXLLM_STREAMS"])
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.glob("ollama/*.meta.json")}
    with tarfile.open(root / "more.tar.gz") as archive:
        for member in archive:
            if member.name.endswith(".meta.json"):
                file = archive.extractfile(member)
                found[member.name.removeprefix("./")] = file.read() if file else b"{}"
    read = {name.removesuffix(".meta.json"): json.loads(text).get("request") for name, text in found.items()}
    return {name: request["body"] for name, request in read.items() if request and isinstance(request["body"], dict)}


NAMES = {"temperature": "temperature", "num_predict": "max_tokens", "seed": "seed"}


def request(body: dict[str, Any]) -> Request:
    """A recorded body as values: what has a field goes there, the rest into the options."""
    runtime = dict(body.get("options", {}))
    fields: dict[str, Any] = {ours: runtime.pop(name) for name, ours in NAMES.items() if name in runtime}
    functions = [each["function"] for each in body.get("tools", ())]
    fields["tools"] = tuple(Tool(each["name"], each["description"], each["parameters"]) for each in functions)
    fields["response_format"] = {"type": "json_object"} if body.get("format") == "json" else None
    known = ("model", "messages", "stream", "tools", "format", "options")
    options = {name: held for name, held in body.items() if name not in known}
    options |= {"options": runtime} if runtime else {}
    messages = tuple(Message(each["role"], each["content"]) for each in body["messages"])
    return Request(messages, body["model"], options=options, **fields)


def test_the_recorded_requests_are_built_again():
    built = 0
    for recording in recordings("ollama-chat"):
        body = bodies().get(recording.name.rpartition(".")[0])
        if not body:
            continue
        said = {name: held for name, held in body.items() if held not in ("", {})}
        assert ollama_body(request(body)) == {**said, "stream": True}, recording
        built += 1
    assert built >= 12
