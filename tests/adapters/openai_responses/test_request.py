"""Values to the request: nothing is sent. What is built fits the official SDK's types, and is what others have sent."""

import csv
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.collector import StreamCollector
from rxllm.values import (
    Call,
    EngineError,
    FilePart,
    Image,
    ImagePart,
    Message,
    ProviderPart,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    Thread,
    Tool,
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
from rxllm.values.model_table import takes
from tests.adapters.openai_responses.support import CLIENT, COMPLETED, CREATED, item, said, whole
from tests.adapters.sdk import assert_fits
from tests.corpus import VARIABLE

HERE = "http://localhost:8080/v1"
MODELED = ("model", "input", "tools", "tool_choice", "temperature", "max_output_tokens", "reasoning", "text", "stream")


def body(request: Request, base_url: str | None = None) -> dict[str, Any]:
    built = OpenAIResponses(base_url=base_url, api_key="k").build(request, Call())
    return fits_the_sdk(msgspec.json.decode(built.content))


def asked(*messages: Message, **fields: Any) -> dict[str, Any]:
    return body(Request(messages, "m", **fields))


def said_by(text: str, **rest: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **rest}


def fits_the_sdk(made: dict[str, Any]) -> dict[str, Any]:
    # The types ask for what the API does not: the ids and the status of what was said before.
    given = [{"id": "i", "status": "completed", **each} if needs_id(each) else each for each in made["input"]]
    made_of_it = {**made, "input": given}
    assert_fits("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming", made_of_it)
    return made


def needs_id(item: dict[str, Any]) -> bool:
    return item.get("type") == "reasoning" or (item.get("role") == "assistant" and "type" in item)


def test_the_least_request():
    built = OpenAIResponses(api_key="k").build(Request((user("Hi"),), "m"), Call())
    assert str(built.url) == "https://api.openai.com/v1/responses"
    assert built.headers["authorization"] == "Bearer k"
    assert msgspec.json.decode(built.content) == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
    }


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    built = OpenAIResponses(base_url=HERE).build(Request((user("Hi"),), "m"), Call())
    assert "authorization" not in built.headers
    with pytest.raises(EngineError, match="key"):
        OpenAIResponses().build(Request((user("Hi"),), "m"), Call())


def test_a_model_is_needed():
    with pytest.raises(EngineError) as caught:
        body(Request((user("Hi"),)))
    assert caught.value.reason == "missing_model"


def test_all_fields():
    made = asked(
        user("Hi"),
        temperature=0,
        max_tokens=5,
        stop=("a",),
        seed=0,
        reasoning_effort="low",
        response_format={"type": "json_object"},
    )
    assert {k: v for k, v in made.items() if k not in ("input", "model", "stream", "store")} == {
        "temperature": 0,
        "max_output_tokens": 5,
        "stop": ["a"],
        "seed": 0,
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "json_object"}},
    }


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("o3-mini", True),
        ("gpt-5.4-mini", True),
        ("gpt-5-chat-latest", False),
        ("codex-mini-latest", True),
        ("openai/gpt-5", True),
        ("gpt-4o", False),
        ("gpt-4.1-nano", False),
        ("omni", False),
    ],
)
def test_only_models_that_think_are_asked_for_what_they_thought(model: str, thinks: bool):
    assert ("include" in body(Request((user("Hi"),), model))) is thinks


def test_options_are_merged_over_the_body_and_none_takes_out():
    nested = {"reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}}
    made = asked(
        user("Hi"),
        temperature=0.5,
        reasoning_effort="low",
        response_format={"type": "json_object"},
        options={"temperature": 1, "top_p": 0.5, "store": None, **nested},
    )
    assert (made["temperature"], made["top_p"], "store" in made) == (1, 0.5, False)
    assert made["reasoning"] == {"effort": "low", "summary": "auto"}
    assert made["text"] == {"format": {"type": "json_object"}, "verbosity": "low"}


@pytest.mark.parametrize("options", [{"previous_response_id": "r"}, {"background": True}, {"conversation": "c"}])
def test_what_leans_on_the_servers_memory_is_stored(options: dict[str, Any]):
    assert "store" not in asked(user("Hi"), options=options)
    assert asked(user("Hi"), options={"store": True})["store"] is True


def test_the_messages_of_a_tool_run():
    call = ToolCall("a", "f", {"x": 1}, '{"x": 1}')
    told = Message(
        "assistant",
        (TextPart("Let me"), ToolCallPart("a"), ToolCallPart("s"), TextPart("see"), TextPart(".")),
        tool_calls=(call, ToolCall("b", "g", {"y": 2}), ToolCall("s", "h", metadata={"server": True})),
    )
    made = asked(system("S"), user("Hi"), told, tool_result("a", {"r": 1}), tool_result("b", "2"), assistant("So."))
    assert made["input"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        said_by("Let me"),
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
        said_by("see."),
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": '{"y":2}'},
        {"type": "function_call_output", "call_id": "a", "output": '{"r":1}'},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        said_by("So."),
    ]


def test_images_and_files():
    parts = [
        TextPart("see", {"cache": True}),
        ImagePart(Image.from_url("https://x/y.png"), "low"),
        ImagePart(Image.from_binary(b"\0", "image/png")),
        ImagePart(Image.from_base64("AA==", "image/png"), metadata={"cache": True}),
        FilePart({"mime_type": "application/pdf", "data": b"\0", "name": "a.pdf"}),
        FilePart({"mime_type": "application/pdf", "url": "https://x/a.pdf"}),
        FilePart({"mime_type": "image/png", "data": b"\0"}),
    ]
    cached = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    shown = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    assert asked(user(parts))["input"][0]["content"] == [
        {"type": "input_text", "text": "see", **cached},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        shown,
        {**shown, **cached},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        {"type": "input_file", "file_url": "https://x/a.pdf"},
        shown,
    ]


def test_a_file_of_openais_in_a_history_of_dicts():
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "file", "file": {"file_id": "f"}}]}
    ]
    content = [{"type": "input_text", "text": "Hi"}, {"type": "input_file", "file_id": "f"}]
    assert body(Request(Thread.from_openai(history).messages, model="m"))["input"] == [
        {"role": "user", "content": content}
    ]


def test_an_image_in_a_tool_result(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"\0")
    shown = Message("tool", (ImagePart(Image.from_file(tmp_path / "a.png")),), tool_call_id="a")
    assert asked(user("Hi"), Message("assistant", tool_calls=(ToolCall("a", "f"),)), shown)["input"][-1]["output"] == [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    ]


def test_tools_and_their_choice():
    add = tool(name="add", description="Adds", schema={"type": "object"}, handler=lambda arguments: None)
    patch = Tool("patch", "Patches", metadata={"openai": {"type": "custom"}, "other": {}})
    search = Tool("file_search", metadata={"openai": {"type": "file_search", "vector_store_ids": ["v"]}})
    strict = Tool("f", metadata={"strict": True})
    made = asked(user("Hi"), tools=(add, patch, search, strict), tool_choice="add")
    function = {"type": "function", "name": "add", "description": "Adds"}
    function |= {"parameters": {"type": "object", "properties": {}}}
    assert made["tools"][:3] == [
        {**function, "strict": False},
        {"type": "custom", "name": "patch", "description": "Patches"},
        {"type": "file_search", "vector_store_ids": ["v"]},
    ]
    assert made["tools"][3]["strict"] is True
    assert made["tool_choice"] == {"type": "function", "name": "add"}
    assert asked(user("Hi"), tools=(patch,), tool_choice="patch")["tool_choice"] == {"type": "custom", "name": "patch"}
    assert asked(user("Hi"), tools=(search,), tool_choice="file_search")["tool_choice"] == {"type": "file_search"}
    assert asked(user("Hi"), tool_choice="required")["tool_choice"] == "required"


def test_a_json_schema():
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    made = asked(user("Hi"), response_format=json_schema("city", schema))
    assert made["text"] == {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": schema}}
    assert "text" not in asked(user("Hi"), response_format="text")
    with pytest.raises(ValidationError):
        asked(user("Hi"), response_format="yaml")


def answer(*items: dict[str, Any], **options: Any) -> Message:
    """What the decoder makes of these items."""
    frames = [whole({**each, "id": f"i{k}"}) for k, each in enumerate(items)]
    streamed = b"".join(each.replace(b'"output_index":0', b'"output_index":%d' % k) for k, each in enumerate(frames))
    message = said(CREATED + streamed + COMPLETED, **options)[1].message
    assert message is not None
    return message


THOUGHT = item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="x")
CALLED = item("function_call", call_id="c", name="f", arguments="{}")


def test_thoughts_go_back_before_what_they_led_to():
    thread = (user("Hi"), answer(THOUGHT, CALLED), tool_result("c", "1"))
    without_id = {name: held for name, held in THOUGHT.items() if name != "id"}
    assert asked(*thread)["input"][1:] == [
        without_id,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    assert asked(*thread, options={"store": True})["input"][1] == {**THOUGHT, "id": "i0"}


def test_the_thoughts_of_others_are_left_out():
    parts = (
        ThinkingPart("hm", "signature"),
        ThinkingPart("hm", None, {"provider": "xai", "item": THOUGHT}),
        ThinkingPart("hm", None, {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}),
        ThinkingPart("hm", None, {"provider": "openai", "item": {"type": "reasoning", "id": "i", "summary": []}}),
        ProviderPart("anthropic", {"type": "web_search_tool_result"}),
        TextPart("a"),
        SourcePart({"url": "u"}),
        TextPart("b"),
    )
    assert asked(Message("assistant", parts))["input"] == [said_by("ab")]


def test_what_the_server_did_goes_back_verbatim():
    searched = item("web_search_call", status="completed", action={"type": "search", "query": "q"})
    spoken = item("message", phase="final_answer", role="assistant", content=[{"type": "output_text", "text": "So."}])
    made = asked(user("Hi"), answer(searched, spoken), user("And?"))["input"]
    assert made[1:3] == [{**searched, "id": "i0"}, said_by("So.", phase="final_answer")]


def test_an_approval_is_a_part_of_the_users_message():
    response = {"type": "mcp_approval_response", "approval_request_id": "i0", "approve": True}
    request = item("mcp_approval_request", name="f", arguments="{}", server_label="s")
    made = asked(user("Hi"), answer(request), user((ProviderPart("openai", response),)))["input"]
    assert made[1:] == [{**request, "id": "i0"}, response]


def test_every_effort_of_the_table_fits_the_sdk():
    for model in ("o3", "gpt-5", "gpt-5-pro", "gpt-5.1", "gpt-5.5", "gpt-5.6-sol", "gpt-6-astra"):
        known = takes(model)
        assert known is not None
        for effort in known.efforts or ():
            request = Request((user("Hi"),), model, reasoning_effort=effort)
            assert body(request)["reasoning"] == {"effort": effort}


def test_a_compaction_goes_back_as_the_server_takes_it():
    compacted = item("compaction", encrypted_content="sealed", created_by="me")
    back = {"type": "compaction", "encrypted_content": "sealed"}
    thread = (user("Hi"), answer(compacted), user("And?"))
    assert asked(*thread)["input"][1] == back
    assert asked(*thread, options={"store": True})["input"][1] == {**back, "id": "i0"}


def test_the_effort_changes_from_a_message_on_and_the_prefix_stays():
    """The settings of the request are part of the cached prefix; an item among the messages is not."""
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    thread = (user("Hi"), Message("assistant", "Hello"))
    before = asked(*thread, user("And?"), reasoning_effort="low")
    for role in (user, system):
        part = role((ProviderPart("openai", update), TextPart("Think hard.")))
        after = asked(*thread, user("And?"), Message("assistant", "So."), part, reasoning_effort="low")
        assert after["input"][: len(before["input"])] == before["input"]
        assert after["input"][-2:] == [update, {"role": part.role, "content": "Think hard."}]
        assert after["reasoning"] == before["reasoning"] == {"effort": "low"}
    assert asked(*thread, user((ProviderPart("openai", update),)), user("Why?"))["input"][-2] == update


OUTPUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "custom_tool_call": ("1", {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}),
    "computer_call": (
        {"type": "computer_screenshot", "image_url": "u"},
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "u"},
        },
    ),
    "local_shell_call": ("1", {"type": "local_shell_call_output", "id": "c", "output": "1"}),
    "shell_call": (
        "1",
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "1", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ),
    "apply_patch_call": (
        {"status": "failed", "output": "no"},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"},
    ),
    "tool_search_call": (
        {"tools": []},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []},
    ),
}


@pytest.mark.parametrize(("given", "name", "arguments"), CLIENT)
def test_calls_and_results_go_back_in_their_own_form(given: dict[str, Any], name: str, arguments: Any):
    content, expected = OUTPUTS[given["type"]]
    thread = (user("Hi"), answer(given, offered={"f"}), tool_result("c", content))
    built = OpenAIResponses(api_key="k").build(Request(thread, "m"), Call())
    assert msgspec.json.decode(built.content)["input"][1:] == [{**given, "id": "i0"}, expected]


@pytest.mark.parametrize("given", [given for given, _, _ in CLIENT if given["type"] != "custom_tool_call"])
def test_a_file_in_the_result_of_a_call_that_takes_text_is_refused(given: dict[str, Any]):
    result = Message("tool", (TextPart("1"), ImagePart(Image.from_binary(b"GIF89a", "image/gif"))), tool_call_id="c")
    request = Request((user("Hi"), answer(given, offered={"f"}), result), "m")
    with pytest.raises(ValidationError, match=f"a file in the result of 'c', but a {given['type']} accepts only text"):
        OpenAIResponses(api_key="k").build(request, Call())


def test_a_function_that_a_program_called_knows_its_caller():
    caller = {"type": "program", "caller_id": "p"}
    made = asked(user("Hi"), answer({**CALLED, "caller": caller}), tool_result("c", "1"))["input"]
    assert made[1]["caller"] == made[2]["caller"] == caller


def test_a_thread_of_another_adapter():
    entries = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]
    secret = [{"type": "reasoning.encrypted", "data": "x"}]
    deltas = [{"reasoning": "hm", "reasoning_details": secret}, {"content": "Let me see."}, {"tool_calls": entries}]
    chunks = [{"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    stream = b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
    state = StreamCollector()
    for event in ChatDecoder().feed(stream):
        state = state.apply_event(event)
    assert asked(user("Hi"), state.message, tool_result("a", "1"))["input"][1:] == [
        said_by("Let me see."),
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]


def sent() -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests that were kept beside the recorded streams."""
    root = Path(os.environ.get(VARIABLE) or "/nowhere")
    if not root.is_dir():
        pytest.skip(f"recorded streams are not at hand: set {VARIABLE} to their folder")
    held = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.meta.json")}
    rows = list(csv.DictReader(io.StringIO((root / "index.csv").read_text())))
    with tarfile.open(root / "more.tar.gz") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name.endswith((".meta.json", "index.csv")):
                held[name] = archive.extractfile(member).read().decode()  # pyright: ignore
    rows += csv.DictReader(io.StringIO(held["index.csv"]))
    for row in rows:
        stem = row["file"].rsplit(".", 1)[0]
        kept = held.get(f"{row['file']}.meta.json") or held.get(f"{stem}.meta.json")
        given = json.loads(kept).get("request") if kept and row["api"] == "openai-responses" else None
        if given and isinstance(given.get("body"), dict):
            asked = given["body"]["input"]
            alone = [{"role": "user", "content": asked}]
            items = alone if isinstance(asked, str) else [each for each in asked if not is_bare(each)]
            yield row["file"], {**given["body"], "input": items}


def test_what_others_have_sent_is_what_is_built():
    checked = 0
    for name, given in sent():
        made = msgspec.json.decode(OpenAIResponses(api_key="k").build(to_request(given), Call()).content)
        for field in MODELED:
            assert plain(made.get(field)) == plain(given.get(field)), (name, field)
        checked += 1
    assert checked > 200


def is_bare(item: dict[str, Any]) -> bool:
    # Those who left the thread on the server send thoughts without their ciphertext; we send neither.
    return item.get("type") == "reasoning" and not item.get("encrypted_content")


def to_request(given: dict[str, Any]) -> Request:
    """The request that says `given`; what rxllm has no word for is an option."""
    tools = [
        Tool(each["name"], each.get("description", ""), each["parameters"], metadata={"strict": each.get("strict")})
        if each["type"] == "function" and "parameters" in each
        else Tool(each.get("name", each["type"]), metadata={"openai": each})
        for each in given.get("tools", ())
    ]
    choice = given.get("tool_choice")
    text = given.get("text", {})
    known = {*MODELED} - {"reasoning", "text"}
    options = {k: v for k, v in given.items() if k not in known}
    return Request(
        tuple(to_message(each) for each in given["input"]),
        given["model"],
        tuple(tools),
        choice["name"] if isinstance(choice, dict) and "name" in choice else choice,
        given.get("temperature"),
        given.get("max_output_tokens"),
        reasoning_effort=given.get("reasoning", {}).get("effort"),
        response_format=text.get("format"),
        options=options,
    )


def to_message(item: dict[str, Any]) -> Message:
    content = item.get("content")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    match item.get("type", "message"):
        case "message" if item["role"] == "assistant":
            mark = ProviderPart("openai", {"type": "message", "phase": item["phase"]})
            return Message("assistant", (mark, *map(TextPart, texts)))
        case "message":
            return Message(item["role"], "".join(texts))
        case "function_call":
            call = ToolCall(item["call_id"], item["name"], raw_arguments=item["arguments"])
            return Message("assistant", tool_calls=(call,))
        case "function_call_output":
            return tool_result(item["call_id"], item["output"])
        case _:
            return Message("assistant", (ThinkingPart("", None, {"provider": "openai", "item": item}),))


def plain(held: Any) -> Any:
    """What `held` says, however long: ids, types and defaults left out."""
    match held:
        case str() if held:
            return held
        case list() if all(isinstance(each, dict) and str(each.get("type")).endswith("_text") for each in held):
            return "".join(each["text"] for each in held)
        case list():
            return [plain(each) for each in held]
        case dict():
            unsaid = ("id", "status", "annotations", "parallel_tool_calls")
            defaults = {"type": "message", "description": ""}
            return {
                k: plain(v)
                for k, v in held.items()
                if k not in unsaid and (v or k != "strict") and defaults.get(k) != v
            }
        case _:
            return held
