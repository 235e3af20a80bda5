"""What the tests of the image adapters share: what the services say, and forms taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from typing import Any

from rxllm.testing import PNG
from rxllm.testing.loopback import Reply, Request


def openai_images(count: int = 1, **fields: Any) -> dict[str, Any]:
    """An answer of OpenAI's with so many images of one pixel; `fields` beside them."""
    return {"created": 1, "data": [{"b64_json": PNG.data} for _ in range(count)], **fields}


def gemini_images(count: int = 1, **fields: Any) -> dict[str, Any]:
    """An answer of Gemini's with so many candidates, an image of one pixel each; `fields` beside them."""

    def candidate(index: int) -> dict[str, Any]:
        part = {"inlineData": {"mimeType": "image/png", "data": PNG.data}}
        return {"content": {"parts": [part]}, "finishReason": "STOP", "index": index}

    return {"candidates": [candidate(i) for i in range(count)], "responseId": "r1", **fields}


def image_reply(data: bytes = PNG.to_binary(), kind: str = "image/png") -> Reply:
    """A picture, as a web server sends it."""
    return Reply(data, headers={"Content-Type": kind})


@dataclass(frozen=True)
class Part:
    """One field of a form."""

    name: str
    filename: str | None
    kind: str | None
    data: bytes


def parts_of(request: Request) -> list[Part]:
    """The fields of a form, in order."""
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    payload: Any = message_from_bytes(head + request.body).get_payload()
    return [_part(each) for each in payload]


def _part(part: Message) -> Part:
    def named(name: str) -> str | None:
        held = part.get_param(name, header="content-disposition")
        return held if isinstance(held, str) else None

    data: Any = part.get_payload(decode=True)
    return Part(named("name") or "", part.get_filename(), part.get("content-type"), data)
