"""The requests that were recorded beside the streams: read as values and built again, they are the same."""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from rxllm.adapters.anthropic import Anthropic
from rxllm.values import (
    Call,
    Message,
    Part,
    ProviderPart,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolCallPart,
)
from tests.corpus import recordings

MODELLED = ("model", "max_tokens", "messages", "system", "stop_sequences", "temperature", "thinking", "output_config")


@cache
def bodies() -> dict[str, dict[str, Any]]:
    """The bodies by the names of their streams, where they were kept."""
    root = Path(os.environ["RXLLM_STREAMS"])
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/*.meta.json")}
    with tarfile.open(root / "more.tar.gz") as archive:
        for member in archive:
            if member.name.endswith(".meta.json"):
                file = archive.extractfile(member)
                found[member.name.removeprefix("./")] = file.read() if file else b"{}"
    read = {name.removesuffix(".meta.json"): json.loads(text).get("request") for name, text in found.items()}
    return {name: request["body"] for name, request in read.items() if request and isinstance(request["body"], dict)}


def cache_mark(block: dict[str, Any]) -> dict[str, Any]:
    mark = block.get("cache_control")
    return {} if not mark else {"cache": mark.get("ttl", True)}


def parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def messages(said: dict[str, Any]) -> list[Message]:
    """A recorded message as values; each result is a message of its own."""
    read: list[Part] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for block in parts(said["content"]):
        match block["type"]:
            case "text":
                read.append(TextPart(block["text"], cache_mark(block)))
            case "thinking":
                read.append(ThinkingPart(block["thinking"], block["signature"], {"provider": "anthropic"}))
            case "tool_use":
                calls.append(ToolCall(block["id"], block["name"], block["input"], metadata=caller(block)))
                read.append(ToolCallPart(block["id"]))
            case "tool_result":
                metadata = {**cache_mark(block), "is_error": block.get("is_error", False)}
                results.append(Message("tool", block["content"], tool_call_id=block["tool_use_id"], metadata=metadata))
            case _:
                read.append(ProviderPart("anthropic", block))
    return results + ([Message(said["role"], tuple(read), tool_calls=tuple(calls))] if read else [])


def caller(block: dict[str, Any]) -> dict[str, Any]:
    return {"anthropic": {"caller": block["caller"]}} if "caller" in block else {}


def tool(said: dict[str, Any]) -> Tool:
    own = {k: v for k, v in said.items() if k not in ("name", "description", "input_schema", "cache_control")}
    metadata = {"anthropic": own, **cache_mark(said)}
    return Tool(said["name"], said.get("description", ""), said.get("input_schema", {}), metadata=metadata)


def request(body: dict[str, Any]) -> Request:
    system = (Message("system", (TextPart(each["text"], cache_mark(each)),)) for each in parts(body.get("system", [])))
    choice = body.get("tool_choice", {})
    is_adaptive = body.get("thinking") == {"type": "adaptive"}
    return Request(
        (*system, *(message for each in body["messages"] for message in messages(each))),
        body.get("model", "m"),
        tools=tuple(tool(each) for each in body.get("tools", ())),
        tool_choice=choice.get("name") or choice.get("type"),
        temperature=body.get("temperature"),
        max_tokens=body["max_tokens"],
        stop=tuple(body.get("stop_sequences", ())),
        reasoning_effort=body.get("output_config", {}).get("effort") if is_adaptive else None,
        options={"thinking": body["thinking"]} if body.get("thinking") else {},
    )


def plain(held: Any) -> Any:
    """One of the ways in which the same can be said: text as blocks, no defaults."""
    match held:
        case dict():
            kept = {k: plain(v) for k, v in held.items() if k != "is_error" or v}
            return {**kept, "content": plain(parts(kept["content"]))} if "content" in kept else kept
        case list():
            return [plain(each) for each in held]
        case _:
            return held


def normal(body: dict[str, Any]) -> dict[str, Any]:
    said = {"model": "m", **{name: body[name] for name in (*MODELLED, "tools", "tool_choice") if name in body}}
    if isinstance(said.get("system"), list) and not any("cache_control" in each for each in said["system"]):
        said["system"] = "\n\n".join(each["text"] for each in said["system"])
    return plain({name: held for name, held in said.items() if held != ""})


def test_the_recorded_requests_are_built_again():
    kept = Counter[str]()
    for recording in recordings("anthropic-messages"):
        body = bodies().get(recording.name.rsplit(".", 1)[0])
        if body is None:
            continue
        built = msgspec.json.decode(Anthropic(api_key="k").build(request(body), Call()).content)
        assert normal(built) == normal(body), recording
        kept.update(body.keys())
    assert kept["messages"] > 200
    assert kept.keys() >= {"system", "tools", "tool_choice", "thinking", "temperature", "stop_sequences"}
