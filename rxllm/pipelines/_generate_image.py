"""Generate and edit images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, cast

from reactivex import Observable

from rxllm import images as image_adapters
from rxllm import models, validate
from rxllm.engine import Engine, as_engine
from rxllm.images import ImageAdapter, as_image_adapter, is_image_adapter
from rxllm.pipelines._observers import ImagesSpan, Observers, notify_retry, watch_stream
from rxllm.pipelines.options import checked_options, describe, request_id, set_options, with_options
from rxllm.runtime import (
    Deferred,
    Retry,
    Stream,
    current_place,
    current_scope,
    policy,
    provider_name,
    retrying,
    returned_by,
)
from rxllm.values import ApiKey, Call, Image, ImageRequest, ImageResponse, ValidationError
from rxllm.values.argument_checks import shown

BUILT_IN = {"openai": "OpenAIImages", "google": "GeminiImages", "gemini": "GeminiImages"}
"""The class in ``rxllm.images`` for each provider name."""


class ImageOptions(TypedDict, total=False):
    """Options for image calls."""

    model: str | None
    """The provider's name for the model. Default: the request's or the engine's."""
    n: int | None
    """The number of images. Default: ``1``."""
    size: tuple[int, int] | str | None
    """The width and height in pixels, or a size that the provider defines, such as "1024x1024". Default: the
    provider's."""
    quality: str | None
    """The image quality, as a name that the provider defines, such as "high". Default: the provider's."""
    style: Literal["natural", "vivid"] | None
    """The style of the images, such as "vivid" for dramatic images. Default: the provider's."""
    background: Literal["transparent", "opaque", "auto"] | None
    """The background of the images. Default: the provider's."""
    response_format: Literal["binary", "base64", "url"] | None
    """The form in which the images are returned. Default: ``"binary"``."""
    options: Mapping[str, Any] | None
    """Fields that are added unchanged to the provider's request. Default: none."""
    metadata: Mapping[str, Any] | None
    """Data about the request, for adapters and observers. It is not sent to the provider. Default: none."""
    api_key: ApiKey | None
    """The provider's API key, or a function that returns it. Default: the adapter's key, or the key in ``rxllm.keys``
    or the environment."""
    headers: Mapping[str, str] | None
    """Headers to send with each request of the call. They override the adapter's headers. Default: none."""
    retry: Retry
    """The retry policy: a `RetryPolicy`, a mapping of its fields, True for the default policy, or False for no retries.
    Default: the engine's, which makes up to three attempts."""
    request_id: str | None
    """The call's id in telemetry and in the response. Default: a new id."""


describe(ImageOptions)

_FIELDS = ("model", "n", "size", "quality", "style", "background", "response_format")
"""The options whose values replace the request's values. `options` and `metadata` are merged with the request's."""


@with_options(ImageOptions)
def generate_image(
    engine: Engine | str | Any, prompt_or_request: str | ImageRequest, **opts: Unpack[ImageOptions]
) -> Stream[ImageResponse]:
    """Generate images for a prompt or an `ImageRequest`.

    >>> from rxllm.images import FakeImages
    >>> engine = Engine(image_adapter=FakeImages(Image.from_binary(b"GIF89a", "image/gif")))
    >>> generate_image(engine, "a kestrel").run()
    ImageResponse([Image(binary, image/gif, 6 bytes)])

    Each subscription makes a new call. `engine` is an image adapter, an `Engine` that has an ``image_adapter``, or a
    string of the form ``"provider:model"``. Without an image adapter, the stream fails with
    ``EngineError("no_image_adapter")``. An unknown option raises `EngineError`, and an invalid value raises
    `ValidationError`. Any other error goes to ``on_error``.

    The engine's params are for chat models, so they are ignored. If the engine has an ``adapter``, the engine's model
    is ignored, too. To check a request before it is sent, call ``validate.image_request``.
    """
    return _responses("generate_image", engine, lambda: _as_request(prompt_or_request), opts)


@with_options(ImageOptions)
def edit_image(
    engine: Engine | str | Any,
    images: Image | Sequence[Image],
    prompt: str,
    *,
    mask: Image | None = None,
    **opts: Unpack[ImageOptions],
) -> Stream[ImageResponse]:
    """Edit `images` as the prompt describes.

    >>> from rxllm.images import FakeImages
    >>> bird, fake = Image.from_binary(b"GIF89a", "image/gif"), FakeImages(Image.from_url("https://example.org/a.png"))
    >>> edit_image(fake, bird, "make the sky pink").run().images
    (Image(url, 'https://example.org/a.png'),)
    """

    def as_request() -> ImageRequest:
        _check_images(() if mask is None else (mask,))
        return ImageRequest("edit", prompt=prompt, input_images=_check_images(images), mask=mask)

    return _responses("edit_image", engine, as_request, opts)


@with_options(ImageOptions)
def image_variations(engine: Engine | str | Any, image: Image, **opts: Unpack[ImageOptions]) -> Stream[ImageResponse]:
    """Generate variations of an image, without a prompt."""
    return _responses(
        "image_variations", engine, lambda: ImageRequest("variation", input_images=_check_images((image,))), opts
    )


def _responses(
    function: str, engine: Any, as_request: Callable[[], ImageRequest], opts: Mapping[str, Any]
) -> Stream[ImageResponse]:
    engine = _as_image_engine(engine)
    adapter = engine.image_adapter
    if not is_image_adapter(adapter):
        return Deferred(lambda: cast(Any, as_image_adapter(adapter)))
    request = as_request()
    opts = _check_options(opts)
    observers = Observers(engine.observers) if engine.observers else None
    responses = Deferred(lambda: _response(engine, adapter, observers, request, opts))
    return returned_by(function, responses, request.model or opts.get("model") or provider_name(adapter), ImageResponse)


def _response(
    engine: Engine, adapter: ImageAdapter, observers: Observers | None, request: ImageRequest, opts: Mapping[str, Any]
) -> Observable[ImageResponse]:
    request = _complete_request(engine, request, opts)
    call = Call(
        request_id=request_id(opts),
        api_key=opts.get("api_key"),
        metadata=request.metadata,
        headers=opts.get("headers", {}),
        observers=(observers.notify,) if observers else (),
    )
    provider = provider_name(adapter)
    _refuse_text_model(provider, request.model)

    def add_request_id(response: ImageResponse) -> ImageResponse:
        return replace(response, request_id=response.request_id or call.request_id)

    def ask() -> Observable[Any]:
        return Deferred(lambda: adapter.generate(request, current_scope.get().attempt(call))).map(add_request_id)

    # An image response has no events to hold back, because the whole response is content.
    rules = policy(opts.get("retry", engine.retry), engine.retry)
    if observers is None:
        return cast(Any, retrying(ask, rules))
    responses = retrying(ask, rules, notify_retry(observers, call.request_id, provider, request.model))
    begin = partial(ImagesSpan, observers, adapter=adapter, request=request)
    return cast(Any, watch_stream(responses, begin, call.request_id))


def _as_image_engine(value: Any) -> Engine:
    if is_image_adapter(value):
        return Engine(image_adapter=value)
    if not isinstance(value, str):
        return as_engine(value)
    if current_place.get().engine is not None:
        return replace(as_engine(value), adapter=None)  # without an adapter, `model` counts as an image model
    provider, _, model = value.partition(":")
    if provider in BUILT_IN:
        return Engine(image_adapter=getattr(image_adapters, BUILT_IN[provider])(), model=model or None)
    return as_engine(value)


def _complete_request(engine: Engine, request: ImageRequest, opts: Mapping[str, Any]) -> ImageRequest:
    # If the engine has a chat adapter, its model is a chat model.
    default = engine.model if engine.adapter is None else None
    return replace(
        request,
        options={**request.options, **opts.get("options", {})},
        metadata={**request.metadata, **opts.get("metadata", {})},
        **{"model": request.model or default, **{name: opts[name] for name in _FIELDS if name in opts}},
    )


def _refuse_text_model(provider: str, name: str | None) -> None:
    model = models.find(provider, name)
    if model is not None and model.images is False:
        message = f"{model.name} does not generate images, according to rxllm.models"
        raise ValidationError("unsupported_capability", message, errors=[(("images",), "images_disabled")])


def _check_options(opts: Mapping[str, Any]) -> dict[str, Any]:
    # Leave out `response_format`, because it would be checked as the chat option of that name.
    checked_options(ImageOptions, Engine(), {name: value for name, value in opts.items() if name != "response_format"})
    options = set_options(opts)
    fields = {name: options[name] for name in _FIELDS if name in options}
    try:
        validate.image_request(ImageRequest(**fields))
    except ValidationError as error:
        # Report only faults in the options, because the rest of the request is missing.
        faults = [
            (path, f"{fault}: {shown(fields[str(path[0])])}") for path, fault in error.errors if path[0] in fields
        ]
        if faults:
            raise ValidationError("invalid_option", errors=faults) from None
    return options


def _as_request(prompt: Any) -> ImageRequest:
    if isinstance(prompt, ImageRequest):
        return prompt
    if isinstance(prompt, str):
        return ImageRequest(prompt=prompt)
    message = f"the prompt must be a string or an ImageRequest, not {shown(prompt)}"
    raise ValidationError("invalid_image_request", message, errors=[((), "wrong_type")])


def _check_images(images: Any) -> tuple[Image, ...]:
    values = tuple(cast(Iterable[Any], images)) if isinstance(images, Iterable) else (images,)
    for value in values:
        if not isinstance(value, Image):
            message = f"{shown(value)} is not an Image; use Image.from_file(...), from_binary, from_base64 or from_url"
            raise ValidationError("invalid_image_request", message, errors=[(("input_images",), "invalid_image")])
    return values
