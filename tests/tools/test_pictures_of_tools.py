"""Images and files that tools return: parts where the wire has them, and never base64 in what the model reads."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import rxllm
from rxllm import Fake, Request, ToolCall, chat, halt, resume, serializer, stream, tool
from rxllm.adapters import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses
from rxllm.events import Event, ToolExecutionCompleted, ToolHalt, ToolResultEncoded
from rxllm.values import Call, FilePart, Image, ImagePart, Message, ProviderPart, TextPart
from rxllm.values.result_parts import note
from rxllm.web import for_client

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2_000
PDF = b"%PDF-1.7" + bytes(4_000)
BASE64 = base64.b64encode(PNG).decode()
NOTE, PDF_NOTE = f"[image/png, {len(PNG)} bytes]", f"[application/pdf, {len(PDF)} bytes]"
IMAGE = Image.from_binary(PNG, "image/png")
CALL = ToolCall("c1", "screenshot", {})

WIRES: dict[str, Any] = {
    "openai": OpenAIChat(api_key="k"),
    "openai-responses": OpenAIResponses(api_key="k"),
    "anthropic": Anthropic(api_key="k"),
    "gemini": Gemini(api_key="k"),
    "ollama": Ollama(),
}


@dataclass
class Shot:
    title: str
    image: Image


class Struct(msgspec.Struct):
    image: ImagePart


class Model(pydantic.BaseModel):
    data: bytes


def chatted(result: Any, **options: Any) -> tuple[list[Event], Message]:
    """The events of a chat whose tool returns `result`, and the tool's message that the model was asked with."""

    @tool
    def screenshot() -> Any:
        return result() if callable(result) else result

    fake = Fake(CALL, "A red dot.")
    events = list(stream(fake, "Look!", tools=[screenshot], **options))
    return events, fake.requests[-1].messages[-1]


def sent(wire: str, message: Message) -> Any:
    """What `wire` sends for the tool's `message`."""
    thread = (rxllm.user("Look!"), Message("assistant", tool_calls=(CALL,)), message)
    body = msgspec.json.decode(WIRES[wire].build(Request(thread, "m"), Call()).content)
    match body:
        case {"input": [*_, item]}:
            return item["output"]
        case {"contents": [*_, {"parts": [part]}]}:
            return part["functionResponse"]
        case {"messages": [*_, {"content": [{"type": "tool_result", "content": content}]}]}:
            return content
        case {"messages": [*_, last]}:
            return last


FORMS: dict[str, Callable[[], Any]] = {
    "an Image": lambda: IMAGE,
    "an Image of base64": lambda: Image.from_base64(BASE64, "image/png"),
    "an Image of a data URI": lambda: Image.from_url(f"data:image/png;base64,{BASE64}"),
    "an ImagePart": lambda: ImagePart(IMAGE),
    "a FilePart": lambda: FilePart({"mime_type": "image/png", "data": PNG}),
    "bytes": lambda: PNG,
    "a bytearray": lambda: bytearray(PNG),
    "a list": lambda: [IMAGE],
    "a tuple": lambda: (PNG,),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_of_a_tool_arrives_as_a_picture_where_the_wire_has_pictures(form: str) -> None:
    _, message = chatted(FORMS[form])
    assert sent("openai-responses", message) == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}", "detail": "auto"}
    ]
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    assert sent("anthropic", message) == [{"type": "image", "source": source}]
    gemini = sent("gemini", message)
    assert gemini["parts"] == [{"inlineData": {"mimeType": "image/png", "data": BASE64}}]
    assert BASE64 not in json.dumps(gemini["response"])
    ollama = sent("ollama", message)
    assert (ollama["images"], ollama["content"]) == ([BASE64], "")


@pytest.mark.parametrize("form", FORMS)
def test_elsewhere_the_model_reads_a_note_and_a_warning_is_logged(form: str, caplog: pytest.LogCaptureFixture) -> None:
    _, message = chatted(FORMS[form])
    assert sent("openai", message) == {"role": "tool", "content": NOTE, "tool_call_id": "c1"}
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "rxllm")
    assert record.getMessage() == (
        "the Chat Completions API of openai does not accept these parts in a tool's result, so the model reads only a "
        "note about them: 1 image"
    )


def test_the_warning_is_logged_only_while_the_result_is_new(caplog: pytest.LogCaptureFixture) -> None:
    _, message = chatted(IMAGE)
    thread = (rxllm.user("Look!"), Message("assistant", tool_calls=(CALL,)), message)
    later = (*thread, rxllm.assistant("A red dot."), rxllm.user("And now?"))
    body = WIRES["openai"].build(Request(later, "m"), Call()).content.decode()
    assert NOTE in body
    assert not caplog.records


def test_the_chat_goes_on_after_a_picture() -> None:
    result = chat(Fake(CALL, "A red dot."), "Look!", tools=[tool(name="screenshot")(lambda: IMAGE)]).run()
    assert (result.output_text, result.halted_reason) == ("A red dot.", "completed")
    assert result.steps[0].tool_results == (Message("tool", (ImagePart(IMAGE),), tool_call_id="c1"),)


PDF_PART = FilePart({"mime_type": "application/pdf", "data": PDF, "name": "a.pdf"})
OPAQUE = ProviderPart("anthropic", {"type": "search_result"})
CONTENTS: dict[str, tuple[Any, str, Any]] = {
    "a text and a picture": (["Here:", PNG], f"Here:\n{NOTE}", (TextPart("Here:"), ImagePart(IMAGE))),
    "a text part and a picture": ([TextPart("Here:"), IMAGE], f"Here:\n{NOTE}", (TextPart("Here:"), ImagePart(IMAGE))),
    "two files": (
        [PDF_PART, IMAGE],
        f"[a.pdf, application/pdf, {len(PDF)} bytes]\n{NOTE}",
        (PDF_PART, ImagePart(IMAGE)),
    ),
    "the bytes of a PDF": (PDF, PDF_NOTE, (FilePart({"mime_type": "application/pdf", "data": PDF}),)),
    "a part of the provider": (OPAQUE, "", (OPAQUE,)),
    "a picture by URL": (
        Image.from_url("https://example.org/a.png?key=secret"),
        "[image, https://example.org/a.png]",
        (ImagePart(Image.from_url("https://example.org/a.png?key=secret")),),
    ),
    "a picture in a dict": (
        {"title": "dot", "shots": [IMAGE]},
        f'{{"title":"dot","shots":["{NOTE}"]}}',
        (TextPart(f'{{"title":"dot","shots":["{NOTE}"]}}'), ImagePart(IMAGE)),
    ),
    "a picture in a dataclass": (
        Shot("dot", IMAGE),
        f'{{"title":"dot","image":"{NOTE}"}}',
        (TextPart(f'{{"title":"dot","image":"{NOTE}"}}'), ImagePart(IMAGE)),
    ),
    "a picture in a Struct": (
        Struct(ImagePart(IMAGE)),
        f'{{"image":"{NOTE}"}}',
        (TextPart(f'{{"image":"{NOTE}"}}'), ImagePart(IMAGE)),
    ),
    "a picture in a model": (
        Model(data=PNG),
        f'{{"data":"{NOTE}"}}',
        (TextPart(f'{{"data":"{NOTE}"}}'), ImagePart(IMAGE)),
    ),
    "a picture beside other data": (
        [1, IMAGE],
        f'[1,"{NOTE}"]',
        (TextPart(f'[1,"{NOTE}"]'), ImagePart(IMAGE)),
    ),
    "a text part": (TextPart("Hi"), "Hi", "Hi"),
    "bytes that are text": ("Grüße".encode(), "Grüße", "Grüße"),
    "bytes that are text in a dict": ({"out": b"ok"}, '{"out":"ok"}', '{"out":"ok"}'),
    "no bytes": (b"", "", ""),
    "unknown bytes": (b"\xff\x00" * 5, "[application/octet-stream, 10 bytes]", "[application/octet-stream, 10 bytes]"),
    "a path, which is text": (Path("photo.png"), '"photo.png"', '"photo.png"'),
    "texts": (["a", "b"], '["a","b"]', '["a","b"]'),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_result_becomes_text_with_notes_and_parts(name: str) -> None:
    result, text, content = CONTENTS[name]
    events, message = chatted(result)
    (encoded,) = [event for event in events if isinstance(event, ToolResultEncoded)]
    assert (encoded.content, encoded.parts or encoded.content) == (text, content)
    assert message == Message("tool", content, tool_call_id="c1")


def test_a_pillow_image_arrives_as_a_picture() -> None:
    pillow = pytest.importorskip("PIL.Image")
    _, message = chatted(lambda: pillow.new("RGB", (2, 2)))
    (part,) = message.parts
    assert isinstance(part, ImagePart)
    assert part.image.to_binary().startswith(b"\x89PNG")
    _, message = chatted({"shot": pillow.new("RGB", (2, 2))})
    assert [type(part) for part in message.parts] == [TextPart, ImagePart]


def test_a_picture_in_a_file_is_read_at_once(tmp_path: Path) -> None:
    file = tmp_path / "dot.png"
    file.write_bytes(PNG)
    for image in (Image.from_file(file), ImagePart(Image.from_file(file))):
        _, message = chatted(image)
        assert message.parts == (ImagePart(IMAGE),)
    events, message = chatted(Image.from_file(tmp_path / "none.png"))
    assert message.text == '{"error":"the result of the tool cannot be encoded"}'
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert completed.error is not None
    assert "No such file" in completed.error.message


def test_an_encoder_of_the_caller_decides_alone() -> None:
    events, message = chatted(IMAGE, tool_result_encoder=lambda result: "a dot")
    assert message == Message("tool", "a dot", tool_call_id="c1")
    (encoded,) = [event for event in events if isinstance(event, ToolResultEncoded)]
    assert encoded.parts == ()


def test_a_halting_tool_may_end_with_a_picture() -> None:
    result = chat(Fake(CALL), "Look!", tools=[tool(name="screenshot")(lambda: halt("done", IMAGE))]).run()
    assert result.halted_reason == "done"
    assert result.thread.last == Message("tool", (ImagePart(IMAGE),), tool_call_id="c1")


def test_the_caller_s_own_results_may_be_pictures_in_mappings() -> None:
    manual = tool(name="screenshot", manual=True)
    fake = Fake(CALL, "A red dot.")
    halted = chat(fake, "Look!", tools=[manual]).run()
    resume(fake, halted, results={"c1": {"shot": IMAGE}}, tools=[manual]).run()
    assert fake.requests[-1].messages[-1].parts[1:] == (ImagePart(IMAGE),)


@pytest.mark.parametrize("name", [name for name, (_, _, content) in CONTENTS.items() if not isinstance(content, str)])
def test_the_json_of_a_completed_execution_has_notes_and_that_of_the_result_has_the_data_once(name: str) -> None:
    events, _ = chatted(CONTENTS[name][0])
    (completed,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert completed.result is CONTENTS[name][0]
    assert len(serializer.to_json(completed)) < 500
    (encoded,) = [event for event in events if isinstance(event, ToolResultEncoded)]
    assert serializer.from_json(serializer.to_json(encoded)) == encoded
    assert serializer.to_json(encoded).count(BASE64) == sum(isinstance(part, ImagePart) for part in encoded.parts) * (
        "URL" not in name
    )


def test_a_halt_s_json_has_the_data_once() -> None:
    event = ToolHalt("c1", "done", IMAGE, NOTE, parts=(ImagePart(IMAGE),))
    text = serializer.to_json(event)
    assert text.count(BASE64) == 1
    assert serializer.from_json(text) == ToolHalt("c1", "done", NOTE, NOTE, parts=(ImagePart(IMAGE),))


def test_clients_get_the_picture_but_nothing_that_is_the_provider_s() -> None:
    result = [ImagePart(IMAGE, metadata={"cache": True}), OPAQUE]
    fake = Fake(CALL, "A red dot.")
    events = stream(fake, "Look!", tools=[tool(name="screenshot")(lambda: result)]).pipe(for_client())
    (encoded,) = [event for event in events if isinstance(event, ToolResultEncoded)]
    assert encoded.parts == (ImagePart(IMAGE),)


def test_a_result_that_contains_itself_is_an_error_of_the_tool() -> None:
    endless: list[Any] = []
    endless.append(endless)
    _, message = chatted(endless)
    assert message.text == '{"error":"the result of the tool cannot be encoded"}'


def test_a_note_never_shows_data() -> None:
    assert note(FilePart({"url": f"data:image/png;base64,{BASE64}"})) == "[application/octet-stream]"
    assert note(FilePart({"file_id": "f1", "mime_type": "application/pdf"})) == "[application/pdf]"
    assert note(ImagePart(Image.from_file("/home/ada/dot.png"))) == "[image/png]"
    assert note(ImagePart(Image.from_base64(BASE64, "image/png"))) == NOTE
