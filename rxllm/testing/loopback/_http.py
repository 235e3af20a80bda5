"""The bytes of HTTP/1.1: requests are read, heads are written."""

from __future__ import annotations

from http import HTTPStatus

from rxllm.testing.loopback._script import Reply, Request


def take_request(received: bytearray) -> Request | None:
    """The first request in `received`, taken out of it; None before all of it has come."""
    begun, found, rest = bytes(received).partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = begun.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): held.strip() for name, _, held in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    if len(rest) < length:
        return None
    received[:] = rest[length:]
    return Request(method, path, headers, rest[:length])


def head(reply: Reply) -> bytes:
    """All of an answer up to its body."""
    length = f"Content-Length: {len(reply.body)}" if isinstance(reply.body, bytes) else "Transfer-Encoding: chunked"
    lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", length]
    lines += [f"{name}: {held}" for name, held in reply.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"
