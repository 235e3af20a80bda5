"""rxllm's own protocol: each event as its JSON (``rxllm.serializer``), and ``{"type": "end"}`` after the last.

A stream without that end was cut off.
"""

from __future__ import annotations

from typing import ClassVar

from rxllm import ErrorEvent, Event, StreamError
from rxllm.web._codec import Frame, all_of, event_data, event_of, malformed

_END = "end"


class Encoder:
    """Events to frames."""

    END: ClassVar[bytes] = b""
    HEADERS: ClassVar[dict[str, str]] = {}

    def feed(self, event: Event) -> list[Frame]:
        """Return the frame of `event`. Raises ``ValidationError("not_serializable")`` as `rxllm.serializer.to_data`."""
        return [event_data(event)]

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
        return all_of(frame, map(event_of, [frame]))

    def close(self) -> list[Event]:
        return [] if self._ended else [ErrorEvent(StreamError("truncated"))]
