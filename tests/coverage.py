"""What the recorded streams cover, provider by feature, counted in streams: ``python -m tests.coverage``.

A stream counts only if it decodes: lawful events, and the same events when the bytes come in two pieces. The command
prints the table, and after it what does not decode, which is nothing; then it ends with 0.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.collector import is_server
from rxllm.events import (
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    RawChunk,
    SourceAdded,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallStarted,
    UsageUpdated,
)
from rxllm.values import Request, StreamError
from tests.corpus import VARIABLE, Recording, recordings
from tests.wire.lawful import lawful

ADAPTERS: dict[str, Callable[[], Any]] = {
    "openai-chat": OpenAIChat,
    "openai-completions": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic-messages": Anthropic,
    "gemini": Gemini,
    "ollama-chat": Ollama,
    "ollama-generate": Ollama,
}


def _calls(events: Iterable[Event], *, server: bool) -> int:
    return sum(isinstance(event, ToolCallStarted) and is_server(event) is server for event in events)


def _has(kind: type[Any]) -> Callable[[Sequence[Event]], bool]:
    return lambda events: any(isinstance(event, kind) for event in events)


def _signed(events: Sequence[Event]) -> bool:
    # Gemini also signs calls, text and images; what signs nothing else is a part of its own.
    thoughts = (event for event in events if isinstance(event, ThinkingCompleted))
    return any(thought.signature or thought.provider_data for thought in thoughts) or "thoughtSignature" in repr(
        [event.message.parts + event.message.tool_calls for event in events if isinstance(event, MessageCompleted)]
    )


def _counted(name: str) -> Callable[[Sequence[Event]], bool]:
    return lambda events: any(isinstance(event, UsageUpdated) and getattr(event.usage, name) for event in events)


def _finished(reason: str) -> Callable[[Sequence[Event]], bool]:
    return lambda events: isinstance(events[-1], MessageCompleted) and events[-1].finish_reason == reason


def _truncated(events: Sequence[Event]) -> bool:
    last = events[-1]
    return isinstance(last, ErrorEvent) and isinstance(last.error, StreamError) and last.error.reason == "truncated"


FEATURES: dict[str, Callable[[Sequence[Event]], bool]] = {
    "text": _has(TextDelta),
    "thinking": _has(ThinkingDelta),
    "signatures": _signed,
    "calls": lambda events: _calls(events, server=False) > 0,
    "several": lambda events: _calls(events, server=False) > 1,
    "server": lambda events: _calls(events, server=True) > 0,
    "sources": _has(SourceAdded),
    "files": _has(FileAdded),
    "usage": _has(UsageUpdated),
    "cached": _counted("cached_input_tokens"),
    "reasoning": _counted("reasoning_tokens"),
    "length": _finished("length"),
    "filtered": _finished("content_filter"),
    "unmapped": _has(RawChunk),
    "errors": lambda events: _has(ErrorEvent)(events) and not _truncated(events),
    "truncated": _truncated,
}


def decode(api: str, body: bytes, cuts: Sequence[int] = ()) -> list[Event]:
    """The events of `body`, cut into pieces at `cuts`, by the adapter of `api`."""
    decoder = ADAPTERS[api]().decoder(Request(model="any"))
    events = [event for a, b in pairwise([0, *cuts, len(body)]) for event in decoder.feed(body[a:b])]
    return events + decoder.close()


def responses(recording: Recording) -> Iterator[bytes]:
    """The bytes of each response: some recordings of Anthropic's are a whole conversation."""
    starts = [0]
    if recording.api == "anthropic-messages":
        begins = re.finditer(rb'(event: message_start\r?\n)?data: .*"message_start"', recording.body)
        starts = [match.start() for match in begins] or starts
    return (recording.body[a:b] for a, b in pairwise([*starts, len(recording.body)]))


def covered(recording: Recording) -> set[str]:
    """The features of a recording. Raises what is wrong with its events."""
    found: set[str] = set()
    for body in responses(recording):
        events = decode(recording.api, body)
        lawful(events)
        assert decode(recording.api, body, [len(body) // 2]) == events, "another cut, other events"
        found |= {name for name, holds in FEATURES.items() if holds(events)}
    return found


def table(rows: dict[tuple[str, str], Counter[str]]) -> str:
    """Lines of providers and APIs, columns of features, and a line of totals."""
    columns = ["streams", *FEATURES]
    total = sum(rows.values(), Counter[str]())
    lines = [["provider", "api", *columns]]
    for (provider, api), counts in [*sorted(rows.items()), (("all", ""), total)]:
        lines.append([provider, api, *(str(counts[name] or "-") for name in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if n < 2 else cell.rjust(width) for n, (cell, width) in enumerate(cells)).rstrip()
        for cells in (zip(line, widths, strict=True) for line in lines)
    )


def main() -> int:
    if not Path(os.environ.get(VARIABLE) or "/dev/null").is_dir():
        print(f"recorded streams are not at hand: set {VARIABLE} to their folder", file=sys.stderr)
        return 2
    rows: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    failed: list[str] = []
    for recording in (each for api in ADAPTERS for each in recordings(api)):
        try:
            rows[recording.provider, recording.api].update(["streams", *covered(recording)])
        except Exception as error:
            failed.append(f"{recording}: {type(error).__name__}: {error}")
    print(table(rows))
    print(f"{len(failed)} do not decode", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
