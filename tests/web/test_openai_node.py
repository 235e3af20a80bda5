"""OpenAI's own package for JavaScript, under Node, against engines that are served."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

import rxllm
from rxllm import AdapterError, Engine, Fake, OpenAIChat, Tool, ToolCall, ToolCallStarted, Usage
from rxllm.testing.loopback import Loopback, Reply, endless
from tests.web import clients
from tests.web.completions import EVERY, Replay, finish_of, itself, text_of
from tests.web.served import Served
from tests.web.streams import DECODERS, of_recordings

pytestmark = pytest.mark.judges

HI: Any = [{"role": "user", "content": "Hi"}]
USAGE = {"stream_options": {"include_usage": True}}


def judged(server: Served, *lines: dict[str, Any]) -> list[Any]:
    """What the package makes of the answers to `lines`."""
    return [clients.run("openai", {"url": server.url, **line}) for line in lines]


def test_the_package_reads_answers_whole_and_streamed() -> None:
    model = Fake([("thinking", "Hm."), "Hel", "lo", Usage(7, 3)])
    body = {"model": "m0", "messages": HI}
    with Served.of(model) as server:
        whole, streamed, models = judged(
            server, {"do": "create", "body": body}, {"do": "stream", "body": {**body, **USAGE}}, {"do": "models"}
        )
    for completion in (whole, streamed):
        choice = completion["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "stop")
        assert completion["usage"]["total_tokens"] == 10
    assert [model["id"] for model in models] == ["m0"]


def test_the_package_runs_its_own_tools() -> None:
    model = Fake(["Where?", ToolCall("c1", "place", {})], "Oslo.")
    with Served.of(model) as server:
        (result,) = judged(server, {"do": "tools", "body": {"model": "m0", "messages": HI}})
    assert result == {"content": "Oslo.", "roles": ["user", "assistant", "tool", "assistant"]}


@pytest.mark.parametrize("how", ["create", "stream"])
def test_the_package_maps_errors_to_its_classes(how: str) -> None:
    errors = ["rate_limited", "invalid_request", "provider_unavailable", "authentication_failed"]
    engines = [Engine(Fake(AdapterError(reason, "CANARY")), retry=False) for reason in errors]
    late = Engine(Fake(["Hel", AdapterError("rate_limited", "CANARY")]), retry=False)
    names = [*(f"m{i}" for i in range(5)), "other"]
    with Served.of(*engines, late, key="key") as server:
        lines = [{"do": how, "body": {"model": name, "messages": HI}} for name in names]
        results = judged(server, *lines, {**lines[0], "key": "wrong"})
    classes = [result["error"]["class"] for result in results]
    middle = "RateLimitError" if how == "create" else "APIError"
    assert classes == [
        *("RateLimitError", "BadRequestError", "InternalServerError", "InternalServerError"),
        *(middle, "NotFoundError", "AuthenticationError"),
    ]
    assert results[4]["error"]["code"] == "rate_limit_exceeded"
    assert "CANARY" not in json.dumps(results)


def test_the_package_leaves_and_the_providers_socket_closes() -> None:
    with Loopback(lambda _: Reply(endless())) as provider:
        engine = Engine(OpenAIChat(base_url=provider.url), model="m")
        with Served.of(engine) as server:
            (result,) = judged(server, {"do": "leave", "body": {"model": "m0", "messages": HI}})
            assert result["left"].startswith("0")
            assert provider.connections[0].wait_closed()
            assert provider.connections[0].closed_by == "client"


def by_the_package_for_python(server: Served, *lines: dict[str, Any]) -> list[Any]:
    def completion(body: Any) -> Any:
        try:
            with sdk.chat.completions.stream(**body) as stream:
                return stream.get_final_completion().model_dump()
        except openai.OpenAIError as error:
            return {"error": {"class": type(error).__name__}}

    with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as sdk:
        return [completion(line["body"]) for line in lines]


@pytest.mark.parametrize("package", [judged, by_the_package_for_python])
@pytest.mark.parametrize("api", DECODERS)
def test_the_packages_fold_recorded_streams_to_what_they_are(api: str, package: Any) -> None:
    engines: list[Any] = []
    lines: list[dict[str, Any]] = []
    expected: list[Any] = []
    for _, events in of_recordings(api, EVERY if package is judged else 8):
        names = sorted({event.name for event in events if isinstance(event, ToolCallStarted)})
        engine, tools = Engine(Replay(events), retry=False), [Tool(name, manual=True) for name in names]
        functions = [{"type": "function", "function": {"name": name}} for name in names]
        body = {"model": f"m{len(engines)}", "messages": HI, **USAGE, **({"tools": functions} if names else {})}
        lines.append({"do": "stream", "body": body})
        engines.append(engine)
        expected.append(itself(engine, tools))
    with Served.of(*engines) as server:
        results = package(server, *lines)
    for result, chat in zip(results, expected, strict=True):
        if finish_of(chat) == "error" or finish_of(chat) in ("length", "content_filter"):  # the package refuses them
            assert "error" in result or result["choices"][0]["finish_reason"] == finish_of(chat)
            continue
        assert "choices" in result, result
        choice = result["choices"][0]
        assert (choice["message"]["content"] or "") == text_of(chat)
        assert choice["finish_reason"] == finish_of(chat)
        functions = [(call["id"], call["function"]) for call in choice["message"].get("tool_calls") or ()]
        calls = [(id, function["name"], function["arguments"]) for id, function in functions]
        assert calls == [(call.id, call.name, call.raw_arguments) for call in chat.pending_tool_calls]
        assert result["usage"]["total_tokens"] == chat.usage.total


def test_agents_and_operators_are_one_model_to_the_package() -> None:
    guarded = Engine(Fake(["All good", "."])).with_operators(rxllm.operators.guard(lambda text: "bad" not in text))
    with Served.of(guarded) as server:
        (result,) = judged(server, {"do": "stream", "body": {"model": "m0", "messages": HI}})
    assert result["choices"][0]["message"]["content"] == "All good."
