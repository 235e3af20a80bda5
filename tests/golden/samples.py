"""One value of each class that users keep, with every field set."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from rxllm import chunks, tools
from rxllm import events as ev
from rxllm import values as va

DATA = {"a": [1, 2.5, None, True], "$": "tag", "pair": (1, "b"), "bytes": b"\x00\xff", 7: "seven", "nan": 1e400}
"""What JSON has no words for: a tuple, bytes, keys that are no text, infinity, and keys that the codec uses itself."""

IMAGE = va.Image("base64", "AAEC", "image/png", 2, 3, "a cat", "a tabby cat", {"k": "v"})
USAGE = va.Usage(11, 7, 3, 2, 5, 18, 0.25, 0.5, 0.75, {"web_search": 1}, {"tier": "flex"})
CALL = va.ToolCall("call_1", "add", {"x": 2, "y": "zwei"}, '{"x": 2, "y": "zwei"}', {"server": True})
TOOL = va.Tool("add", "Add numbers.", {"type": "object"}, None, True, True, {"k": "v"}, 2.5, True)
ERROR = va.AdapterError(
    "rate_limited",
    "slow down",
    provider="openai",
    status=429,
    code="rate_limit_exceeded",
    retry_after=1.5,
    request_id="req_1",
    metadata={"k": "v"},
)
PARTS = (
    va.TextPart("Hé", {"k": "v"}),
    va.ImagePart(IMAGE, "high", {"k": "v"}),
    va.ThinkingPart("hm", "c2ln", {"provider": "anthropic"}),
    va.SourcePart({"type": "url_citation", "url": "https://example.org/"}),
    va.FilePart({"mime_type": "application/pdf", "data": b"%PDF-", "name": "a.pdf"}),
    va.ToolCallPart("call_1"),
    va.ProviderPart("anthropic", {"type": "server_tool_use"}),
)
MESSAGE = va.Message("assistant", PARTS, "ann", None, (CALL,), {"id": "r", "model": "m"})
RESULT = va.Message("tool", {"sum": 4}, None, "call_1")
THREAD = va.Thread((va.system("Be brief."), va.user("2 + 2?"), MESSAGE, RESULT), {"k": "v"})
RESPONSE = va.Response(
    MESSAGE, "four", (CALL,), "length", "max_tokens", USAGE, ERROR, {"n": 4}, "resp_1", "m-1", {"k": "v"}
)
STEP = va.StepResult(THREAD, RESPONSE, (RESULT,), True, {"halted_reason": "ask_user"}, USAGE)
CHAT = va.ChatResult(THREAD, RESPONSE, (STEP,), "ask_user", "Sure?", "call_1", (CALL,), USAGE, ERROR, {"k": "v"})
SESSION = va.Session("s1", THREAD, "awaiting_user", (CALL,), "Sure?", "call_1", {"user": 7}, {"k": "v"})
SCHEMA = va.json_schema("city", {"type": "object", "properties": {"name": {"type": "string"}}})

CUT = (chunks.CompletionToolCall("b", "g", '{"cut'),)

VALUES: list[Any] = [
    IMAGE,
    va.Image("binary", b"\x89PNG"),
    va.Image("url", "https://example.org/cat.png"),
    va.ImageRequest(
        *("edit", "m", "a cat", 2, (64, 32), "high", "vivid", "opaque", "base64"),
        *((IMAGE,), IMAGE, {"k": "v"}, {"m": 1}),
    ),
    va.ImageRequest(prompt="a cat", size="1024x1024"),
    va.ImageUsage(2, "64x32", "high", 5, 6, 0.25, 0.5, 0.75),
    va.ImageResponse((IMAGE,), "img_1", "m", va.ImageUsage(1), {"k": "v"}, "req_1"),
    CALL,
    va.ToolCall("call_2", "raw", {}, '{"cut'),
    TOOL,
    va.Tool("plain", timeout=None),
    va.Tool("early", eager=True),
    va.Halt("ask_user", {"n": 1}, "Sure?", {"choices": ["yes", "no"]}, True, {"turn": 2}),
    *PARTS,
    MESSAGE,
    RESULT,
    va.Message("user", "Hi"),
    USAGE,
    RESPONSE,
    va.Response(),
    THREAD,
    va.ModelInfo(
        "m",
        True,
        True,
        False,
        False,
        True,
        8192,
        1024,
        1.25,
        10.0,
        0.125,
        1.5,
        {"k": "v"},
        False,
        True,
        ("low", "high"),
    ),
    va.Request(
        *((va.user("Hi"),), "m", (TOOL,), {"name": "add"}, 0.5, 99, ("END",), 7, "low", SCHEMA, True),
        *({"k": "v"}, {"m": 1}, 0.25),
    ),
    STEP,
    CHAT,
    SESSION,
    va.Turn(SESSION, CHAT),
    va.Turn(va.Session(), STEP),
    va.Spending(9, 0.5, 2, 3, 1, 4, 0.25),
    va.TokenCount(9, True),
    va.PrefixReport("message 2", {"messages.3.content.0": "message 2"}),
    va.Thread((), DATA),
    chunks.CompletionToolCall("call_1", "add", '{"x": 2}'),
    chunks.CompletionResponse("Hi", (chunks.CompletionToolCall("a", "f", "{}"),), "length", USAGE, "m", CUT),
]

EVENTS: list[ev.Event] = [
    ev.MessageStarted(va.Message("assistant", metadata={"id": "r", "model": "m"})),
    ev.TextDelta("Hé", "b1"),
    ev.TextCompleted("Hé", "b1"),
    ev.TextDelta("No", "b1", True),
    ev.TextCompleted("No", "b1", True),
    ev.ToolCallStarted("call_1", "add", {"server": True}),
    ev.ToolCallDelta("call_1", '{"x"'),
    ev.ToolCallCompleted("call_1", "add", {"x": 2}, '{"x":2}', {"error": "incomplete"}),
    ev.MessageCompleted(MESSAGE, "tool_calls", "tool_use", {"k": "v"}),
    ev.RawChunk("usage", {"input_tokens": 9}),  # an earlier form, see ``rxllm.events.current_form``
    ev.RawChunk("frame", DATA),
    *(ev.ErrorEvent(error) for error in (ERROR, va.StreamError("truncated", provider="openai", event_index=4))),
    ev.ToolExecutionStarted("call_1", "add", {"x": 2}),
    ev.ToolExecutionCompleted("call_1", "add", {"sum": 4}),
    ev.ToolExecutionCompleted("call_1", "add", None, va.ToolError("timeout", tool_name="add", tool_call_id="call_1")),
    ev.ToolResultEncoded("call_1", '{"sum":4}'),
    ev.ToolResultEncoded("call_1", "[image/png, 3 bytes]", (va.ImagePart(IMAGE),)),
    ev.AskUserRequested("call_1", "ask", "Sure?", {"choices": ["yes"]}),
    ev.ToolHalt("call_1", "done", {"n": 1}, "text", {"k": "v"}),
    ev.ToolHalt("call_1", "done", {"n": 1}, "text", {"k": "v"}, (va.ImagePart(IMAGE),)),
    ev.StepCompleted(STEP),
    ev.ChatCompleted(CHAT),
    ev.ThinkingDelta("hm", "b2"),
    ev.ThinkingDelta("", "b2", 40),
    ev.ThinkingCompleted("hm", "c2ln", {"provider": "anthropic"}, "b2"),
    ev.SourceAdded({"url": "https://example.org/"}),
    ev.FileAdded({"mime_type": "image/png", "data": b"\x89PNG"}),
    ev.UsageUpdated(USAGE),
    ev.ToolProgress("call_1", "add", {"done": 0.5}),
    ev.ToolApprovalRequested("call_1", "add", {"x": 2}, {"k": "v"}),
    ev.StepRestarted("timeout", 2),
    ev.Custom("mine", DATA),
    ev.Nested(("call_1", "call_2"), ev.TextDelta("deep")),
    ev.Steered(va.user("Rather in French."), False),
    ev.PartAdded(va.ProviderPart("anthropic", {"type": "server_tool_use"})),
    ev.RawChunk("server_tool_use", va.ProviderPart("anthropic", {"type": "server_tool_use"})),  # its earlier form
]

ERROR_FIELDS: dict[str, Any] = {
    "provider": "openai",
    "status": 500,
    "code": "server_error",
    "retry_after": 2.0,
    "request_id": "req_1",
    "event_index": 3,
    "errors": ((("messages", 0, "role"), "unknown"),),
    "tool_name": "add",
    "tool_call_id": "call_1",
    "run_id": "run_1",
}

ERROR_CLASSES = [getattr(va, name) for name in va.__all__ if name.endswith("Error") and name != "LLMError"]
ERRORS: list[va.LLMError] = [
    *(cls(reason) for cls in ERROR_CLASSES for reason in sorted(cls.REASONS)),
    *(
        cls(min(cls.REASONS), "why", metadata={"k": "v"}, **{name: ERROR_FIELDS[name] for name in cls.FIELDS})
        for cls in ERROR_CLASSES
    ),
]

ALL: list[Any] = [*VALUES, *EVENTS, *ERRORS]

WITHOUT_SAMPLE = {va.FunctionTool, tools.AgentTool}
"""Their JSON is that of a Tool: functions and engines have none."""


def subclasses(cls: type) -> set[type]:
    """Return the classes of rxllm that are derived from `cls`."""
    found = {other for direct in cls.__subclasses__() for other in (direct, *subclasses(direct))}
    return {other for other in found if other.__module__.partition(".")[0] == "rxllm"}


def unset_fields() -> list[str]:
    """Return the fields of values and events that hold their default in every sample, and classes without any."""
    errors = {cls for cls in subclasses(va.LLMError) if va.errors.ERROR_CLASSES.get(cls.__name__) is cls}
    classes = (subclasses(va.Value) | {*ev.EVENT_CLASSES} | errors) - WITHOUT_SAMPLE
    missing: list[str] = []
    for cls in sorted(classes, key=lambda cls: cls.__name__):
        samples = [sample for sample in ALL if type(sample) is cls]
        missing += [] if samples else [cls.__name__]
        for name, default in _defaults(cls).items():
            if all(getattr(sample, name) == default for sample in samples):
                missing.append(f"{cls.__name__}.{name}")
    return missing


def _defaults(cls: Any) -> dict[str, Any]:
    if issubclass(cls, msgspec.Struct):
        # A result that is parsed has no JSON form.
        return {field.name: field.default for field in msgspec.structs.fields(cls) if field.name != "unparsed"}
    if issubclass(cls, va.LLMError):
        return dict.fromkeys(cls.FIELDS)
    return {field.name: field.default for field in dataclasses.fields(cls) if field.name != "handler"}
