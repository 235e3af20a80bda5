"""What a stored journal recalls of a response during which tools have started early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rxllm import LLMError, StreamError, serializer
from rxllm.durable._journal import StoredJournal
from rxllm.durable._store import Record
from rxllm.events import ErrorEvent, Event, MessageCompleted, MessageStarted
from rxllm.values import Message, ToolCall

CALLS = tuple(ToolCall(id, "look", {}, "{}") for id in ("c1", "c2"))
STARTED = MessageStarted(Message("assistant"))
BEGUN: list[Event] = [STARTED, MessageCompleted(Message("assistant", tool_calls=CALLS[:1]), "tool_calls")]
WHOLE: list[Event] = [STARTED, MessageCompleted(Message("assistant", tool_calls=CALLS), "tool_calls")]
OTHER: list[Event] = [STARTED, MessageCompleted(Message("assistant", "Safe."), "stop")]
FAILED: list[Event] = [STARTED, ErrorEvent(StreamError("truncated"))]


def record(kind: str, key: str, value: Any) -> Record:
    return Record(kind, key, serializer.to_json(value).encode())


def recalled(*records: Record, path: tuple[str, ...] = ()) -> list[Any]:
    journal = StoredJournal(records, cast(Any, SimpleNamespace(run_id="r1")))
    found: list[Any] = []
    while (events := journal.recall(path, "eager 1")) is not None:
        found.append(events)
    return found


def test_a_whole_response_replaces_its_kept_beginning() -> None:
    assert recalled(record("kept", "/eager 1", BEGUN), record("response", "/r/1", WHOLE)) == [BEGUN, []]
    in_agent = [record("kept", "/c1/eager 1", BEGUN), record("response", "/c1/r/1", WHOLE)]
    assert recalled(*in_agent, path=("c1",)) == [BEGUN, []]


@pytest.mark.parametrize(
    ("key", "value"),
    [("/r/1", FAILED), ("/r/1", OTHER), ("/r/1", StreamError("truncated")), ("/c1/r/1", WHOLE)],
)
def test_no_other_response_does(key: str, value: list[Event] | LLMError) -> None:
    assert recalled(record("kept", "/eager 1", BEGUN), record("response", key, value)) == [BEGUN]
    assert recalled(record("response", "/r/1", WHOLE), record("kept", "/eager 1", BEGUN)) == [BEGUN]


def test_a_beginning_that_was_used_stays() -> None:
    used = [record("kept", "/eager 1", BEGUN)] * 2
    assert recalled(*used, record("response", "/r/2", WHOLE)) == [BEGUN, BEGUN]
