"""The exchanges of a conversation: a user's message with everything up to the next one."""

from __future__ import annotations

from collections.abc import Sequence

from rxllm.values import Message


def exchange_starts(messages: Sequence[Message]) -> list[int]:
    """Return where the exchanges of `messages` begin, in order; they are never parted inside a tool call.

    >>> from rxllm.values import assistant, system, user
    >>> exchange_starts([system("Be brief."), user("Hi"), assistant("Hello"), user("Bye")])
    [1, 3]

    What stands before the first user's message, except system messages, is an exchange too. A user's message between a
    tool call and its result begins none, since a result must stay with its call, and neither does one behind a call
    without a result, whose refusal must not depend on the length of the thread.
    """
    starts: list[int] = []
    reach = _last_results(messages)
    answered = -1  # where the last result of the calls so far is
    for i, message in enumerate(messages):
        if message.role != "system" and (not starts or message.role == "user") and answered < i:
            starts.append(i)
        answered = max(answered, reach.get(i, -1))
    return starts


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """Return the places of messages with tool calls, with those of their last results; a missing one is the end."""
    made_at: dict[str, int] = {}
    reach: dict[int, int] = {}
    unanswered: dict[str, int] = {}
    for i, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in made_at:
            reach[made_at[message.tool_call_id]] = i
            unanswered.pop(message.tool_call_id, None)
        made_at.update((call.id, i) for call in message.tool_calls)
        unanswered.update((call.id, i) for call in message.tool_calls if not call.metadata.get("server"))
    return reach | dict.fromkeys(unanswered.values(), len(messages))


def from_exchange(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    """Return the system messages, and of the others those from `start` on."""
    return tuple(message for i, message in enumerate(messages) if i >= start or message.role == "system")
