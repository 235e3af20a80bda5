"""The commands of a shell call are watched, and vetoed, while the model writes them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pytest

import rxllm
from rxllm import OpenAIResponses, Stream, ToolCallCompleted, ToolCallDelta, ToolProgress, tool
from rxllm.testing.loopback import STALL, Loopback, Reply
from tests.adapters.openai_responses.support import COMPLETED, CREATED, added, decode, done, frame, item, said
from tests.corpus import recordings

REST = {"max_output_length": 9, "timeout_ms": None}


def shell(*commands: str, **fields: Any) -> dict[str, Any]:
    return item("shell_call", call_id="c", action={"commands": list(commands), **REST}, **fields)


def command(kind: str, index: int, text: str) -> bytes:
    field = {"delta": text} if kind == "delta" else {"command": text}
    return frame(f"response.shell_call_command.{kind}", output_index=0, command_index=index, **field)


def written(index: int, *pieces: str) -> list[bytes]:
    deltas = [command("delta", index, piece) for piece in pieces]
    return [command("added", index, ""), *deltas, command("done", index, "".join(pieces))]


def arguments(frames: Sequence[bytes], given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the deltas of the call's arguments, and the arguments."""
    body = CREATED + added(0, shell()) + b"".join(frames) + done(0, given) + COMPLETED
    events, _ = said(body)
    deltas = [event.arguments_delta for event in events if isinstance(event, ToolCallDelta)]
    (call,) = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert call.raw_arguments == "".join(deltas)
    assert not any(isinstance(event, ToolProgress) for event in events)
    return deltas, dict(call.arguments)


def test_commands_arrive_as_they_are_written() -> None:
    deltas, whole = arguments([*written(0, "ls", ' "-a"'), *written(1, "pwd")], shell('ls "-a"', "pwd"))
    assert deltas == [
        '{"commands":["',
        "ls",
        ' \\"-a\\"',
        '"',
        ',"',
        "pwd",
        '"',
        '],"max_output_length":9,"timeout_ms":null}',
    ]
    assert whole == {"commands": ['ls "-a"', "pwd"], **REST}


@pytest.mark.parametrize(
    "frames",
    [
        [command("done", 0, "ls"), command("done", 1, "pwd")],
        [command("added", 0, "ls"), command("added", 1, "pwd")],
        [command("delta", 0, "ls")],
        [command("delta", 0, "l"), command("delta", 1, "pw"), command("delta", 0, "s")],
        [command("delta", 1, "pwd")],
        [],
    ],
)
def test_whatever_is_missing_comes_with_the_end(frames: list[bytes]) -> None:
    assert arguments(frames, shell("ls", "pwd"))[1] == {"commands": ["ls", "pwd"], **REST}


def test_commands_that_arrive_in_any_order_are_written_one_after_the_other() -> None:
    parts = [written(0, "l", "s"), written(1, "pw", "d")]
    for firsts in itertools.combinations(range(8), 4):
        queues = [iter(part) for part in parts]
        frames = [next(queues[place not in firsts]) for place in range(8)]
        assert arguments(frames, shell("ls", "pwd"))[1] == {"commands": ["ls", "pwd"], **REST}, firsts


def test_an_end_that_says_something_else_leaves_json() -> None:
    for frames in (written(0, "ls"), [command("delta", 0, "ls")]):
        assert arguments(frames, shell("rm"))[1] == {"commands": ["ls"]}


@pytest.mark.judges
def test_recorded_commands_are_deltas_and_their_output_is_progress() -> None:
    found = [each for each in recordings("openai-responses") if b"shell_call_command.delta" in each.body]
    assert found
    for recording in found:
        events = decode(recording.body)
        deltas = [event for event in events if isinstance(event, ToolCallDelta)]
        frames = recording.body.count(b'"type":"response.shell_call_command.delta"')
        assert len(deltas) >= frames > 0, recording
        for call in (event for event in events if isinstance(event, ToolCallCompleted)):
            text = "".join(event.arguments_delta for event in deltas if event.id == call.id)
            assert json.loads(text) == call.arguments, recording
        progress = [event.data["type"] for event in events if isinstance(event, ToolProgress)]
        assert not [kind for kind in progress if "shell_call_command" in kind], recording


@pytest.mark.sockets
def test_a_veto_ends_the_response_in_the_middle_of_a_command() -> None:
    seen: list[str] = []

    @tool(name="shell", eager=True)
    async def watch(commands: Stream[Annotated[str, msgspec.Meta(min_length=0)]]) -> str:
        async for line in commands:
            seen.append(line)
            if line.startswith("rm"):
                raise rxllm.ToolError("handler_raised", "no removing")
        return "done"

    frames = [*written(0, "ls"), *written(1, "rm -rf"), command("added", 2, ""), command("delta", 2, "reb")]
    after = CREATED + done(0, {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Sorry."}]})
    replies = [Reply([CREATED, added(0, shell()), *frames, STALL]), Reply(after + COMPLETED)]
    with Loopback(replies) as server:
        engine = rxllm.Engine(OpenAIResponses(base_url=server.url, api_key="k"), model="m", tools=[watch])
        result = asyncio.run(_awaited(rxllm.chat(engine, "Clean up.")))
        sent = server.requests[1].json["input"]
    assert (result.output_text, seen) == ("Sorry.", ["ls", "rm -rf"])
    assert "no removing" in sent[-1]["output"]


async def _awaited(stream: Any) -> Any:
    return await stream
