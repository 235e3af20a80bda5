"""Read Chat Completions requests.

==================================================  ====================================================================
field                                               treatment
==================================================  ====================================================================
``messages``                                        read into a thread by ``Thread.from_openai``
``tools``                                           passed on as manual tools, which run only in the client
``tool_choice``                                     passed on: "auto", "none", "required", or a tool's name
``response_format``                                 passed on: ``text``, ``json_object`` or ``json_schema``
the fields in `OPTIONS`, ``max_completion_tokens``  passed on as call options, which override the engine's
the fields in `NOTES`                               stored in the request's ``metadata["client"]``
the fields in `NEUTRAL`                             accepted only with the values listed there, which change nothing
``model``, ``stream``, ``stream_options``           handled as the protocol defines them
any other field                                     rejected, because the client might depend on its effect
==================================================  ====================================================================

https://developers.openai.com/api/reference/resources/chat/subresources/completions/methods/create
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from rxllm import Engine, Request, Thread, Tool, ValidationError, json_schema, validate
from rxllm import stream as stream_of
from rxllm.values import ImagePart, Part, ProviderPart
from rxllm.web._frames import Frame
from rxllm.web._openai_errors import RefusedError, wrong, wrong_values
from rxllm.web._requests import parse_json

OPTIONS = ("temperature", "top_p", "max_tokens", "stop", "seed", "reasoning_effort")
"""The request fields that are passed on as call options."""

NOTES = (
    *("user", "metadata", "safety_identifier", "store"),
    *("prompt_cache_key", "prompt_cache_retention", "service_tier"),
)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "verbosity": ("medium",),
}

_FIELDS = {
    *("model", "messages", "tools", "tool_choice", "response_format", "stream", "stream_options"),
    "max_completion_tokens",
}
_OURS = {"max_tokens": "max_completion_tokens", "schema": "parameters"}

_WEB = re.compile("https?://", re.IGNORECASE)


class Chat(msgspec.Struct, frozen=True):
    model: str
    thread: Thread
    tools: tuple[Tool, ...]
    options: dict[str, Any]
    notes: dict[str, Any]
    stream: bool
    include_usage: bool

    @property
    def is_structured(self) -> bool:
        return "response_format" in self.options


def read_request(data: bytes, engines: Mapping[str, Engine]) -> Chat:
    """Parse and check a request. Raises `RefusedError` if it is invalid or unsupported."""
    fields = _read_fields(data)
    model = fields.get("model")
    if not isinstance(model, str):
        raise wrong("model", "model must be one of the names from GET /v1/models")
    if model not in engines:
        raise unknown_model(model)
    _refuse_unsupported(fields)
    tools = _read_tools(fields.get("tools", []), {tool.name for tool in engines[model].tools})
    options = _read_options(fields, tools)
    stream, include_usage = _read_stream(fields)
    thread = _read_thread(fields.get("messages"))
    try:
        stream_of(engines[model], thread, **options)  # checks the options without sending anything
        validate.request(Request(thread.messages, tools=tools, **options))
    except ValidationError as error:
        raise wrong_values(error, _OURS) from None
    notes = {name: fields[name] for name in NOTES if name in fields}
    return Chat(model, thread, tools, options, notes, stream, include_usage)


def unknown_model(name: str) -> RefusedError:
    message = f"there is no model {name[:80]!r}; GET /v1/models lists the models"
    return RefusedError(404, message, "model_not_found", "model")


def _read_fields(data: bytes) -> Frame:
    """Return the fields of a request, except those that are null."""
    try:
        body = parse_json(data, msgspec.json.decode)
    except ValidationError as error:
        raise RefusedError(400, f"the body {error.errors[0][1]}", "invalid_json") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object", "invalid_json")
    return {name: value for name, value in cast(Frame, body).items() if value is not None}


def _refuse_unsupported(fields: Frame) -> None:
    known = {*_FIELDS, *OPTIONS, *NOTES, *NEUTRAL}
    for name, value in fields.items():
        if name not in known:
            raise wrong(name[:80], f"this server does not recognize the parameter {name[:80]!r}", "unknown_parameter")
        if name in NEUTRAL and value not in NEUTRAL[name]:
            allowed = msgspec.json.encode(NEUTRAL[name][0]).decode()
            raise wrong(name, f"{name} is not supported; omit it, or set it to {allowed}", "unsupported_parameter")


def _read_options(fields: Frame, tools: Collection[Tool]) -> Frame:
    options = {name: fields[name] for name in OPTIONS if name in fields}
    if "max_completion_tokens" in fields:
        options["max_tokens"] = fields["max_completion_tokens"]
    if options.get("stop") == []:
        del options["stop"]
    return options | _read_choice(fields.get("tool_choice"), tools) | _read_format(fields.get("response_format"))


def _read_stream(fields: Frame) -> tuple[bool, bool]:
    """Return whether the client wants a stream, and whether it wants the usage at the end."""
    stream = _flag(fields, "stream", "stream")
    options = fields.get("stream_options", {})
    if not isinstance(options, dict):
        raise wrong("stream_options", "stream_options must be an object")
    include_usage = _flag(cast(Frame, options), "include_usage", "stream_options.include_usage")
    if include_usage and not stream:
        raise wrong("stream_options", "stream_options is only allowed with stream: true")
    return stream, include_usage


def _read_thread(messages: Any) -> Thread:
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "messages must be a list with at least one message")
    try:
        thread = Thread.from_openai(cast(list[Any], messages))
    except ValidationError as error:
        raise wrong_values(error, _OURS) from None
    for i, message in enumerate(thread):
        for part in message.parts:
            if fault := _part_fault(part):
                raise wrong(f"messages[{i}]", f"messages[{i}]: {fault}")
    return thread


def _part_fault(part: Part) -> str | None:
    match part:
        case ImagePart(image=image) if image.source == "url" and not _WEB.match(str(image.data)):
            return "the URL of an image must begin with https:, http: or data:"
        case ProviderPart():  # a file_id would refer to a file in the server's own account
            return "a file must be sent as file_data, because this server does not store files"
        case _:
            return None


def _read_tools(entries: Any, own: Collection[str]) -> tuple[Tool, ...]:
    if not isinstance(entries, list):
        raise wrong("tools", "tools must be a list")
    tools: list[Tool] = []
    for i, entry in enumerate(cast(list[Any], entries)):
        match entry:
            case {"type": "function", "function": {"name": str(name)} as function}:
                pass
            case _:
                form = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
                raise wrong(f"tools[{i}]", f"tools[{i}] must be {form}")
        if name in own:
            raise wrong(f"tools[{i}]", f"tools[{i}]: the model already has a tool named {name!r}; rename yours")
        fields = {key: value for key, value in cast(Frame, function).items() if value is not None}
        schema: Any = fields.get("parameters", {"type": "object", "properties": {}})
        tools.append(Tool(name, fields.get("description", ""), schema, manual=True))
    return tuple(tools)


def _read_choice(choice: Any, tools: Collection[Tool]) -> Frame:
    names = {tool.name for tool in tools}
    match choice:
        case None:
            return {}
        case "none":
            return {"tool_choice": choice}
        case _ if not names:
            raise wrong("tool_choice", "tool_choice is only allowed with tools")
        case "auto" | "required":
            return {"tool_choice": choice}
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return {"tool_choice": name}
        case _:
            raise wrong("tool_choice", 'tool_choice must be "none", "auto" or "required", or name one of the tools')


def _read_format(form: Any) -> Frame:
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"response_format": {"type": "json_object"}}
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": dict()} as fields}:
            strict = _flag(cast(Frame, fields), "strict", "response_format.json_schema.strict")
            return {"response_format": json_schema(name, cast(Frame, fields)["schema"], strict=strict)}
        case _:
            names = '"text", "json_object", or "json_schema" with json_schema: {"name": ..., "schema": ...}'
            raise wrong("response_format", f"the type of response_format must be {names}")


def _flag(fields: Frame, name: str, param: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(param, f"{param} must be true or false")
    return value
