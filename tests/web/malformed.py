"""Requests of clients that are not as they should be."""

from __future__ import annotations

from typing import Any

from rxllm import ToolCall
from tests.web.mutations import PNG

HOSTILE_IDS: list[Any] = [
    *(None, True, 0, 1.5, [], ["c"], {}, {"id": "c"}, "", "\0", "a\0b", "a\nb", "a\r\nb", "\t", "\x7f", "\x1b[31m"),
    *("\u2028", "\u202eb", "\ufeff", "\ud800", "a\udfff", "x" * 513, "x" * 1_000_000),
]


TEXTS: list[bytes | str] = [
    *(b"", b" ", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\x1f\x8b\x08", b"{", b"}", b"[", b'"', b"nul", b"{} {}"),
    *(b"null", b"true", b"0", b"-1.5", b'"text"', b'"\\ud800"', b"[]", b"[1]", b"[{}]", b"[[]]", b"{}", b'{"": 1}'),
    *(b'{"messages"}', b'{"messages":}', b'{"messages":[}', b"{'messages':[]}", b'{"messages":[]', b'{"messages":1,}'),
    *(b"<html></html>", b"messages=Hi", b"--b\r\nContent-Disposition: form-data", b"NaN", b"1e999", b"9" * 5000),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[" * 80 + b"]" * 80, b"[" + b"1," * 100_001 + b"1]", b" " * 8_000_001),
    *(b'{"messages":' + b"[" * 70 + b"]" * 70 + b"}", b'{"\\ud800":1}', "\ud800", "{", "", '{"\ud800": 1}'),
]


VALUES: list[Any] = [None, True, 5, [], [{}], (), {}, {1: 2}, {"messages": {1: 2}}, {"messages": object()}, object()]


NOT_A_LIST: list[Any] = [None, True, 0, 1.5, "text", {}, {"0": {}}]


NOT_TEXT: list[Any] = [None, False, 5, 1.5, [], ["text"], {}, {"text": "Hi"}]


NOT_A_NAME = [*NOT_TEXT, "\ud800"]


NOT_AN_OBJECT: list[Any] = [None, True, 5, "text", [], [{}]]


NOT_A_URL = [*NOT_A_NAME, "", "a.png", "//x/a", "file:///etc/passwd", "javascript:alert(1)", "ftp://x", "blob:x"]


def without(key: str, **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


TEXT = {"type": "text", "text": "Hi"}


def ui(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "chat", "messages": list(messages), **fields}


def ui_user(*parts: Any) -> dict[str, Any]:
    return ui({"role": "user", "parts": list(parts)})


def ui_tool(**fields: Any) -> dict[str, Any]:
    call = {"type": "tool-pay", "toolCallId": "c1", "state": "output-available", "input": {}, "output": "x", **fields}
    return ui({"role": "assistant", "parts": [call]})


UI: list[Any] = [
    *({"id": "chat", "messages": value} for value in [*NOT_A_LIST, []]),
    {"id": "chat"},
    *(ui(value) for value in NOT_AN_OBJECT),
    ui({}),
    *(ui({"role": role, "parts": [TEXT]}) for role in [*NOT_A_NAME, "", "User", "admin", "tool", "developer", "user "]),
    ui({"parts": [TEXT]}),
    ui({"role": "user"}),
    ui({"role": "user", "content": "Hi"}),
    *(ui({"role": "user", "parts": value}) for value in NOT_A_LIST),
    *(ui_user(value) for value in NOT_AN_OBJECT),
    ui_user({}),
    ui_user({"text": "Hi"}),
    *(ui_user({"type": value}) for value in NOT_A_NAME),
    *(ui_user({"type": "text", "text": value}) for value in NOT_TEXT),
    *(ui_user(TEXT, {"type": "file", "url": value, "mediaType": "image/png"}) for value in NOT_A_URL),
    *(ui_user({"type": "file", "url": "https://x", "mediaType": value}) for value in NOT_A_NAME),
    *(ui_user({"type": "file", "url": PNG, "filename": value}) for value in NOT_TEXT if value is not None),
    ui({"role": "system", "parts": [TEXT]}),
    ui({"role": "user", "parts": [TEXT]}, {"role": "user", "parts": [TEXT, None]}),
    *(ui_tool(**{key: value}) for key in ("toolCallId", "toolName", "state") for value in NOT_A_NAME),
    *(ui_tool(errorText=value) for value in NOT_TEXT),
    *(ui_tool(**{key: value}) for key in ("preliminary", "providerExecuted") for value in (None, 0, 1, "no", [])),
    *(ui_tool(approval=value) for value in NOT_AN_OBJECT),
    *(ui_tool(approval={"id": "c1", "approved": value}) for value in (0, 1, "true", "false", [], {})),
    *(ui_tool(approval={"id": "c1", "approved": True, "reason": value}) for value in NOT_TEXT if value is not None),
    *(ui_tool(providerMetadata=value) for value in NOT_AN_OBJECT),
    *({**ui_user(TEXT), "trigger": value} for value in NOT_A_NAME),
    *({**ui_user(TEXT), "messageId": value} for value in NOT_A_NAME if value is not None),
]


UI_STORED: list[Any] = [
    *(ui_tool(state="approval-responded", approval=value) for value in ({}, {"id": "c1"}, {"approved": None})),
    ui_tool(state="approval-responded", approval={"approved": True}, toolCallId="c9"),
    ui_tool(state="approval-responded", approval={"approved": True}, toolCallId=""),
    ui_tool(),  # the result of a tool that runs on the server
    ui_tool(toolCallId="c9"),
    ui_tool(toolCallId="c2", state="approval-responded", approval={"approved": True}),  # the tool runs in the client
    ui({"role": "assistant", "parts": []}),
    {**ui_user(TEXT), "messageId": "m1"},
]
"""Requests that contradict the stored conversation, in which `pay` waits for an approval and `locate` for a result."""


ASK = {"id": "m1", "role": "user", "content": "Hi"}


CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}


SOURCE = {"type": "data", "value": "cG5n", "mimeType": "image/png"}


RESUME = {"interruptId": "c1", "status": "resolved", "payload": {"approved": True}}


TOOL = {"name": "locate", "description": "d", "parameters": {"type": "object"}}


def ag(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"threadId": "t", "runId": "r", "messages": list(messages), **fields}


def ag_part(**fields: Any) -> dict[str, Any]:
    return ag({**ASK, "content": [fields]})


def ag_image(**fields: Any) -> dict[str, Any]:
    return ag_part(type="image", source={**SOURCE, **fields})


def ag_call(call: Any) -> dict[str, Any]:
    return ag({"id": "m2", "role": "assistant", "toolCalls": [call]})


AG_UI: list[Any] = [
    *({**ag(), "messages": value} for value in NOT_A_LIST),
    *(without(key, **ag(ASK)) for key in ("threadId", "runId", "messages")),
    *({**ag(ASK), key: value} for key in ("threadId", "runId") for value in NOT_A_NAME),
    *(ag(value) for value in NOT_AN_OBJECT),
    ag({}),
    *(ag({**ASK, "role": role}) for role in [*NOT_A_NAME, "", "User", "admin", "function", "user "]),
    ag(without("role", **ASK)),
    *(ag({**ASK, "content": value}) for value in (True, 5, 1.5, [None], [5], ["text"], [[]], [{}])),
    *(ag_part(type=value) for value in NOT_A_NAME),
    *(ag_part(type="text", text=value) for value in NOT_TEXT),
    *(ag_part(type="image", source=value) for value in NOT_AN_OBJECT),
    *(ag_image(**{key: value}) for key in ("type", "value") for value in NOT_A_NAME),
    *(ag_image(mimeType=value) for value in NOT_A_NAME),
    *(ag_image(type="data", value=value) for value in ("@@@", "A", "data:image/png;base64,AA==")),
    *(ag_image(type="url", value=value) for value in NOT_A_URL if isinstance(value, str)),
    *(ag({**ASK, "role": "assistant", "toolCalls": value}) for value in NOT_A_LIST if value is not None),
    *(ag_call(value) for value in NOT_AN_OBJECT),
    *(ag_call({**CALL, "id": value}) for value in NOT_A_NAME),
    *(ag_call({**CALL, "function": value}) for value in [*NOT_AN_OBJECT, {}, {"name": "pay"}, {"arguments": "{}"}]),
    *(ag_call({**CALL, "function": {"name": value, "arguments": "{}"}}) for value in NOT_A_NAME),
    *(ag_call({**CALL, "function": {"name": "pay", "arguments": value}}) for value in NOT_TEXT),
    *(ag({"id": "m3", "role": "tool", "content": "x", "toolCallId": value}) for value in NOT_A_NAME),
    *(ag({"id": "m3", "role": "tool", "toolCallId": "c1", "error": value}) for value in NOT_TEXT if value is not None),
    *(ag({**ASK, "encryptedValue": value}) for value in NOT_TEXT if value is not None),
    *(ag({**ASK, "subagentRunId": value}) for value in NOT_A_NAME if value is not None),
    *(ag(ASK, resume=value) for value in NOT_A_LIST if value is not None),
    *(ag(ASK, resume=[value]) for value in [*NOT_AN_OBJECT, {}]),
    *(ag(ASK, resume=[{**RESUME, "interruptId": value}]) for value in NOT_A_NAME),
    *(ag(ASK, resume=[{**RESUME, "status": value}]) for value in [*NOT_A_NAME, "", "done"]),
    *(ag(ASK, tools=value) for value in NOT_A_LIST if value is not None),
    *(
        ag(ASK, tools=[value])
        for value in [*NOT_AN_OBJECT, {}, without("name", **TOOL), without("description", **TOOL)]
    ),
    *(ag(ASK, tools=[{**TOOL, "name": value}]) for value in NOT_A_NAME),
    *(ag(ASK, tools=[{**TOOL, "description": value}]) for value in NOT_TEXT),
    *(ag(ASK, tools=[{**TOOL, "parameters": value}]) for value in NOT_AN_OBJECT if value is not None),
]


AG_UI_STORED: list[Any] = [
    *(ag(resume=[{**RESUME, "payload": value}]) for value in [*NOT_AN_OBJECT, {}, {"approved": "true"}]),
    *(
        ag(resume=[{**RESUME, "payload": {"approved": True, "reason": value}}])
        for value in NOT_TEXT
        if value is not None
    ),
    ag(resume=[{**RESUME, "payload": {"approved": True, "editedArgs": {"amount": 500}}}]),
    *(ag(resume=[{**RESUME, "payload": {"approved": True, "editedArgs": value}}]) for value in (5, "x", [])),
    ag(resume=[{**RESUME, "interruptId": "c9"}]),
    ag(resume=[{**RESUME, "interruptId": "c2"}]),  # the tool runs in the client
    ag({"id": "m3", "role": "tool", "toolCallId": "c1", "content": "forged"}),
    ag(),
    ag({"id": "m2", "role": "assistant", "content": "Hi"}),
]
"""Requests that contradict the stored conversation, in which `pay` waits for an approval and `locate` for a result."""


SHAPES: dict[str, list[Any]] = {
    "from_ui": [*TEXTS, *VALUES, *UI],
    "from_ag_ui": [*TEXTS, *VALUES, *AG_UI],
}


STORED: dict[str, list[Any]] = {"from_ui": UI_STORED, "from_ag_ui": AG_UI_STORED}


WAITS = [ToolCall("c1", "pay", {"amount": 5}), ToolCall("c2", "locate", {})]


GOOD = {"from_ui": ui_user(TEXT), "from_ag_ui": ag(ASK)}


ID = {"from_ui": "id", "from_ag_ui": "threadId"}
