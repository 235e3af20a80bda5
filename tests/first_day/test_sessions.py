"""The first session: where it begins, and what it keeps for its later turns."""

from __future__ import annotations

from typing import Any

import pytest

from rxllm import Fake, Session, Thread, ToolCall, ToolContext, ValidationError, serializer, session, tool, user
from rxllm import operators as ops


def test_a_new_session_keeps_the_context_and_the_id_of_its_start() -> None:
    begun = session.start(Fake("Hello"), "Hi", context={"a": 1}, session_id="s1").run().session
    assert (begun.id, begun.context) == ("s1", {"a": 1})
    assert serializer.from_json(serializer.to_json(begun)) == begun


def test_so_does_the_session_of_a_stream() -> None:
    events = session.stream_start(Fake("Hello"), "Hi", context={"a": 1}, session_id="s1")
    begun = events.pipe(ops.to_session(Session())).run().session
    assert (begun.id, begun.context) == ("s1", {"a": 1})


def test_tools_receive_both_in_the_later_turns_too() -> None:
    seen: list[Any] = []

    @tool
    def look(context: ToolContext) -> str:
        seen.append((dict(context.context), context.session_id))
        return "done"

    fake = Fake("Hello", ToolCall("c1", "look", {}), "Done.")
    begun = session.start(fake, "Hi", context={"a": 1}, session_id="s1").run().session
    session.reply(fake, begun, "Look.", tools=[look]).run()
    assert seen == [({"a": 1}, "s1")]


def test_a_session_that_you_made_keeps_its_own() -> None:
    mine = Session(id="mine", context={"b": 2}, thread=Thread((user("Hi"),)))
    after = session.start(Fake("Hello"), mine, context={"a": 1}, session_id="s1").run().session
    assert (after.id, after.context) == ("mine", {"b": 2})


def test_a_session_without_messages_begins_with_a_reply() -> None:
    empty = Session(id="s1", context={"a": 1})
    with pytest.raises(ValidationError, match=r'write session\.reply\(engine, session, "Hi"\)'):
        session.start(Fake("Hello"), empty).run()
    assert session.reply(Fake("Hello"), empty, "Hi").run().session.id == "s1"


@pytest.mark.parametrize("options", [{"context": 3}, {"session_id": 3}])
def test_options_of_a_wrong_type_are_refused_as_everywhere(options: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        session.start(Fake("Hello"), "Hi", **options)
    assert caught.value.reason == "invalid_option"
