"""aimock, a mock server that somebody else wrote, asked through every adapter: ``npm ci --prefix tests`` installs it.

It speaks each provider's wire as its authors understand it, over a real socket: text, tool runs, refusals, slow
streams and connections that break.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Engine, chat, generate, stream_generate
from rxllm.adapters import Anthropic, AzureChat, AzureResponses, Gemini, Ollama, OpenAIChat, OpenAIResponses, Vertex
from rxllm.adapters._connect import Compatible
from rxllm.events import ErrorEvent, Event, MessageCompleted, TextDelta
from rxllm.runtime import run
from rxllm.values import AdapterError, StreamError, ThinkingPart
from tests.judges import absent, judge
from tests.wire.lawful import lawful

pytestmark = pytest.mark.judges

SERVER = Path(__file__).parents[1] / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
PATIENCE = 20.0
"""Seconds that the server may take to start, or to stop."""

ANSWER = "Hello there, how are you today? I am fine."
REFUSAL = {"message": "Slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "greet"}, "response": {"content": ANSWER, "reasoning": "They greet."}},
    {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "Sunny in both."}},
    {
        "match": {"userMessage": "weather"},
        "response": {"toolCalls": [{"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")]},
    },
    {"match": {"userMessage": "too much"}, "response": {"error": REFUSAL, "status": 429}},
    {"match": {"userMessage": "broken"}, "response": {"error": {"message": "Oh"}, "status": 500}},
    {"match": {"userMessage": "slowly"}, "response": {"content": ANSWER}, "chunkSize": 5, "latency": 15},
    {
        "match": {"userMessage": "break off"},
        "response": {"content": ANSWER},
        "chunkSize": 5,
        "latency": 15,
        "truncateAfterChunks": 8,
    },
    {"match": {"userMessage": "hang up"}, "response": {"content": ANSWER}, "chaos": {"disconnectRate": 1}},
    {"match": {"userMessage": "babble"}, "response": {"content": ANSWER}, "chaos": {"malformedRate": 1}},
]


def bedrock(url: str) -> Any:
    """Return the adapter of examples/bedrock."""
    pytest.importorskip("botocore", reason="examples/bedrock needs botocore")
    folder = str(Path(__file__).parents[2] / "examples" / "bedrock" / "src")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("rxllm_bedrock").Bedrock(base_url=url, api_key="k")


ADAPTERS: dict[str, Callable[[str], Any]] = {
    "openai-chat": lambda url: OpenAIChat(base_url=f"{url}/v1"),
    "azure": lambda url: AzureChat(base_url=f"{url}/openai/v1", api_key="k"),
    "azure-dated": lambda url: AzureChat(base_url=f"{url}/openai/deployments/m?api-version=2024-10-21", api_key="k"),
    "azure-responses": lambda url: AzureResponses(base_url=f"{url}/openai/v1", api_key="k"),
    "openrouter": lambda url: Compatible("openrouter", base_url=f"{url}/api/v1", api_key="k"),
    "openai-responses": lambda url: OpenAIResponses(base_url=f"{url}/v1"),
    "anthropic": lambda url: Anthropic(base_url=f"{url}/v1"),
    "gemini": lambda url: Gemini(base_url=f"{url}/v1beta", api_key="k"),
    "bedrock": bedrock,
    "vertex": lambda url: Vertex(project="p", location="l", base_url=f"{url}/v1", api_key="k"),
    "ollama": lambda url: Ollama(base_url=url),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = judge("node")
    if not SERVER.is_file():
        absent("aimock", "npm ci --prefix tests")
    folder = tmp_path_factory.mktemp("aimock")
    fixtures, said = folder / "fixtures.json", folder / "said.txt"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
    command = [node, str(SERVER), "--port", "0", "--fixtures", str(fixtures)]
    with said.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield _address(process, said)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"listening on (http://\S+)", said.read_text())
        if found:
            return found[1]
        time.sleep(0.02)
    raise RuntimeError(f"aimock did not start: {said.read_text()}")


@pytest.fixture(params=ADAPTERS)
def engine(request: pytest.FixtureRequest, url: str) -> Engine:
    return Engine(ADAPTERS[request.param](url), model="gpt-5", retry=False)


def events_of(engine: Engine, said: str) -> list[Event]:
    events = run(stream_generate(engine, said).to_list())
    lawful(events)
    return events


def test_text(engine: Engine):
    events = events_of(engine, "greet")
    assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == ANSWER
    last = events[-1]
    assert isinstance(last, MessageCompleted)
    assert last.finish_reason == "stop"
    response = generate(engine, "greet").run()
    assert (response.output_text, response.error) == (ANSWER, None)
    assert response.usage.output_tokens is not None


def test_thinking(engine: Engine):
    response = generate(engine, "greet").run()
    thought = "".join(part.text for part in response.message.parts if isinstance(part, ThinkingPart))
    if isinstance(engine.adapter, Ollama):
        assert thought == "", "aimock has no thoughts for Ollama"
    else:
        assert thought == "They greet."


def test_a_tool_run(engine: Engine):
    asked: list[str] = []

    @rxllm.tool
    def weather(city: str) -> str:
        """The weather."""
        asked.append(city)
        return "sunny"

    result = chat(engine, "weather", tools=[weather]).run()
    assert (result.halted_reason, result.output_text) == ("completed", "Sunny in both.")
    assert sorted(asked) == ["Oslo", "Rome"]
    assert [message.role for message in result.thread.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    ids = [call.id for call in result.thread.messages[1].tool_calls]
    assert [message.tool_call_id for message in result.thread.messages[2:4]] == ids
    assert len(set(ids)) == 2


def test_too_many_requests(engine: Engine):
    with pytest.raises(AdapterError) as caught:
        generate(engine, "too much").run()
    error = caught.value
    assert (error.reason, error.status, error.retry_after) == ("rate_limited", 429, 1.0)
    assert error.message.startswith("Slow down (")


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [("broken", 500, "provider_unavailable"), ("what nobody knows", 404, "invalid_request")],
)
def test_an_answer_of_no(engine: Engine, said: str, status: int, reason: str):
    with pytest.raises(AdapterError) as caught:
        generate(engine, said).run()
    assert (caught.value.reason, caught.value.status) == (reason, status)


def test_a_slow_stream_comes_piece_by_piece(engine: Engine):
    times: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, TextDelta):
            times.append(time.monotonic())

    response = generate(engine, "slowly", on_event=note).run()
    assert response.output_text == ANSWER
    assert len(times) >= 8
    assert times[-1] - times[0] > 0.06


def test_a_stream_that_breaks_off(engine: Engine):
    events = events_of(engine, "break off")
    text = "".join(event.delta for event in events if isinstance(event, TextDelta))
    assert text
    assert ANSWER.startswith(text)
    assert text != ANSWER
    last = events[-1]
    assert isinstance(last, ErrorEvent)
    assert isinstance(last.error, StreamError)
    assert last.error.reason == "truncated"
    response = generate(engine, "break off").run()
    assert response.output_text
    assert response.error == last.error
    with pytest.raises(StreamError):
        response.raise_for_error()


def test_a_connection_that_is_dropped_before_the_answer(engine: Engine):
    with pytest.raises(AdapterError) as caught:
        generate(engine, "hang up").run()
    assert caught.value.reason == "network_error"


def test_an_answer_that_is_no_stream(engine: Engine):
    response = generate(engine, "babble").run()
    assert response.output_text == ""
    with pytest.raises(StreamError) as caught:
        response.raise_for_error()
    # Frames with checksums show at once that this is no stream.
    assert caught.value.reason == ("malformed_event" if engine.adapter.provider == "bedrock" else "truncated")
