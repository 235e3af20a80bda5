from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import rxllm
from rxllm import (
    AdapterError,
    EngineError,
    Message,
    Request,
    SourceAdded,
    StreamError,
    Tool,
    ToolCall,
    Usage,
    assistant,
    tool_result,
    user,
)
from rxllm.testing import ADAPTER_RULES, HTTPAdapterConformance, Script, assert_adapter, refusal
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Call, Image, ImagePart, TextPart, ThinkingPart

from rxllm_cohere import Cohere, connect


def event(type: str, delta: Any = None, **more: Any) -> bytes:
    """Return one of Cohere's server-sent events."""
    data = {"type": type, **more} if delta is None else {"type": type, "delta": delta, **more}
    return f"event: {type}\ndata: {json.dumps(data)}\n\n".encode()


def delta_event(type: str, message: dict[str, Any], index: int = 0) -> bytes:
    return event(type, {"message": message}, index=index)


def start(id: str = "m1") -> bytes:
    empty = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    return event("message-start", {"message": empty}, id=id)


def end(reason: str = "COMPLETE", **more: Any) -> list[bytes]:
    return [event("message-end", {"finish_reason": reason, **more}), b"data: [DONE]\n\n"]


class TestConformance(HTTPAdapterConformance):
    """Run rxllm's conformance tests against Cohere's wire format."""

    breaks = "unknown"  # its streams do not state what kind of error occurred
    without: ClassVar[dict[str, str]] = {"content_filter": "none of its finish reasons means it"}

    def adapter(self, url: str, **connection: Any) -> Cohere:
        return Cohere(base_url=url, **connection)

    def said(self, script: Script) -> list[bytes]:
        thoughts = [delta_event("content-delta", {"content": {"thinking": piece}}) for piece in script.thinking]
        texts = [delta_event("content-delta", {"content": {"text": text}}) for text in script.texts]
        calls = [frame for index, call in enumerate(script.calls) for frame in call_events(index, call)]
        return [start(), *thoughts, *texts, *calls]

    def ended(self, script: Script) -> list[bytes]:
        reason = {"tool_calls": "TOOL_CALL", "length": "MAX_TOKENS"}.get(script.finish_reason, "COMPLETE")
        if script.usage is None:
            return end(reason)
        tokens = {"input_tokens": script.usage.input_tokens, "output_tokens": script.usage.output_tokens}
        return end(reason, usage={"tokens": tokens})

    def failed(self, error: Any) -> list[bytes]:
        return end("ERROR", error=error.message)

    def refused(self, error: Any) -> Reply:
        return refusal(error, {"id": "e1", "message": error.message})


def call_events(index: int, call: ToolCall) -> list[bytes]:
    start = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    arguments = {"function": {"arguments": json.dumps(call.arguments)}}
    return [
        delta_event("tool-call-start", {"tool_calls": start}, index),
        delta_event("tool-call-delta", {"tool_calls": arguments}, index),
        event("tool-call-end", index=index),
    ]


@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_it_keeps_the_rules_of_every_adapter(rule: str) -> None:
    with Loopback(Reply([start(), delta_event("content-delta", {"content": {"text": "Hi"}}), *end()])) as server:
        assert_adapter(Cohere(base_url=server.url), only=[rule], model="command-a")


# The request


def body(request: Request) -> dict[str, Any]:
    return json.loads(Cohere(api_key="k").build(request, Call()).content)


def test_a_request_has_only_the_fields_that_are_set() -> None:
    sent = Cohere(api_key="k").build(Request((user("Hi"),), model="command-a"), Call())
    assert str(sent.url) == "https://api.cohere.com/v2/chat"
    assert sent.headers["authorization"] == "Bearer k"
    assert json.loads(sent.content) == {
        "model": "command-a",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }


def test_options_have_cohere_s_names() -> None:
    add = Tool("add", "Adds.", {"type": "object"})
    request = Request(
        (user("Hi"),),
        model="command-a",
        tools=(add, Tool("sub")),
        tool_choice="add",
        stop=(".",),
        max_tokens=9,
        reasoning_effort="none",
        options={"documents": ["d"], "max_tokens": 8},
    )
    sent = body(request)
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert (sent["tool_choice"], sent["stop_sequences"], sent["max_tokens"]) == ("REQUIRED", ["."], 8)
    assert (sent["thinking"], sent["documents"]) == ({"type": "disabled"}, ["d"])


@pytest.mark.parametrize(
    ("choice", "sent"), [(None, None), ("auto", None), ("none", "NONE"), ("required", "REQUIRED"), ("f", "REQUIRED")]
)
def test_choices_of_tools(choice: str | None, sent: str | None) -> None:
    request = Request((user("Hi"),), model="m", tools=(Tool("f"),), tool_choice=choice)
    assert body(request).get("tool_choice") == sent


def test_formats() -> None:
    schema = {"type": "object"}
    response_format = {"type": "json_schema", "schema": schema}
    assert body(Request((user("Hi"),), model="m", response_format=response_format))["response_format"] == {
        "type": "json_object",
        "json_schema": schema,
    }
    with pytest.raises(AdapterError, match="no response format"):
        body(Request((user("Hi"),), model="m", response_format={"type": "xml"}))


def test_a_thread_goes_back_with_its_plan_and_its_thinking() -> None:
    call = ToolCall("c1", "add", {"x": 1})
    answer = Message(
        "assistant",
        (
            ThinkingPart("Hm.", provider_data={"provider": "cohere", "kind": "thinking"}),
            ThinkingPart("I will add.", provider_data={"provider": "cohere", "kind": "tool_plan"}),
            ThinkingPart("Another provider's.", "signed"),
        ),
        tool_calls=(call,),
    )
    request = Request((user("Add."), answer, tool_result("c1", {"sum": 2}), assistant("2")), model="m")
    assert body(request)["messages"] == [
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm."}],
            "tool_plan": "I will add.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"sum":2}'},
        {"role": "assistant", "content": [{"type": "text", "text": "2"}]},
    ]


def test_an_image_is_a_part() -> None:
    request = Request(
        (user((TextPart("What is it?"), ImagePart(Image.from_url("https://example.com/a.png")))),), model="m"
    )
    assert body(request)["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]


def test_a_missing_model_or_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CO_API_KEY", raising=False)
    for adapter, request, reason in [
        (Cohere(api_key="k"), Request((user("Hi"),)), "missing_model"),
        (connect("m"), Request((user("Hi"),), model="m"), "missing_key"),
    ]:
        with pytest.raises(EngineError) as caught:
            adapter.build(request, Call())
        assert caught.value.reason == reason


# The response


def test_a_response_in_all_its_parts() -> None:
    citation = {"start": 0, "end": 2, "text": "-3", "sources": [{"type": "tool", "id": "subtract:0"}]}
    usage = {"tokens": {"input_tokens": 9.0, "output_tokens": 4.0}, "cached_tokens": 5, "billed_units": {"input": 1}}
    reply = [
        start(),
        delta_event("tool-plan-delta", {"tool_plan": "I will "}),
        delta_event("tool-plan-delta", {"tool_plan": "subtract."}),
        delta_event("content-start", {"content": {"type": "thinking", "thinking": ""}}),
        delta_event("content-delta", {"content": {"thinking": "Hm."}}),
        event("content-end", index=0),
        delta_event("content-start", {"content": {"type": "text", "text": ""}}, 1),
        delta_event("content-delta", {"content": {"text": "It is -3."}}, 1),
        delta_event("citation-start", {"citations": citation}),
        event("citation-end", index=0),
        event("content-end", index=1),
        event("something-new", {"message": {}}),
        *end(usage=usage),
    ]
    with Loopback(Reply(reply)) as server:
        events = list(rxllm.stream_generate(Cohere(base_url=server.url), "2 - 5?", model="command-a"))
        response = rxllm.generate(Cohere(base_url=server.url), "2 - 5?", model="command-a").run()
    assert response.output_text == "It is -3."
    assert response.id == "m1"
    assert [(type(part).__name__, getattr(part, "text", None)) for part in response.message.parts] == [
        ("ThinkingPart", "I will subtract."),
        ("ThinkingPart", "Hm."),
        ("TextPart", "It is -3."),
        ("SourcePart", None),
    ]
    assert [event.source for event in events if isinstance(event, SourceAdded)] == [citation]
    assert response.usage == Usage(9, 4, cached_input_tokens=5, extra={"billed_units": {"input": 1}})


@pytest.mark.parametrize(("raw", "reason"), [("STOP_SEQUENCE", "stop"), ("MAX_TOKENS", "length"), ("NEW", "other")])
def test_finish_reasons(raw: str, reason: str) -> None:
    with Loopback(Reply([start(), *end(raw)])) as server:
        response = rxllm.generate(Cohere(base_url=server.url), "Hi", model="command-a").run()
    assert (response.finish_reason, response.raw_finish_reason) == (reason, raw)


def test_an_error_at_the_end_of_a_stream() -> None:
    fields = {"error": "an invalid tool generation", "error_type": "INVALID_TOOL_GENERATION"}
    with Loopback(Reply([start(), *end("ERROR", **fields)])) as server:
        error = rxllm.generate(Cohere(base_url=server.url), "Hi", model="command-a", retry=False).run().error
    assert isinstance(error, AdapterError)
    assert (error.message, error.metadata["type"]) == (fields["error"], fields["error_type"])


def test_a_frame_that_breaks_the_decoder_ends_the_stream_after_the_earlier_text() -> None:
    reply = [start(), delta_event("content-delta", {"content": {"text": "Hi"}}), *end(usage={"tokens": [1]})]
    with Loopback(Reply(b"".join(reply))) as server:
        response = rxllm.generate(Cohere(base_url=server.url), "Hi", model="command-a", retry=False).run()
    assert response.output_text == "Hi"
    assert isinstance(response.error, StreamError)
    assert response.error.reason == "malformed_event"


def test_options_of_the_engine_reach_the_adapter() -> None:
    assert connect("m", base_url="http://localhost:8080").base_url == "http://localhost:8080"
    with pytest.raises(EngineError, match="no option 'region'"):
        connect("m", region="eu")
