"""A server over HTTP: one POST a request, answered with JSON or an event stream."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import reactivex.operators

from rxllm import (
    AdapterError,
    Call,
    Custom,
    ErrorEvent,
    Event,
    HTTPAdapter,
    LLMError,
    Message,
    MessageCompleted,
    Request,
    Stream,
    StreamError,
)
from rxllm import operators as ops
from rxllm.adapters import http_error
from rxllm.mcp._connection import GOODBYE_SECONDS, Connection
from rxllm.mcp._protocol import MODERN, PROVIDER, Json, Peer, answers, error_of, read
from rxllm.wire import SSEDecoder

if TYPE_CHECKING:
    import httpx

_PLAIN = re.compile(r"(?! )[ -~]*(?<! )")
_ENCODED = re.compile(r"=\?base64\?.*\?=")


class HTTP(Connection):
    """The server at `url`; `headers` are sent with every request, such as ``{"authorization": "Bearer ..."}``.

    `client` is as of ``rxllm.HTTPAdapter``. `timeout` is how long the server may take to answer anything but a tool
    call, in seconds. Closing it ends its session, which only servers from before 2026 have.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, client: Any = None, timeout: float = 30.0
    ) -> None:
        super().__init__(timeout)
        self._wire = _Wire(url, headers=headers, client=client)

    def send(self, peer: Peer, message: Json, headers: dict[str, str]) -> Stream[Json]:
        return self._messages("POST", peer, message, {**_standard_headers(peer, message), **headers})

    def listen(self, peer: Peer) -> Stream[Json]:
        return self._messages("GET", peer, {}, {})

    def mirrors(self, peer: Peer) -> bool:
        return peer.is_modern

    def needs_cancel(self, peer: Peer) -> bool:
        return not peer.is_modern

    def session_of(self, id: int | str) -> str | None:
        return self._wire.sessions.pop(id, None)

    async def leave(self, peer: Peer | None) -> None:
        if peer is not None and peer.session is not None:
            with contextlib.suppress(LLMError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._messages("DELETE", peer, {}, {}).pipe(reactivex.operators.count())
        await self._wire.aclose()

    def _messages(self, method: str, peer: Peer, message: Json, headers: dict[str, str]) -> Stream[Json]:
        if message.get("method") != "initialize":
            headers = {"mcp-protocol-version": peer.version, **headers}
        if peer.session is not None:
            headers["mcp-session-id"] = peer.session
        request = Request(options={"method": method, "message": message})
        events = self._wire.stream(request, Call(headers=headers))
        return events.pipe(ops.raise_errors(), ops.only(Custom)).map(lambda event: event.data)

    def __repr__(self) -> str:
        return f"HTTP{repr(self._wire).removeprefix('_Wire')}"


class _Wire(HTTPAdapter):
    provider = PROVIDER
    needs_key = False
    default_base_url = "http://localhost"

    def __init__(self, url: str, **connection: Any) -> None:
        super().__init__(base_url=url, **connection)
        self._ends_in_slash = url.partition("?")[0].endswith("/")
        self.sessions: dict[Any, str] = {}

    def build(self, request: Request, call: Call) -> httpx.Request:
        method, message = request.options["method"], request.options["message"]
        built = self.post("", message, call, headers={"accept": "application/json, text/event-stream"})
        if not self._ends_in_slash:  # which is another path to some servers
            built.url = built.url.copy_with(path=built.url.path.rstrip("/") or "/")
        if method == "POST":
            return built
        headers = {name: text for name, text in built.headers.items() if not name.startswith("content-")}
        return type(built)(method, built.url, headers=headers, extensions=built.extensions)

    def answered(self, request: Request, headers: Mapping[str, str]) -> None:
        message, session = request.options["message"], headers.get("mcp-session-id")
        if session is not None and message.get("method") == "initialize":
            self.sessions[message["id"]] = session

    def decoder(self, request: Request, *, raw: bool = False) -> _Decoder:
        message = request.options["message"]
        return _Decoder(message.get("id") if "method" in message else None)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        with contextlib.suppress(StreamError):
            for message in read(body):
                if isinstance(message.get("error"), dict):
                    return error_of(message, status)
        return http_error(PROVIDER, status, headers, body)


class _Decoder:
    """Turns the bytes of an answer into one `Custom` event a message, until the response to the request `id`."""

    def __init__(self, id: int | str | None) -> None:
        self._id = id
        self._framing = SSEDecoder()
        self._has_ended = False

    def feed(self, data: bytes) -> list[Event]:
        return self._events(self._framing.feed(data))

    def close(self) -> list[Event]:
        events = self._events(self._framing.close())
        if not self._has_ended:
            events.append(self._end() if self._id is None else ErrorEvent(_truncated()))
        return events

    def _events(self, frames: list[tuple[str, bytes]]) -> list[Event]:
        events: list[Event] = []
        for message in (message for _, frame in frames for message in read(frame)):
            if self._has_ended:
                break
            events.append(Custom(PROVIDER, message))
            if self._id is not None and answers(message, self._id):
                events.append(self._end())
        return events

    def _end(self) -> Event:
        self._has_ended = True
        return MessageCompleted(Message("assistant"), "stop")


def _truncated() -> StreamError:
    return StreamError("truncated", "the MCP server ended its answer before the response", provider=PROVIDER)


def _standard_headers(peer: Peer, message: Json) -> dict[str, str]:
    if peer.version != MODERN or "method" not in message:
        return {}
    name = message["params"].get("name")
    named = {"mcp-name": header_text(name)} if isinstance(name, str) else {}
    return {"mcp-method": message["method"], **named}


def header_text(text: str) -> str:
    """Return `text` as the value of a header: in base64 if a header cannot have it as it is.

    >>> header_text("plain"), header_text("à")
    ('plain', '=?base64?w6A=?=')
    """
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode(errors='replace')).decode()}?="
