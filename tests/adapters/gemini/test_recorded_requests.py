"""The requests that were recorded beside Gemini's streams: read as values and built again, they are the same."""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from rxllm.adapters.gemini.request import gemini_body
from rxllm.values import (
    Image,
    ImagePart,
    Message,
    Part,
    Request,
    TextPart,
    Tool,
    ToolCall,
    system,
    tool_result,
)
from tests.corpus import recordings

FIELDS = {"temperature": "temperature", "maxOutputTokens": "max_tokens", "seed": "seed"}


@cache
def bodies() -> dict[str, dict[str, Any]]:
    """The bodies by the names of their streams, where they were kept."""
    root = Path(os.environ["RXLLM_STREAMS"])
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.glob("google*/*.meta.json")}
    with tarfile.open(root / "more.tar.gz") as archive:
        for member in archive:
            if member.name.endswith(".meta.json"):
                file = archive.extractfile(member)
                found[member.name.removeprefix("./")] = file.read() if file else b"{}"
    read = {name.removesuffix(".meta.json"): json.loads(text).get("request") for name, text in found.items()}
    return {name: request["body"] for name, request in read.items() if request and isinstance(request["body"], dict)}


def plain(said: Any) -> Any:
    """What was said, without nulls and what means nothing, and snake_case names as Gemini reads them."""
    if isinstance(said, list):
        return [plain(each) for each in said]
    if not isinstance(said, dict):
        return said
    renamed = {"function_declarations": "functionDeclarations", "google_search": "googleSearch"}
    named = {renamed.get(name, name): plain(held) for name, held in said.items()}
    return {name: held for name, held in named.items() if held is not None and (name, held) != ("thought", False)}


def messages(body: dict[str, Any]) -> list[Message]:
    read = [system(part["text"]) for part in body.get("systemInstruction", {}).get("parts", ())]
    calls: list[ToolCall] = []
    answered = 0
    for content in body["contents"]:
        parts: list[Part] = []
        called: list[ToolCall] = []
        for part in content["parts"]:
            match part:
                case {"text": text}:
                    parts.append(TextPart(text))
                case {"inlineData": {"mimeType": kind, "data": data}}:
                    parts.append(ImagePart(Image.from_base64(data, kind)))
                case {"functionCall": call}:
                    called.append(ToolCall(f"call_{len(calls)}", call["name"], call["args"]))
                    calls.append(called[-1])
                case {"functionResponse": answer}:
                    read.append(tool_result(f"call_{answered}", answer["response"]))
                    answered += 1
        role = "assistant" if content["role"] == "model" else "user"
        if parts or called:
            read.append(Message(role, tuple(parts), tool_calls=tuple(called)))
    return read


def schema_of(declared: dict[str, Any]) -> dict[str, Any]:
    return {"schema": declared["parameters"]} if declared.get("parameters") else {}


def request(body: dict[str, Any], model: str) -> Request:
    """The recorded body as values: what has a field goes there, the rest into the options."""
    config = dict(body.get("generationConfig", {}))
    fields: dict[str, Any] = {name: config.pop(ours) for ours, name in FIELDS.items() if ours in config}
    fields["stop"] = tuple(config.pop("stopSequences", ()))
    if "responseJsonSchema" in config:
        fields["response_format"] = {"type": "json_schema", "schema": config.pop("responseJsonSchema")}
        config.pop("responseMimeType")
    declared = [each for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
    fields["tools"] = tuple(Tool(each["name"], each.get("description", ""), **schema_of(each)) for each in declared)
    others = [tool for tool in body.get("tools", ()) if "functionDeclarations" not in tool]
    chosen = body.get("toolConfig", {}).get("functionCallingConfig")
    if chosen:
        (fields["tool_choice"],) = chosen["allowedFunctionNames"]
    options: dict[str, Any] = {"generationConfig": config} if config else {}
    options |= {"tools": others} if others else {}
    options |= {"safetySettings": body["safetySettings"]} if body.get("safetySettings") else {}
    return Request(tuple(messages(body)), model, options=options, **fields)


def expected(body: dict[str, Any]) -> dict[str, Any]:
    """The recorded body in rxllm's words: the functions' schemas as JSON schemas, as the SDK does it today."""
    said = {name: held for name, held in body.items() if held and name != "model"}
    said.get("systemInstruction", {}).pop("role", None)
    tools = said.get("tools", [])
    for declared in (each for tool in tools for each in tool.get("functionDeclarations", ())):
        schema = declared.pop("parameters", {})
        declared.setdefault("description", "")
        if schema.get("properties"):
            declared["parametersJsonSchema"] = schema
    functions = [tool for tool in tools if tool.get("functionDeclarations")]
    if tools:
        said["tools"] = functions + [tool for tool in tools if tool not in functions]
    return said


def test_the_recorded_requests_are_built_again():
    built: Counter[str] = Counter()
    for recording in recordings("gemini"):
        body = plain(bodies().get(recording.name.rpartition(".")[0].removesuffix(".payloads")))
        if not body or "contents" not in body:
            continue
        ours = gemini_body(request(body, "gemini-2.5-flash"))  # of 2.5, so that no call is marked as unsigned
        theirs = expected(json.loads(json.dumps(body)))
        assert ours == theirs, recording
        built.update(list(theirs))
    print(dict(built))  # pytest -rP shows it
    assert built["contents"] > 80
