"""Nothing that a user puts into a message is dropped: it arrives, or the call fails before anything is sent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rxllm import Message, ValidationError, assistant, chat, generate, user
from rxllm.adapters import Local, Ollama, OpenAIChat
from rxllm.testing import loopback
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import FilePart, Image, ImagePart, Part, SourcePart, TextPart, ThinkingPart

pytestmark = pytest.mark.sockets

PDF = FilePart({"mime_type": "application/pdf", "data": b"%PDF-1.7", "name": "contract.pdf"})
NOTES = FilePart({"mime_type": "text/markdown", "data": b"Milk, eggs", "name": "notes.md"})
PHOTO = ImagePart(Image.from_binary(b"\x89PNG", "image/png"))


def sent_to_openai(*messages: Message) -> list[dict[str, Any]]:
    with Loopback(Reply(loopback.chat("Yes"))) as server:
        engine = OpenAIChat(base_url=server.url, api_key="k")
        assert generate(engine, list(messages), model="gpt-5").run().output_text == "Yes"
    return server.requests[0].json["messages"]


def test_a_pdf_a_text_file_and_a_picture_in_one_message():
    (message,) = sent_to_openai(user([TextPart("Do these agree?"), PDF, NOTES, PHOTO]))
    assert message["content"] == [
        {"type": "text", "text": "Do these agree?"},
        {
            "type": "file",
            "file": {"filename": "contract.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjc="},
        },
        {"type": "text", "text": '\n<file name="notes.md">\nMilk, eggs\n</file>\n'},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "auto"}},
    ]


@pytest.mark.parametrize("ask", [generate, chat])
def test_a_pdf_that_ollama_does_not_take_is_refused_before_anything_is_sent(ask: Any):
    with Loopback() as server:
        stream = ask(Ollama(base_url=server.url), [user([TextPart("Who signed?"), PDF])], model="llama3.2")
        with pytest.raises(ValidationError) as caught:
            stream.run()
    assert server.requests == []
    assert caught.value.reason == "invalid_request"
    assert str(caught.value) == (
        "messages.0.content.1 is a FilePart (pdf), which Ollama does not accept in a "
        "user message; write its content as text, or use a provider that takes it: openai, anthropic or gemini"
    )


def test_a_picture_is_refused_by_a_local_model_before_its_weights_are_looked_for():
    no_weights = Local("there-is-no-such-file.gguf")
    with pytest.raises(ValidationError, match=r"is an ImagePart \(image\), which the local model does not .*gemini"):
        generate(no_weights, [user("Hi"), assistant("Hello"), user([TextPart("What is this?"), PHOTO])]).run()


def test_what_another_provider_has_answered_may_be_left_out_and_debug_logging_tells(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "rxllm")
    parts: tuple[Part, ...] = (
        ThinkingPart("hm", "c2lnbmVk", {"provider": "google"}),
        TextPart("It is a kestrel."),
        SourcePart({"url": "https://example.org/kestrel"}),
    )
    messages = sent_to_openai(user("What is this?"), Message("assistant", parts), user("Are you sure?"))
    assert messages[1] == {"role": "assistant", "content": "It is a kestrel."}
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        "the Chat Completions API of openai does not accept these parts, so they were left out of the assistant's "
        "messages: 1 another's thinking, 1 source"
    ]
