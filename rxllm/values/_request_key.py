"""The key of a request: a text that names what a model is asked, in every process."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from rxllm.values._encode import encode
from rxllm.values._message import ImagePart, Message, Part, TextPart
from rxllm.values._request import Request
from rxllm.values._schema import as_response_format
from rxllm.values._tool import Tool, ToolCall
from rxllm.values.argument_checks import check_instance


def request_key(request: Request, provider: str = "") -> str:
    """Return 32 hexadecimal characters, equal whenever the same provider is sent the same request.

    >>> from rxllm import request
    >>> request_key(request("Hi", model="gpt-5"), "openai")
    '3636991165173c05f0c1eac875802dc2'

    They are the same in every process, on every machine and in later versions of rxllm. `request` is complete: the
    engine's options, model and tools are in it, as in the ``request`` that operators and adapters get.

    ===========  =====================================================================================================
    it covers    the provider and the model; of messages the role, name, content and tool calls, with their ids; of
                 tools the name, description, schema and metadata, in which providers have their own fields; every
                 other field of the request, ``options`` included
    it does not  the metadata of the request, of its messages, parts and tool calls; what runs a tool, and how; keys,
                 headers and the address of the server; what an engine's `prepare` and operators change later
    ===========  =====================================================================================================

    Raises ``ValidationError("not_serializable")``, with the path, if something in the request has no JSON.
    """
    from hashlib import sha256  # it loads OpenSSL, which importing rxllm should not

    check_instance("request", request, Request, "a Request, as rxllm.request makes it")
    check_instance("provider", provider, str, "the name of a provider")
    sent = replace(
        request,
        messages=tuple(map(plain_message, request.messages)),
        tools=tuple(Tool(tool.name, tool.description, tool.schema, metadata=tool.metadata) for tool in request.tools),
        response_format=as_response_format(request.response_format),
        metadata={},
    )
    return sha256(json.dumps([provider, _canonical(encode(sent))], sort_keys=True).encode()).hexdigest()[:32]


def plain_message(message: Message) -> Message:
    """Return `message` without metadata, which may hold ids and times."""
    content = message.content
    if isinstance(content, tuple):
        content = tuple(map(_plain_part, content))
    calls = tuple(map(plain_call, message.tool_calls))
    return replace(message, content=content, tool_calls=calls, metadata={})


def _plain_part(part: Part) -> Part:
    return replace(part, metadata={}) if isinstance(part, TextPart | ImagePart) else part


def plain_call(call: ToolCall) -> ToolCall:
    """Return `call` without metadata, and without the text of arguments that could be read, which writers spell out."""
    raw = call.raw_arguments if call.metadata.get("error") else None
    return replace(call, raw_arguments=raw, metadata={})


def _canonical(data: Any) -> Any:
    """Return JSON data in which equal numbers are written alike: a temperature of 0.0 is one of 0."""
    match data:
        case float() if data.is_integer() and abs(data) < 2**53:
            return int(data)
        case dict():
            return {name: _canonical(entry) for name, entry in cast(dict[str, Any], data).items()}
        case list():
            return [_canonical(entry) for entry in cast(list[Any], data)]
        case _:
            return data
