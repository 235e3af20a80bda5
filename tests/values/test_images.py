"""Images as values: where they come from, what they become, how they look, and their JSON."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxllm import serializer, validate
from rxllm.testing.strategies import images, maps, texts
from rxllm.values import Image, ImageRequest, ImageResponse, ImageUsage, ValidationError, image_request

PNG = b"\x89PNG\r\n"
TEXT = base64.b64encode(PNG).decode()

kinds = st.sampled_from(["image/png", "image/webp", "image/svg+xml"])


# Where they come from


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "image/png"),
        ("A.PNG", "image/png"),
        ("a.jpg", "image/jpeg"),
        ("a.b.jpeg", "image/jpeg"),
        ("a.webp", "image/webp"),
        ("a.gif", "image/gif"),
        ("a.txt", None),
        ("png", None),
    ],
)
def test_a_files_type_follows_from_its_name(name: str, kind: str | None) -> None:
    """Nothing is read: there is no such file."""
    assert Image.from_file(Path("nowhere") / name).mime_type == kind


@given(st.binary(max_size=50), kinds)
def test_every_source_gives_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str) -> None:
    path = tmp_path_factory.getbasetemp() / "image.png"
    path.write_bytes(data)
    binary = Image.from_binary(data, kind)
    text = Image.from_base64(binary.to_base64(), kind)
    uri = Image.from_data_uri(binary.to_data_uri())
    assert [each.to_binary() for each in (binary, text, uri, Image.from_file(path))] == [data] * 4
    assert (uri.mime_type, uri.to_data_uri()) == (kind, binary.to_data_uri())


def test_base64_is_passed_on_as_it_is() -> None:
    assert Image.from_base64("!not checked", "image/png").to_data_uri() == "data:image/png;base64,!not checked"


@pytest.mark.parametrize(
    ("uri", "kind", "data"),
    [
        (f"data:image/png;base64,{TEXT}", "image/png", PNG),
        (f"DATA:IMAGE/PNG;name=a.png;BASE64,{TEXT}", "image/png", PNG),
        ("data:image/png;base64,iVBORw0K%0A", "image/png", None),
        ("data:image/svg+xml;utf8,<svg/>", "image/svg+xml", b"<svg/>"),
        ("data:image/svg+xml,%3Csvg%2F%3E", "image/svg+xml", b"<svg/>"),
        ("data:;base64,AA==", None, b"\0"),
    ],
)
def test_data_uris(uri: str, kind: str | None, data: bytes | None) -> None:
    image = Image.from_data_uri(uri)
    assert image.mime_type == kind
    if data is not None:
        assert image.to_binary() == data


@pytest.mark.parametrize("uri", ["", "data:", "data:image/png", "https://example.org/a,png", "image/png;base64,AA=="])
def test_what_is_no_data_uri(uri: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Image.from_data_uri(uri)
    assert caught.value.errors == ((("source",), "invalid_data_uri"),)


@given(st.text("%4x", max_size=30), st.integers(3, 6))
def test_a_data_uri_is_unescaped_the_same_however_it_is_sliced(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rxllm.values.images._SLICE", size)
        assert Image.from_data_uri(f"data:text/plain,{text}").to_binary() == unquote_to_bytes(text)


@pytest.mark.parametrize("text", ["!", "é", "AAA", "AA==\n\n"])
def test_text_that_is_no_base64(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Image.from_base64(text, "image/png").to_binary()
    assert caught.value.errors == ((("source",), "invalid_base64"),)


# How they look


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (Image.from_binary(PNG, "image/png"), "Image(binary, image/png, 6 bytes)"),
        (Image.from_base64("A" * 4000, "image/webp"), "Image(base64, image/webp, 3000 bytes)"),
        (Image.from_file("a/b.gif"), "Image(file, image/gif, 'a/b.gif')"),
        (Image.from_url("https://example.org/a.png?sig=secret"), "Image(url, 'https://example.org/a.png')"),
        (Image("url", "https://x/a", width=2, height=3, prompt="long" * 99), "Image(url, 2x3, 'https://x/a')"),
    ],
)
def test_reprs_are_short_and_tell_no_signature(image: Image, shown: str) -> None:
    assert repr(image) == shown


def test_jupyter_shows_an_image() -> None:
    shown = Image.from_binary(PNG, "image/png")._repr_mimebundle_()
    assert shown == {"image/png": TEXT, "text/plain": "Image(binary, image/png, 6 bytes)"}


def test_other_types_are_shown_by_the_browser() -> None:
    shown = Image.from_base64(TEXT, "image/webp")._repr_mimebundle_()
    assert shown["text/html"] == f'<img src="data:image/webp;base64,{TEXT}">'


def test_a_url_is_shown_and_cannot_leave_its_quotes() -> None:
    shown = Image.from_url('https://x/"><script>')._repr_mimebundle_()
    assert shown["text/html"] == '<img src="https://x/&quot;&gt;&lt;script&gt;">'


@pytest.mark.parametrize(
    "image", [Image.from_file("nowhere.png"), Image.from_base64("!", "image/png"), Image("binary", b"x")]
)
def test_what_cannot_be_read_is_still_shown(image: Image) -> None:
    assert image._repr_mimebundle_() == {"text/plain": repr(image)}


def test_ipython_shows_it_so() -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(Image.from_binary(PNG, "image/png"))
    assert data["image/png"] == TEXT


def test_a_response_shows_all_its_images() -> None:
    response = ImageResponse((Image.from_binary(PNG, "image/png"), Image.from_url("https://x/a")), model="m")
    assert repr(response) == "ImageResponse([Image(binary, image/png, 6 bytes), Image(url, 'https://x/a')], m)"
    shown = response._repr_html_() or ""
    assert f'src="data:image/png;base64,{TEXT}"' in shown
    assert 'src="https://x/a"' in shown
    assert "<img" not in (ImageResponse()._repr_html_() or "")


# Requests and their JSON


def test_a_request_is_built_from_a_prompt() -> None:
    asked = image_request("a watercolor kestrel", model="gpt-image-1", size=(1024, 1024), n=2)
    assert (asked.operation, asked.prompt, asked.model, asked.size, asked.n) == (
        "generate",
        "a watercolor kestrel",
        "gpt-image-1",
        (1024, 1024),
        2,
    )
    validate.image_request(asked)
    assert serializer.from_json(serializer.to_json(asked)) == asked
    assert (image_request("a kestrel").n, image_request("a kestrel").response_format) == (1, "binary")
    with pytest.raises(TypeError):
        image_request("a kestrel", sise="auto")


requests = st.builds(
    ImageRequest,
    operation=st.sampled_from(["generate", "edit", "variation"]),
    model=st.none() | texts,
    prompt=st.none() | texts,
    n=st.integers(1, 10),
    size=st.none() | texts | st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    quality=st.none() | texts,
    style=st.sampled_from([None, "natural", "vivid"]),
    background=st.sampled_from([None, "transparent", "opaque", "auto"]),
    response_format=st.sampled_from(["binary", "base64", "url"]),
    input_images=st.lists(images, max_size=2).map(tuple),
    mask=st.none() | images,
    options=maps,
    metadata=maps,
)
counts = st.none() | st.integers(0, 9999)
usages = st.builds(ImageUsage, st.integers(0, 9), st.none() | texts, st.none() | texts, counts, counts)
ids = st.none() | texts
responses = st.builds(ImageResponse, st.lists(images, max_size=2).map(tuple), ids, usage=usages, request_id=ids)


@given(requests | responses | usages)
def test_json_is_exact(value: Any) -> None:
    assert serializer.from_json(serializer.to_json(value)) == value
    assert serializer.from_json(serializer.to_json(value), type(value)) == value
