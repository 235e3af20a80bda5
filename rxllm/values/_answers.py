"""Which calls of a thread are answered, and answers put in their place."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice

from rxllm.values._message import Message
from rxllm.values._thread import Thread
from rxllm.values._tool_call import ToolCall


def unanswered(thread: Thread) -> tuple[ToolCall, ...]:
    """The calls of the thread that wait for an answer, in their order; never those that the provider runs itself.

    >>> thread = Thread((Message("assistant", tool_calls=(ToolCall("a", "f"), ToolCall("b", "g"))),))
    >>> [call.id for call in unanswered(with_results(thread, {"a": Message("tool", "1", tool_call_id="a")}))]
    ['b']
    """
    answered = {message.tool_call_id for message in thread if message.role == "tool"}
    calls = (call for message in thread for call in message.tool_calls)
    return tuple(call for call in calls if call.id not in answered and not call.metadata.get("server"))


def with_results(thread: Thread, results: Mapping[str, Message]) -> Thread:
    """`thread` with the tool messages `results`, by the call's id, each behind its call and in the order of the calls.

    Providers want a turn's results next to it, also where the chat went on meanwhile. Results of no call come last.
    """
    left = dict(results)
    made: list[Message] = []
    rest = deque(thread.messages)
    while rest:
        message = rest.popleft()
        made.append(message)
        place = {call.id: i for i, call in enumerate(message.tool_calls)}
        mine = [left.pop(id) for id in place if id in left]
        if mine:
            while rest and rest[0].role == "tool":
                mine.append(rest.popleft())
            made += sorted(mine, key=lambda each: place.get(each.tool_call_id or "", len(place)))
    return replace(thread, messages=(*made, *left.values()))


def listed(ids: Collection[str]) -> str:
    """`ids` as an error says them, the first ten by name: each of many wrong answers says so.

    >>> listed("abcdefghijkl"), listed([])
    ('a, b, c, d, e, f, g, h, i, j and 2 more', 'none')
    """
    more = f" and {len(ids) - 10} more" if len(ids) > 10 else ""
    return (", ".join(islice(ids, 10)) or "none") + more
