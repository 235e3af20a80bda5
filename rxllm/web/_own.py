"""rxllm's own protocol: each event as its JSON (``rxllm.serializer``), and ``{"type": "end"}`` after the last.

A stream without that end was cut off.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rxllm import ErrorEvent, Event, StreamError, ValidationError, serializer
from rxllm.web._codec import Frame, malformed

_END = "end"


class Encoder:
    """Events to frames."""

    END: ClassVar[bytes] = b""
    HEADERS: ClassVar[dict[str, str]] = {}

    def feed(self, event: Event) -> list[Frame]:
        """Return the frame of `event`. Raises ``ValidationError("not_serializable")`` as `rxllm.serializer.to_data`."""
        frame = serializer.to_data(event)
        del frame["v"]  # a reader takes the current one
        return [frame]

    def close(self) -> list[Frame]:
        return [{"type": _END}]


class Decoder:
    """Frames to events."""

    def __init__(self) -> None:
        self._ended = False

    def feed(self, frame: Frame) -> list[Event]:
        if self._ended:
            raise malformed(frame)
        if frame.get("type") == _END:
            self._ended = True
            return []
        try:
            event: Any = serializer.from_data(frame)
        except (ValidationError, TypeError, ValueError):
            raise malformed(frame) from None
        if not isinstance(event, Event):
            raise malformed(frame)
        return [event]

    def close(self) -> list[Event]:
        return [] if self._ended else [ErrorEvent(StreamError("truncated"))]
