"""Tool calls for models whose chat template does not support tools.

The tools are written as examples in the prompt, and the model replies with JSON. The prompt depends on what follows the
last user message:

======================================================  ===========================================================
thread                                                  prompt and reply
======================================================  ===========================================================
Tool results follow.                                    The prompt contains the question, and the results as facts.
                                                        The reply is text.
No tool results follow, and tools can be called.        The prompt contains one example for each tool: the tool's
                                                        description is the question, and a call to it is the
                                                        answer. The thread follows. The reply is the JSON of one
                                                        call.
No tool results follow, and no tools can be called.     The prompt is the text of the thread. The reply is text.
======================================================  ===========================================================

SmolLM2-135M is good at choosing a tool from examples, but bad at choosing one from a list. It cannot decide whether to
call a tool or to answer, so it always calls a tool if the tool choice is ``"auto"``. If the tool choice is ``"none"``,
the model never calls one.

The JSON is ``{"name": "add", "arguments": {...}}``, with the keys in this order. Closing braces are held back, because
the last one closes the outer object rather than the arguments. A reply that is not a call is emitted as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.events import (
    ErrorEvent,
    Event,
    MessageCompleted,
    MessageStarted,
    RawChunk,
    TextCompleted,
    TextDelta,
    UsageUpdated,
)
from rxllm.http import Decoder
from rxllm.values import Message, Request, Tool, ToolCall, assistant, json_schema, system, user
from rxllm.wire.event_order import Blocks
from rxllm.wire.tool_calls import CallTracker

CALL = "Name the function for each request."
ANSWER = "Repeat the fact as the answer to the question, in one short sentence."
ANSWERS = (
    user("Question: How much is 61 minus 7?\n\nFact: subtract 61 7 is 54"),
    assistant("61 minus 7 is 54."),
    user("Question: What is the capital of Peru?\n\nFact: capital Peru is Lima"),
    assistant("The capital of Peru is Lima."),
)
ANSWER_TOKENS = 200
"""The default `max_tokens` for models that might never stop by themselves."""

# Without these limits, a model that repeats itself might never end a string or an array.
MAX_LENGTH = 200
MAX_ITEMS = 8


def must_call(request: Request) -> bool:
    return bool(_select_tools(request)) and not _latest_results(request.messages)


def write_tools_as_text(request: Request) -> Request:
    """Return `request` with its tools and tool messages written as text. If tools can be called, add a schema."""
    tools, results = _select_tools(request), _latest_results(request.messages)
    plain = replace(request, tools=(), tool_choice=None)
    if results:
        plain = replace(plain, messages=_ask_for_answer(request.messages, results))
        return replace(_fix_sampling(plain), max_tokens=request.max_tokens or ANSWER_TOKENS)
    if not tools:
        return replace(plain, messages=tuple(_as_text(request.messages, calls=False)))
    # Put the most likely tool last, because the last example has the most influence.
    ranked = sorted(tools, key=lambda tool: _count_shared_words(tool, request.messages))
    pairs = ((user(tool.description or tool.name), assistant(_call_json(tool.name, {}))) for tool in ranked)
    examples = (message for pair in pairs for message in pair)
    messages = (_system(request.messages, CALL), *examples, *_as_text(_without_system(request.messages), calls=True))
    return _fix_sampling(replace(plain, messages=messages, response_format=json_schema("call", call_schema(tools))))


def call_schema(tools: tuple[Tool, ...]) -> dict[str, Any]:
    """Return the JSON schema for a call, with the name first.

    >>> call_schema((Tool("now"),))["properties"]["name"]
    {'const': 'now'}
    """
    shared: dict[str, Any] = {}
    calls = [_call_schema(tool, shared) for tool in tools]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return schema | ({"$defs": shared} if shared else {})


def _call_schema(tool: Tool, shared: dict[str, Any]) -> dict[str, Any]:
    schema = cast(dict[str, Any], _add_bounds(tool.schema, f"{tool.name}_"))
    shared |= {f"{tool.name}_{name}": definition for name, definition in schema.pop("$defs", {}).items()}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": schema},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _add_bounds(schema: Any, prefix: str) -> Any:
    if isinstance(schema, list):
        return [_add_bounds(item, prefix) for item in cast(list[Any], schema)]
    if not isinstance(schema, Mapping):
        return schema
    bounded = {name: _add_bounds(value, prefix) for name, value in cast(Mapping[str, Any], schema).items()}
    if isinstance(bounded.get("$ref"), str):
        bounded["$ref"] = bounded["$ref"].replace("#/$defs/", f"#/$defs/{prefix}")
    match bounded.get("type"):
        case "string" if not bounded.keys() & {"enum", "const", "pattern", "format"}:
            bounded.setdefault("maxLength", MAX_LENGTH)
        case "array":
            bounded.setdefault("maxItems", MAX_ITEMS)
        case "object" if not bounded.get("properties"):
            bounded.setdefault("additionalProperties", False)
        case _:
            pass
    return bounded


def _select_tools(request: Request) -> tuple[Tool, ...]:
    match request.tool_choice:
        case "none":
            return ()
        case None | "auto" | "required":
            return request.tools
        case {"function": {"name": name}} | {"name": name} | name:
            return tuple(tool for tool in request.tools if tool.name == name)


def _count_shared_words(tool: Tool, messages: tuple[Message, ...]) -> int:
    question = next((message.text for message in reversed(messages) if message.role == "user"), "")
    properties: dict[str, dict[str, Any] | bool] = tool.schema.get("properties", {})
    fields = (field for field in properties.values() if isinstance(field, dict))
    has_number = any(field.get("type") in ("integer", "number") for field in fields)
    shared = _words(question) & _words(f"{tool.name} {tool.description} {' '.join(properties)}")
    return len(shared) + (has_number and any(map(str.isdigit, question)))


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[^\W\d_]+", text.lower()) if len(word) > 2}


def _latest_results(messages: tuple[Message, ...]) -> list[Message]:
    results: list[Message] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "tool":
            results.insert(0, message)
    return results


def _ask_for_answer(messages: tuple[Message, ...], results: list[Message]) -> tuple[Message, ...]:
    calls = {call.id: call for message in messages for call in message.tool_calls}
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
    question = messages[last].text if messages[last].role == "user" else ""
    facts = "\n".join(f"Fact: {_describe_fact(calls.get(result.tool_call_id or ''), result)}" for result in results)
    earlier = _as_text(_without_system(messages[:last]), calls=False)
    return (_system(messages, ANSWER), *ANSWERS, *earlier, user(f"Question: {question}\n\n{facts}"))


def _describe_fact(call: ToolCall | None, result: Message) -> str:
    if call is None:
        return _result_text(result)
    subject = call.name.removeprefix("get_").replace("_", " ")
    return " ".join([subject, *(str(value) for value in call.arguments.values()), "is", _result_text(result)])


def _result_text(result: Message) -> str:
    content = result.content
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            return result.text
    if isinstance(content, dict):
        return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in cast(dict[str, Any], content).items())
    return result.text


def _as_text(messages: tuple[Message, ...], *, calls: bool) -> Iterator[Message]:
    """Yield the thread's messages as text, without tool results.

    If `calls` is true, an assistant message that has tool calls becomes the JSON of the first call.
    """
    after_assistant = False
    for message in messages:
        if message.role == "tool":
            continue
        text = message.text
        if message.role == "assistant":
            if calls and message.tool_calls:
                text = _call_json(message.tool_calls[0].name, message.tool_calls[0].arguments)
            if not text or (calls and after_assistant):
                continue
        after_assistant = message.role == "assistant"
        yield Message(message.role, text)


def _without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(message for message in messages if message.role != "system")


def _system(messages: tuple[Message, ...], task: str) -> Message:
    return system("\n".join([*(message.text for message in messages if message.role == "system"), task]))


def _call_json(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": dict(arguments)}, default=str)


def _fix_sampling(request: Request) -> Request:
    temperature = 0.0 if request.temperature is None else request.temperature
    return replace(request, temperature=temperature, seed=0 if request.seed is None else request.seed)


_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:\s*')
_TAIL = re.compile(r"[\s}]*")
"""Matches the end of a call, read backwards."""


class CallDecoder:
    """Wraps a Chat Completions decoder, and turns the answer's text into a tool call."""

    def __init__(self, inner: Decoder, request: Request) -> None:
        self._inner = inner
        self._blocks = Blocks(CallTracker.after(request.messages))
        self._id = f"call_{sum(len(message.tool_calls) for message in request.messages)}"
        self._name: str | None = None
        self._text = ""
        self._begun = False  # True once the first arguments have been reported

    def feed(self, data: bytes) -> list[Event]:
        return self._convert(self._inner.feed(data))

    def close(self) -> list[Event]:
        return self._convert(self._inner.close())

    def _convert(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._read_event(event)
        return self._blocks.take()

    def _read_event(self, event: Event) -> None:
        blocks = self._blocks
        match event:
            case MessageStarted(message=message):
                blocks.start(**message.metadata)
            case TextDelta(delta=delta):
                self._read_text(delta)
            case TextCompleted():
                pass
            case UsageUpdated(usage=usage):
                blocks.usage(usage)
            case RawChunk(kind=kind, data=data):
                blocks.raw(kind, data)
            case ErrorEvent(error=error):
                self._flush(whole=False)
                blocks.error(error)
            case MessageCompleted():
                self._flush(whole=event.finish_reason == "stop")
                blocks.finish(event.finish_reason, event.raw_finish_reason)
                blocks.note(event.metadata)
                blocks.end(over=True)
            case _:
                blocks.event(event)

    def _read_text(self, text: str) -> None:
        self._text += text
        if self._name is None:
            head = _HEAD.match(self._text)
            if head is None:
                return
            self._name, self._text = head[1], self._text[head.end() :]
            self._blocks.call(0, self._id, self._name, None)
        if not self._begun:
            self._text = self._text.lstrip()
        tail = _TAIL.match(self._text[::-1])
        self._report(len(self._text) - (tail.end() if tail else 0))

    def _report(self, length: int) -> None:
        if length:
            self._begun = True
            self._blocks.call(0, self._id, None, self._text[:length])
            self._text = self._text[length:]

    def _flush(self, *, whole: bool) -> None:
        if self._name is None:
            self._blocks.text(self._text)
        else:
            self._report(len(self._text.rstrip().removesuffix("}").rstrip() if whole else self._text))
