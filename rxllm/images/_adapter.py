"""What counts as an image adapter: an object with ``generate`` and the ``operations`` that it supports."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeGuard, runtime_checkable

from reactivex import Observable

from rxllm.values import Call, EngineError, ImageAdapterError, ImageRequest, ImageResponse
from rxllm.values.argument_checks import shown


@runtime_checkable
class ImageAdapter(Protocol):
    """Turns a request into a cold Observable of one response; every failure goes to ``on_error``.

    `operations` are those of ``"generate"``, ``"edit"`` and ``"variation"`` that it supports. It refuses any other
    with ``ImageAdapterError("unsupported_operation")``, before any I/O and before it looks for a key.
    """

    @property
    def operations(self) -> Collection[str]: ...

    def generate(self, request: ImageRequest, call: Call) -> Observable[ImageResponse]: ...


def is_image_adapter(value: Any) -> TypeGuard[ImageAdapter]:
    """Whether `value` is an image adapter, and not a class of them."""
    return isinstance(value, ImageAdapter) and not isinstance(value, type)


def as_image_adapter(value: Any) -> ImageAdapter:
    """Return `value` if it is an image adapter. Raises ``EngineError("no_image_adapter")`` otherwise, and for None."""
    if is_image_adapter(value):
        return value
    message = (
        "the engine has no image adapter; give it one, as in Engine(image_adapter=OpenAIImages())"
        if value is None
        else f"{shown(value)} is not an image adapter: it needs operations and generate(request, call)"
    )
    raise EngineError("no_image_adapter", message)


def refuse_operation(request: ImageRequest, provider: str, operations: Collection[str]) -> None:
    """Raise ``ImageAdapterError("unsupported_operation")`` unless `operations` include the request's."""
    if request.operation in operations:
        return
    supported = ", ".join(sorted(operations)) or "no operation"
    message = f"{request.model or provider} does not support {request.operation!r}; it supports {supported}"
    metadata = {"operation": request.operation, "model": request.model}
    raise ImageAdapterError("unsupported_operation", message, provider=provider, metadata=metadata)
