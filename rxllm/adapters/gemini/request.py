"""Messages as Gemini's contents.

https://ai.google.dev/api/caching#Content. A message of the assistant is a ``model`` turn, all else a ``user`` turn;
the results of one turn's calls must come in one turn, so those that follow each other are joined. System messages are
apart, see `system_of`. What bears a ``thoughtSignature`` goes back with it, each signed part by itself and unchanged,
as https://ai.google.dev/gemini-api/docs/thought-signatures asks; what other providers signed is left out.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rxllm.adapters._request import merge
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
from rxllm.values._json import read_arguments

UNSIGNED = "skip_thought_signature_validator"
"""The signature of calls that Gemini did not make: Gemini 3 refuses a turn whose first call has none
(https://docs.cloud.google.com/vertex-ai/generative-ai/docs/thought-signatures). The value is the one that other clients
send; it has not been tried on Google's server.
"""

_KNOWS_NO_SIGNATURE = re.compile(r"gemini-[12]\b|^(?!.*gemini)")


_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def gemini_body(request: Request) -> dict[str, Any]:
    """The JSON body of `request`."""
    model = request.model or ""
    body = {
        "contents": contents_of(request.messages, model),
        "systemInstruction": system_of(request.messages),
        "tools": [{"functionDeclarations": [_tool(tool) for tool in request.tools]}] if request.tools else None,
        "toolConfig": _tool_config(request.tool_choice),
        "generationConfig": _filled(
            temperature=request.temperature,
            maxOutputTokens=request.max_tokens,
            stopSequences=list(request.stop) or None,
            seed=request.seed,
            thinkingConfig=_thinking(request.reasoning_effort, model),
            **_response_format(request.response_format),
        ),
    }
    options = dict(request.options)
    if isinstance(options.get("tools"), list):
        options["tools"] = [*(body["tools"] or ()), *options["tools"]]
    merged = merge(body, options)
    return {name: held for name, held in merged.items() if held or name == "contents"}


def _filled(**fields: Any) -> dict[str, Any]:
    return {name: held for name, held in fields.items() if held is not None}


def _tool(tool: Tool) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    # A function without parameters must not declare any.
    return declared | ({"parametersJsonSchema": tool.schema} if tool.schema.get("properties") else {})


def _tool_config(choice: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if choice is None or isinstance(choice, dict):
        return choice
    config: dict[str, Any] = {"mode": _MODES.get(choice, "ANY")}
    if choice not in _MODES:
        config["allowedFunctionNames"] = [choice]
    return {"functionCallingConfig": config}


def _thinking(effort: str | None, model: str) -> dict[str, Any] | None:
    """https://ai.google.dev/gemini-api/docs/thinking: Gemini 2.5 takes a budget in tokens, later ones a level."""
    if effort is None:
        return None
    if effort not in _BUDGETS:
        message = f"{effort!r} is no reasoning effort; use one of {', '.join(_BUDGETS)}"
        raise ValidationError("invalid_request", message, errors=[(("reasoning_effort",), "unknown")])
    if re.search(r"gemini-2\b", model):
        return {"thinkingBudget": _BUDGETS[effort], "includeThoughts": effort != "none"}
    # The thinking of later models cannot be switched off.
    return {"thinkingLevel": effort.upper() if effort != "none" else "MINIMAL", "includeThoughts": effort != "none"}


def _response_format(wanted: str | dict[str, Any] | None) -> dict[str, Any]:
    match wanted:
        case None | "text":
            return {}
        case {"type": "json_schema", "schema": schema}:
            return {"responseMimeType": "application/json", "responseJsonSchema": schema}
        case {"type": "json_object"}:
            return {"responseMimeType": "application/json"}
        case _:
            message = f"{wanted!r} is no response format; use json_schema(...) or {{'type': 'json_object'}}"
            raise ValidationError("invalid_request", message, errors=[(("response_format",), "unknown")])


def system_of(messages: Iterable[Message]) -> dict[str, Any] | None:
    """The system messages, wherever they stand, as ``systemInstruction``."""
    texts = [{"text": message.text} for message in messages if message.role == "system" and message.text]
    return {"parts": texts} if texts else None


def contents_of(messages: Iterable[Message], model: str) -> list[dict[str, Any]]:
    """The turns; `model` is the one that will read them."""
    contents: list[dict[str, Any]] = []
    calls: dict[str, ToolCall] = {}
    after_result = False
    for message in messages:
        calls |= {call.id: call for call in message.tool_calls}
        if message.role == "system":
            continue
        parts = _parts(message, calls, model)
        if parts and after_result and message.role == "tool":
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": "model" if message.role == "assistant" else "user", "parts": parts})
        after_result = bool(parts) and message.role == "tool"
    return contents


def _parts(message: Message, calls: dict[str, ToolCall], model: str) -> list[dict[str, Any]]:
    match message.role:
        case "tool":
            return [_result(message, calls.get(message.tool_call_id or ""))]
        case "assistant":
            return list(_said(message, signed=_KNOWS_NO_SIGNATURE.search(model) is None))
        case _:
            return [made for part in message.parts if (made := _part(part)) is not None]


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
    """An image as a part: a URL as ``fileData``, all else as ``inlineData``.

    Raises ``ValidationError("invalid_image_request")`` for bytes without a type, and what cannot be read.
    """
    if image.source == "url":
        url = str(image.data)
        kind = image.mime_type or mimetypes.guess_type(url.partition("?")[0])[0]
        return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}
    if image.mime_type is None:
        raise ValidationError("invalid_image_request", errors=[(("source",), "missing_mime_type")])
    return {"inlineData": {"mimeType": image.mime_type, "data": image.to_base64()}}


def _file(file: dict[str, Any]) -> dict[str, Any] | None:
    data, kind, signature = file.get("data"), str(file.get("mime_type")), file.get("thoughtSignature")
    if not isinstance(data, bytes):
        return {"fileData": {"fileUri": file["url"], "mimeType": kind}} if file.get("url") else None
    part = image_part(Image.from_binary(data, kind))
    part |= {"thought": True} if file.get("thought") else {}
    return part | ({"thoughtSignature": signature} if signature else {})


def _goes_back(file: dict[str, Any]) -> bool:
    # Pictures are needed to go on with them; one that was merely thought of is not, nor is sound.
    is_image = str(file.get("mime_type")).startswith("image/") and isinstance(file.get("data"), bytes)
    return bool(file.get("thoughtSignature")) or (is_image and not file.get("thought"))


def _said(message: Message, *, signed: bool) -> Iterator[dict[str, Any]]:
    """The parts of an assistant's message, its calls where they were made; `signed` if calls need a signature."""
    calls = {call.id: call for call in message.tool_calls}
    parts = [*message.parts]
    marked = {part.id for part in parts if isinstance(part, ToolCallPart)}
    parts += [ToolCallPart(id) for id in calls if id not in marked]
    made: list[dict[str, Any]] = []
    ours: list[dict[str, Any]] = []  # the calls that are not the server's
    for part in parts:
        match part:
            case ThinkingPart(signature=str(signature), provider_data={"provider": "google"}):
                made.append({"text": part.text, "thought": True, "thoughtSignature": signature})
            case ProviderPart(provider="google", data={"thoughtSignature": signature, **rest}) if not rest:
                _sign(made, signature)
            case ToolCallPart(id=id) if id in calls:
                ours += (own := _call(calls[id]))
                made += own
            case FilePart(file=file) if not _goes_back(file):
                pass
            case _ if (other := _part(part)) is not None:
                made.append(other)
            case _:
                pass
    if signed and ours:
        ours[0].setdefault("thoughtSignature", UNSIGNED)
    yield from made


def _sign(made: list[dict[str, Any]], signature: str) -> None:
    if made and made[-1].keys() == {"text"}:
        made[-1]["thoughtSignature"] = signature
    else:  # somebody has taken the text away
        made.append({"text": "", "thoughtSignature": signature})


def _call(call: ToolCall) -> list[dict[str, Any]]:
    if call.metadata.get("server"):
        return []  # Gemini's own are kept as parts; of others' tools it knows nothing, and what they led to is text
    own: dict[str, Any] = call.metadata.get(PROVIDER) or {}
    made = {"name": call.name, "args": call.arguments, **({"id": own["id"]} if own.get("id") else {})}
    signature = own.get("thoughtSignature")
    return [{"functionCall": made, **({"thoughtSignature": signature} if signature else {})}]


def _result(message: Message, call: ToolCall | None) -> dict[str, Any]:
    # Without ids, results belong to calls by name and order. Ids that are not Gemini's own are not sent.
    name = call.name if call else message.name or message.tool_call_id
    made: dict[str, Any] = {"name": name, "response": _response(message)}
    own: dict[str, Any] = (call.metadata.get(PROVIDER) or {}) if call else {}
    if own.get("id"):
        made["id"] = own["id"]
    images = [image_part(part.image) for part in message.parts if isinstance(part, ImagePart)]
    return {"functionResponse": {**made, **({"parts": images} if images else {})}}


def _response(message: Message) -> dict[str, Any]:
    # An object says itself; all else is ``output``, as the documentation has it.
    if isinstance(message.content, dict):
        return message.content
    said = read_arguments(message.text) if message.text.strip() else None
    return {"output": message.text} if said is None else said
