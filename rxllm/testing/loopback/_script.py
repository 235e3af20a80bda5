"""What the server is told to answer, and what it is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, cast

SSE_HEADERS = {"Content-Type": "text/event-stream"}


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds; for ever by default."""

    seconds: float = math.inf


STALL = Pause()


class Cut(Enum):
    """The server goes away in the middle of a chunk: with a FIN as if all were well, or with a reset."""

    FIN = "fin"
    RESET = "reset"


@dataclass(frozen=True)
class Reply:
    """An answer. `before` is the wait before the first byte of its head, in seconds or as a `Pause`."""

    body: bytes | Iterable[bytes | Pause | Cut] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE_HEADERS))
    before: float | Pause = 0.0

    def __post_init__(self) -> None:
        body: Any = self.body
        if isinstance(body, str) or not isinstance(body, Iterable):
            raise TypeError(f"a body is bytes, or an iterable of bytes, Pause and Cut, not {body!r}")
        if isinstance(body, Sequence) and not isinstance(body, bytes):
            for item in cast(Sequence[Any], body):
                check_item(item)

    @classmethod
    def of_json(cls, data: Any, status: int = 200, **headers: str) -> Self:
        """A plain JSON answer; ``retry_after="1"`` is the header Retry-After."""
        named = {name.replace("_", "-"): held for name, held in headers.items()}
        return cls(json.dumps(data).encode(), status, {"Content-Type": "application/json", **named})


@dataclass(frozen=True)
class Request:
    """What a client asked, header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


def checked(script: Any) -> Script:
    """`script`. Raises ``TypeError`` for what is none, and ``ValueError`` for an empty list."""
    if isinstance(script, Reply) or callable(script):
        return cast(Script, script)
    if isinstance(script, list | tuple):
        replies = cast(Sequence[Any], script)
        if not replies:
            raise ValueError("a script has at least one Reply")
        if all(isinstance(each, Reply) for each in replies):
            return replies
    raise TypeError(f"a script is a Reply, a list of them, or a function of the Request, not {script!r}")


def check_item(item: Any) -> None:
    """Raises ``TypeError`` unless a body may have this in it."""
    if not isinstance(item, bytes | Pause | Cut):
        raise TypeError(f"a body is made of bytes, Pause and Cut, not {item!r}")
