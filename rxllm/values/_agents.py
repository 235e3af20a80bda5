"""The agents that a thread waits for: tool calls whose own chats have halted.

The thread of such a chat is in the metadata of the message that makes the call, as ``metadata["agents"][call.id]``,
until the call is answered. What waits inside has an id with the ids of the calls that lead there, joined by "/".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from rxllm.values._message import Message
from rxllm.values._thread import AGENTS, Thread, unanswered, with_results
from rxllm.values._tool import ToolCall


def nested_id(id: str, inner: str) -> str:
    """Return the id of what waits as `inner` in the agent of the tool call `id`."""
    return f"{id}/{inner}"


def nested_call(id: str, call: ToolCall) -> ToolCall:
    """Return `call`, which waits in the agent of the tool call `id`, as the caller of the chat sees it."""
    return replace(call, id=nested_id(id, call.id))


def open_agents(thread: Thread) -> dict[str, Thread]:
    """Return the threads of the agents that `thread` waits for, by the ids of their calls, in order."""
    threads: dict[str, Any] = {}
    for message in thread:
        agents = message.metadata.get(AGENTS)
        if isinstance(agents, Mapping):
            threads |= cast(Mapping[str, Any], agents)
    found = ((call.id, threads.get(call.id)) for call in unanswered(thread))
    return {id: agent for id, agent in found if isinstance(agent, Thread)}


def with_open_agents(thread: Thread, agents: Mapping[str, Thread]) -> Thread:
    """Return `thread` with the threads of its `agents`, by the ids of their calls; others stay."""
    if not agents:
        return thread
    return replace(thread, messages=tuple(_with_agents(message, agents) for message in thread))


def _with_agents(message: Message, agents: Mapping[str, Thread]) -> Message:
    own = {call.id: agents[call.id] for call in message.tool_calls if call.id in agents}
    if not own:
        return message
    return replace(message, metadata={**message.metadata, AGENTS: {**message.metadata.get(AGENTS, {}), **own}})


def open_calls(thread: Thread) -> Iterator[ToolCall]:
    """Yield the calls without an answer, those in agents in the place of the agents' own."""
    agents = open_agents(thread)
    for call in unanswered(thread):
        if call.id in agents:
            yield from (nested_call(call.id, inner) for inner in open_calls(agents[call.id]))
        else:
            yield call


def open_ids(thread: Thread) -> Iterator[str]:
    """Yield the ids of all that `thread` and its agents wait for: the calls without an answer, and the questions."""
    agents = open_agents(thread)
    for call in unanswered(thread):
        yield call.id
        yield from (nested_id(call.id, id) for id in (open_ids(agents[call.id]) if call.id in agents else ()))
    yield from (id for id in [_own_question_id(thread)] if id is not None)


def open_questions(thread: Thread) -> Iterator[str]:
    """Yield the ids of the questions to the user in `thread` and its agents, those of the agents first."""
    for id, agent in open_agents(thread).items():
        yield from (nested_id(id, inner) for inner in open_questions(agent))
    yield from (id for id in [_own_question_id(thread)] if id is not None)


def waits_in_agent(thread: Thread, id: str | None) -> bool:
    """Whether `id` is that of a question which an agent of `thread` asks."""
    return id is not None and id != _own_question_id(thread) and id in open_questions(thread)


def with_answer(thread: Thread, id: str, answer: Message) -> Thread:
    """Return `thread` with the `answer` to the call or the question `id`, at any depth.

    A tool's message goes behind its call, a user's message behind the question. One that nothing waits for comes last.
    """
    if id == _own_question_id(thread) and answer.role == "user":
        return thread + answer
    for outer, agent in open_agents(thread).items():
        inner = id.removeprefix(f"{outer}/")
        if inner != id and inner in open_ids(agent):
            return with_open_agents(thread, {outer: with_answer(agent, inner, answer)})
    return with_results(thread, {id: replace(answer, tool_call_id=id)})


def with_answers(thread: Thread, answers: Mapping[str, Message]) -> Thread:
    """Return `thread` with the tool messages that answer these calls, as `with_answer` does for one."""
    agents = open_agents(thread)
    places = {nested_id(id, inner): (id, inner) for id, agent in agents.items() for inner in open_ids(agent)}
    own: dict[str, Message] = {}
    nested: dict[str, dict[str, Message]] = {}
    for id, answer in answers.items():
        outer, inner = places.get(id, ("", id))
        (nested.setdefault(outer, {}) if id in places else own)[inner] = replace(answer, tool_call_id=inner)
    answered = {id: with_answers(agents[id], found) for id, found in nested.items()}
    return with_results(with_open_agents(thread, answered), own)


def _own_question_id(thread: Thread) -> str | None:
    last = thread.last
    return last.metadata.get("tool_call_id") if last is not None and last.metadata.get("ask_user") else None
