"""What becomes of every kind of part in every role on every wire. Nothing is sent.

A cell of the tables is the form in which the part is sent, as the provider's documentation calls it; or ``refused``,
before anything is sent; or ``left out``, told at DEBUG; or ``noted``: the model reads a note instead, and a warning is
logged. What is sent is what the official SDKs' types allow.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from rxllm.adapters import Anthropic, Gemini, Local, Ollama, OpenAIChat, OpenAIResponses
from rxllm.adapters._connect import Compatible
from rxllm.adapters._requests import TAKEN_BY
from rxllm.adapters.local.server import Server
from rxllm.values import (
    Call,
    FilePart,
    Image,
    ImagePart,
    Message,
    Part,
    ProviderPart,
    Request,
    SourcePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ValidationError,
    system,
    user,
)
from tests.adapters.sdk import assert_fits

MARK = "MARKMARKMARK"
DATA = MARK.encode()
BASE64 = "TUFSS01BUktNQVJL"
URL = f"https://example.org/{MARK}"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def local() -> Local:
    adapter = Local()
    adapter._server = Server("http://127.0.0.1:1", knows_tools=True)  # pyright: ignore[reportPrivateUsage]
    return adapter


WIRES: dict[str, Any] = {
    "openai": OpenAIChat(api_key="k"),
    "openai-responses": OpenAIResponses(api_key="k"),
    "anthropic": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
    "ollama": Ollama(),
    "local": local(),
}
OWN: dict[str, dict[str, Any]] = {
    "openai": {"type": "text", "text": MARK},
    "openai-responses": {"type": "mcp_approval_response", "approval_request_id": MARK, "approve": True},
    "anthropic": {"type": "text", "text": MARK},
    "gemini": {"text": MARK},
    "ollama": {"text": MARK},
    "local": {"text": MARK},
}
PLACE = {"document_index": 0, "document_title": None, "start_page_number": 1, "end_page_number": 2}
PARTS: dict[str, Part] = {
    "text": TextPart(MARK),
    "image": ImagePart(Image.from_binary(DATA, "image/png")),
    "image by url": ImagePart(Image.from_url(URL)),
    "image in a data URI": ImagePart(Image.from_url(f"data:image/png;base64,{BASE64}")),
    "image as a file": FilePart({"mime_type": "image/png", "data": DATA}),
    "image as a file by url": FilePart({"mime_type": "image/png", "url": URL}),
    "image by id": FilePart({"mime_type": "image/png", "file_id": MARK}),
    "pdf": FilePart({"mime_type": "application/pdf", "data": DATA, "name": "a.pdf"}),
    "pdf by url": FilePart({"mime_type": "application/pdf", "url": URL}),
    "pdf in a data URI": FilePart({"mime_type": "application/pdf", "url": f"data:application/pdf;base64,{BASE64}"}),
    "pdf by id": FilePart({"mime_type": "application/pdf", "file_id": MARK}),
    "text file": FilePart({"mime_type": "text/csv; charset=utf-8", "data": DATA, "name": "a.csv"}),
    "text file by url": FilePart({"mime_type": "text/csv", "url": URL}),
    "json": FilePart({"mime_type": "application/json", "data": DATA}),
    "wav": FilePart({"mime_type": "audio/wav", "data": DATA}),
    "mp3": FilePart({"mime_type": "audio/mpeg", "data": DATA}),
    "mp3 by url": FilePart({"mime_type": "audio/mpeg", "url": URL}),
    "flac": FilePart({"mime_type": "audio/flac", "data": DATA}),
    "video": FilePart({"mime_type": "video/mp4", "data": DATA}),
    "docx": FilePart({"mime_type": DOCX, "data": DATA, "name": "a.docx"}),
    "docx by url": FilePart({"mime_type": DOCX, "url": URL}),
    "unknown type": FilePart({"data": DATA}),
    "no data": FilePart({"mime_type": "application/pdf", "data": MARK}),
    "thinking": ThinkingPart(MARK),
    "own thinking": ThinkingPart(MARK, "s", {"provider": "own"}),
    "another's thinking": ThinkingPart(MARK, "s", {"provider": "other"}),
    "source": SourcePart({"type": "url_citation", "url": URL}),
    "source of Anthropic": SourcePart({"type": "page_location", "cited_text": MARK, **PLACE}),
    "tool call": ToolCallPart("c"),
    "own part": ProviderPart("own", {}),
    "another's part": ProviderPart("other", {"type": "x", "text": MARK}),
}

TABLES: dict[str, str] = {
    "user": """
                                openai       openai-responses       anthropic        gemini      ollama   local
        text                    content      input/content          text             text        content  content
        image                   image_url    input_image            image/base64     inlineData  images   refused
        image by url            image_url    input_image            image/url        fileData    refused  refused
        image in a data URI     image_url    input_image            image/base64     inlineData  images   refused
        image as a file         image_url    input_image            image/base64     inlineData  images   refused
        image as a file by url  image_url    input_image            image/url        fileData    refused  refused
        image by id             refused      input_image            image/file       refused     refused  refused
        pdf                     file         input_file             document/base64  inlineData  refused  refused
        pdf by url              refused      input_file             document/url     fileData    refused  refused
        pdf in a data URI       file         input_file             document/base64  inlineData  refused  refused
        pdf by id               file         input_file             document/file    refused     refused  refused
        text file               content      input_file             document/text    inlineData  content  content
        text file by url        refused      input_file             refused          fileData    refused  refused
        json                    content      input_file             document/text    inlineData  content  content
        wav                     input_audio  refused                refused          inlineData  refused  refused
        mp3                     input_audio  refused                refused          inlineData  refused  refused
        mp3 by url              refused      refused                refused          fileData    refused  refused
        flac                    refused      refused                refused          inlineData  refused  refused
        video                   refused      refused                refused          inlineData  refused  refused
        docx                    refused      input_file             refused          inlineData  refused  refused
        docx by url             refused      input_file             refused          fileData    refused  refused
        unknown type            refused      input_file             refused          inlineData  refused  refused
        no data                 refused      refused                refused          refused     refused  refused
        thinking                refused      refused                refused          refused     refused  refused
        own thinking            refused      refused                refused          refused     refused  refused
        another's thinking      refused      refused                refused          refused     refused  refused
        source                  refused      refused                refused          refused     refused  refused
        source of Anthropic     refused      refused                refused          refused     refused  refused
        tool call               refused      refused                refused          refused     refused  refused
        own part                text         mcp_approval_response  text             text        refused  refused
        another's part          refused      refused                refused          refused     refused  refused
    """,
    "system": """
                                openai   openai-responses       anthropic  gemini                  ollama   local
        text                    content  input/content          system     systemInstruction/text  content  content
        image                   refused  input_image            refused    refused                 images   refused
        image by url            refused  input_image            refused    refused                 refused  refused
        image in a data URI     refused  input_image            refused    refused                 images   refused
        image as a file         refused  input_image            refused    refused                 images   refused
        image as a file by url  refused  input_image            refused    refused                 refused  refused
        image by id             refused  input_image            refused    refused                 refused  refused
        pdf                     refused  input_file             refused    refused                 refused  refused
        pdf by url              refused  input_file             refused    refused                 refused  refused
        pdf in a data URI       refused  input_file             refused    refused                 refused  refused
        pdf by id               refused  input_file             refused    refused                 refused  refused
        text file               content  input_file             system     systemInstruction/text  content  content
        text file by url        refused  input_file             refused    refused                 refused  refused
        json                    content  input_file             system     systemInstruction/text  content  content
        wav                     refused  refused                refused    refused                 refused  refused
        mp3                     refused  refused                refused    refused                 refused  refused
        mp3 by url              refused  refused                refused    refused                 refused  refused
        flac                    refused  refused                refused    refused                 refused  refused
        video                   refused  refused                refused    refused                 refused  refused
        docx                    refused  input_file             refused    refused                 refused  refused
        docx by url             refused  input_file             refused    refused                 refused  refused
        unknown type            refused  input_file             refused    refused                 refused  refused
        no data                 refused  refused                refused    refused                 refused  refused
        thinking                refused  refused                refused    refused                 refused  refused
        own thinking            refused  refused                refused    refused                 refused  refused
        another's thinking      refused  refused                refused    refused                 refused  refused
        source                  refused  refused                refused    refused                 refused  refused
        source of Anthropic     refused  refused                refused    refused                 refused  refused
        tool call               refused  refused                refused    refused                 refused  refused
        own part                text     mcp_approval_response  refused    refused                 refused  refused
        another's part          refused  refused                refused    refused                 refused  refused
    """,
    "assistant": """
                                openai    openai-responses       anthropic           gemini        ollama      local
        text                    content   output_text            text                text          content     content
        image                   left out  left out               left out            inlineData    left out    left out
        image by url            left out  left out               left out            fileData      left out    left out
        image in a data URI     left out  left out               left out            inlineData    left out    left out
        image as a file         left out  left out               left out            inlineData    left out    left out
        image as a file by url  left out  left out               left out            fileData      left out    left out
        image by id             left out  left out               left out            left out      left out    left out
        pdf                     left out  left out               left out            left out      left out    left out
        pdf by url              left out  left out               left out            left out      left out    left out
        pdf in a data URI       left out  left out               left out            left out      left out    left out
        pdf by id               left out  left out               left out            left out      left out    left out
        text file               left out  left out               left out            left out      left out    left out
        text file by url        left out  left out               left out            left out      left out    left out
        json                    left out  left out               left out            left out      left out    left out
        wav                     left out  left out               left out            left out      left out    left out
        mp3                     left out  left out               left out            left out      left out    left out
        mp3 by url              left out  left out               left out            left out      left out    left out
        flac                    left out  left out               left out            left out      left out    left out
        video                   left out  left out               left out            left out      left out    left out
        docx                    left out  left out               left out            left out      left out    left out
        docx by url             left out  left out               left out            left out      left out    left out
        unknown type            left out  left out               left out            left out      left out    left out
        no data                 left out  left out               left out            left out      left out    left out
        thinking                left out  left out               left out            left out      left out    left out
        own thinking            left out  reasoning              thinking            text          thinking    left out
        another's thinking      left out  left out               left out            left out      left out    left out
        source                  left out  left out               left out            left out      left out    left out
        source of Anthropic     left out  left out               text/page_location  left out      left out    left out
        tool call               function  function_call          tool_use            functionCall  tool_calls  function
        own part                left out  mcp_approval_response  text                text          left out    left out
        another's part          left out  left out               left out            left out      left out    left out
    """,
    "tool": """
                                openai   openai-responses  anthropic        gemini           ollama   local
        text                    content  input/output      text             response/output  content  content
        image                   noted    input_image       image/base64     inlineData       images   noted
        image by url            noted    input_image       image/url        fileData         noted    noted
        image in a data URI     noted    input_image       image/base64     inlineData       images   noted
        image as a file         noted    input_image       image/base64     inlineData       images   noted
        image as a file by url  noted    input_image       image/url        fileData         noted    noted
        image by id             noted    input_image       image/file       noted            noted    noted
        pdf                     noted    input_file        document/base64  inlineData       noted    noted
        pdf by url              noted    input_file        document/url     fileData         noted    noted
        pdf in a data URI       noted    input_file        document/base64  inlineData       noted    noted
        pdf by id               noted    input_file        document/file    noted            noted    noted
        text file               content  input_file        document/text    response/output  content  content
        text file by url        noted    input_file        noted            noted            noted    noted
        json                    content  input_file        document/text    response/output  content  content
        wav                     noted    noted             noted            noted            noted    noted
        mp3                     noted    noted             noted            noted            noted    noted
        mp3 by url              noted    noted             noted            noted            noted    noted
        flac                    noted    noted             noted            noted            noted    noted
        video                   noted    noted             noted            noted            noted    noted
        docx                    noted    input_file        noted            noted            noted    noted
        docx by url             noted    input_file        noted            noted            noted    noted
        unknown type            noted    input_file        noted            noted            noted    noted
        no data                 refused  refused           refused          refused          refused  refused
        thinking                refused  refused           refused          refused          refused  refused
        own thinking            refused  refused           refused          refused          refused  refused
        another's thinking      refused  refused           refused          refused          refused  refused
        source                  refused  refused           refused          refused          refused  refused
        source of Anthropic     refused  refused           refused          refused          refused  refused
        tool call               refused  refused           refused          refused          refused  refused
        own part                text     refused           text             refused          refused  refused
        another's part          refused  refused           refused          refused          refused  refused
    """,
}


def test_every_part_has_a_row():
    for table in TABLES.values():
        assert [row for row, _ in rows(table)] == list(PARTS)


@pytest.mark.parametrize("role", TABLES)
def test_a_part_is_sent_or_refused_as_the_table_says(role: Any, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "rxllm")
    outcomes = {name: [outcome(wire, role, part, caplog) for wire in WIRES] for name, part in PARTS.items()}
    assert outcomes == dict(rows(TABLES[role]))


def rows(table: str) -> Iterator[tuple[str, list[str]]]:
    for line in table.strip().splitlines()[1:]:
        name, *cells = re.split(r"  +", line.strip())
        yield name, cells


def outcome(wire: str, role: Any, part: Part, caplog: pytest.LogCaptureFixture) -> str:
    adapter = WIRES[wire]
    caplog.clear()
    try:
        built = adapter.build(request(role, own(part, wire, adapter.provider)), Call())
    except ValidationError as error:
        names_the_part(error, role)
        return "refused"
    body = msgspec.json.decode(built.content)
    if any(record.levelno == logging.WARNING for record in caplog.records):
        (record,) = caplog.records
        assert re.fullmatch(r".+ does not accept these parts in a tool's result, .+: 1 .+", record.getMessage())
        assert BASE64 not in built.content.decode()
        fits_the_sdk(wire, role, body)
        return "noted"
    forms = ["/".join(path) for path in places(body, ())]
    if forms:
        assert not caplog.records
        fits_the_sdk(wire, role, body)
        return forms[0]
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert re.fullmatch(
        r".+ does not accept these parts, so they were left out of the assistant's messages: 1 .+", record.getMessage()
    )
    assert MARK not in record.getMessage()
    return "left out"


def names_the_part(error: ValidationError, role: str) -> None:
    assert error.reason == "invalid_request"
    ((path, fault),) = error.errors
    assert path == ("messages", 2 if role == "tool" else 0, "content", 1)
    assert re.fullmatch(r"is an? \w+ \(.+\), which .+ does not accept in a \w+ message; .+", fault), fault
    assert MARK not in str(error)


def request(role: Any, part: Part) -> Request:
    call = ToolCall("c", "f", {"x": MARK if isinstance(part, ToolCallPart) and role == "assistant" else 1})
    content = (TextPart("What is this?"), part)
    match role:
        case "tool":
            before = (user("Hi"), Message("assistant", tool_calls=(call,)))
            return Request((*before, Message("tool", content, tool_call_id="c")), "m")
        case "assistant":
            calls = (call,) if isinstance(part, ToolCallPart) else ()
            content = (*content, TextPart("Well."))  # no thought goes back at the end of a turn
            return Request((user("Hi"), Message("assistant", content, tool_calls=calls), user("Hi")), "m")
        case _:
            return Request((Message(role, content), system("Hi"), user("Hi")), "m")


def own(part: Part, wire: str, provider: str) -> Part:
    match part:
        case ThinkingPart(provider_data={"provider": "own"}) if wire == "openai-responses":
            item = {"type": "reasoning", "encrypted_content": MARK, "summary": []}
            return ThinkingPart(MARK, None, {"provider": provider, "item": item})
        case ThinkingPart(provider_data={"provider": "own"}) if wire == "ollama":
            return ThinkingPart(MARK, None, {"provider": provider})
        case ThinkingPart(provider_data={"provider": "own"}):
            return ThinkingPart(MARK, "czE=", {"provider": provider})
        case ProviderPart(provider="own"):
            return ProviderPart(provider, OWN[wire])
        case _:
            return part


_FRAME = {"messages", "contents", "parts", "functionResponse", "function", "args", "arguments", "data", "fileUri", "x"}
_OUTER = {"message", "function_call_output", "tool_result"}
"""The names and types of what is around every part, which the tables leave out."""


def places(value: Any, types: tuple[str, ...], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where in a body the mark is: the types of the objects around it, or else the names of the fields."""
    match value:
        case str() if MARK in value or BASE64 in value:
            yield types or keys
        case list():
            for item in cast(list[Any], value):
                yield from places(item, types, keys)
        case dict():
            fields = cast(dict[str, Any], value)
            kind = fields.get("type")
            inner = (*types, kind) if isinstance(kind, str) and kind not in _OUTER else types
            for name, field in fields.items():
                yield from places(field, inner, keys if name in _FRAME else (*keys, name))
        case _:
            pass


def fits_the_sdk(wire: str, role: str, body: dict[str, Any]) -> None:
    """Hold `body` against the types of the provider's own SDK, where there is one. Ollama's is not installed."""
    match wire:
        case "openai":
            assert_fits("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming", body)
        case "openai-responses" if role != "assistant":  # its types require ids that the API does not
            assert_fits("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming", body)
        case "anthropic":
            assert_fits("anthropic.types.message_create_params", "MessageCreateParamsStreaming", body)
        case "gemini":
            for content in body["contents"]:
                assert_fits("google.genai.types", "Content", content)
        case _:
            pass


def chat(provider: str, *messages: Message) -> list[dict[str, Any]]:
    return msgspec.json.decode(Compatible(provider, api_key="k").build(Request(messages, "m"), Call()).content)[
        "messages"
    ]


def test_servers_that_are_compatible_with_openai_get_images_in_every_role_but_the_assistants():
    parts = (TextPart("see"), PARTS["image"])
    for role in ("system", "user", "tool"):
        (sent,) = chat("openrouter", Message(role, parts, tool_call_id="c" if role == "tool" else None))
        assert [part["type"] for part in sent["content"]] == ["text", "image_url"]
    assert chat("openrouter", Message("assistant", parts)) == [{"role": "assistant", "content": "see"}]


def test_thoughts_go_back_to_servers_that_want_them():
    details = ThinkingPart("hm", None, {"reasoning_details": [{"type": "reasoning.text", "signature": "s"}]})
    (sent,) = chat("openrouter", Message("assistant", (details, TextPart("a"))))
    assert sent["reasoning_details"] == [{"text": "hm", "type": "reasoning.text", "signature": "s"}]
    (sent,) = chat("deepseek", Message("assistant", (ThinkingPart("hm"), TextPart("a"))))
    assert sent["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("wire", "role", "name", "remedy"),
    [
        ("ollama", "user", "image by url", "pass its data or a file path instead"),
        ("openai", "user", "pdf by url", "pass its data or a file path instead"),
        ("openai", "user", "text file by url", "pass its data or a file path instead"),
        ("gemini", "user", "pdf by id", "pass its data or a file path instead"),
        ("openai", "system", "pdf by url", "put it in a user message"),
        ("anthropic", "system", "own part", "put it in a user message"),
        (
            "local",
            "user",
            "image",
            "use a provider that takes it: openai, anthropic, gemini, or ollama with a vision model",
        ),
        ("local", "user", "pdf by url", "use a provider that takes it: openai, anthropic or gemini"),
        ("openai", "user", "docx", "use a provider that takes it: openai-responses or gemini"),
        ("openai-responses", "user", "mp3", "use a provider that takes it: openai or gemini"),
        ("anthropic", "user", "flac", "use a provider that takes it: gemini"),
        ("ollama", "user", "video", "use a provider that takes it: gemini"),
        ("ollama", "user", "no data", 'write {"mime_type": ..., "data": bytes} or {"mime_type": ..., "url": str}'),
        ("openai", "user", "another's part", "remove it, or send it to other"),
        ("ollama", "user", "own part", "remove it"),
        ("gemini", "user", "thinking", "remove it"),
    ],
)
def test_a_refusal_says_what_to_do_instead(wire: str, role: Any, name: str, remedy: str):
    with pytest.raises(ValidationError) as caught:
        WIRES[wire].build(request(role, own(PARTS[name], wire, WIRES[wire].provider)), Call())
    assert str(caught.value).endswith(remedy)


def test_the_providers_that_a_refusal_names_take_the_part():
    for kind, names in TAKEN_BY.items():
        row = {"audio": "flac", "file": "docx"}.get(kind, kind)
        outcomes = dict(zip(WIRES, dict(rows(TABLES["user"]))[row], strict=True))
        for name in re.findall(r"openai-responses|openai|anthropic|gemini|ollama", names):
            assert outcomes[name] != "refused"


def test_one_line_counts_what_is_left_out(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "rxllm")
    parts = (PARTS["thinking"], PARTS["source"], PARTS["source"], TextPart("a"))
    messages = (user("Hi"), Message("assistant", parts), user("?"), Message("assistant", parts), user("?"))
    local().build(Request(messages), Call())
    assert [record.getMessage() for record in caplog.records] == [
        "the local model does not accept these parts, so they were left out of the assistant's messages: "
        "2 thinking, 4 source url_citation"
    ]


def test_a_text_file_is_named_where_it_becomes_text():
    file = FilePart({"mime_type": "text/markdown", "data": "# Café".encode(), "name": "notes.md"})
    built = Ollama().build(Request((user([TextPart("Sum up"), file]),), "m"), Call())
    (sent,) = msgspec.json.decode(built.content)["messages"]
    assert sent["content"] == 'Sum up\n<file name="notes.md">\n# Café\n</file>\n'


def test_a_text_file_that_is_not_utf_8_is_a_file_like_any_other():
    latin = FilePart({"mime_type": "text/csv", "data": "Café".encode("latin-1")})
    with pytest.raises(ValidationError, match=r"is a FilePart \(file\), which Ollama does not accept"):
        Ollama().build(Request((user([latin]),), "m"), Call())


def test_a_file_without_a_name_gets_one_that_fits_its_type():
    file = FilePart({"mime_type": "application/pdf", "data": b"\0"})
    built = OpenAIChat(api_key="k").build(Request((user([file]),), "m"), Call())
    (part,) = msgspec.json.decode(built.content)["messages"][0]["content"]
    assert part == {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,AA=="}}


def test_a_users_copy_of_a_file_that_gemini_signed_is_sent_without_the_signature():
    file = FilePart({"mime_type": "audio/wav", "data": b"\0", "thoughtSignature": "czE=", "thought": True})
    built = Gemini(api_key="k").build(Request((user([file]),), "m"), Call())
    (part,) = msgspec.json.decode(built.content)["contents"][0]["parts"]
    assert part == {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}


@pytest.mark.parametrize("adapter", [OpenAIChat(api_key="k"), OpenAIResponses(api_key="k"), Gemini(api_key="k")])
def test_a_data_uri_that_cannot_be_read_is_named(adapter: Any):
    part = FilePart({"mime_type": "application/pdf", "url": "data:application/pdf;base64,%"})
    with pytest.raises(ValidationError, match=r"messages.0.content.1 has a URL that cannot be read") as caught:
        adapter.build(Request((user("Hi", part),), model="m"), Call())
    assert caught.value.reason == "invalid_request"
