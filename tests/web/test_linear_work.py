"""The work of the web's encoders and decoders grows with the number of calls and agents, and not with its square."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from reactivex import from_iterable

import rxllm
from rxllm import ChatResult, Engine, Event, Fake, MessageCompleted, Thread, ToolCall
from rxllm.web import AGUI, encode, for_client, from_ui
from tests.laws.test_linear import APPROVAL, calls, ids, wait, work

SMALL, LARGE = 40, 160


def waiting(n: int) -> list[Event]:
    """The events of a chat whose calls all wait for an approval."""
    return wait(rxllm.stream(Fake(calls(n)), "Hi", tools=[APPROVAL]).pipe(for_client()).to_list())


def waiting_agents(n: int) -> list[Event]:
    """The events of a chat whose agents all wait for their caller."""
    agent = Engine(Fake(lambda request: ToolCall("x", "f")), tools=[APPROVAL]).as_tool(name="f")
    made = [ToolCall(id, "f", {"prompt": "Hi"}) for id in ids(n)]
    return wait(rxllm.stream(Fake(made), "Hi", tools=[agent]).pipe(for_client()).to_list())


def answering_agents(n: int) -> list[Event]:
    agent = Engine(Fake("Hello")).as_tool(name="f")
    made = [ToolCall(id, "f", {"prompt": "Hi"}) for id in ids(n)]
    return wait(rxllm.stream(Fake(made, "done"), "Hi", tools=[agent]).pipe(for_client()).to_list())


CASES: dict[str, tuple[str, Callable[[int], list[Event]]]] = {
    "calls that wait, for useChat": ("ui", waiting),
    "calls that wait, for AG-UI": ("ag-ui", waiting),
    "agents that wait, for AG-UI": ("ag-ui", waiting_agents),
    "agents that answer, for AG-UI": ("ag-ui", answering_agents),
}


def encoded(protocol: str, events: list[Event]) -> None:
    errors: list[Exception] = []
    from_iterable(events).pipe(for_client(), encode(protocol)).subscribe(on_error=errors.append)
    assert not errors


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.judges) if name.startswith("agents") else name for name in CASES]
)
def test_the_work_is_linear_in(name: str) -> None:
    protocol, make = CASES[name]
    encoded(protocol, make(2))  # what is done once: imports, caches
    small, large = (work(partial(encoded, protocol, make(n)))[0] for n in (SMALL, LARGE))
    assert large <= 1.25 * LARGE / SMALL * small


Frames = list[dict[str, Any]]


def other_ids(n: int) -> Frames:
    """A run whose snapshot gives its messages other ids than its deltas, which have other texts."""
    deltas: Frames = [{"type": "TEXT_MESSAGE_CHUNK", "messageId": f"d{i}", "delta": "a"} for i in range(n)]
    messages = [{"id": f"m{i}", "role": "assistant", "content": "b"} for i in range(n)]
    return [*deltas, {"type": "MESSAGES_SNAPSHOT", "messages": messages}]


def an_agent_that_begins_again(n: int) -> Frames:
    return [{"type": f"SUBAGENT_{kind}", "subagentRunId": "a"} for _ in range(n) for kind in ("STARTED", "FINISHED")]


@pytest.mark.parametrize("make", [other_ids, an_agent_that_begins_again])
def test_the_work_to_read_an_agent_is_linear_in(make: Callable[[int], Frames]) -> None:
    def read(n: int) -> None:
        decoder = AGUI("http://127.0.0.1:1").decoder(rxllm.request("Hi"))
        frames = [{"type": "RUN_STARTED", "runId": "r"}, *make(n), {"type": "RUN_FINISHED", "runId": "r"}]
        data = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames)
        events = [*decoder.feed(data), *decoder.close()]
        assert isinstance(events[-1], MessageCompleted)

    read(2)  # what is done once: imports, caches
    small, large = (work(partial(read, n))[0] for n in (SMALL, LARGE))
    assert large <= 1.25 * LARGE / SMALL * small


def test_approvals_are_compared_with_the_dropped_calls_once() -> None:
    def approve(n: int) -> None:
        waiting = [ToolCall(f"{id}/x", "pay") for id in ids(n)]
        dropped: dict[str, Any] = {"dropped_calls": ids(n, "d")}
        stored = ChatResult(Thread((rxllm.user("Pay."),), dropped), pending_tool_calls=tuple(waiting))
        answers = [
            {
                "type": "tool-pay",
                "toolCallId": call.id,
                "state": "approval-responded",
                "approval": {"id": call.id, "approved": True},
            }
            for call in waiting
        ]
        incoming = from_ui({"messages": [{"role": "assistant", "parts": answers}]}, stored=stored)
        assert len(incoming.approvals) == n

    approve(2)  # what is done once: imports, caches
    small, large = (work(partial(approve, n))[0] for n in (SMALL, LARGE))
    assert large <= 1.25 * LARGE / SMALL * small
