"""The compatible providers: each is found by its name, asked at its own address with its own key, in its own words."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import rxllm
from rxllm import Engine, generate, keys
from rxllm.adapters import _connect
from rxllm.adapters._connect import Compatible, connect
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.adapters.profiles import PROFILES
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import (
    AdapterError,
    Call,
    EngineError,
    Request,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    assistant,
    tool_result,
    user,
)
from tests.corpus import VARIABLE
from tests.runtime.support import finished, script

COMPATIBLE = {
    "alibaba": ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": ("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "fireworks": ("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "huggingface": ("https://router.huggingface.co/v1", "HF_TOKEN"),
    "llamacpp": ("http://localhost:8080/v1", None),
    "lmstudio": ("http://localhost:1234/v1", None),
    "minimax": ("https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "moonshot": ("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nvidia": ("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": ("https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    "together": ("https://api.together.ai/v1", "TOGETHER_API_KEY"),
    "vllm": ("http://localhost:8000/v1", None),
    "xai": ("https://api.x.ai/v1", "XAI_API_KEY"),
    "zai": ("https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
}
OWN = {
    "anthropic": "Anthropic",
    "azure": "AzureChat",
    "azure-responses": "AzureResponses",
    "gemini": "Gemini",
    "google": "Gemini",
    "local": "Local",
    "ollama": "Ollama",
    "openai": "OpenAIChat",
    "openai-responses": "OpenAIResponses",
    "vertex": "Vertex",
}
KEYED = [name for name, (_, variable) in COMPATIBLE.items() if variable]
KEYLESS = [name for name, (_, variable) in COMPATIBLE.items() if not variable]
ELSEWHERE = {
    "huggingface": "https://router.huggingface.co/featherless-ai/v1",  # the same router, with the server named
    "zai": "https://api.z.ai/api/coding/paas/v4",  # another subscription's address
    "deepseek": "https://api.deepseek.com/v1",  # says the same
}
ANSWER = Reply([b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n"])


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys.clear()
    for variable in ["OPENAI_API_KEY", *(variable for _, variable in COMPATIBLE.values() if variable)]:
        monkeypatch.delenv(variable, raising=False)


def body(provider: str, *messages: Any, **fields: Any) -> dict[str, Any]:
    built = Compatible(provider, api_key="k").build(Request(messages or (user("Hi"),), "m", **fields), Call())
    return json.loads(built.content)


def test_every_provider_is_listed():
    assert {*COMPATIBLE, *OWN} <= set(rxllm.adapters.providers())
    assert set(COMPATIBLE) == set(PROFILES)
    assert rxllm.adapters.providers() == sorted(rxllm.adapters.providers())


@pytest.mark.parametrize("name", sorted({*COMPATIBLE, *OWN} - {"local"}))
def test_from_model_finds_it(name: str):
    engine = Engine.from_model(f"{name}:some/model:free")
    assert engine.model == "some/model:free"
    assert type(engine.adapter).__name__ == OWN.get(name, "Compatible")


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A server that is asked as "groq:..."."""
    with Loopback(Reply(chat("Hello"))) as server:
        monkeypatch.setitem(PROFILES, "groq", replace(PROFILES["groq"], base_url=server.url))
        _connect._shared.cache_clear()
        yield server
    _connect._shared.cache_clear()


@pytest.mark.sockets
def test_all_who_name_a_provider_share_its_connections(by_name: Loopback, monkeypatch: pytest.MonkeyPatch):
    """And each call looks for its key."""

    async def main() -> None:
        for k in range(50):
            monkeypatch.setenv("GROQ_API_KEY", f"key-{k}")
            assert (await generate(f"groq:model-{k}", "Hi")).output_text == "Hello"

    asyncio.run(main())
    assert len(by_name.connections) == 1
    assert [request.headers["authorization"] for request in by_name.requests] == [f"Bearer key-{k}" for k in range(50)]
    asyncio.run(main())
    assert len(by_name.connections) == 2
    by_name.wait_until(lambda: by_name.open_count == 0)


def test_the_warning_about_a_key_for_no_provider_knows_every_provider() -> None:
    assert {*OWN, *PROFILES} == keys._PROVIDERS


FORKED = """
import dataclasses, os, sys, warnings
import rxllm
from rxllm.adapters.profiles import PROFILES

warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
PROFILES["groq"] = dataclasses.replace(PROFILES["groq"], base_url=sys.argv[1])
os.environ["GROQ_API_KEY"] = "key"
call = rxllm.generate("groq:m", "Hi")
assert call.run().output_text == "Hello"
child = os.fork()
if not child:
    os._exit(0 if call.run().output_text == "Hello" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), call.run().output_text)
"""


@pytest.mark.judges
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_connections_of_its_own(by_name: Loopback):
    assert finished(script(FORKED, by_name.url)) == (0, "0 Hello\n", "")
    assert [len(connection.requests) for connection in by_name.connections] == [2, 1]


def test_a_name_that_nobody_has():
    with pytest.raises(EngineError, match="groq, huggingface") as caught:
        connect("gorq")
    assert caught.value.reason == "unknown_provider"


@pytest.mark.parametrize("name", COMPATIBLE)
def test_its_address_and_its_key(name: str, monkeypatch: pytest.MonkeyPatch):
    url, variable = COMPATIBLE[name]
    if variable:
        monkeypatch.setenv(variable, "own")
    monkeypatch.setenv("OPENAI_API_KEY", "OpenAI's")
    built = connect(name).build(Request((user("Hi"),), "m"), Call())
    assert str(built.url) == f"{url}/chat/completions"
    assert built.headers.get("authorization") == ("Bearer own" if variable else None)


@pytest.mark.parametrize("name", KEYED)
def test_a_missing_key_names_its_variable(name: str):
    with pytest.raises(EngineError, match=str(COMPATIBLE[name][1])) as caught:
        connect(name).build(Request((user("Hi"),), "m"), Call())
    assert (caught.value.reason, caught.value.provider) == ("missing_key", name)


@pytest.mark.parametrize("name", KEYLESS)
def test_a_server_of_ones_own_takes_a_key_and_needs_none(name: str):
    request = Request((user("Hi"),), "m")
    assert "authorization" not in connect(name).build(request, Call()).headers
    assert connect(name).build(request, Call(api_key="k")).headers["authorization"] == "Bearer k"


def test_the_calls_key_comes_before_the_adapters():
    adapter, request = Compatible("groq", api_key="adapter"), Request((user("Hi"),), "m")
    assert adapter.build(request, Call()).headers["authorization"] == "Bearer adapter"
    assert adapter.build(request, Call(api_key="call")).headers["authorization"] == "Bearer call"
    keys.put("groq", "store")
    assert Compatible("groq").build(request, Call()).headers["authorization"] == "Bearer store"


@pytest.mark.sockets
def test_a_whole_call_at_another_address():
    with Loopback(ANSWER) as server:
        adapter = Compatible("together", api_key="k", base_url=f"{server.url}/v1", headers={"x-own": "1"})
        response = generate(Engine(adapter, model="m", retry=False), "Hi").run()
    assert response.output_text == "Hi"
    (asked,) = server.requests
    assert (asked.path, asked.headers["authorization"], asked.headers["x-own"]) == (
        "/v1/chat/completions",
        "Bearer k",
        "1",
    )


@pytest.mark.sockets
def test_its_errors_say_whose_they_are():
    with Loopback(Reply.of_json({"detail": "Invalid API Key"}, 401)) as server:
        engine = Engine(Compatible("mistral", api_key="k", base_url=server.url), model="m", retry=False)
        with pytest.raises(AdapterError) as caught:
            generate(engine, "Hi").run()
    assert (caught.value.reason, caught.value.provider) == ("authentication_failed", "mistral")


@pytest.mark.parametrize("name", sorted(set(COMPATIBLE) - {"mistral"}))
def test_usage_is_asked_for(name: str):
    assert body(name)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_the_bound_of_tokens(name: str):
    asked = body(name, max_tokens=9)
    bound = "max_completion_tokens" if name in ("minimax", "xai") else "max_tokens"
    assert {field: held for field, held in asked.items() if field.startswith("max_")} == {bound: 9}


def test_mistral():
    # its own SDK's request has no stream_options and no seed; "required" is the same to it as "any"
    asked = body("mistral", seed=7, tools=(Tool("f", "Does"),), tool_choice="required")
    assert set(asked) == {"model", "messages", "stream", "tools", "tool_choice", "random_seed"}
    assert (asked["random_seed"], asked["tool_choice"]) == (7, "required")
    assert body("mistral", seed=7, options={"random_seed": 8, "safe_prompt": True})["random_seed"] == 8
    assert "random_seed" not in body("mistral")


def test_mistral_wants_ids_of_nine_letters():
    calls = (ToolCall("call_PTLP8xhu3uwZk4l3nlnrrJha", "f"), ToolCall("D681PevKs", "f"))
    asked = body(
        "mistral",
        user("Hi"),
        rxllm.Message("assistant", tool_calls=calls),
        *(tool_result(call.id, "42") for call in calls),
        assistant("So."),
    )["messages"]
    foreign, own = (call["id"] for call in asked[1]["tool_calls"])
    assert own == "D681PevKs"
    assert len(foreign) == 9
    assert foreign.isalnum()
    assert [message.get("tool_call_id") for message in asked] == [None, None, foreign, own, None]
    assert body("groq", user("Hi"), tool_result("call_long_enough", "42"))["messages"][1]["tool_call_id"] == (
        "call_long_enough"
    )


def test_minimax_says_its_thoughts_apart():
    assert body("minimax")["reasoning_split"] is True
    assert "reasoning_split" not in body("minimax", options={"reasoning_split": None})


def chunk(**delta: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode()


@rxllm.tool
def f(x: int = 0) -> int:
    return 2 * x


@pytest.mark.sockets
@pytest.mark.parametrize("name", COMPATIBLE)
def test_thoughts_go_back_to_those_that_want_them(name: str):
    called = {"index": 0, "id": "D681PevKs", "function": {"name": "f", "arguments": '{"x": 1}'}}
    thinks = Reply([chunk(reasoning_content="hm"), chunk(tool_calls=[called]), b"data: [DONE]\n\n"])
    with Loopback([thinks, ANSWER]) as server:
        engine = Engine(Compatible(name, api_key="k", base_url=server.url), model="m", retry=False)
        result = rxllm.chat(engine, "Hi", tools=[f]).run()
        rxllm.chat(engine, result.thread + user("More")).run()
    said = [message for message in server.requests[2].json["messages"] if message["role"] == "assistant"]
    wanted = ["hm", ""] if name in ("deepseek", "moonshot", "zai") else [None, None]
    assert [message.get("reasoning_content") for message in said] == wanted


def test_thoughts_of_another_provider_do_not_go_to_it():
    foreign = rxllm.Message("assistant", (ThinkingPart("secret", signature="s"), TextPart("Hi")))
    assert body("deepseek", user("Hi"), foreign)["messages"][1] == {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "",
    }


def test_no_profile_has_a_key_in_its_repr():
    assert repr(Compatible("groq", api_key="secret")) == "Compatible('groq', 'https://api.groq.com/openai/v1')"


def test_where_the_recordings_were_made():
    root = os.environ.get(VARIABLE)
    if not root or not Path(root).is_dir():
        pytest.skip(f"recorded streams are not at hand: set {VARIABLE} to their folder")
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for file in Path(root).glob("*/*.meta.json"):
        url = urlsplit(json.loads(file.read_text())["request"].get("uri") or "")
        if url.scheme and "." in url.netloc and url.path.endswith("/chat/completions"):
            seen[file.parent.name].add(f"{url.scheme}://{url.netloc}{url.path}".removesuffix("/chat/completions"))
    checked = [name for name in seen if name in COMPATIBLE]
    assert len(checked) >= 10
    for name in checked:
        assert seen[name] <= {COMPATIBLE[name][0], ELSEWHERE.get(name)}, name


class TestAzure:
    """OpenAI's models at Microsoft: another address, and in the dated versions another header and a query."""

    def ask(self, adapter: Any) -> None:
        generate(Engine(adapter, model="gpt-5", retry=False), "Hi", max_tokens=9).run()

    @pytest.mark.sockets
    def test_the_undated_api(self):
        with Loopback(ANSWER) as server:
            self.ask(OpenAIChat(base_url=f"{server.url}/openai/v1", api_key="k"))
        (asked,) = server.requests
        assert (asked.path, asked.headers["authorization"]) == ("/openai/v1/chat/completions", "Bearer k")

    @pytest.mark.sockets
    def test_a_dated_version(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OPENAI_API_KEY", "OpenAI's")
        with Loopback(ANSWER) as server:
            url = f"{server.url}/openai/deployments/gpt-5?api-version=2024-10-21"
            self.ask(OpenAIChat(base_url=url, headers={"api-key": "k"}))
        (asked,) = server.requests
        assert asked.path == "/openai/deployments/gpt-5/chat/completions?api-version=2024-10-21"
        assert asked.headers["api-key"] == "k"
        assert "authorization" not in asked.headers

    @pytest.mark.parametrize("host", ["n.openai.azure.com", "n.cognitiveservices.azure.com", "n.services.ai.azure.com"])
    def test_the_words_are_openais(self, host: str):
        adapter = OpenAIChat(base_url=f"https://{host}/openai/v1", api_key="k")
        asked = json.loads(adapter.build(Request((user("Hi"),), "m", max_tokens=9), Call()).content)
        assert asked["max_completion_tokens"] == 9

    def test_the_responses_api(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("OPENAI_API_KEY", "OpenAI's")
        url = "https://n.openai.azure.com/openai?api-version=preview"
        built = OpenAIResponses(base_url=url, headers={"Api-Key": "k"}).build(Request((user("Hi"),), "m"), Call())
        assert str(built.url) == "https://n.openai.azure.com/openai/responses?api-version=preview"
        assert built.headers["api-key"] == "k"
        assert "authorization" not in built.headers
