"""The messages of MCP: JSON-RPC 2.0 in two eras, and the bounds of what is read.

====================  ==========================================  ====================================================
era                   versions                                    begins with
====================  ==========================================  ====================================================
modern, stateless     2026-07-28                                  ``server/discover``; each request says its version
handshake             2024-11-05 to 2025-11-25                    ``initialize``, and a session over HTTP
====================  ==========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

import rxllm
from rxllm import AdapterError, StreamError

MODERN = "2026-07-28"
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

METHOD_NOT_FOUND = -32601
UNSUPPORTED_VERSION = -32022

PROVIDER = "mcp"
DEPTH = 100
"""How deeply the JSON of a server may be nested."""

Json = dict[str, Any]

_CAPABILITIES: Json = {"elicitation": {"form": {}, "url": {}}}
_META = "io.modelcontextprotocol/"
_REASONS = {METHOD_NOT_FOUND: "unsupported_feature", -32602: "invalid_request", -32600: "invalid_request"}


class Peer(msgspec.Struct, frozen=True):
    """What is known of a server: the version that it speaks, and its session over HTTP."""

    version: str
    session: str | None = None

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN


def request(peer: Peer, id: int | str | None, method: str, params: Json) -> Json:
    """Return the request, or without an `id` the notification, as `peer` expects it."""
    meta: Json = {"progressToken": id} if method == "tools/call" else {}
    if peer.is_modern:
        own: Json = {"protocolVersion": MODERN, "clientCapabilities": _CAPABILITIES, "clientInfo": _client_info()}
        meta |= {f"{_META}{name}": value for name, value in own.items()}
    params = {**params, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "method": method, "params": params}


def initialize() -> Json:
    """Return the parameters of the handshake."""
    return {"protocolVersion": HANDSHAKES[0], "capabilities": _CAPABILITIES, "clientInfo": _client_info()}


def _client_info() -> Json:
    return {"name": "rxllm", "version": rxllm.__version__}


def read(frame: bytes) -> Iterator[Json]:
    """Yield the messages in `frame`, of which some servers send several in a list.

    Raises ``StreamError("malformed_event")``.
    """
    try:
        data = msgspec.json.decode(frame)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {frame[:80]!r}") from error
    messages: list[Any] = cast(list[Any], data) if isinstance(data, list) else [data]
    for message in messages:
        if not isinstance(message, dict):
            raise _malformed(f"is no object: {frame[:80]!r}")
        if is_too_deep(message):
            raise _malformed(f"is nested more than {DEPTH} levels deep")
        yield cast(Json, message)


def _malformed(fault: str) -> StreamError:
    return StreamError("malformed_event", f"a message of the MCP server {fault}", provider=PROVIDER)


def is_too_deep(data: Any) -> bool:
    """Whether `data` is nested more than `DEPTH` levels deep: other code recurses into it."""
    level: list[Any] = [data]
    for _ in range(DEPTH):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _inside(item: Any) -> list[Any]:
    match item:
        case dict():
            return list(cast(Json, item).values())
        case list():
            return cast(list[Any], item)
        case _:
            return []


def object_of(data: Any) -> Json:
    """Return `data` if it is an object, otherwise an empty one."""
    return cast(Json, data) if isinstance(data, dict) else {}


def answers(message: Json, id: int | str) -> bool:
    """Whether `message` is the response to the request `id`."""
    return "method" not in message and message.get("id") == id


def result_of(message: Json) -> Json:
    """Return the result in a response. Raises ``AdapterError`` for an error, and for a result that is no object."""
    result = message.get("result")
    if isinstance(result, dict):
        return cast(Json, result)
    raise error_of(message)


def error_of(message: Any, status: int | None = None) -> AdapterError:
    """Return the error in a response: its code is the `code`, and its data are in the metadata."""
    match message:
        case {"error": {"code": int(code), **fields}}:
            text, data = str(fields.get("message", ""))[:500], fields.get("data")
            metadata = {} if data is None else {"data": data}
            reason = _REASONS.get(code, "unknown")
            return AdapterError(reason, text, provider=PROVIDER, status=status, code=str(code), metadata=metadata)
        case _:
            return AdapterError("malformed_response", "the answer has no result", provider=PROVIDER, status=status)


def supported(error: AdapterError) -> list[Any]:
    """Return the versions in the error of a server that does not speak the one in the request."""
    match error.metadata.get("data"):
        case {"supported": [*versions]} if error.code == str(UNSUPPORTED_VERSION):
            return versions
        case _:
            return []


def refusal(message: Mapping[str, Any]) -> Json:
    """Return the response to a request of the server: pings are answered, anything else is not supported."""
    response = {"jsonrpc": "2.0", "id": message.get("id")}
    if message.get("method") == "ping":
        return {**response, "result": {}}
    return {**response, "error": {"code": METHOD_NOT_FOUND, "message": "this client does not support the method"}}
