"""Pictures and files in one line: a path, a URL, bytes or an `Image` next to the text."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import Fake, Message, Response, Thread, ValidationError, user
from rxllm.values import FilePart, Image, ImagePart, TextPart

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.7\n"
WAV = b"RIFF\x24\0\0\0WAVEfmt "
TEXT = TextPart("What is this?")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with some files."""
    monkeypatch.chdir(tmp_path)
    files = {"photo.png": PNG, "report.pdf": PDF, "numbers.csv": b"a,b\n", "empty.png": b"", "data.q7z": b"\0\1\2"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "pictures").mkdir()
    return tmp_path


# What may stand next to the text


def test_a_path_is_read() -> None:
    image = ImagePart(Image.from_binary(PNG, "image/png"))
    for path in ("photo.png", "./photo.png", Path("photo.png"), Path("photo.png").absolute()):
        assert user("What is this?", path) == Message("user", (TEXT, image))


def test_what_is_no_image_is_a_file_with_its_name() -> None:
    message = user("What is this?", "report.pdf", Path("numbers.csv"))
    assert message.parts == (
        TEXT,
        FilePart({"mime_type": "application/pdf", "data": PDF, "name": "report.pdf"}),
        FilePart({"mime_type": "text/csv", "data": b"a,b\n", "name": "numbers.csv"}),
    )


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("https://example.com/a.png", ImagePart(Image.from_url("https://example.com/a.png"))),
        ("http://example.com/a.JPEG?width=3", ImagePart(Image.from_url("http://example.com/a.JPEG?width=3"))),
        (
            "https://example.com/b/a%20b.pdf#page=3",
            FilePart(
                {
                    "mime_type": "application/pdf",
                    "url": "https://example.com/b/a%20b.pdf#page=3",
                    "name": "a b.pdf",
                }
            ),
        ),
        ("data:image/png;base64,iVBORw0KGgo=", ImagePart(Image.from_base64("iVBORw0KGgo=", "image/png"))),
        ("data:text/plain,a%20b", FilePart({"mime_type": "text/plain", "data": b"a b"})),
        ("data:application/pdf;base64,JVBERi0=", FilePart({"mime_type": "application/pdf", "data": b"%PDF-"})),
    ],
)
def test_a_url_is_not_fetched(url: str, part: Any) -> None:
    assert user("What is this?", url).parts == (TEXT, part)


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (PDF, "application/pdf"),
        (WAV, "audio/wav"),
        (b"ID3\4", "audio/mpeg"),
        (b"\xff\xfb\x90\x64", "audio/mpeg"),
    ],
)
def test_the_type_of_bytes_is_seen_from_the_first_of_them(data: bytes, mime_type: str) -> None:
    part = user("What is this?", data).parts[1]
    if mime_type.startswith("image/"):
        assert part == ImagePart(Image.from_binary(data, mime_type))
    else:
        assert part == FilePart({"mime_type": mime_type, "data": data})


def test_the_contents_of_a_file_count_more_than_its_name() -> None:
    Path("photo.jpg").write_bytes(PNG)  # providers refuse an image whose type is wrong
    assert user("What is this?", "photo.jpg").parts[1] == ImagePart(Image.from_binary(PNG, "image/png"))


def test_images_and_parts_are_taken_as_they_are() -> None:
    image, part = Image.from_url("https://example.com/a"), FilePart({"mime_type": "text/x-own", "data": b"?"})
    assert user("What is this?", image, part).parts == (TEXT, ImagePart(image), part)


# Text and attachments in any order


def test_a_list_holds_the_same_as_the_arguments() -> None:
    image = Image.from_url("https://example.com/a.png")
    assert user(["What is this?", image, "photo.png"]) == user("What is this?", image, "photo.png")
    assert user([TEXT, ImagePart(image)]) == user((TEXT, ImagePart(image))) == Message("user", (TEXT, ImagePart(image)))


def test_the_first_string_is_the_text_even_if_a_file_has_that_name() -> None:
    assert [type(part) for part in user("", "photo.png").parts] == [ImagePart]
    message = user([Image.from_url("https://example.com/a.png"), "photo.png", "photo.png"])
    assert [type(part) for part in message.parts] == [ImagePart, TextPart, ImagePart]
    assert message.text == "photo.png"


def test_the_first_argument_is_a_text_whatever_it_looks_like() -> None:
    assert user("photo.png") == Message("user", "photo.png")
    assert user("https://example.com/a.png", "photo.png").text == "https://example.com/a.png"
    assert user(Path("photo.png")).text == ""


def test_a_thread_takes_the_same() -> None:
    assert Thread().add_user("What is this?", "photo.png") == Thread() + user("What is this?", "photo.png")


def test_the_model_gets_them() -> None:
    fake = Fake("A kestrel.")
    rxllm.generate(fake, user("What is this?", "photo.png")).run()
    assert fake.requests[0].messages == (user("What is this?", "photo.png"),)


# What is wrong fails at the call


@pytest.mark.parametrize(
    ("attachment", "fault"),
    [
        ("nowhere.png", "content.1 must be a file that can be read, not 'nowhere.png'"),
        (Path("nowhere.png"), "No such file or directory"),
        ("pictures", "content.1 must be a file that can be read, not 'pictures'"),
        ("And this?", "the first argument is the text"),
        ("file:///photo.png", "must be a file that can be read"),
        ("a\0b", "must be a file that can be read"),
        ("empty.png", "must not be empty, but 'empty.png' is"),
        (b"", "must not be empty"),
        ("data.q7z", r"must be a file of a known type, not 'data.q7z'; write Image.from_binary\(data, mime_type\)"),
        (b"\0\1\2", "must be a file of a known type"),
        (
            "https://example.com/photo?sig=abc",
            r"must be a URL .*/photo'; write Image.from_url",
        ),
        ("https://me:abc@example.com/photo", "must be a URL .* not 'https://example.com/photo'"),
        ("https://[example", "must be a URL"),
        ("data:image/png;base64,?", "must be a data: URI"),
        ("data:image/png;base64,", "must not be empty"),
        ("data:photo.png", "must be a data: URI"),
        (3, "must be a path, a URL .*, not 3"),
        (None, "must be a path, a URL"),
        ({"type": "text", "text": "Hi"}, "must be a path, a URL"),
        (Image, "must be a path, a URL"),
    ],
)
def test_what_is_no_attachment_fails_at_the_call(attachment: Any, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault) as caught:
        user("What is this?", attachment)
    assert caught.value.reason == "invalid_message"
    assert len(str(caught.value)) < 400
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("content", [None, 3, {"role": "user"}])
def test_so_does_what_is_no_text(content: Any) -> None:
    with pytest.raises(ValidationError, match=r"content.0 must be a path, a URL"):
        user(content)


# What is shown


def test_reprs_say_that_images_and_files_are_there() -> None:
    message = user("What is this?", "photo.png", "photo.png", "report.pdf")
    assert repr(message) == "Message('user', 'What is this?', 2 images, 1 file)"
    assert repr(Thread() + message) == f"Thread(1 messages, last={message!r})"
    drawn = Message("assistant", (FilePart({"mime_type": "image/png", "data": PNG}),))
    assert repr(Response(drawn, finish_reason="stop")) == "Response('', 1 image, stop, 0 tokens)"


def test_markdown_names_images_and_files() -> None:
    message = user("What is this?", "photo.png", "https://example.com/a.png?x=1&y=2", "report.pdf")
    shown = message._repr_markdown_()
    image = f"`Image(binary, image/png, {len(PNG)} bytes)`"
    remote = "`Image(url, 'https://example.com/a.png')`"
    assert shown.startswith("**user**\n\nWhat is this?\n\n`Image(")
    assert shown.endswith(f"{remote}\n\n`report.pdf, application/pdf`")
    assert shown in (Thread() + message)._repr_markdown_()
    drawn = Message("assistant", (FilePart({"mime_type": "image/png", "data": PNG}),))
    assert image in Response(drawn)._repr_markdown_()


def test_an_image_that_cannot_be_read_is_named() -> None:
    assert "`Image(file, image/png, 'gone.png')`" in user("Hi", Image.from_file("gone.png"))._repr_markdown_()
