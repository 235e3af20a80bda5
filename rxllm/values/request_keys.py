"""Keys that identify requests. Equal requests have the same key in every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from rxllm.values.argument_checks import check_instance
from rxllm.values.codec import at, encode, not_serializable
from rxllm.values.messages import ImagePart, Message, Part, TextPart
from rxllm.values.requests import Request
from rxllm.values.schemas import as_response_format
from rxllm.values.tools import Tool, ToolCall


def request_key(request: Request, provider: str = "") -> str:
    """Return a key that identifies `request` and the provider that it is sent to.

    >>> from rxllm import request
    >>> request_key(request("Hi", model="gpt-5"), "openai")
    '3636991165173c05f0c1eac875802dc2'

    The key consists of 32 hexadecimal characters. Equal requests have equal keys on every machine and in later versions
    of rxllm. `request` must already include the engine's options, model and tools. The requests that operators and
    adapters receive include them.

    The key depends on:

    * the provider and the model;
    * the role, name, content and tool calls of each message, and the ids of these calls;
    * the name, description, schema and metadata of each tool (the metadata can contain provider fields);
    * all other fields of the request, including ``options``.

    The key does not depend on:

    * metadata, whether it belongs to the request, a message, a part or a tool call;
    * a tool's code, and the options that control how it runs;
    * API keys, headers and the server's address;
    * the prompts that are passed as ``system=`` to an engine or a call, and changes that the engine's `prepare`
      functions and operators make later.

    Raises ``ValidationError("not_serializable")`` if part of the request has no JSON form.
    """
    check_instance("request", request, Request, "a Request, as returned by rxllm.request(...)")
    check_instance("provider", provider, str, "a provider's name")
    sent = replace(
        request,
        messages=(),
        tools=tuple(Tool(tool.name, tool.description, tool.schema, metadata=tool.metadata) for tool in request.tools),
        response_format=as_response_format(request.response_format),
        metadata={},
    )
    try:
        return _hash_of(sent, request.messages, provider)
    except (RecursionError, ValueError) as error:
        raise not_serializable(f"the request is nested too deeply, or a number in it is too long: {error}") from error


class _Hashed(NamedTuple):
    """The hash of a message and all messages before it."""

    previous: Message | None
    hash: Any


_MOST_HEADS = 8
"""The maximum number of hashes that a message caches."""


def hash_of_thread(head: str, messages: Iterable[Message], write: Callable[[Message], str]) -> Any:
    """Return a SHA-256 object that has been fed `head` and the messages.

    Each message caches its hash, so each step of a chat has to hash only the new messages.
    """
    from hashlib import sha256  # OpenSSL loads slowly

    hash, previous = sha256(head.encode()), None
    for i, message in enumerate(messages):
        hashes: dict[Any, _Hashed] = vars(message).setdefault("_hashes", {})
        known = hashes.get((write, head))
        if known is None or known.previous is not previous:
            hash = hash.copy()
            hash.update(((", " if i else "") + at("messages", partial(at, i, write), message)).encode())
            if len(hashes) >= _MOST_HEADS:
                hashes.clear()
            known = hashes[write, head] = _Hashed(previous, hash)
        hash, previous = known.hash, message
    return hash.copy()


def undescribed(request: Request) -> Request:
    """Return `request` with all descriptions removed from its tools."""
    tools = (replace(tool, description="", schema=_undescribed(tool.schema)) for tool in request.tools)
    return replace(request, tools=tuple(tools))


def plain_message(message: Message) -> Message:
    """Return `message` without metadata, which can contain ids and times."""
    content = message.content
    if isinstance(content, tuple):
        content = tuple(map(_plain_part, content))
    calls = tuple(map(plain_call, message.tool_calls))
    return replace(message, content=content, tool_calls=calls, metadata={})


def plain_call(call: ToolCall) -> ToolCall:
    """Return `call` without metadata. The text of arguments that could not be parsed is kept."""
    raw = call.raw_arguments if call.metadata.get("error") else None
    return replace(call, raw_arguments=raw, metadata={})


def _hash_of(sent: Request, messages: Sequence[Message], provider: str) -> str:
    members = [(name, f"{_text(name)}: {_text(_canonical(entry))}") for name, entry in sorted(encode(sent).items())]
    before = [text for name, text in members if name < "messages"]
    after = "".join(f", {text}" for name, text in members if name > "messages")
    start, end = f"[{_text(provider)}, {{{', '.join(before)}", f"{after}}}]"
    if messages:
        start, end = f'{start}, "messages": [', f"]{end}"
    hashed = hash_of_thread(start, messages, _canonical_text)
    hashed.update(end.encode())
    return hashed.hexdigest()[:32]


def _canonical_text(message: Message) -> str:
    return _text(_canonical(encode(plain_message(message))))


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def _undescribed(schema: Any) -> Any:
    match schema:
        case dict():
            # A description is text. If the value of "description" is a schema, "description" is a property's name.
            items = cast(dict[str, Any], schema).items()
            return {name: _undescribed(item) for name, item in items if name != "description" or type(item) is not str}
        case list():
            return [_undescribed(item) for item in cast(list[Any], schema)]
        case _:
            return schema


def _plain_part(part: Part) -> Part:
    return replace(part, metadata={}) if isinstance(part, TextPart | ImagePart) else part


def _canonical(data: Any) -> Any:
    """Return `data` with every whole float below 2**53 (in magnitude) converted to an int."""
    match data:
        case float() if data.is_integer() and abs(data) < 2**53:
            return int(data)
        case dict():
            return {name: _canonical(entry) for name, entry in cast(dict[str, Any], data).items()}
        case list():
            return [_canonical(entry) for entry in cast(list[Any], data)]
        case _:
            return data
