"""Where a model is: the address in the code, in the environment, or the provider's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Anthropic, Engine, EngineError, Gemini, Ollama, OpenAIChat, OpenAIResponses, ValidationError, keys
from rxllm.adapters import OpenAIImages, connect
from rxllm.testing.loopback import Loopback, Reply, chat


@pytest.fixture
def server() -> Any:
    with Loopback(Reply(chat("Hello"))) as server:
        yield server


@pytest.mark.sockets
def test_openai_base_url_names_the_server(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert rxllm.generate("openai:gpt-5", "Hi").run().output_text == "Hello"
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer key"


@pytest.mark.sockets
def test_an_address_that_is_set_later_counts_for_the_next_call(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = connect("openai")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    assert rxllm.generate("openai:gpt-5", "Hi").run().output_text == "Hello"
    assert connect("openai") is connect("openai")
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert connect("openai") is before


ADDRESSES: list[tuple[Any, str, str, str]] = [
    (OpenAIChat, "OPENAI_BASE_URL", "http://proxy.example/v1/", "http://proxy.example/v1"),
    (OpenAIResponses, "OPENAI_BASE_URL", "http://proxy.example/v1", "http://proxy.example/v1"),
    (OpenAIImages, "OPENAI_BASE_URL", "http://proxy.example", "http://proxy.example"),
    (Anthropic, "ANTHROPIC_BASE_URL", "https://proxy.example", "https://proxy.example/v1"),
    (Anthropic, "ANTHROPIC_BASE_URL", "https://proxy.example/v1/", "https://proxy.example/v1"),
    (Gemini, "GOOGLE_GEMINI_BASE_URL", "https://proxy.example/", "https://proxy.example/v1beta"),
    (rxllm.images.GeminiImages, "GOOGLE_GEMINI_BASE_URL", "https://proxy.example/v1", "https://proxy.example/v1"),
]


@pytest.mark.parametrize(("adapter", "variable", "value", "url"), ADDRESSES)
def test_the_variables_are_those_of_the_sdks_and_an_argument_wins(
    adapter: Any, variable: str, value: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = adapter().base_url
    monkeypatch.setenv(variable, value)
    assert adapter().base_url == url
    assert adapter(base_url="http://other.example").base_url == "http://other.example"
    monkeypatch.setenv(variable, " ")
    assert adapter().base_url == default


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("my-gpu", "http://my-gpu:11434"),
        ("my-gpu:56789", "http://my-gpu:56789"),
        (":56789", "http://127.0.0.1:56789"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:80", "http://127.0.0.1:80"),
        ("[::]:11500", "http://[::1]:11500"),
        ("[0001:2::1]", "http://[0001:2::1]:11434"),
        ("http://my-gpu", "http://my-gpu"),
        ("https://ollama.example/proxy/", "https://ollama.example/proxy"),
        ("https://me:pass@ollama.example:99", "https://me:pass@ollama.example:99"),
        ("'1.2.3.4'", "http://1.2.3.4:11434"),
    ],
)
def test_ollama_host_takes_the_forms_that_ollama_takes(host: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert Ollama().base_url == url


@pytest.mark.sockets
def test_ollama_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(Reply(b'{"message": {"role": "assistant", "content": "Hello"}, "done": true}\n')) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        assert rxllm.generate("ollama:llama3", "Hi").run().output_text == "Hello"
        assert server.requests[0].path == "/api/chat"


def test_other_providers_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy.example/v1")
    assert connect("groq").base_url == "https://api.groq.com/openai/v1"
    assert connect("vllm").base_url == "http://localhost:8000/v1"
    assert rxllm.Local().base_url == "http://127.0.0.1"

    class Acme(OpenAIChat):
        default_base_url = "https://acme.example/v1"

    assert Acme().base_url == "https://acme.example/v1"


@pytest.mark.parametrize("value", ["proxy.example/v1", "ftp://proxy.example", "http://proxy.example:80a", "http://"])
def test_an_address_that_cannot_be_is_answered_with_its_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    with pytest.raises(ValidationError, match="OPENAI_BASE_URL must be") as caught:
        rxllm.generate("openai:gpt-5", "Hi")
    assert (caught.value.reason, value.removeprefix("http://") in str(caught.value)) == ("invalid_option", True)


@pytest.mark.parametrize("value", ["http://me:pass#word@proxy", "http://me:pass/word@proxy", "me:pass/word@proxy"])
def test_a_password_in_an_address_that_cannot_be_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    with pytest.raises(ValidationError, match=r"OPENAI_BASE_URL must be.*'proxy'") as caught:
        OpenAIChat()
    assert "pass" not in str(caught.value)


def test_a_port_that_cannot_be_is_answered_with_ollama_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "me:password@my-gpu:port")
    with pytest.raises(ValidationError, match="OLLAMA_HOST must be a URL") as caught:
        Ollama()
    assert "password" not in str(caught.value)


def test_a_dotenv_file_may_name_it_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://proxy.example/v1\n")
    keys.load_dotenv(tmp_path / ".env")
    try:
        assert OpenAIChat().base_url == "http://proxy.example/v1"
    finally:
        keys.clear()


# The engine in one line


@pytest.mark.sockets
def test_an_engine_is_named_in_one_line(server: Loopback) -> None:
    @rxllm.tool
    def now() -> str:
        """Return the time."""
        return "noon"

    engine = Engine.from_model(
        "openai:gpt-5", api_key="key", base_url=server.url, tools=[now], params={"temperature": 0.0}
    )
    assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer key"
    assert (request.json["model"], request.json["temperature"]) == ("gpt-5", 0.0)
    assert request.json["tools"][0]["function"]["name"] == "now"
    assert "key" not in repr(engine).replace("key=", "")


def test_the_name_may_stand_in_the_adapters_place() -> None:
    engine = Engine("groq:llama-3.3-70b", tools=[rxllm.Tool("now")])
    assert (repr(engine.adapter), engine.model) == (
        "Compatible('groq', 'https://api.groq.com/openai/v1')",
        "llama-3.3-70b",
    )
    assert Engine("openai", model="gpt-5").model == "gpt-5"
    assert repr(Engine("local", model="small.gguf").adapter) == "Local('small.gguf')"
    assert repr(Engine.from_model("local", model="small.gguf", n_ctx=512).adapter) == "Local('small.gguf')"
    assert Engine("openai:gpt-5").adapter is connect("openai")


@pytest.mark.sockets
def test_a_compatible_provider_takes_the_same_options(server: Loopback) -> None:
    engine = Engine.from_model("groq:m", api_key="key", base_url=server.url, headers={"x-team": "blue"}, timeout=5.0)
    assert rxllm.generate(engine, "Hi").run().output_text == "Hello"
    assert server.requests[0].headers["x-team"] == "blue"


def test_options_that_nobody_takes_are_answered_with_those_there_are() -> None:
    with pytest.raises(EngineError, match="no option 'temperature'") as caught:
        Engine.from_model("openai:gpt-5", temperature=0.0)
    assert caught.value.reason == "unknown_option"
    for words in ("api_key, base_url, client, headers, timeout", "write params={'temperature': 0.0}"):
        assert words in caught.value.message
    with pytest.raises(EngineError, match="did you mean 'base_url'"):
        Engine.from_model("groq:m", baseurl="http://localhost")
    with pytest.raises(EngineError, match=r"n_ctx, client, headers, timeout$"):
        Engine("local", api_key="key")
    with pytest.raises(EngineError, match=r"no option 'budget'.*operators=.rxllm.operators.budget"):
        Engine("openai:gpt-5", budget=5)


def test_in_a_sandbox_no_named_engine_calls_its_provider() -> None:
    with rxllm.testing.sandbox(rxllm.Fake("Hello")) as fake:
        named = Engine.from_model("openai:gpt-5", api_key="key", params={"temperature": 0.5})
        assert rxllm.generate(named, "Hi").run().output_text == "Hello"
        assert rxllm.generate(Engine("anthropic:claude-x"), "Hi").run().output_text == "Hello"
    assert [request.model for request in fake.requests] == ["gpt-5", "claude-x"]
    assert fake.requests[0].temperature == 0.5


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gpt-5", "openai:gpt-5"),
        ("o3-mini", "openai:o3-mini"),
        ("openai/gpt-4o", "openai:gpt-4o"),
        ("openrouter/openai/gpt-4o", "openrouter:openai/gpt-4o"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("gemini/gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("ollama/llama3", "ollama:llama3"),
        ("llama3:8b", "ollama:llama3:8b"),
    ],
)
@pytest.mark.parametrize("name_it", [Engine, Engine.from_model, lambda name: rxllm.generate(name, "Hi")])
def test_a_bare_name_is_answered_with_the_whole_one(name: str, remedy: str, name_it: Any) -> None:
    with pytest.raises(EngineError, match=f"write '{remedy}'$") as caught:
        name_it(name)
    assert caught.value.reason == "unknown_provider"
