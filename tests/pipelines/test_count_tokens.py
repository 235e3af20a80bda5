"""count_tokens: what a provider counts, or an estimate that says so. The official SDKs judge the requests."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, get_type_hints

import anthropic
import openai
import pytest
from anthropic.types import MessageTokensCount
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from google import genai
from google.genai import types as genai_types
from hypothesis import given
from openai.types.responses import InputTokenCountResponse
from openai.types.responses.input_token_count_params import InputTokenCountParams
from pydantic import ConfigDict, TypeAdapter
from reactivex import of

import rxllm
from rxllm import (
    AdapterError,
    Engine,
    Fake,
    Message,
    Request,
    StreamError,
    Thread,
    ToolCall,
    ValidationError,
    serializer,
    system,
    tool,
    tool_result,
    user,
)
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.adapters.anthropic.request import COUNTED as ANTHROPIC_FIELDS
from rxllm.adapters.openai_responses.request import COUNTED as RESPONSES_FIELDS
from rxllm.testing import strategies
from rxllm.testing.loopback import Cut, Loopback, Pause, Reply
from rxllm.values import FilePart, Image, ImagePart, TextPart, TokenCount, estimated_tokens, message_tokens

pytestmark = pytest.mark.judges


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


CALL = Message("assistant", tool_calls=(ToolCall("c1", "look", {"place": "here"}),))
THREAD = Thread((system("Be brief."), user("Look!"), CALL, tool_result("c1", "seen"), user("And now?")))
OPTIONS: dict[str, Any] = {"tools": [look], "temperature": 0.5, "max_tokens": 9, "seed": 1}


class ResponsesParams(InputTokenCountParams):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]


def counted(adapter: Any, **opts: Any) -> TokenCount:
    return rxllm.count_tokens(Engine(adapter, model="m"), THREAD, **{**OPTIONS, **opts}).run()


# The wires, judged by the SDKs


def test_anthropic_counts_what_its_sdk_would_have_it_count() -> None:
    with Loopback(Reply.of_json(MessageTokensCount(input_tokens=42).model_dump())) as server:
        assert counted(Anthropic(base_url=f"{server.url}/v1", api_key="k"), stop=["a"]) == TokenCount(42)
        body = server.requests[0].json
        sdk = anthropic.Anthropic(base_url=server.url, api_key="k")
        assert sdk.messages.count_tokens(**body).input_tokens == 42
        assert (server.requests[0].path, body) == (server.requests[1].path, server.requests[1].json)
        assert server.requests[0].headers["x-api-key"] == "k"
    TypeAdapter(MessageCountTokensParams).validate_python(body)
    assert body.keys() == {"model", "messages", "system", "tools"}
    of_betas = {"mcp_servers", "context_management", "betas"}
    assert {*ANTHROPIC_FIELDS} - of_betas == get_type_hints(MessageCountTokensParams).keys()


def test_the_responses_api_counts_what_its_sdk_would_have_it_count() -> None:
    answer = InputTokenCountResponse(input_tokens=42, object="response.input_tokens").model_dump()
    with Loopback(Reply.of_json(answer)) as server:
        assert counted(OpenAIResponses(base_url=server.url, api_key="k"), reasoning_effort="low") == TokenCount(42)
        body = server.requests[0].json
        sdk = openai.OpenAI(base_url=server.url, api_key="k")
        assert sdk.responses.input_tokens.count(**body).input_tokens == 42
        assert (server.requests[0].path, body) == (server.requests[1].path, server.requests[1].json)
    TypeAdapter(ResponsesParams).validate_python(body)
    assert body.keys() == {"model", "input", "tools", "reasoning"}
    assert {*RESPONSES_FIELDS} == get_type_hints(InputTokenCountParams).keys()


def test_gemini_counts_the_whole_request() -> None:
    answer = genai_types.CountTokensResponse(total_tokens=42).model_dump(by_alias=True, exclude_none=True)
    with Loopback(Reply.of_json(answer)) as server:
        assert counted(Gemini(base_url=f"{server.url}/v1beta", api_key="k")) == TokenCount(42)
        asked = server.requests[0]
        options = genai_types.HttpOptions(base_url=server.url, api_version="v1beta")
        sdk = genai.Client(api_key="k", http_options=options)
        contents: Any = asked.json["generateContentRequest"]["contents"]
        assert sdk.models.count_tokens(model="m", contents=contents).total_tokens == 42
        assert asked.path == server.requests[1].path == "/v1beta/models/m:countTokens"
        assert server.requests[1].json == {"contents": contents}  # all that the SDK sends, without the system message
    body = asked.json["generateContentRequest"]
    assert (body["model"], body["systemInstruction"]) == ("models/m", {"parts": [{"text": "Be brief."}]})
    assert body["tools"][0]["functionDeclarations"][0]["name"] == "look"


def test_vertex_counts_the_fields_that_its_sdk_sends() -> None:
    from rxllm.adapters.gemini.request import count_body

    body = count_body(Request(THREAD.messages, model="m", tools=(look,), temperature=0.5), is_vertex=True)
    assert body.keys() == {"contents", "systemInstruction", "tools", "generationConfig"}
    config = {name: body[name] for name in ("systemInstruction", "tools", "generationConfig")}
    genai_types.CountTokensConfig.model_validate(config)


@pytest.mark.judges
def test_the_local_model_counts_what_it_will_read() -> None:
    pytest.importorskip("xllamacpp")
    for request in (rxllm.request("Name three primes."), rxllm.request(THREAD, tools=(look,))):
        usage = rxllm.generate("local", request, max_tokens=1).run().usage
        assert rxllm.count_tokens("local", request).run() == TokenCount(usage.input_tokens or 0)


# The estimate


@pytest.mark.parametrize("adapter", [Fake("Hi"), OpenAIChat(api_key="k"), Ollama()])
def test_a_wire_without_a_count_is_estimated_without_a_request(adapter: Any) -> None:
    count = counted(adapter)
    assert count == TokenCount(estimated_tokens(Request(THREAD.messages, tools=(look,))), estimated=True)


@pytest.mark.parametrize("wire", [Anthropic, OpenAIResponses, Gemini])
@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_compatible_server_without_a_count_is_estimated(wire: Any, status: int) -> None:
    with Loopback(Reply.of_json({"error": {"message": "no such path"}}, status=status)) as server:
        assert counted(wire(base_url=server.url, api_key="k"), retry=False).estimated
        assert len(server.requests) == 1


def test_an_adapter_of_ones_own_may_count() -> None:
    class Mine:
        def stream(self, request: Any, call: Any) -> Any:
            return Fake("Hi").stream(request, call)

        def count_tokens(self, request: Any, call: Any) -> Any:
            return of(TokenCount(sum(len(message.text.split()) for message in request.messages)))

    assert rxllm.count_tokens(Mine(), "Name three primes.").run() == TokenCount(3)


def test_the_estimate_is_four_bytes_a_token_and_a_rule_for_the_rest() -> None:
    picture = Image.from_binary(b"GIF89a", "image/gif")
    assert message_tokens(user("a" * 40)) == 4 + 10
    assert message_tokens(user("日本語語")) == 4 + 3
    assert message_tokens(Message("user", (TextPart("a" * 4), ImagePart(picture)))) == 4 + 1 + 1000
    assert message_tokens(Message("user", (ImagePart(picture, "low"),))) == 4 + 100
    assert message_tokens(Message("user", (FilePart({"mime_type": "text/plain", "data": b"a" * 40}),))) == 4 + 10
    assert message_tokens(Message("user", (FilePart({"mime_type": "application/pdf", "data": b"%PDF"}),))) == 4 + 1000
    assert message_tokens(CALL) == 4 + 5  # look{"place":"here"}
    assert message_tokens(tool_result("c1", {"a": 1})) == 4 + 2


@given(strategies.messages)
def test_every_message_has_an_estimate(message: Message) -> None:
    with contextlib.suppress(ValidationError):  # of data without JSON, which no wire could send
        assert message_tokens(message) >= 4


def test_a_count_has_json() -> None:
    for count in (TokenCount(3), TokenCount(3, estimated=True)):
        assert serializer.from_json(serializer.to_json(count)) == count


# Errors, and how it is sent


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", "malformed_response"),
        (b'{"input_tokens": -1}', "malformed_response"),
        (b'{"input_tokens": "3"}', "malformed_response"),
        (b"[3]", "malformed_response"),
        (b'{"input', "truncated"),
        (b" " * (1 << 20) + b"  {}", "malformed_response"),
    ],
)
def test_an_answer_without_a_count_is_an_error(body: bytes, reason: str) -> None:
    with Loopback(Reply(body)) as server, pytest.raises((AdapterError, StreamError)) as caught:
        counted(Anthropic(base_url=server.url, api_key="k"), retry=False)
    assert caught.value.reason == reason


def test_a_connection_that_breaks_off_is_an_error_of_its_own() -> None:
    with Loopback(Reply([b'{"input', Cut.RESET])) as server, pytest.raises(StreamError) as caught:
        counted(Anthropic(base_url=server.url, api_key="k"), retry=False)
    assert caught.value.reason == "truncated"
    assert caught.value.__context__ is not None


def test_a_refusal_is_typed_and_shows_no_key() -> None:
    key = "sk-ant-secret-0123456789"
    refusal = {"error": {"type": "authentication_error", "message": f"bad key {key}"}}
    with Loopback(Reply.of_json(refusal, status=401)) as server, pytest.raises(AdapterError) as caught:
        counted(Anthropic(base_url=server.url, api_key=key))
    assert caught.value.reason == "authentication_failed"
    assert key not in str(caught.value)


def test_it_is_tried_again_like_every_other_request() -> None:
    busy = Reply.of_json({"error": {"type": "overloaded_error", "message": "busy"}}, status=529)
    with Loopback([busy, Reply.of_json({"input_tokens": 5})]) as server:
        retry = {"base_delay": 0.001}
        assert counted(Anthropic(base_url=server.url, api_key="k"), retry=retry) == TokenCount(5)
        assert len(server.requests) == 2


def test_a_dispose_closes_the_connection() -> None:
    with Loopback(Reply([b"{", Pause()])) as server:
        seen = threading.Event()
        subscription = rxllm.count_tokens(
            Engine(Anthropic(base_url=server.url, api_key="k"), model="m"), "Hi"
        ).subscribe(lambda _: seen.set(), lambda _: seen.set())
        server.wait_requests(1)
        subscription.dispose()
        server.connections[0].wait_closed()
        assert not seen.is_set()


def test_options_and_requests_are_checked_as_everywhere() -> None:
    with pytest.raises(rxllm.EngineError, match="colour"):
        rxllm.count_tokens(Fake("Hi"), "Hi", colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="messages must not be empty"):
        rxllm.count_tokens(Fake("Hi"), []).run()
    with pytest.raises(rxllm.EngineError, match="needs a model"):
        rxllm.count_tokens(Anthropic(api_key="k"), "Hi").run()


def test_the_functions_of_prepare_are_not_called() -> None:
    def refuse(request: Request) -> Request:
        raise AssertionError

    assert rxllm.count_tokens(Engine(Fake("Hi"), prepare=[refuse]), "Hi").run().estimated
