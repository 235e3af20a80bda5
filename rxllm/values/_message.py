"""Messages, the parts of their content, and how parts are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from rxllm.values._encode import Value, encode_metadata, value
from rxllm.values._images import Image
from rxllm.values._tool import ToolCall


@value
class TextPart(Value):
    """A text."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ImagePart(Value):
    """An image for the model to see; `detail` is how closely it looks, if the provider has that option."""

    image: Image
    detail: Literal["auto", "low", "high", "original"] = "auto"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ThinkingPart(Value):
    """The model's thinking. `signature` and `provider_data` go back unchanged to the provider that made them."""

    text: str
    signature: str | None = None
    provider_data: dict[str, Any] | None = None


@value
class SourcePart(Value):
    """A source of the text, as the provider describes it: a citation, a grounding or a search result."""

    source: dict[str, Any]


@value
class FilePart(Value):
    """A file for the model to read, or an image or audio in its output.

    `file` has its ``"mime_type"``, its ``"data"`` (bytes) or ``"url"``, and its ``"name"`` if it has one; see `user`.
    """

    file: dict[str, Any]


@value
class ToolCallPart(Value):
    """The place among the parts where the tool call with this id was made."""

    id: str


@value
class ProviderPart(Value):
    """Data that only `provider` understands; it goes back to that provider unchanged, and to no other."""

    provider: str
    data: dict[str, Any]


Part = TextPart | ImagePart | ThinkingPart | SourcePart | FilePart | ToolCallPart | ProviderPart
Role = Literal["system", "user", "assistant", "tool"]
Content = str | tuple[Part, ...] | dict[str, Any]


@value
class Message(Value):
    """One message of a conversation.

    `content` is text, parts in order, or (tool results only) a mapping. `tool_calls` are the calls that an assistant's
    message makes; a ``tool`` message answers the one whose id is its `tool_call_id`.
    """

    role: Role
    content: str | tuple[Part, ...] | dict[str, Any] = ""  # spelled out: `value` looks for "tuple[" in the annotation
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    _other_names: ClassVar[Mapping[str, str]] = {"output_text": "text", "result": "text"}
    _encoders: ClassVar = {"metadata": encode_metadata}

    @property
    def text(self) -> str:
        """The text of the content, with parts joined; empty for a mapping."""
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
    """Return an assistant's message.

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
    """Return what a repr says of the images and files among `parts`.

    >>> attached([TextPart("Hi"), FilePart({"mime_type": "application/pdf", "data": b"%PDF-"})])
    ', 1 file'
    """
    kinds = ["image" if _image_of(part) else "file" for part in parts if isinstance(part, ImagePart | FilePart)]
    counts = ((kind, kinds.count(kind)) for kind in ("image", "file"))
    return "".join(f", {count} {kind}{'s' if count > 1 else ''}" for kind, count in counts if count)


def shown_attached(parts: Iterable[Part]) -> str:
    """Return Markdown that names the images and files among `parts`."""
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
