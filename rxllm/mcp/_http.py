"""`HTTP`, a connection to a server over HTTP.

Each message is sent in a POST. Some of a tool call's arguments are also sent as headers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
import reactivex.operators

from rxllm import AdapterError, EngineError, LLMError, RawChunk, Request, Stream, StreamError
from rxllm import operators as ops
from rxllm.adapters import HTTPAdapter, http_error
from rxllm.mcp._connection import (
    GOODBYE_SECONDS,
    MODERN,
    PROVIDER,
    Connection,
    Json,
    error_of,
    has_result,
    is_response_to,
    messages_in,
    object_of,
)
from rxllm.values import Call
from rxllm.values.argument_checks import check_instance
from rxllm.wire import Blocks, FrameDecoder, SSEDecoder

if TYPE_CHECKING:
    import httpx


class HTTP(Connection):
    """A connection to the server at `url`.

    `headers`, such as ``{"authorization": "Bearer ..."}``, are sent with every request. `client` is the same as for
    ``rxllm.adapters.HTTPAdapter``. `timeout` is in seconds, and does not apply to tool calls. ``version="2025-11-25"``
    asks for that version, even if the server supports a later one. Closing the connection also ends its session. Only
    servers from before 2026 have sessions.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
        timeout: float = 30.0,
        version: str | None = None,
    ) -> None:
        check_instance("url", url, str, "a string, such as 'https://example.com/mcp'")
        super().__init__(timeout, version)
        self._wire = _Wire(self, url, headers=headers, client=client)

    def send(self, version: str, message: Json, headers: Mapping[str, str]) -> Stream[Json]:
        return self._messages("POST", version, message, headers)

    def listen(self, version: str) -> Stream[Json]:
        return self._messages("GET", version, {}, {})

    def needs_cancel(self, version: str) -> bool:
        return version != MODERN

    async def aclose(self) -> None:
        if self.session is not None:
            version = await self.version()
            with contextlib.suppress(LLMError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._messages("DELETE", version, {}, {}).pipe(reactivex.operators.count())
        await super().aclose()
        await self._wire.aclose()

    def _messages(self, method: str, version: str, message: Json, headers: Mapping[str, str]) -> Stream[Json]:
        own: dict[str, str] = {}
        if version == MODERN and "method" in message:
            own = {"mcp-method": message["method"], **headers}
            if "name" in message["params"]:
                own["mcp-name"] = header_text(message["params"]["name"])
        elif self.session is not None and message.get("method") != "initialize":
            own = {"mcp-session-id": self.session}
        if message.get("method") != "initialize":
            own["mcp-protocol-version"] = version
        events = self._wire.stream(Request(options={"method": method, "message": message}), Call(headers=own))
        chunks: Stream[RawChunk] = events.pipe(ops.raise_errors(), ops.only(RawChunk))
        return chunks.map(lambda chunk: chunk.data)

    def __getstate__(self) -> dict[str, Any]:
        return {"timeout": self._timeout, "version": self._wanted, "wire": self._wire}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__(state["timeout"], state["version"])
        self._wire = state["wire"]

    def __repr__(self) -> str:
        return f"HTTP{repr(self._wire).removeprefix('_Wire')}"


class _Wire(HTTPAdapter):
    provider = PROVIDER
    needs_key = False
    default_base_url = "http://localhost"

    def __init__(self, connection: Connection, url: str, **options: Any) -> None:
        super().__init__(base_url=url, **options)
        self._connection = connection
        self._ends_in_slash = url.partition("?")[0].endswith("/")

    def build(self, request: Request, call: Call) -> httpx.Request:
        if self._left_behind:
            fault = "the MCP tools were pickled without the secrets in their headers and URL"
            raise EngineError(
                "missing_key", f"{fault}; call mcp.tools(...) again in the process that runs them", provider=PROVIDER
            )
        method, message = request.options["method"], request.options["message"]
        # Some servers distinguish between paths with and without a trailing slash.
        path = "/" if self._ends_in_slash else ""
        built = self.post(path, message, call, headers={"accept": "application/json, text/event-stream"})
        if method == "POST":
            return built
        headers = {name: text for name, text in built.headers.items() if not name.startswith("content-")}
        return type(built)(method, built.url, headers=headers, extensions=built.extensions)

    def answered(self, request: Request, headers: Mapping[str, str]) -> None:
        if request.options["message"].get("method") == "initialize":
            self._connection.session = headers.get("mcp-session-id")

    def decoder(self, request: Request, *, raw: bool = False) -> FrameDecoder:
        message = request.options["message"]
        return _Decoder(message.get("id") if "method" in message else None)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        with contextlib.suppress(ValueError, RecursionError):
            data = object_of(msgspec.json.decode(body))
            if isinstance(data.get("error"), dict):
                return error_of(data, status)
        return http_error(PROVIDER, status, headers, body)


class _Decoder(FrameDecoder):
    """Turns each message into a `RawChunk` until the response to request `id` arrives."""

    def __init__(self, id: int | str | None) -> None:
        super().__init__(SSEDecoder(), Blocks(), msgspec.json.Decoder(), provider=PROVIDER, raw=False)
        self._id = id

    def read(self, kind: str, payload: Any, frame: bytes, /) -> None:
        for message in messages_in(payload):
            is_answer = self._id is not None and is_response_to(message, self._id)
            if is_answer and not has_result(message):
                self.fail(error_of(message))  # emitted rather than raised, so that API keys in the error are redacted
                return
            self.blocks.raw("message", message)
            if is_answer:
                self.end(over=True)

    def error_of(self, payload: Any) -> AdapterError:
        return error_of(payload)

    def end(self, *, over: bool) -> None:
        if over or self._id is None:
            super().end(over=True)
        else:
            fault = "the MCP server closed the stream before sending the response"
            self.fail(StreamError("truncated", fault, provider=PROVIDER))


# Send arguments as headers


KEY = "x-mcp-header"
MOST_HEADERS = 100
"""The maximum number of a tool's parameters that are also sent as headers."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")
_DATA = ("default", "examples", "const", "enum")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_PLAIN = re.compile(r"(?! )[ -~]*(?<! )")
_ENCODED = re.compile(r"=\?base64\?.*\?=")

Path = tuple[str, ...]


def parameter_headers(schema: Mapping[str, Any]) -> dict[Path, str]:
    """Find the parameters that are also sent as headers.

    The result maps each parameter's path to the name of the parameter's header.

    Raises ``ValueError`` if `schema` declares an invalid header.
    """
    headers: dict[Path, str] = {}
    for path, place in _places(schema, ()):
        token = place[KEY]
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or place.get("type") not in _TYPES:
            message = f"{KEY} must be a valid header name, and may be set only on a string, integer or boolean property"
            raise ValueError(f"{message}: got {str(token)[:80]!r}")
        if (name := f"mcp-param-{token.lower()}") in headers.values():
            raise ValueError(f"{KEY} {token[:80]!r} is used by two parameters")
        headers[path] = name
        if len(headers) > MOST_HEADERS:
            raise ValueError(f"more than {MOST_HEADERS} of its parameters have {KEY}")
    return headers


def _places(place: Any, path: Path | None) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield each schema that contains `KEY`, along with its path.

    The path is None if a keyword other than ``properties`` is needed to reach the schema.
    """
    if isinstance(place, list):
        for item in cast(list[Any], place):
            yield from _places(item, None)
    if KEY in (place := object_of(place)):
        yield path, place
    for keyword, inner in place.items():
        if keyword in _BY_NAME:
            for name, item in object_of(inner).items():
                yield from _places(item, (*path, name) if keyword == "properties" and path is not None else None)
        elif keyword not in _DATA:
            yield from _places(inner, None)


def mirror_arguments(headers: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that repeat a call's arguments. An argument that is null has no header."""
    found = {name: _text_at(arguments, path) for path, name in headers.items()}
    return {name: header_text(text) for name, text in found.items() if text is not None}


def _text_at(argument: Any, path: Path) -> str | None:
    for name in path:
        argument = object_of(argument).get(name)
    if isinstance(argument, bool):
        return str(argument).lower()
    return str(argument) if isinstance(argument, str | int | float) else None


def header_text(text: str) -> str:
    """Return `text` as a header value, in base64 if necessary.

    >>> header_text("plain"), header_text("à")
    ('plain', '=?base64?w6A=?=')
    """
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="
