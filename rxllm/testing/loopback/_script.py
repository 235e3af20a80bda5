"""The server's replies, the requests it receives, scripts of replies, and the frames of OpenAI's chat dialect."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, cast

SSE_HEADERS = {"Content-Type": "text/event-stream"}


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds, for ever by default."""

    seconds: float = math.inf


STALL = Pause()


class Cut(Enum):
    """The server closes in the middle of a chunk: with a FIN, as after a whole response, or with a reset."""

    FIN = "fin"
    RESET = "reset"


@dataclass(frozen=True)
class Reply:
    """A response. `before` is the wait before the first byte of its head, in seconds or as a `Pause`."""

    body: bytes | Iterable[bytes | Pause | Cut] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE_HEADERS))
    before: float | Pause = 0.0

    def __post_init__(self) -> None:
        body: Any = self.body
        if isinstance(body, str) or not isinstance(body, Iterable):
            raise TypeError(f"a body must be bytes, or an iterable of bytes, Pause and Cut, not {body!r}")
        if isinstance(body, Sequence) and not isinstance(body, bytes):
            for item in cast(Sequence[Any], body):
                check_item(item)

    @classmethod
    def of_json(cls, data: Any, status: int = 200, **headers: str) -> Self:
        """A JSON response; ``retry_after="1"`` is the header Retry-After."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(json.dumps(data).encode(), status, {"Content-Type": "application/json", **fields})


@dataclass(frozen=True)
class Request:
    """A client's request, with header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


def check_script(script: Any) -> Script:
    """Return the script. Raise ``TypeError`` if it is something else, and ``ValueError`` for an empty list."""
    if isinstance(script, Reply) or callable(script):
        return cast(Script, script)
    if isinstance(script, list | tuple):
        replies = cast(Sequence[Any], script)
        if not replies:
            raise ValueError("a script must have at least one Reply")
        if all(isinstance(reply, Reply) for reply in replies):
            return replies
    raise TypeError(f"a script must be a Reply, a list of them, or a function of the Request, not {script!r}")


def check_item(item: Any) -> None:
    """Raise ``TypeError`` if `item` cannot be a part of a body."""
    if not isinstance(item, bytes | Pause | Cut):
        raise TypeError(f"a body must be made of bytes, Pause and Cut, not {item!r}")


DONE = b"data: [DONE]\n\n"


def chat_event(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """A frame with one choice's `delta`; `more` are fields beside the choices, as ``usage=...``."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "loopback"}
    return b"data: " + json.dumps({**frame, "choices": [choice], **more}).encode() + b"\n\n"


def chat_chunk(text: str) -> bytes:
    return chat_event({"content": text})


def chat_finish(reason: str = "stop", **more: Any) -> bytes:
    return chat_event({}, reason, **more)


def chat(*texts: str) -> list[bytes]:
    """A whole response, with a chunk for each text."""
    return [*map(chat_chunk, texts), chat_finish(), DONE]


def endless(make: Callable[[int], bytes] | None = None, every: float = 0.0) -> Iterator[bytes | Pause]:
    """Frames without end, as fast as the client reads or one in `every` seconds; each reply needs its own.

    ``make(i)`` is a frame; without it the answer is the text ``"0 1 2 "`` and so on, a number in each frame.
    """
    make = make or (lambda i: chat_chunk(f"{i} "))
    for i in itertools.count():
        yield make(i)
        if every:
            yield Pause(every)
