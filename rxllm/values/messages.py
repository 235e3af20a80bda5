"""Messages and their parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable
from urllib.parse import unquote

from rxllm.values.advice import advice, unknown_option
from rxllm.values.argument_checks import invalid_option, must_be, shown
from rxllm.values.base import Value, value
from rxllm.values.errors import ValidationError
from rxllm.values.images import Image
from rxllm.values.tools import ToolCall


@value
class TextPart(Value):
    """Text in a message."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ImagePart(Value):
    """An image sent to the model.

    `detail` sets how closely the model looks at the image, if the provider supports that.
    """

    image: Image
    detail: Literal["auto", "low", "high", "original"] = "auto"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ThinkingPart(Value):
    """The model's thinking.

    `signature` and `provider_data` are sent back unchanged to the provider that created them. Other providers do not
    receive them, except for the ``reasoning_details`` in `provider_data`. These are sent to every Chat Completions
    server except OpenAI's, Azure's and the local model's.
    """

    text: str
    signature: str | None = None
    provider_data: dict[str, Any] | None = None


@value
class SourcePart(Value):
    """A source that the text relies on, such as a document.

    `source` is in the provider's own format.
    """

    source: dict[str, Any]


@value
class FilePart(Value):
    """A file sent to the model, or an image or audio that the model generated.

    `file` has the keys ``"mime_type"`` and either ``"data"`` (bytes) or ``"url"``. The key ``"name"`` is optional.
    `user` makes such parts from paths, URLs and bytes. Files from a provider can have keys of its own.

    Raises ``ValidationError("invalid_option")`` for a key that other libraries use for one of these.
    """

    file: dict[str, Any]

    def __post_init__(self) -> None:
        for key in self.file:
            if advice("FilePart(...)", key):
                known = ("mime_type", "data", "url", "name")
                raise invalid_option("file", unknown_option("FilePart(...)", key, self.file[key], known, "FilePart"))


@value
class ToolCallPart(Value):
    """A part that marks where in a message the model called a tool."""

    id: str


@value
class ProviderPart(Value):
    """Data that is sent back unchanged, and only to `provider`."""

    provider: str
    data: dict[str, Any]


Part = TextPart | ImagePart | ThinkingPart | SourcePart | FilePart | ToolCallPart | ProviderPart
Role = Literal["system", "user", "assistant", "tool"]
Content = str | tuple[Part, ...] | dict[str, Any]


@value
class Message(Value):
    """A message in a conversation.

    `content` is text or a tuple of parts. A tool result can also be a mapping. `tool_calls` are the calls in an
    ``assistant`` message. A ``tool`` message answers the call whose id is `tool_call_id`.
    """

    role: Role
    content: str | tuple[Part, ...] | dict[str, Any] = ""  # `value` looks for "tuple[" in this annotation
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The text of the message. If it has several text parts, their texts are joined.

        The text is empty if the content is a mapping.
        """
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts, even if it is plain text."""
        if isinstance(self.content, str):
            return (TextPart(self.content),) if self.content else ()
        return () if isinstance(self.content, dict) else self.content

    def __getstate__(self) -> dict[str, Any]:
        return {name: entry for name, entry in vars(self).items() if name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        calls = f", calls={[call.name for call in self.tool_calls]}" if self.tool_calls else ""
        content = self.content if isinstance(self.content, dict) else self.text
        return f"Message({self.role!r}, {content!r}{attached(self.parts)}{calls})"

    def _repr_markdown_(self) -> str:
        calls = "".join(f"\n\n`{call!r}`" for call in self.tool_calls)
        text = str(self.content) if isinstance(self.content, dict) else self.text
        text = as_code(text) if self.role == "tool" and text else text
        gap = "\n\n" if text else ""
        return f"**{self.role}**{gap}{text}{shown_attached(self.parts)}{calls}"


def system(text: str) -> Message:
    """Return a system message.

    >>> system("Be brief.")
    Message('system', 'Be brief.')
    """
    return Message("system", text)


def assistant(text: str) -> Message:
    """Return an assistant message.

    >>> assistant("Hello")
    Message('assistant', 'Hello')
    """
    return Message("assistant", text)


def tool_result(tool_call_id: str, content: str | dict[str, Any]) -> Message:
    """Return the message that answers a tool call.

    >>> tool_result("call_0", "42").tool_call_id
    'call_0'
    """
    return Message("tool", content, tool_call_id=tool_call_id)


def attached(parts: Iterable[Part]) -> str:
    """Return the part of a message's repr that shows how many images and files `parts` contains.

    >>> attached([TextPart("Hi"), FilePart({"mime_type": "application/pdf", "data": b"%PDF-"})])
    ', 1 file'
    """
    kinds = ["image" if _image_of(part) else "file" for part in parts if isinstance(part, ImagePart | FilePart)]
    counts = ((kind, kinds.count(kind)) for kind in ("image", "file"))
    return "".join(f", {count} {kind}{'s' if count > 1 else ''}" for kind, count in counts if count)


def shown_attached(parts: Iterable[Part]) -> str:
    blocks: list[str] = []
    for part in parts:
        image = _image_of(part)
        if image is not None:
            blocks.append(as_code(repr(image)))
        elif isinstance(part, FilePart):
            names = (part.file.get("name"), part.file.get("mime_type"))
            blocks.append(as_code(", ".join(str(name) for name in names if name) or "file"))
    return "".join(f"\n\n{block}" for block in blocks)


def _image_of(part: Part) -> Image | None:
    match part:
        case ImagePart(image=image):
            return image
        case FilePart(file={"mime_type": str(mime_type), "data": bytes(data)}) if mime_type.startswith("image/"):
            return Image.from_binary(data, mime_type)
        case FilePart(file={"mime_type": str(mime_type), "url": str(url)}) if mime_type.startswith("image/"):
            return Image.from_url(url)
        case _:
            return None


def as_code(text: str) -> str:
    """Return Markdown that shows `text` literally.

    >>> as_code("<b>")
    '`<b>`'
    """
    return f"`{text.replace('`', chr(39))}`"


@runtime_checkable
class Picture(Protocol):
    """A Pillow image. This is a protocol, because rxllm does not import Pillow."""

    format: str | None

    @property
    def mode(self) -> str: ...

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None: ...


Attachment = str | os.PathLike[str] | bytes | Image | Picture | Part
"""Anything that `user` accepts: a path, a URL, bytes, an `Image`, a Pillow image or a message part."""

_FORMS = "a path, a URL (http:, https: or data:), bytes, an Image, a Pillow image or a part such as FilePart(...)"

_URL = re.compile(r"(https?|data):", re.IGNORECASE)

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",  # without an ID3 tag
    b"\xff\xf3": "audio/mpeg",
    b"\xff\xf2": "audio/mpeg",
}
"""MIME types, by the first bytes of a file."""

_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
"""The MIME types of RIFF files, by bytes 8 to 11 of the file."""


def user(content: Attachment | Sequence[Attachment], *attachments: Attachment) -> Message:
    """Return a user message with text, images and files.

    >>> user("Hi")
    Message('user', 'Hi')
    >>> user("What is this?", "https://example.com/photo.png")
    Message('user', 'What is this?', 1 image)

    The first string is always the text, so a user's text is never taken for the name of a file. An attachment is one of
    these:

    * a string that is a URL (``http:``, ``https:``, ``data:``) or the path of an existing file;
    * a ``Path``, or the bytes of a file;
    * an `Image`, or a Pillow image;
    * a part such as ``FilePart({"mime_type": "text/csv", "data": b"a,b", "name": "a.csv"})``.

    You can also pass attachments in a list. The message keeps their order. To add more text, pass a ``TextPart(...)``.
    Files are read immediately; URLs are not fetched. The MIME type is guessed from the file's first bytes or its name.
    An image becomes an `ImagePart`, and any other file becomes a `FilePart`.

    Raises ``ValidationError("invalid_message")`` for any other attachment, and for a file that cannot be read, is empty
    or has an unknown type.
    """
    if isinstance(content, str) and not attachments:
        return Message("user", content)
    # Strings are sequences too, so only lists and tuples are unpacked.
    first = tuple(cast(Sequence[Any], content)) if isinstance(content, list | tuple) else (content,)
    parts: list[Part] = []
    has_text = False
    for index, item in enumerate((*first, *attachments)):
        if isinstance(item, str) and not has_text:
            parts += [TextPart(item)] if item else []
        else:
            try:
                parts.append(_part(item))
            except ValidationError as error:
                errors = [(("content", index), fault) for _, fault in error.errors]
                raise ValidationError("invalid_message", errors=errors) from error.__cause__
        has_text = has_text or isinstance(item, str | TextPart)
    return Message("user", tuple(parts))


def _part(item: Any) -> Part:
    match item:
        case str() if _URL.match(item):
            return _url_part(item)
        case str() | os.PathLike():
            return _file_part(Path(cast(str, item)))
        case bytes() | bytearray():
            return data_part(bytes(item))
        case Image():
            return ImagePart(item)
        case _ if isinstance(item, Part):
            return item
        case Picture():
            return _picture_part(item)
        case _:
            raise _wrong(must_be(_FORMS, item))


def _picture_part(picture: Picture) -> Part:
    data = BytesIO()
    try:
        if picture.format == "JPEG":
            picture.save(data, "JPEG", quality="keep")  # much smaller than PNG
        else:
            picture.save(data, "PNG")
    except (OSError, ValueError) as error:
        raise _wrong(f'is a Pillow image that cannot be saved ({error}); write picture.convert("RGB")') from error
    return data_part(data.getvalue())


def _url_part(url: str) -> Part:
    if url[:5].lower() == "data:":
        return data_uri_part(url)
    path = re.split("[?#]", url)[0].partition("://")[2].partition("/")[2]
    name = unquote(path.rpartition("/")[2])
    mime_type = mime_type_of(b"", name)
    if mime_type is None:
        # The user name and the query of a URL can contain secrets.
        place = shown(re.sub(r"(?<=//)[^/]*@", "", url.partition("?")[0]))
        remedy = 'write Image.from_url(url) or FilePart({"mime_type": "...", "url": url})'
        raise _wrong(f"must be a URL that ends with a file extension, such as .png or .pdf, not {place}; {remedy}")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_url(url))
    return FilePart({"mime_type": mime_type, "url": url, "name": name})


def _file_part(path: Path) -> Part:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
        remedy = f"an attachment is {_FORMS}; the first argument is the text"
        raise _wrong(f"must be a file that can be read, not {shown(str(path))} ({fault}); {remedy}") from error
    return data_part(data, path.name)


def data_uri_part(uri: str) -> Part:
    """Decode a ``data:`` URI into an `ImagePart` or a `FilePart`."""
    try:
        image = Image.from_data_uri(uri)
        data = image.to_binary()
    except ValidationError as error:
        raise _wrong(must_be("a data: URI such as data:image/png;base64,iVBORw0K", uri)) from error
    if data and (image.mime_type or "").startswith("image/"):
        return ImagePart(image)
    return data_part(data, mime_type=image.mime_type)


def data_part(data: bytes, name: str | None = None, mime_type: str | None = None) -> Part:
    """Return an `ImagePart` if `data` is an image, or a `FilePart` otherwise."""
    mime_type = mime_type or mime_type_of(data, name or "")
    if not data:
        raise _wrong(f"must not be empty, but {shown(name or data)} is")
    if mime_type is None:
        remedy = (
            'write Image.from_binary(data, mime_type) or FilePart({"mime_type": "...", "data": data, "name": "..."})'
        )
        raise _wrong(f"must be a file of a known type, not {shown(name or data)}; {remedy}")
    if mime_type.startswith("image/"):
        return ImagePart(Image.from_binary(data, mime_type))
    return FilePart({"mime_type": mime_type, "data": data, **({"name": name} if name else {})})


def mime_type_of(data: bytes, name: str) -> str | None:
    """Guess a MIME type from a file's bytes or name.

    >>> mime_type_of(b"GIF89a", "cat.png"), mime_type_of(b"", "notes.pdf"), mime_type_of(b"", "notes")
    ('image/gif', 'application/pdf', None)
    """
    for signature, mime_type in _SIGNATURES.items():
        if data.startswith(signature):
            return mime_type
    if data[:4] == b"RIFF" and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    import mimetypes  # slow to import

    guessed, encoding = mimetypes.guess_type(name, strict=False)
    # Before Python 3.14, `mimetypes` returns the old name of this type.
    return "audio/wav" if guessed == "audio/x-wav" else guessed if encoding is None else None


def _wrong(fault: str) -> ValidationError:
    return ValidationError("invalid_message", errors=[((), fault)])
