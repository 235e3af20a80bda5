"""The rules of what is sent: a request of words that occur nowhere else, each of which must reach the service."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rxllm.testing._rule_table import expect
from rxllm.values import Image, Message, Tool, ToolCall, json_schema, system, tool_result, user
from rxllm.values.responses import shorten

if TYPE_CHECKING:
    from rxllm.testing.loopback import Request as Sent

SENT_RULES: dict[str, str] = {
    "sends_system": "the system prompt is sent",
    "sends_user": "the user's text is sent",
    "sends_assistant": "the model's earlier text is sent back",
    "sends_arguments": "the arguments of an earlier tool call are sent back",
    "sends_result": "a tool's result is sent",
    "sends_tool_name": "a tool's name is sent",
    "sends_tool_description": "a tool's description is sent",
    "sends_tool_schema": "a tool's schema is sent",
    "sends_call_id": "a tool's result names its call, if the call has an id",
    "sends_temperature": "temperature is sent, as a JSON number",
    "sends_options": "options={...} are passed through",
    "sends_key": "the call's api_key is sent in a header or the address, and not in the body",
    "sends_max_tokens": "max_tokens is sent, or refused",
    "sends_stop": "stop is sent, or refused",
    "sends_tool_choice": "tool_choice is sent, or refused",
    "sends_response_format": "response_format is sent, or refused",
    "sends_picture": "a picture is sent, or refused",
    "hides_key": "the call's api_key is not in the address, which logs keep",
}
"""What must be in the request that an adapter sends, by the rules' names."""

KEY = "sk-conformance-0123456789abcdef"
TEMPERATURE = 0.125


def word(rule: str) -> str:
    """Return the word that the rule looks for, as in ``canary_system``."""
    return rule.replace("sends_", "canary_")


CALL = ToolCall(word("sends_call_id"), "f", {"x": word("sends_arguments")})

MESSAGES = (
    system(word("sends_system")),
    user(word("sends_user")),
    Message("assistant", word("sends_assistant"), tool_calls=(CALL,)),
    tool_result(CALL.id, word("sends_result")),
)

SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "description": word("sends_tool_schema")}}}

# The earlier call names another tool, so that its name alone does not show that the tools are sent.
TOOLS = (Tool("f", "A tool."), Tool(word("sends_tool_name"), word("sends_tool_description"), SCHEMA))

OPTIONS = {"canary": word("sends_options")}


PICTURE = user("Look!", Image.from_base64("iVBORw0KGgpjYW5hcnk=", "image/png"))

# Each adapter has a word of its own for these, so that only the difference is looked for.
VARIATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sends_max_tokens": ({}, {"max_tokens": 4321}),
    "sends_stop": ({}, {"stop": (word("sends_stop"),)}),
    "sends_tool_choice": ({}, {"tool_choice": word("sends_tool_name")}),
    "sends_response_format": ({}, {"response_format": json_schema("canary", SCHEMA)}),
    "sends_picture": ({"messages": (*MESSAGES, user("Look!"))}, {"messages": (*MESSAGES, PICTURE)}),
}
"""What the two requests of a rule have besides: one without, one with what it looks for."""


def expect_difference(rule: str, before: Sequence[Sent], after: Sequence[Sent]) -> None:
    """Raise ``AssertionError`` unless what the rule adds has changed the requests."""
    __tracebackhide__ = True
    plain, varied = ([(request.path, request.body) for request in requests] for requests in (before, after))
    expect(plain != varied, f"the same is sent with it as without: {shorten(str(varied), 120)}")


def expect_sent(rule: str, requests: Sequence[Sent]) -> None:
    """Raise ``AssertionError`` unless the requests have what the rule looks for."""
    __tracebackhide__ = True
    heads = " ".join(f"{request.path} {request.headers}" for request in requests)
    body = " ".join(request.body.decode(errors="replace") for request in requests)
    match rule:
        case "sends_key":
            names = sorted({name for request in requests for name in request.headers})
            expect(KEY in heads, f"the key is in neither the address nor one of the headers {', '.join(names)}")
            expect(KEY not in body, "the key is in the body")
        case "hides_key":
            expect(all(KEY not in request.path for request in requests), "the key is in the address")
        case "sends_call_id":
            id = word(rule)
            expect(body.count(id) != 1, "the call is sent with its id, and its result is not")
        case "sends_temperature":
            number = rf"[:,\[]\s*{TEMPERATURE}\s*[,}}\]]"
            expect(bool(re.search(number, body)), f"the number {TEMPERATURE} is not in {shorten(body, 120)}")
        case _:
            expect(word(rule) in heads + body, f"{word(rule)!r} is not in {shorten(body, 120)}")
