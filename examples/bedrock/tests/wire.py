"""The frames of ConverseStream, as Bedrock writes them."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from binascii import crc32
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from rxllm import ToolCall
from rxllm.testing import HTTPAdapterConformance, Script, refusal
from rxllm.testing.loopback import Reply

from rxllm_bedrock import Bedrock

SIGNATURE = "c2lnbmF0dXJl/Zm9yIHRoZSB0aG91Z2h0"


def message(payload: bytes, headers: Mapping[str, str]) -> bytes:
    """Return one message of AWS's binary event stream."""
    head = b"".join(
        pack("!B", len(name)) + name.encode() + b"\x07" + pack("!H", len(text)) + text.encode()
        for name, text in headers.items()
    )
    prelude = pack("!II", 16 + len(head) + len(payload), len(head))
    body = prelude + pack("!I", crc32(prelude)) + head + payload
    return body + pack("!I", crc32(body))


def frame(kind: str, payload: Any, message_type: str = "event") -> bytes:
    headers = {f":{message_type}-type": kind, ":content-type": "application/json", ":message-type": message_type}
    return message(payload if isinstance(payload, bytes) else json.dumps(payload).encode(), headers)


def failure(kind: str, **fields: Any) -> bytes:
    return frame(kind, fields, "exception")


def start(index: int, **start: Any) -> bytes:
    return frame("contentBlockStart", {"contentBlockIndex": index, "start": start})


def delta(index: int, **delta: Any) -> bytes:
    return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


def stop(index: int) -> bytes:
    return frame("contentBlockStop", {"contentBlockIndex": index})


def end(reason: str = "end_turn", usage: Mapping[str, Any] | None = None, **more: Any) -> list[bytes]:
    metadata = {"metrics": {"latencyMs": 9}, **({"usage": usage} if usage else {}), **more}
    return [frame("messageStop", {"stopReason": reason}), frame("metadata", metadata)]


BEGIN = frame("messageStart", {"role": "assistant"})

REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "guardrail_intervened"}
EXCEPTIONS = {
    "authentication_failed": "AccessDeniedException",
    "rate_limited": "ThrottlingException",
    "invalid_request": "ValidationException",
    "context_length_exceeded": "ValidationException",
    "content_filter": "ValidationException",
    "provider_unavailable": "ServiceUnavailableException",
}
MESSAGES = {
    "context_length_exceeded": "Input is too long for requested model.",
    "content_filter": "The input was blocked by the content filter.",
}
"""What Bedrock writes about errors for which it has no exception of their own."""


class ConverseWire(HTTPAdapterConformance):
    """What the test kit has to know about Bedrock's wire format."""

    __test__ = False
    headers = {"Content-Type": "application/vnd.amazon.eventstream"}  # noqa: RUF012

    def adapter(self, url: str, **connection: Any) -> Any:
        return Bedrock(base_url=url, **connection)

    def said(self, script: Script) -> list[bytes]:
        thoughts = [delta(0, reasoningContent={"text": piece}) for piece in script.thinking]
        if thoughts:
            thoughts += [delta(0, reasoningContent={"signature": SIGNATURE}), stop(0)]
        texts = [*(delta(1, text=text) for text in script.texts), *([stop(1)] if script.texts and script.calls else [])]
        return [BEGIN, *thoughts, *texts, *(f for i, call in enumerate(script.calls) for f in call_frames(i + 2, call))]

    def ended(self, script: Script) -> list[bytes]:
        counts = script.usage and {"inputTokens": script.usage.input_tokens, "outputTokens": script.usage.output_tokens}
        return end(REASONS.get(script.finish_reason, "end_turn"), counts)

    def failed(self, error: Any) -> list[bytes]:
        name = EXCEPTIONS[error.reason]
        return [failure(name[0].lower() + name[1:], message=error.message)]

    def refused(self, error: Any) -> Reply:
        message = MESSAGES.get(error.reason, error.message)
        reply = refusal(error, {"message": message})
        headers = {"x-amzn-ErrorType": f"{EXCEPTIONS[error.reason]}:http://internal.amazon.com/"}
        if error.request_id:
            headers["x-amzn-RequestId"] = error.request_id
        more = {name: text for name, text in reply.headers.items() if name != "x-request-id"}
        return Reply(reply.body, reply.status, headers={**more, **headers})


def call_frames(index: int, call: ToolCall) -> list[bytes]:
    arguments = json.dumps(call.arguments)
    pieces = arguments[:3], arguments[3:]
    return [
        start(index, toolUse={"toolUseId": call.id, "name": call.name, "type": "tool_use"}),
        *(delta(index, toolUse={"input": piece}) for piece in pieces),
        stop(index),
    ]


def recordings() -> list[tuple[str, bytes]]:
    """Return the API and the features of each recorded stream, and its bytes. Skip the test if there are none."""
    root = Path(os.environ.get("RXLLM_STREAMS") or "/nonexistent")
    if not root.is_dir():
        pytest.skip("recorded streams are not at hand: set RXLLM_STREAMS to their folder")
    with tarfile.open(root / "more.tar.gz") as archive:
        members = {member.name.removeprefix("./"): member for member in archive if member.isfile()}

        def read(name: str) -> bytes:
            content = archive.extractfile(members[name])
            return content.read() if content else b""

        archived = list(_listed(read("index.csv").decode(), read))
    return [*_listed((root / "index.csv").read_text(), lambda name: (root / name).read_bytes()), *archived]


def _listed(index: str, read: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    for row in csv.DictReader(io.StringIO(index)):
        if row["form"] == "aws-eventstream":
            yield f"{row['api']} {row['features']}", read(row["file"])
