"""Convert a request to the body of ``streamGenerateContent``: https://ai.google.dev/api/generate-content.

System messages become ``systemInstruction``. Assistant messages become ``model`` turns, and other messages become
``user`` turns (https://ai.google.dev/api/caching#Content). Consecutive tool results share a turn. A part that has a
``thoughtSignature`` is sent back unchanged (https://ai.google.dev/gemini-api/docs/thought-signatures). Parts that were
signed by other providers are left out.

A user message can contain files of any type, because Gemini itself rejects the types that it does not support. To send
an uploaded file, pass its URL (https://ai.google.dev/gemini-api/docs/file-input-methods).
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from rxllm.adapters._requests import (
    Carries,
    drop_last_thoughts,
    invalid_field,
    merge,
    mime_type_of,
    response_format,
    select_parts,
    sent_arguments,
    without_none,
)
from rxllm.adapters._sent_schemas import GEMINI, narrowed, takes_arguments
from rxllm.adapters.gemini.frames import PROVIDER
from rxllm.values import (
    FilePart,
    Image,
    ImagePart,
    Message,
    Part,
    ProviderPart,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    ToolCallPart,
    ValidationError,
)
from rxllm.values.json_text import read_object
from rxllm.values.usage import whole

UNSIGNED = "skip_thought_signature_validator"
"""The signature to send with a call that Gemini did not make.

Gemini 3 requires a signature on the first call of each turn
(https://docs.cloud.google.com/vertex-ai/generative-ai/docs/thought-signatures). This value has not been tested against
Google's server.
"""

_TYPES = ("image", "pdf", "text file", "wav", "mp3", "audio", "video", "file")

CARRIES: Carries = {
    "system": {"text"},
    "user": {"text", "own part"} | {f"{kind}{by}" for kind in _TYPES for by in ("", " by url")},
    "assistant": {"text", "tool call", "own thinking", "own part", "image", "image by url", "signed file"},
    "tool": {"text", "image", "image by url", "pdf", "pdf by url"},
}

_TAKES_NO_SIGNATURE = re.compile(r"gemini-[12]\b|^(?!.*gemini)")
_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_EXCLUDES_TOOLS = re.compile(r"(.*/)?gemini-[12]\b")
"""Matches the models that refuse a request with both functions and a response format."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def gemini_body(request: Request) -> dict[str, Any]:
    request = select_parts(request, "Gemini", PROVIDER, CARRIES)
    model = request.model or ""
    if request.tool_choice == "none" and response_format(request) is not None and _EXCLUDES_TOOLS.match(model):
        request = replace(request, tools=(), tool_choice=None)
    body = {
        "contents": contents_of(request.messages, model),
        "systemInstruction": system_of(request.messages),
        "tools": [{"functionDeclarations": [_tool(tool) for tool in request.tools]}] if request.tools else None,
        "toolConfig": _tool_config(request.tool_choice),
        "generationConfig": without_none(
            temperature=request.temperature,
            topP=request.top_p,
            maxOutputTokens=request.max_tokens,
            stopSequences=list(request.stop) or None,
            seed=request.seed,
            thinkingConfig=_thinking(request.reasoning_effort, model),
            **_response_format(request),
        ),
    }
    options = dict(request.options)
    if isinstance(options.get("tools"), list):
        options["tools"] = [*(body["tools"] or ()), *options["tools"]]
    merged = merge(body, options)
    return {name: value for name, value in merged.items() if value or name == "contents"}


def candidate_count(request: Request) -> int:
    """Return how many candidates `request` asks for, in its options."""
    config = request.options.get("generationConfig")
    return whole(cast(dict[str, Any], config).get("candidateCount")) or 1 if isinstance(config, dict) else 1


def count_body(request: Request, *, is_vertex: bool = False) -> dict[str, Any]:
    """Return the body for ``countTokens``. Vertex AI expects a different form."""
    body, model = gemini_body(request), request.model or ""
    if is_vertex:
        fields = ("contents", "systemInstruction", "tools", "generationConfig")
        return {name: body[name] for name in fields if name in body}
    return {"generateContentRequest": {"model": model if "/" in model else f"models/{model}", **body}}


def _tool(tool: Tool) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": tool.name, "description": tool.description}
    # A function that has no parameters must have no schema.
    return entry | ({"parametersJsonSchema": tool.schema} if takes_arguments(tool.schema) else {})


def _tool_config(choice: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if choice is None or isinstance(choice, dict):
        return choice
    config: dict[str, Any] = {"mode": _MODES.get(choice, "ANY")}
    if choice not in _MODES:
        config["allowedFunctionNames"] = [choice]
    return {"functionCallingConfig": config}


def _thinking(effort: str | None, model: str) -> dict[str, Any] | None:
    # Gemini 2.5 accepts a budget. Later models accept a level: https://ai.google.dev/gemini-api/docs/thinking.
    if effort is None:
        return None
    if effort not in _BUDGETS:
        raise invalid_field("reasoning_effort", effort, f"one of {', '.join(_BUDGETS)}")
    if re.search(r"gemini-2\b", model):
        return {"thinkingBudget": _BUDGETS[effort], "includeThoughts": effort != "none"}
    # In later models, thinking cannot be turned off.
    level = {"none": "MINIMAL", "max": "XHIGH"}.get(effort, effort.upper())
    return {"thinkingLevel": level, "includeThoughts": effort != "none"}


def _response_format(request: Request) -> dict[str, Any]:
    form = response_format(request)
    if form is None:
        return {}
    schema = {"responseJsonSchema": narrowed(form["schema"], GEMINI)} if "schema" in form else {}
    return {"responseMimeType": "application/json", **schema}


def system_of(messages: Iterable[Message]) -> dict[str, Any] | None:
    texts = [{"text": message.text} for message in messages if message.role == "system" and message.text]
    return {"parts": texts} if texts else None


def contents_of(messages: Iterable[Message], model: str) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    made: list[tuple[Message, list[dict[str, Any]]]] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role != "system":
            made.append((message, _parts(message, calls, model)))
    drop_last_thoughts(made, lambda part: part.get("thought"))
    after_result = False
    for message, parts in made:
        if parts and after_result and message.role == "tool":
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": "model" if message.role == "assistant" else "user", "parts": parts})
        after_result = bool(parts) and message.role == "tool"
    return contents


def _parts(message: Message, calls: dict[str, ToolCall], model: str) -> list[dict[str, Any]]:
    match message.role:
        case "tool":
            return [_tool_result(message, calls.get(message.tool_call_id or ""))]
        case "assistant":
            return _assistant_parts(message, signed=_TAKES_NO_SIGNATURE.search(model) is None)
        case _:
            return [entry for part in message.parts if (entry := _part(part)) is not None]


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart(text=str(text)) if text:
            return {"text": text}
        case ImagePart(image=image):
            return image_part(image)
        case ProviderPart(provider="google", data=data):
            return dict(data)
        case FilePart(file=file):
            return _file(file)
        case _:
            return None


def image_part(image: Image) -> dict[str, Any]:
    """Return the image as ``fileData`` if it is a URL, or else as ``inlineData``.

    Raises ``ValidationError("invalid_image_request")`` if the image is not a URL and has no MIME type.
    """
    if image.source == "url":
        url = str(image.data)
        mime_type = image.mime_type or mimetypes.guess_type(url.partition("?")[0])[0]
        return {"fileData": {"fileUri": url, **({"mimeType": mime_type} if mime_type else {})}}
    if image.mime_type is None:
        raise ValidationError("invalid_image_request", errors=[(("source",), "missing_mime_type")])
    return {"inlineData": {"mimeType": image.mime_type, "data": image.to_base64()}}


def _file(file: dict[str, Any]) -> dict[str, Any] | None:
    data, mime_type, signature = file.get("data"), mime_type_of(file), file.get("thoughtSignature")
    if not isinstance(data, bytes):
        return {"fileData": {"fileUri": file["url"], "mimeType": mime_type}} if file.get("url") else None
    part = image_part(Image.from_binary(data, mime_type))
    part |= {"thought": True} if file.get("thought") else {}
    return part | ({"thoughtSignature": signature} if signature else {})


def _is_sent_back(file: dict[str, Any]) -> bool:
    # The model can edit its own images only if they are sent back.
    is_image = str(file.get("mime_type")).startswith("image/")
    return bool(file.get("thoughtSignature")) or (is_image and not file.get("thought"))


def _assistant_parts(message: Message, *, signed: bool) -> list[dict[str, Any]]:
    calls = {call.id: call for call in message.tool_calls}
    parts = [*message.parts]
    placed = {part.id for part in parts if isinstance(part, ToolCallPart)}
    parts += [ToolCallPart(id) for id in calls if id not in placed]
    entries: list[dict[str, Any]] = []
    client_calls: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case ThinkingPart(signature=str(signature), provider_data={"provider": "google"}):
                entries.append({"text": part.text, "thought": True, "thoughtSignature": signature})
            case ProviderPart(provider="google", data={"thoughtSignature": signature, **rest}) if not rest:
                _sign(entries, signature)
            case ToolCallPart(id=id) if id in calls:
                client_calls += (own := _tool_call(calls[id]))
                entries += own
            case FilePart(file=file) if not _is_sent_back(file):
                pass
            case _ if (other := _part(part)) is not None:
                entries.append(other)
            case _:
                pass
    if signed and client_calls:
        client_calls[0].setdefault("thoughtSignature", UNSIGNED)
    return entries


def _sign(entries: list[dict[str, Any]], signature: str) -> None:
    if entries and entries[-1].keys() == {"text"}:
        entries[-1]["thoughtSignature"] = signature
    else:  # the signed text is no longer there, perhaps because the user removed it
        entries.append({"text": "", "thoughtSignature": signature})


def _tool_call(call: ToolCall) -> list[dict[str, Any]]:
    if call.metadata.get("server"):
        return []  # Gemini's own calls are sent back as parts
    own: dict[str, Any] = call.metadata.get(PROVIDER) or {}
    function = {"name": call.name, "args": sent_arguments(call), **({"id": own["id"]} if own.get("id") else {})}
    signature = own.get("thoughtSignature")
    return [{"functionCall": function, **({"thoughtSignature": signature} if signature else {})}]


def _tool_result(message: Message, call: ToolCall | None) -> dict[str, Any]:
    # If the calls have no ids, Gemini matches results to calls by name and order.
    name = call.name if call else message.name or message.tool_call_id
    result: dict[str, Any] = {"name": name, "response": _response(message)}
    own: dict[str, Any] = (call.metadata.get(PROVIDER) or {}) if call else {}
    if own.get("id"):
        result["id"] = own["id"]
    files = [_part(part) for part in message.parts if isinstance(part, ImagePart | FilePart)]
    return {"functionResponse": {**result, **({"parts": files} if files else {})}}


def _response(message: Message) -> dict[str, Any]:
    # According to the docs, anything other than an object must be wrapped in ``output``.
    if isinstance(message.content, dict):
        return message.content
    parsed = read_object(message.text)
    return {"output": message.text} if parsed is None else parsed
