"""The messages of MCP: JSON-RPC 2.0 in two eras, and the bounds of what is read.

====================  ==========================================  ====================================================
era                   versions                                    begins with
====================  ==========================================  ====================================================
modern, stateless     2026-07-28                                  ``server/discover``; each request says its version
handshake             2024-11-05 to 2025-11-25                    ``initialize``, and a session over HTTP
====================  ==========================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import rxllm
from rxllm import AdapterError, LLMError, StreamError

MODERN = "2026-07-28"
HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")

UNSUPPORTED_VERSION = "-32022"
METHOD_NOT_FOUND = -32601

PROVIDER = "mcp"
DEPTH = 100
"""How deeply the JSON of a server may be nested: other code recurses into it."""

DATA_SHOWN = 4_000
"""How many characters the data of an error may have; longer ones are dropped."""

Json = dict[str, Any]

_CAPABILITIES: Json = {"elicitation": {"form": {}, "url": {}}}
_META = "io.modelcontextprotocol/"
_REASONS = {METHOD_NOT_FOUND: "unsupported_feature", -32602: "invalid_request", -32600: "invalid_request"}


def request(version: str, id: int | str | None, method: str, params: Json) -> Json:
    """Return the request, or without an `id` the notification, as a server of this version expects it."""
    meta: Json = {"progressToken": id} if method == "tools/call" else {}
    if version == MODERN:
        own: Json = {"protocolVersion": MODERN, "clientCapabilities": _CAPABILITIES, "clientInfo": _client_info()}
        meta |= {f"{_META}{name}": value for name, value in own.items()}
    params = {**params, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "method": method, "params": params}


def initialize(version: str) -> Json:
    """Return the parameters of the handshake."""
    return {"protocolVersion": version, "capabilities": _CAPABILITIES, "clientInfo": _client_info()}


def _client_info() -> Json:
    return {"name": "rxllm", "version": rxllm.__version__}


def response(message: Json, result: Json | None) -> Json:
    """Return the response to a request of the server; without a result, pings are answered and the rest refused."""
    if result is None and message.get("method") != "ping":
        error = {"code": METHOD_NOT_FOUND, "message": "this client does not support the method"}
        return {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": result or {}}


def messages_in(data: Any) -> Iterator[Json]:
    """Yield the messages in `data`, of which some servers send several in a list.

    Raises ``StreamError("malformed_event")``.
    """
    for message in cast(list[Any], data) if isinstance(data, list) else [data]:
        if not isinstance(message, dict) or _is_too_deep(message):
            fault = f"is nested over {DEPTH} levels deep" if isinstance(message, dict) else f"is {str(message)[:80]!r}"
            raise StreamError("malformed_event", f"a message of the MCP server {fault}", provider=PROVIDER)
        yield cast(Json, message)


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(DEPTH):
        level = [inner for item in level for inner in _inside(item)]
    return bool(level)


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return cast(Json, item).values()
    return cast(list[Any], item) if isinstance(item, list) else ()


def object_of(data: Any) -> Json:
    """Return `data` if it is an object, otherwise an empty one."""
    return cast(Json, data) if isinstance(data, dict) else {}


def answers(message: Json, id: int | str) -> bool:
    """Whether `message` is the response to the request `id`."""
    return "method" not in message and message.get("id") == id


def is_of_another(message: Json, id: int | str) -> bool:
    """Whether `message` is the response to another request than `id`, or the progress of one."""
    token = object_of(message.get("params")).get("progressToken")
    return "method" not in message or (message["method"] == "notifications/progress" and token != id)


def has_result(response: Json) -> bool:
    return isinstance(response.get("result"), dict)


def error_of(message: Any, status: int | None = None) -> AdapterError:
    """Return the error in a response without a result: its code is the `code`, and its data are in the metadata."""
    match message:
        case {"error": {"code": int(code), **fields}}:
            text, data = str(fields.get("message", ""))[:500], fields.get("data")
            metadata = {} if data is None or len(str(data)) > DATA_SHOWN else {"data": data}
            reason = _REASONS.get(code, "unknown")
            return AdapterError(reason, text, provider=PROVIDER, status=status, code=str(code), metadata=metadata)
        case _:
            return AdapterError("malformed_response", "the answer has no result", provider=PROVIDER, status=status)


def malformed(text: str) -> AdapterError:
    return AdapterError("malformed_response", text, provider=PROVIDER)


def has_modern(versions: Any) -> bool:
    return isinstance(versions, list) and MODERN in versions


def is_modern(error: LLMError) -> bool:
    """Whether the error of a server that does not speak the version of a request says that it speaks `MODERN`."""
    if not isinstance(error, AdapterError) or error.code != UNSUPPORTED_VERSION:
        return False
    return has_modern(object_of(error.metadata.get("data")).get("supported"))
