"""What is shown of each event: as text for a terminal, and as Markdown for a notebook."""

from __future__ import annotations

from rxllm.events import (
    AskUserRequested,
    ErrorEvent,
    Event,
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolProgress,
    ToolResultEncoded,
)

RESULT_WIDTH = 200
"""How many characters of a tool's result or progress are shown."""


class Transcript:
    """Paragraphs, each of one kind: ``text``, ``thinking``, or ``note`` for what tools do.

    >>> transcript = Transcript()
    >>> [transcript.add(event) for event in (ThinkingDelta("hm"), TextDelta("He"), TextDelta("llo"))]
    ['hm', '\\n\\nHe', 'llo']
    >>> print(transcript.markdown())
    > hm
    <BLANKLINE>
    Hello
    """

    def __init__(self) -> None:
        self._paragraphs: list[tuple[str, list[str]]] = []

    def add(self, event: Event) -> str:
        """Add `event`, and return the text that it adds, for a terminal."""
        match event:
            case TextDelta(delta=delta):
                return self._write("text", delta)
            case ThinkingDelta(delta=delta):
                return self._write("thinking", delta)
            case ToolCallCompleted():
                return self._note(f"{event.tool_call!r}")
            case ToolApprovalRequested(name=name):
                return self._note(f"{name} waits for approval")
            case ToolProgress(name=name, data=data):
                return self._note(f"{name}: {_clipped(str(data))}")
            case ToolResultEncoded(content=content):
                return self._note(f"→ {_clipped(content)}")
            case AskUserRequested(question=question):
                return self._write("text", question)
            case ErrorEvent(error=error):
                return self._note(f"{type(error).__name__}: {error}")
            case StepRestarted(reason=reason):
                return self._note(f"starting again: {reason}")
            case _:
                return ""

    def markdown(self) -> str:
        """Return the whole transcript: thinking as a quotation, notes as code."""
        return "\n\n".join(_styled(kind, "".join(pieces)) for kind, pieces in self._paragraphs)

    def _write(self, kind: str, piece: str) -> str:
        if self._paragraphs and self._paragraphs[-1][0] == kind:
            self._paragraphs[-1][1].append(piece)
            return piece
        return self._begin(kind, piece)

    def _note(self, note: str) -> str:
        return self._begin("note", note)

    def _begin(self, kind: str, piece: str) -> str:
        gap = "\n\n" if self._paragraphs else ""
        self._paragraphs.append((kind, [piece]))
        return gap + piece


def _styled(kind: str, text: str) -> str:
    match kind:
        case "thinking":
            return "\n".join(f"> {line}" for line in text.splitlines())
        case "note":
            return f"`{text.replace('`', chr(39))}`"  # a backtick would end the code
        case _:
            return text


def _clipped(text: str) -> str:
    return text if len(text) <= RESULT_WIDTH else text[: RESULT_WIDTH - 1] + "…"
