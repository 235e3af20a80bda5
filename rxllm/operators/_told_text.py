"""Text that has been emitted cannot be taken back, so a step that starts over must repeat it."""

from __future__ import annotations

from rxllm.events import Event, MessageCompleted, MessageStarted, StepCompleted, StepRestarted
from rxllm.runtime import failure_behind
from rxllm.values import StreamError

READ: tuple[type[Event], ...] = (MessageStarted, MessageCompleted, StepCompleted, StepRestarted)
"""The events that `ToldText.see` reads."""


class ToldText:
    """The text of a step that an operator has emitted. It is always the beginning of the step's text.

    After a ``StepRestarted``, text that repeats it is left out. ``StreamError("restarted")`` is raised where the new
    text differs, or if it ends earlier.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._begin()

    def _begin(self) -> None:
        self._emitted: list[str] = []
        self._expected = ""  # what the new attempt must repeat
        self._at = 0
        self._reason = ""
        self._failure: Exception | None = None
        self._is_whole = False

    def see(self, event: Event) -> None:
        match event:
            case StepRestarted():
                self._expected, self._at, self._is_whole = "".join(self._emitted), 0, False
                self._reason, self._failure = event.reason, self._failure or failure_behind(event)
            case MessageCompleted():
                self.close()
                self._is_whole = True
            case StepCompleted():
                self._begin()
            case MessageStarted() if self._is_whole:  # of another response, in the same stream
                self._begin()
            case _:
                pass

    def unrepeated(self, text: str) -> str:
        """Return the part of `text` that comes after what has been emitted."""
        if self._at == len(self._expected):
            return text
        repeated = self._expected[self._at : self._at + len(text)]
        if not text.startswith(repeated):
            raise self._differs("now begins in other words")
        self._at += len(repeated)
        return text[len(repeated) :]

    def emit(self, text: str) -> None:
        self._emitted.append(text)

    def close(self) -> None:
        """Raise an error if the text ended before it had repeated all that has been emitted."""
        if self._at < len(self._expected):
            raise self._differs("is now shorter")

    def _differs(self, how: str) -> StreamError:
        fault = f"the answer was started over ({self._reason}) and {how}, but its text has been emitted already"
        remedy = "ops.to_text() waits for the whole text, ops.snapshots() and the events show that it starts over"
        error = StreamError("restarted", f"{self._operator}(): {fault}; {remedy}")
        error.__cause__ = self._failure
        return error
