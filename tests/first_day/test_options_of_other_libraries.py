"""Options as other libraries name them: the message says what to write, and what it says works."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import rxllm
from rxllm import AdapterError, Engine, EngineError, Fake, ToolCall, ValidationError, system, tool, user
from rxllm.testing.loopback import Loopback, Reply, chat


@dataclass
class City:
    name: str


def refusal(name: str, value: Any = "x", function: Callable[..., Any] = rxllm.chat) -> str:
    """What a call says to the option `name`."""
    with pytest.raises(EngineError) as caught:
        function(Fake("Hello"), "Hi", **{name: value})
    assert caught.value.reason == "unknown_option"
    assert f"there is no option {name!r}" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "ours", "value"),
    [
        ("max_steps", "max_turns", 3),
        ("max_completion_tokens", "max_tokens", 100),
        ("max_output_tokens", "max_tokens", 100),
        ("num_predict", "max_tokens", 100),
        ("model_name", "model", "m"),
        ("extra_body", "options", {"top_k": 1}),
        ("response_model", "response_format", City),
        ("output_type", "response_format", list[City]),
        ("output", "response_format", City),
        ("schema", "response_format", City),
        ("output_schema", "response_format", City),
        ("text_format", "response_format", City),
        ("format", "response_format", "text"),
        ("random_seed", "seed", 1),
        ("thread_id", "session_id", "s1"),
        ("stop_sequences", "stop", ["END"]),
        ("request_timeout", "timeout", 30),
        ("function_call", "tool_choice", "auto"),
        ("functions", "tools", [tool(name="f")]),
        ("topP", "top_p", 0.9),
        ("openai_api_key", "api_key", "k"),
    ],
)
def test_another_name_for_an_option_takes_the_same_value(name: str, ours: str, value: Any) -> None:
    assert refusal(name, value).endswith(f"(did you mean {ours!r}?)")
    options: dict[str, Any] = {ours: value}
    assert rxllm.chat(Fake("[]"), "Hi", **options).run().output_text == "[]"


def test_a_key_is_never_shown() -> None:
    for name in ("openai_api_key", "my_api_key", "api_kee"):
        assert "sk-123" not in refusal(name, "sk-123")


# Where rxllm has the thing elsewhere


def test_what_belongs_to_many_requests_or_to_the_engine_is_said() -> None:
    for name in ("journal", "ordered", "on_progress"):
        assert "rxllm.generate_many(engine, requests, journal='out.jsonl')" in refusal(name)
    for name in ("requests_per_minute", "tokens_per_minute", "rpm"):
        assert "rate_limited(requests_per_minute=500)" in refusal(name, 500)
    assert "observers=[rxllm.otel.traces()]" in refusal("tracing")
    assert "rxllm.cluster.generate_many" in refusal("client", object(), rxllm.generate)
    for name, ours in (("journl", "journal"), ("concurency", "concurrency"), ("on_progres", "on_progress")):
        with pytest.raises(EngineError, match=f"did you mean '{ours}'"):
            rxllm.generate_many(Fake("Hello"), ["Hi"], **{name: 3})  # type: ignore[arg-type]


def test_a_system_prompt_is_an_option_or_a_message() -> None:
    for name in ("system_prompt", "instructions"):
        assert "(did you mean 'system'?)" in refusal(name)
    fake = Fake("Hello")
    rxllm.generate(fake, [system("Be brief."), user("Hi")]).run()
    assert [message.role for message in fake.requests[0].messages] == ["system", "user"]


@pytest.mark.sockets
def test_the_address_the_headers_and_the_client_belong_to_the_adapter() -> None:
    for name in ("base_url", "api_base", "azure_endpoint"):
        assert "rxllm.Engine.from_model('openai:...', base_url=...)" in refusal(name)
        assert "rxllm.OpenAIChat(base_url=...)" in refusal(name)
    assert "rxllm.OpenAIChat(headers={...})" in refusal("default_headers")
    assert "headers={'OpenAI-Organization': ...}" in refusal("organization")
    assert "rxllm.OpenAIChat(client=...)" in refusal("http_client")
    with Loopback(Reply(chat("Hello"))) as server:
        adapter = rxllm.OpenAIChat(
            api_key="k", base_url=server.url, headers={"OpenAI-Organization": "org"}, client=httpx.AsyncClient
        )
        assert rxllm.generate(Engine(adapter, model="m"), "Hi").run().output_text == "Hello"
        assert server.requests[0].headers["openai-organization"] == "org"
    with Loopback(Reply(chat("Hello"))) as server:
        engine = Engine.from_model("openai:m", base_url=server.url, api_key="k")
        assert rxllm.generate(engine, "Hi").run().output_text == "Hello"


def test_the_transport_is_chosen_once_for_all_calls() -> None:
    assert "rxllm.http.use_transport('aiohttp')" in refusal("transport", "aiohttp")


def test_what_has_no_json_is_not_shown_as_a_field_for_the_provider() -> None:
    assert refusal("my_class", City).endswith(
        "; to pass JSON to the provider unchanged, write options={'my_class': ...}"
    )


def test_a_header_that_is_no_text_is_named_without_any_value() -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.generate(Fake("Hi"), "Hi", headers={"authorization": "sk-123", "x": 3})  # type: ignore[dict-item]
    assert "headers must be a mapping whose names and values are strings, not 'x': int" in str(caught.value)
    assert "sk-123" not in str(caught.value)


def test_retries_are_attempts() -> None:
    for name in ("max_retries", "num_retries"):
        assert "retry={'max_attempts': 3}" in refusal(name, 2)
        assert "retry={'max_attempts': 6}, or retry=False; max_attempts includes the first attempt" in refusal(name, 5)
    assert "retry={'max_attempts': 5}" in refusal("max_attempts", 5)
    assert "retry={'max_attempts': 3}" in refusal("retries", None)
    down = AdapterError("provider_unavailable")
    fake = Fake([down], [down], "Hello")
    assert rxllm.generate(fake, "Hi", retry={"max_attempts": 3, "base_delay": 0, "jitter": 0}).run().output_text
    assert len(fake.requests) == 3
    with pytest.raises(AdapterError):
        rxllm.generate(Fake([down], "Hello"), "Hi", retry=False).run()


def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    assert "generate(...).retry(2)" in refusal("output_retries", 2)
    fake = Fake("No.", '{"name": "Lima"}')
    assert rxllm.generate(fake, "Hi", response_format=City).retry(2).run().parsed == City("Lima")


def test_callbacks_are_on_event_or_observers() -> None:
    message = refusal("callbacks", [print])
    assert "on_event=function" in message
    assert "observers=[function]" in message
    seen: list[Any] = []
    engine = Engine(Fake("Hello"), observers=[seen.append])  # pyright: ignore[reportArgumentType]
    rxllm.generate(engine, "Hi", on_event=seen.append).run()
    assert {rxllm.telemetry.CallStarted, rxllm.TextDelta, rxllm.telemetry.CallFinished} <= set(map(type, seen))


def test_several_answers_are_several_requests() -> None:
    assert "rxllm.generate_many(engine, [request] * 3)" in refusal("n", 3)
    assert "rxllm.generate_many(engine, [request] * 2)" in refusal("n", 2)
    assert "rxllm.generate_many(engine, requests, concurrency=8)" in refusal("concurrency", 8)
    with pytest.raises(EngineError, match="not of this call; generate_many takes concurrency="):
        rxllm.generate_many(Fake("Hello"), ["Hi"], max_concurrency=2)  # type: ignore[call-overload]
    answers = rxllm.generate_many(Fake("Hello"), ["Hi"] * 3, concurrency=8)
    assert [response.output_text for response in answers] == ["Hello"] * 3


@pytest.mark.sockets
def test_log_probabilities_are_a_providers_option() -> None:
    message = refusal("logprobs", True)
    assert "options={'logprobs': True}" in message
    assert "response.metadata['logprobs']" in message
    token = {"token": "Hello", "logprob": -0.1, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "Hello"}, "logprobs": {"content": [token]}, "finish_reason": "stop"}
    frame = b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"
    with Loopback(Reply([frame, b"data: [DONE]\n\n"])) as server:
        engine = Engine(rxllm.OpenAIChat(api_key="k", base_url=server.url), model="m")
        response = rxllm.generate(engine, "Hi", options={"logprobs": True}).run()
        assert server.requests[0].json["logprobs"] is True
    assert response.metadata["logprobs"][0]["token"] == "Hello"


def test_thinking_is_a_word() -> None:
    for name in ("thinking", "reasoning", "think"):
        assert "reasoning_effort='low'" in refusal(name)
    fake = Fake("Hello")
    rxllm.generate(fake, "Hi", reasoning_effort="low").run()
    assert fake.requests[0].reasoning_effort == "low"


def test_json_without_a_type() -> None:
    assert "response_format={'type': 'json_object'}" in refusal("json_mode", True)
    assert rxllm.generate(Fake("{}"), "Hi", response_format={"type": "json_object"}).run().parsed == {}


def test_dependencies_of_tools_are_their_context() -> None:
    assert "context={'name': ...}" in refusal("deps", object())

    @tool
    def whoami(context: rxllm.ToolContext) -> str:
        return context.context["name"]

    fake = Fake(ToolCall("c1", "whoami", {}), "Done.")
    result = rxllm.chat(fake, "Hi", tools=[whoami], context={"name": "ada"}).run()
    assert "ada" in result.thread.messages[2].text


def test_settings_are_options_or_params_of_an_engine() -> None:
    message = refusal("model_settings", {"temperature": 0.0})
    assert "temperature=0.0" in message
    assert "params={...}" in message
    fake = Fake("Hello")
    rxllm.generate(fake, "Hi", temperature=0.0).run()
    rxllm.generate(Engine(fake, params={"temperature": 0.0}), "Hi").run()
    assert fake.requests[0] == fake.requests[1]


def test_fallbacks_and_limits_are_operators() -> None:
    assert "operators=[rxllm.operators.fallback(other)]" in refusal("fallbacks", ["m"])
    assert "operators=[rxllm.operators.budget(tokens=1000)]" in refusal("usage_limits")
    for name in ("prepare", "operators", "observers"):
        assert f"write rxllm.Engine(..., {'prepare' if name == 'prepare' else 'operators'}=[" in refusal(name)
    down, other = Fake([AdapterError("invalid_request")]), Fake("Hello")
    operators = (rxllm.operators.fallback(other), rxllm.operators.budget(tokens=1000))
    assert rxllm.generate(Engine(down, operators=operators), "Hi").run().output_text == "Hello"


def test_an_agent_is_a_tool() -> None:
    assert "tools=[engine.as_tool(name=..., description=...)]" in refusal("handoffs", [])
    assert "tools=[engine.as_tool(name=...)]" in refused(lambda: Engine(Fake("x"), agents=[]))
    assert "make an agent with engine.as_tool(" in refused(
        lambda: rxllm.chat(Fake("x"), "Hi", tools=[Engine(Fake("x"))])
    )
    assert "(did you mean 'system'?)" in refused(lambda: Engine().as_tool(name="a", instructions="Be brief."))
    agent = Engine(Fake("Roses.")).as_tool(name="poet", description="Writes.", system="Be brief.")
    model = Fake(ToolCall("c1", "poet", {"prompt": "Hi"}), "Hello")
    assert rxllm.chat(model, "Hi", tools=[agent]).run().output_text == "Hello"


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(rxllm.LLMError) as caught:
        call()
    return str(caught.value)


def test_a_halted_chat_goes_on_with_resume() -> None:
    assert "rxllm.resume(engine, halted, approvals={...}, results={...})" in refusal("approvals", {"c1": True})
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    halted = rxllm.chat(Fake(ToolCall("c1", "pay")), "Pay!", tools=[pay]).run()
    assert "continue with rxllm.resume(engine, thread, ...)" in refused(
        lambda: rxllm.chat(Fake("x"), halted + "Yes").run()
    )
    result = rxllm.resume(Fake("Paid."), halted, approvals={"c1": True}, tools=[pay]).run()
    assert result.output_text == "Paid."


def test_a_long_history_is_trimmed_by_the_engine() -> None:
    assert "prepare=[rxllm.trim_thread(tokens=8000)]" in refusal("history_processors", [])
    assert rxllm.generate(Engine(Fake("x"), prepare=[rxllm.trim_thread(tokens=8000)]), "Hi").run().output_text == "x"


def test_the_provider_is_in_the_name_of_the_engine() -> None:
    assert "'provider:model'" in refusal("custom_llm_provider", "openai")
    assert Engine.from_model("openai:gpt-5").model == "gpt-5"


def test_what_happens_is_printed_or_logged(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal("verbose", True)
    assert "on_event=print" in message
    assert "logging.basicConfig() and logging.getLogger('rxllm').setLevel(logging.DEBUG)" in message
    rxllm.generate(Fake("Hello"), "Hi", on_event=print).run()
    assert "TextDelta" in capsys.readouterr().out
    with caplog.at_level(logging.DEBUG, "rxllm"):
        down = Fake([AdapterError("provider_unavailable")], "Hello")
        rxllm.generate(down, "Hi", retry={"base_delay": 0, "jitter": 0}).run()
    assert [record.name for record in caplog.records] == ["rxllm"]


def test_a_model_for_tests_is_a_fake() -> None:
    assert "rxllm.Fake('...')" in refusal("mock_response", "Hello")
    assert rxllm.generate(Fake("Hello"), "Hi").run().output_text == "Hello"


@pytest.mark.sockets
@pytest.mark.parametrize("name", ["top_k", "user", "logit_bias", "presence_penalty", "parallel_tool_calls", "store"])
def test_what_only_a_provider_knows_is_passed_on(name: str) -> None:
    assert refusal(name, 1).endswith(
        f"no option {name!r}; to pass it to the provider unchanged, write options={{{name!r}: 1}}"
    )
    with Loopback(Reply(chat("Hello"))) as server:
        engine = Engine(rxllm.OpenAIChat(api_key="k", base_url=server.url), model="m")
        rxllm.generate(engine, "Hi", options={name: 1}).run()
        assert server.requests[0].json[name] == 1


@pytest.mark.parametrize("timeout", [(5, 30), httpx.Timeout(10), "30", 0, {"read": 5}])
def test_another_form_of_a_timeout_is_told_the_two_there_are(timeout: Any) -> None:
    with pytest.raises(
        ValidationError, match=r"must be a positive number of seconds, or a Timeouts such as Timeouts\(first=30"
    ):
        rxllm.generate(Fake("Hi"), "Hi", timeout=timeout)
    limits = rxllm.Timeouts(first=30, idle=10, total=120)
    assert rxllm.generate(Fake("Hello"), "Hi", timeout=limits).run().output_text == "Hello"


def test_a_number_of_retries_is_told_the_mapping() -> None:
    with pytest.raises(ValidationError, match=r"such as \{'max_attempts': 3\}"):
        rxllm.generate(Fake("Hi"), "Hi", retry=3)  # pyright: ignore[reportArgumentType]
