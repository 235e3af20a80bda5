"""What counts as an image adapter: an object with ``generate``, which says what it can do in ``operations``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeGuard, runtime_checkable

from reactivex import Observable

from rxllm.values import Call, EngineError, ImageAdapterError, ImageRequest, ImageResponse


@runtime_checkable
class ImageAdapter(Protocol):
    """Turns a request into a cold Observable of one response; every failure goes to ``on_error``.

    `operations` are those of ``"generate"``, ``"edit"`` and ``"variation"`` that it knows; others are refused, before
    any I/O and before a key is looked for, with ``ImageAdapterError("unsupported_operation")``, see `refuse`.
    """

    @property
    def operations(self) -> Collection[str]: ...

    def generate(self, request: ImageRequest, call: Call) -> Observable[ImageResponse]: ...


def is_image_adapter(given: Any) -> TypeGuard[ImageAdapter]:
    """Whether `given` is an image adapter, and not a class of them."""
    return isinstance(given, ImageAdapter) and not isinstance(given, type)


def as_image_adapter(given: Any) -> ImageAdapter:
    """`given` as an image adapter. Raises ``EngineError("no_image_adapter")`` for None and for what is none."""
    if is_image_adapter(given):
        return given
    message = (
        "the engine has no image adapter; give it one, as in Engine(image_adapter=OpenAIImages())"
        if given is None
        else f"{given!r} is no image adapter: it needs operations and generate(request, call)"
    )
    raise EngineError("no_image_adapter", message)


def refuse(request: ImageRequest, provider: str, known: Collection[str]) -> None:
    """Raises ``ImageAdapterError("unsupported_operation")`` unless the request's operation is among the `known`."""
    if request.operation in known:
        return
    by = request.model or provider
    message = f"{by} has no operation {request.operation!r}; it knows {', '.join(sorted(known)) or 'none'}"
    metadata = {"operation": request.operation, "model": request.model}
    raise ImageAdapterError("unsupported_operation", message, provider=provider, metadata=metadata)
