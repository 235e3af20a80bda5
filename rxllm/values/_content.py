"""The parts that a message's content is made of."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from rxllm.values._image import Image
from rxllm.values._value import Value, value


@value
class TextPart(Value):
    """Some text."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ImagePart(Value):
    """An image shown to the model; `detail` is how closely it should look, where the provider knows that."""

    image: Image
    detail: Literal["auto", "low", "high"] = "auto"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@value
class ThinkingPart(Value):
    """What the model thought. `signature` and `provider_data` go back verbatim to the provider that made them."""

    text: str
    signature: str | None = None
    provider_data: dict[str, Any] | None = None


@value
class SourcePart(Value):
    """Where the text comes from: a citation, a grounding or a search result, in the provider's own words."""

    source: dict[str, Any]


@value
class FilePart(Value):
    """An image or a sound in the output: its ``"mime_type"``, and its ``"data"`` (bytes) or its ``"url"``."""

    file: dict[str, Any]


@value
class ToolCallPart(Value):
    """Marks the place among the other parts where the call of this id was made."""

    id: str


@value
class ProviderPart(Value):
    """Something only `provider` understands; it goes back to that one verbatim, and to no other."""

    provider: str
    data: dict[str, Any]


Part = TextPart | ImagePart | ThinkingPart | SourcePart | FilePart | ToolCallPart | ProviderPart
