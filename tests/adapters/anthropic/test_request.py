"""Values to the request: nothing is sent. What is built is what the official SDK's own types allow."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm.adapters.anthropic import Anthropic
from rxllm.adapters.anthropic.request import default_max_tokens
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.collector import fold_message
from rxllm.testing.loopback import Loopback
from rxllm.values import (
    Call,
    EngineError,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ValidationError,
    assistant,
    json_schema,
    system,
    tool,
    tool_result,
    user,
)
from rxllm.values.model_table import EFFORTS
from tests.adapters.anthropic.sdk import MODEL, asked, body, built, check

HERE = "http://localhost:8080/v1"
SIGNED = ThinkingPart("hm", "sig", {"provider": "anthropic", "type": "thinking"})
ADD = tool(name="add", description="Adds", schema={"properties": {"x": {"type": "integer"}}}, handler=lambda _: None)


def turns(*messages: Message) -> list[dict[str, Any]]:
    return asked(*messages)["messages"]


@pytest.mark.judges
def test_the_judge_judges():
    with pytest.raises(ValueError, match="validation error"):
        check(
            {"model": "m", "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": [{"type": "x"}]}]}
        )


def test_the_least_request():
    request = built(Request((user("Hi"),), MODEL))
    assert str(request.url) == "https://api.anthropic.com/v1/messages"
    assert request.headers["x-api-key"] == "k"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "anthropic-beta" not in request.headers
    assert msgspec.json.decode(request.content) == {
        "model": MODEL,
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    request = Anthropic(base_url=HERE).build(Request((user("Hi"),), "m"), Call())
    assert str(request.url) == f"{HERE}/messages"
    assert "x-api-key" not in request.headers
    with pytest.raises(EngineError, match="key"):
        Anthropic().build(Request((user("Hi"),), "m"), Call())


@pytest.mark.judges
def test_a_key_for_bedrocks_mantle_is_a_bearer_token():
    """As Anthropic's own client for it sends the key."""
    sdk = pytest.importorskip("anthropic")
    request = built(
        Request((user("Hi"),), "anthropic.claude"), base_url="https://bedrock-mantle.r.api.aws/anthropic/v1"
    )
    with Loopback() as server:
        client = sdk.AnthropicBedrockMantle(api_key="k", aws_region="r", base_url=server.url, max_retries=0)
        list(client.messages.create(**msgspec.json.decode(request.content)))
    (its,) = server.requests
    assert request.headers["authorization"] == its.headers["authorization"] == "Bearer k"
    assert "x-api-key" not in {*request.headers, *its.headers}
    assert its.json == msgspec.json.decode(request.content)


def test_a_model_is_needed():
    with pytest.raises(EngineError) as caught:
        body(Request((user("Hi"),)))
    assert caught.value.reason == "missing_model"


def test_all_fields():
    said = asked(system("S"), user("Hi"), temperature=0, max_tokens=5, stop=("a",), seed=1, reasoning_effort="none")
    assert {name: held for name, held in said.items() if name not in ("messages", "model", "stream")} == {
        "system": "S",
        "max_tokens": 5,
        "temperature": 0,
        "stop_sequences": ["a"],
        "thinking": {"type": "disabled"},
    }


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-3-haiku-20240307", 4096),
        ("claude-3-7-sonnet-latest", 4096),
        ("claude-2.1", 4096),
        ("claude-sonnet-4-20250514", 32_000),
        ("claude-opus-5-5", 32_000),
        ("anthropic/claude-haiku-4.5", 32_000),
        ("some-other-model", 4096),
    ],
)
def test_the_bound_that_the_api_wants(model: str, expected: int):
    assert default_max_tokens(model) == expected


SUMMARIZED = {"type": "adaptive", "display": "summarized"}
HIGH = {"output_config": {"effort": "high"}}


@pytest.mark.parametrize(
    ("model", "effort", "limit", "expected"),
    [
        ("claude-opus-4-6", "low", None, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        ("anthropic.claude-sonnet-4-6-v1:0", "high", None, {"thinking": {"type": "adaptive"}, **HIGH}),
        ("claude-opus-5-5", "minimal", None, {"thinking": SUMMARIZED, "output_config": {"effort": "low"}}),
        ("claude-opus-4-7", "high", None, {"thinking": SUMMARIZED, **HIGH}),
        ("claude-fable-5-1", "high", None, {"thinking": SUMMARIZED, **HIGH}),
        ("claude-sonnet-4-5", "low", None, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("claude-haiku-4.5", "high", None, {"thinking": {"type": "enabled", "budget_tokens": 16_384}}),
        ("claude-opus-4-20250514", "max", None, {"thinking": {"type": "enabled", "budget_tokens": 24_000}}),
        ("claude-opus-4-1", "high", 4000, {"thinking": {"type": "enabled", "budget_tokens": 3000}}),
        ("claude-opus-4-1", "high", 1000, {}),
        ("another", "medium", None, {"thinking": {"type": "enabled", "budget_tokens": 3072}}),
        ("claude-opus-5", "none", None, {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", "none", None, {"thinking": {"type": "between_tools"}}),
        ("claude-sonnet-5", "none", None, {"thinking": {"type": "disabled"}}),
    ],
)
def test_effort(model: str, effort: str, limit: int | None, expected: Any):
    said = asked(user("Hi"), model=model, reasoning_effort=effort, max_tokens=limit)
    assert {name: said[name] for name in ("thinking", "output_config") if name in said} == expected


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-6", "claude-sonnet-5-5", "claude-opus-5-5"])
def test_every_effort_of_the_table_fits_the_sdk(model: str):
    for effort in EFFORTS:
        said = asked(user("Hi"), model=model, reasoning_effort=effort, temperature=0.2)
        assert said["temperature"] == 0.2, effort
        assert "thinking" in said, effort


def test_an_option_leaves_the_thoughts_hidden():
    said = asked(user("Hi"), model="claude-opus-5", reasoning_effort="high", options={"thinking": {"type": "adaptive"}})
    assert (said["thinking"], said["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})


def test_an_effort_that_nobody_knows():
    with pytest.raises(ValidationError, match="reasoning_effort"):
        asked(user("Hi"), reasoning_effort="huge")


def test_options_are_merged_over_the_body_and_none_takes_out():
    options = {"top_k": 3, "temperature": None, "betas": ["a", "b"], "metadata": {"user_id": "u"}}
    request = built(Request((user("Hi"),), MODEL, temperature=0.5, options=options))
    said = msgspec.json.decode(request.content)
    assert (said["top_k"], said["metadata"]) == (3, {"user_id": "u"})
    assert not {"temperature", "betas"} & said.keys()
    assert request.headers["anthropic-beta"] == "a,b"


def test_headers_win():
    request = built(Request((user("Hi"),), MODEL), headers={"anthropic-version": "2026-10-21"})
    assert request.headers["anthropic-version"] == "2026-10-21"


def test_the_messages_of_a_tool_run():
    calls = (
        ToolCall("a", "f", {"x": 1}, '{"x": 1}'),
        ToolCall("b", "g"),
        ToolCall("s", "h", metadata={"server": True}),
    )
    told = Message("assistant", "Let me see. ", tool_calls=calls)
    failed = Message("tool", "no", tool_call_id="b", metadata={"is_error": True})
    assert turns(user("Hi"), told, tool_result("a", {"r": 1}), failed, user("And?")) == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see. "},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": '{"r":1}'},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
    ]


def test_results_come_before_all_else_in_their_turn():
    told = Message("assistant", "", tool_calls=(ToolCall("a", "f"),))
    last = turns(user("Hi"), told, user("Well?"), tool_result("a", "1"))[-1]["content"]
    assert [block["type"] for block in last] == ["tool_result", "text"]


def test_a_result_with_an_image():
    parts = (TextPart("see"), ImagePart(Image.from_binary(b"\0", "image/png")))
    (block,) = turns(Message("tool", parts, tool_call_id="a"))[0]["content"]
    assert [each["type"] for each in block["content"]] == ["text", "image"]


def test_arguments_that_are_no_object():
    call = ToolCall("a", "f", {}, '{"x": ', {"error": "invalid_json"})
    (block,) = turns(user("Hi"), Message("assistant", "", tool_calls=(call,)))[-1]["content"]
    assert block["input"] == {"INVALID_JSON": '{"x": '}


def test_ids_of_other_providers():
    told = Message("assistant", "", tool_calls=(ToolCall("functions.f:0", "f"),))
    _, said, answered = turns(user("Hi"), told, tool_result("functions.f:0", "1"))
    assert said["content"][0]["id"] == answered["content"][0]["tool_use_id"] == "functions_f_0"


def test_messages_of_one_role_are_one_turn():
    assert turns(user("a"), user("b"), assistant("c"), assistant("d"), user("e")) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]


OBEYS, IGNORES = "claude-opus-4-8", "claude-sonnet-5"
ANTHROPIC, CALLED = "https://api.anthropic.com/v1", Message("assistant", "", tool_calls=(ToolCall("c", "add", {}),))


def instructed(*messages: Message, model: str = OBEYS, base_url: str = ANTHROPIC, **options: Any) -> dict[str, Any]:
    said = body(Request(messages, model, tools=(ADD,), options=options), base_url)
    assert "system_entries" not in said
    return said


def shape(*messages: Message, **options: Any) -> list[str]:
    """The turns as text, the tags of instructions as <>."""
    turns: list[dict[str, Any]] = instructed(*messages, **options)["messages"]
    texts: list[str] = []
    for turn in turns:
        blocks = turn["content"] if isinstance(turn["content"], list) else [{"type": "text", "text": turn["content"]}]
        said = "+".join(block.get("text", block["type"]) for block in blocks)
        texts.append(f"{turn['role'][0]}:{said}".replace("<system>", "<").replace("</system>", ">"))
    return texts


def test_only_the_first_system_messages_are_system():
    for model in (OBEYS, IGNORES, "claude-haiku-4-5"):
        said = instructed(system("a"), system("b"), user("Hi"), assistant("x"), user("You?"), system("c"), model=model)
        assert said["system"] == "a\n\nb"
    assert "system" not in instructed(user("Hi"), system("c"))


@pytest.mark.parametrize(
    ("messages", "native", "tagged"),
    [
        ([user("u"), system("S")], ["u:u", "s:S"], ["u:u+<S>"]),
        ([user("u"), system("S"), user("v")], ["u:u+v", "s:S"], ["u:u+v+<S>"]),
        ([user("u"), system("S"), system(" "), system("T")], ["u:u", "s:S+T"], ["u:u+<S>+<T>"]),
        ([user("u"), system("S"), assistant("a")], ["u:u", "s:S", "a:a"], ["u:u+<S>", "a:a"]),
        ([user("u"), system("S"), assistant(" "), user("v")], ["u:u+v", "s:S"], ["u:u+v+<S>"]),
        ([user("u"), assistant("a"), system("S"), user("v")], ["u:u", "a:a", "u:v", "s:S"], ["u:u", "a:a", "u:v+<S>"]),
        ([user("u"), assistant("a"), system("S")], ["u:u", "a:a", "u:<S>"], ["u:u", "a:a", "u:<S>"]),
        (
            [user("u"), assistant("a"), system("S"), assistant("b")],
            ["u:u", "a:a", "u:<S>", "a:b"],
            ["u:u", "a:a", "u:<S>", "a:b"],
        ),
        (
            [user("u"), CALLED, system("S"), tool_result("c", "1"), user("v")],
            ["u:u", "a:tool_use", "u:tool_result+v", "s:S"],
            ["u:u", "a:tool_use", "u:tool_result+v+<S>"],
        ),
        ([assistant("a"), system("S"), user("u")], ["a:a", "u:u", "s:S"], ["a:a", "u:u+<S>"]),
    ],
)
def test_a_later_system_message_goes_behind_a_user_s_turn(messages: Any, native: list[str], tagged: list[str]):
    assert shape(*messages) == native
    assert shape(*messages, model=IGNORES) == tagged


def test_where_a_server_s_tool_is_paused_an_entry_follows_it():
    search = {"type": "server_tool_use", "id": "s", "name": "web_search"}
    paused = ToolCall("s", "web_search", {}, metadata={"server": True, "anthropic": search})
    assert shape(user("u"), Message("assistant", "", tool_calls=(paused,)), system("S"))[1:] == [
        "a:server_tool_use",
        "s:S",
    ]


@pytest.mark.parametrize(
    ("model", "base_url", "is_native"),
    [
        ("claude-opus-4-8-20260601", ANTHROPIC, True),
        ("claude-opus-5-5", "https://aws-external-anthropic.eu-west-1.api.aws/v1", True),
        ("claude-fable-5-1", ANTHROPIC, True),
        ("claude-mythos-5", ANTHROPIC, True),
        ("claude-opus-4-7", ANTHROPIC, False),
        ("claude-sonnet-5-5", ANTHROPIC, False),
        ("claude-haiku-5-5", ANTHROPIC, False),
        ("claude-opus-4-8", HERE, False),
        ("claude-opus-4-8", "https://api.anthropic.com.example.org/v1", False),
    ],
)
def test_models_that_obey_an_entry_get_one_from_anthropic_s_own_servers(model: str, base_url: str, is_native: bool):
    messages = (user("u"), system("S"))
    forms = {True: ["u:u", "s:S"], False: ["u:u+<S>"]}
    assert shape(*messages, model=model, base_url=base_url) == forms[is_native]
    for forced in (True, False):
        assert shape(*messages, model=model, base_url=base_url, system_entries=forced) == forms[forced]


def test_a_later_system_message_keeps_its_cache_mark():
    marked = Message("system", "S", metadata={"cache": True})
    mark = {"cache_control": {"type": "ephemeral"}}
    said = instructed(user("u"), marked)["messages"]
    assert said[1] == {"role": "system", "content": [{"type": "text", "text": "S", **mark}]}
    said = instructed(user("u"), marked, model=IGNORES)["messages"]
    assert said[0]["content"][1] == {"type": "text", "text": "<system>S</system>", **mark}


ASKED = st.lists(st.sampled_from([user("u"), user("v"), system("S"), system("T")]), max_size=4)
ROUNDS = st.lists(st.tuples(ASKED, st.sampled_from([assistant("a"), CALLED])), min_size=1, max_size=5)


@given(ASKED, ROUNDS, ASKED, st.booleans())
def test_a_longer_thread_keeps_what_was_sent_before_each_answer(first: Any, rounds: Any, last: Any, native: bool):
    thread, earlier = [system("A"), *first, user("u")], list[tuple[Any, list[Any]]]()
    for questions, answer in [*rounds, (last, assistant("end"))]:
        said = instructed(*thread, system_entries=native)
        earlier.append((said["system"], said["messages"]))
        results = [tool_result("c", "1")] if answer is CALLED else [] if questions else [user("more")]
        thread += [answer, *questions, *results]
    said = instructed(*thread, system_entries=native)
    for system_text, turns in earlier:
        assert (said["system"], said["messages"][: len(turns)]) == (system_text, turns)
    roles = [turn["role"] for turn in said["messages"]]
    for place, role in enumerate(roles):
        if role == "system":  # after a user's turn, before an assistant's or at the end
            assert roles[place - 1] == "user"
            assert roles[place + 1 : place + 2] in ([], ["assistant"])


def test_blank_text_is_left_out():
    assert turns(user("Hi"), assistant(" \n"), user("You?")) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "You?"}]}
    ]


def test_a_prefill_ends_without_white_space():
    assert turns(user("Hi"), assistant("The answer is "))[-1] == {"role": "assistant", "content": "The answer is"}


def test_images(tmp_path: Path):
    (tmp_path / "x.png").write_bytes(b"\0")
    binary = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    images = [
        (Image.from_url("https://x/y.png"), {"type": "url", "url": "https://x/y.png"}),
        (Image.from_url("data:image/png;base64,AA=="), binary),
        (Image.from_binary(b"\0", "image/png"), binary),
        (Image.from_base64(base64.b64encode(b"\0").decode(), "image/png"), binary),
        (Image.from_file(tmp_path / "x.png"), binary),
    ]
    content = turns(user([ImagePart(image) for image, _ in images]))[0]["content"]
    assert [block["source"] for block in content] == [source for _, source in images]


def test_tools_and_their_choice():
    said = asked(user("Hi"), tools=(ADD,), tool_choice="add")
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert said["tools"] == [{"name": "add", "description": "Adds", "input_schema": schema}]
    assert said["tool_choice"] == {"type": "tool", "name": "add"}
    for choice, expected in (("auto", "auto"), ("none", "none"), ("required", "any")):
        assert asked(user("Hi"), tools=(ADD,), tool_choice=choice)["tool_choice"] == {"type": expected}
    own = {"type": "auto", "disable_parallel_tool_use": True}
    assert asked(user("Hi"), tools=(ADD,), tool_choice=own)["tool_choice"] == own
    assert "tool_choice" not in asked(user("Hi"), tool_choice="auto"), "a choice without tools is refused"


def test_what_only_this_provider_knows_of_a_tool():
    own = {"strict": True, "anthropic": {"eager_input_streaming": True}}
    strict = tool(name="f", schema={"type": "object"}, manual=True, metadata=own)
    search = tool(
        name="web_search", manual=True, metadata={"anthropic": {"type": "web_search_20250305", "max_uses": 2}}
    )
    closed = {"type": "object", "additionalProperties": False}
    assert asked(user("Hi"), tools=(strict, search))["tools"] == [
        {"name": "f", "input_schema": closed, "strict": True, "eager_input_streaming": True},
        {"name": "web_search", "type": "web_search_20250305", "max_uses": 2},
    ]


def test_a_json_schema():
    inner = {"type": "object", "properties": {"y": {"type": "string"}}, "additionalProperties": False}
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {**inner}}, "type": {"type": "string"}}}
    said = asked(user("Hi"), model="claude-opus-4-6", response_format=json_schema("s", schema), reasoning_effort="low")
    closed = {"additionalProperties": False, **schema}
    assert said["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": closed}}
    more = {"output_config": {"effort": "max"}}
    said = asked(user("Hi"), response_format=json_schema("s", schema), options=more)
    assert said["output_config"].keys() == {"format", "effort"}
    for text in ("text", {"type": "text"}):
        assert "output_config" not in asked(user("Hi"), response_format=text)


@pytest.mark.parametrize("wrong", [{"type": "json_object"}, "yaml"])
def test_formats_that_the_api_does_not_know(wrong: Any):
    with pytest.raises(ValidationError, match=r"response_format must be (a type, )?'text'") as caught:
        asked(user("Hi"), response_format=wrong)
    assert caught.value.reason == "invalid_request"


def test_marks_of_the_prompt_cache():
    mark = {"type": "ephemeral"}
    cached = tool(name="f", manual=True, metadata={"cache": True})
    said = asked(
        Message("system", "S", metadata={"cache": "1h"}),
        user([TextPart("a", {"cache": True}), TextPart("b")]),
        Message("assistant", (TextPart("c"), SIGNED), metadata={"cache": True}),
        Message("assistant", "e"),
        user("d"),
        tools=(cached,),
    )
    assert said["system"] == [{"type": "text", "text": "S", "cache_control": {**mark, "ttl": "1h"}}]
    assert said["tools"][0]["cache_control"] == mark
    marks = [block.get("cache_control") for turn in said["messages"][:2] for block in turn["content"]]
    assert marks == [mark, None, mark, None, None], "thinking takes no mark"


def test_thinking_goes_back_to_its_provider_only():
    hidden = {"provider": "anthropic", "type": "redacted_thinking", "data": "x"}
    parts = (
        SIGNED,
        ThinkingPart("", None, hidden),
        ThinkingPart("cut off", None, None),
        ThinkingPart("another's", "s", {"reasoning_details": [{"signature": "s"}]}),
        ThinkingPart("another's", "s", {"provider": "google"}),
        TextPart("a"),
    )
    assert turns(user("Hi"), Message("assistant", parts))[-1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "a"},
    ]


def test_the_order_of_parts_is_kept_and_those_of_others_are_left_out():
    cited = {"type": "char_location", "cited_text": "t", "document_index": 0, "document_title": None}
    cited |= {"start_char_index": 0, "end_char_index": 1}
    server = {"server": True, "anthropic": {"type": "server_tool_use"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    parts = (
        ToolCallPart("s"),
        ProviderPart("anthropic", result),
        ProviderPart("openai", {"type": "web_search_call"}),
        SourcePart({"type": "web_search_result", "url": "u"}),
        TextPart("a"),
        SourcePart({**cited, "file_id": None}),
        ToolCallPart("c"),
    )
    calls = (
        ToolCall("s", "web_search", {"query": "q"}, metadata=server),
        ToolCall("c", "f", metadata={"anthropic": {"caller": {"type": "code_execution_20250825", "tool_id": "s"}}}),
        ToolCall("o", "web_search", metadata={"server": True}),
        ToolCall("x", "web_search", metadata={**server, "error": "incomplete"}),
    )
    assert turns(user("Hi"), Message("assistant", parts, tool_calls=calls))[-1]["content"] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        result,
        {"type": "text", "text": "a", "citations": [cited]},
        {
            "type": "tool_use",
            "id": "c",
            "name": "f",
            "input": {},
            "caller": {"type": "code_execution_20250825", "tool_id": "s"},
        },
    ]


def test_the_container_of_the_last_turn():
    first = Message("assistant", "a", metadata={"anthropic_container": "c1"})
    assert asked(user("Hi"), first, user("b"))["container"] == "c1"
    assert "container" not in asked(user("Hi"), first, user("b"), assistant("c"), user("d"))


def test_parts_of_ours_in_a_users_message():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "t"}}
    parts = (ProviderPart("anthropic", document), TextPart("?"))
    message = Message("user", parts, metadata={"cache": True})
    assert turns(message)[0]["content"][0] == document
    assert "cache_control" not in document, "values are never changed"


def test_a_thread_that_another_adapter_made_can_be_sent():
    stream = (
        b'data: {"id":"r","model":"m","choices":[{"delta":{"reasoning":"hm","reasoning_details":'
        b'[{"type":"reasoning.text","text":"hm","signature":"s"}]}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"Hi","annotations":[{"type":"url_citation","url":"u"}]}}]}\n\n'
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"f:0","function":{"name":"f","arguments":"{}"}}]},'
        b'"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    )
    told = fold_message(ChatDecoder().feed(stream))
    assert turns(user("Hi"), told, tool_result("f:0", "1"))[1]["content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "f_0", "name": "f", "input": {}},
    ]
