"""Images: asked for, edited, varied. Each call is a cold Stream of one response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, cast

from reactivex import Observable

from rxllm import images as image_adapters
from rxllm import validate
from rxllm.engine import Engine, as_engine, stand_in
from rxllm.images._adapter import as_image_adapter, is_image_adapter
from rxllm.pipelines._call import Deferred, name_of, request_id
from rxllm.pipelines._observe import Observers, retry_told, watched
from rxllm.pipelines._options import checked
from rxllm.pipelines._spans import ImagesSpan
from rxllm.runtime import Retry, Stream, models, policy, retrying
from rxllm.values import Call, Image, ImageRequest, ImageResponse, ValidationError

BUILT_IN = {"openai": "OpenAIImages", "google": "GeminiImages", "gemini": "GeminiImages"}
"""The image adapter classes by provider name."""


class ImageOptions(TypedDict, total=False):
    """What images can be asked for with, see `ImageRequest`, and how the call is made."""

    model: str
    n: int
    size: tuple[int, int] | str
    quality: str
    style: Literal["natural", "vivid"]
    background: Literal["transparent", "opaque", "auto"]
    response_format: Literal["binary", "base64", "url"]
    options: Mapping[str, Any]
    metadata: Mapping[str, Any]
    api_key: str
    retry: Retry
    request_id: str


def generate_image(
    engine: Engine | str | Any, prompt_or_request: str | ImageRequest, **opts: Unpack[ImageOptions]
) -> Stream[ImageResponse]:
    """Images of a prompt, or what an `ImageRequest` asks for. Each subscription asks anew.

    >>> from rxllm.adapters import FakeImages
    >>> engine = Engine(image_adapter=FakeImages(Image.from_binary(b"GIF89a", "image/gif")))
    >>> generate_image(engine, "a kestrel").run()
    ImageResponse([Image(binary, image/gif, 6 bytes)])

    `engine` is an `Engine` with an ``image_adapter``, an image adapter, or ``"provider:model"``. Unknown and senseless
    options raise at once (`EngineError`, `ValidationError`); all else goes to ``on_error``, and an engine that lacks
    the ``image_adapter`` before anything else is checked: ``EngineError("no_image_adapter")``. An engine's params are
    for models' calls; its model is used here too unless it has an ``adapter``, whose model it then is. The request is
    sent as it is: ``validate.image_request`` checks one.
    """
    return _responses(engine, lambda: _as_request(prompt_or_request), opts)


def edit_image(
    engine: Engine | str | Any,
    images: Image | Sequence[Image],
    prompt: str,
    *,
    mask: Image | None = None,
    **opts: Unpack[ImageOptions],
) -> Stream[ImageResponse]:
    """The images, changed as the prompt says. All of them are sent, and the mask; none of them becomes the mask.

    >>> from rxllm.adapters import FakeImages
    >>> bird, fake = Image.from_binary(b"GIF89a", "image/gif"), FakeImages(Image.from_url("https://example.org/a.png"))
    >>> edit_image(fake, bird, "make the sky pink").run().images
    (Image(url, 'https://example.org/a.png'),)
    """

    def as_request() -> ImageRequest:
        _refuse_others(() if mask is None else (mask,))
        return ImageRequest("edit", prompt=prompt, input_images=_several(images), mask=mask)

    return _responses(engine, as_request, opts)


def image_variations(engine: Engine | str | Any, image: Image, **opts: Unpack[ImageOptions]) -> Stream[ImageResponse]:
    """Variations of one image; there is no prompt."""
    return _responses(engine, lambda: ImageRequest("variation", input_images=_several((image,))), opts)


def _responses(engine: Any, as_request: Callable[[], ImageRequest], given: Mapping[str, Any]) -> Stream[ImageResponse]:
    made = _as_image_engine(engine)
    if not is_image_adapter(made.image_adapter):
        return Deferred(lambda: cast(Any, as_image_adapter(made.image_adapter)))
    request = as_request()
    # In a chat `response_format` means something else.
    opts = checked(ImageOptions, Engine(), {k: v for k, v in given.items() if k != "response_format"}) | dict(given)
    _refuse_senseless(opts)
    observers = Observers(made.observers)

    def make() -> Observable[ImageResponse]:
        adapter = as_image_adapter(made.image_adapter)
        asked = _merged(made, request, opts)
        call = Call(
            request_id=request_id(opts),
            api_key=opts.get("api_key"),
            metadata=asked.metadata,
            observers=(observers.tell,) if observers else (),
        )
        about = (call.request_id, name_of(adapter), asked.model)
        _refuse_incapable(*about[1:])
        rules = policy(opts.get("retry", made.retry), made.retry)
        # Retries and spans are those of every stream: a response is the first content, so nothing is held back.
        attempts = cast(Callable[[], Any], lambda: adapter.generate(asked, call))
        told = retry_told(observers, *about) if observers else None
        answers = cast(Observable[ImageResponse], retrying(attempts, rules, told))
        source: Any = answers.map(lambda response: _identified(response, call))
        span = partial(ImagesSpan, observers, about=about, request=asked)
        return cast(Any, watched(source, span)) if observers else source

    return Deferred(make)


def _as_image_engine(given: Any) -> Engine:
    if is_image_adapter(given):
        return Engine(image_adapter=given)
    if isinstance(given, str) and stand_in.get() is not None:
        return replace(as_engine(given), adapter=None)  # whose model it would be
    provider, _, model = given.partition(":") if isinstance(given, str) else ("", "", "")
    if provider in BUILT_IN:
        return Engine(image_adapter=getattr(image_adapters, BUILT_IN[provider])(), model=model or None)
    return as_engine(given)


def _merged(engine: Engine, request: ImageRequest, opts: Mapping[str, Any]) -> ImageRequest:
    # A model beside a chat adapter is that one's, and would be refused here.
    default = engine.model if engine.adapter is None else None
    plain = {name: held for name, held in opts.items() if name in _PLAIN}
    return replace(
        request,
        options={**request.options, **opts.get("options", {})},
        metadata={**request.metadata, **opts.get("metadata", {})},
        **{"model": request.model or default, **plain},
    )


_PLAIN = ("model", "n", "size", "quality", "style", "background", "response_format")


def _refuse_incapable(provider: str, name: str | None) -> None:
    model = models.find(provider, name)
    if model is not None and model.images is False:
        message = f"{model.name} makes no images, as rxllm.models says"
        raise ValidationError("unsupported_capability", message, errors=[(("images",), "images_disabled")])


def _refuse_senseless(opts: Mapping[str, Any]) -> None:
    named = {name: held for name, held in opts.items() if name in _PLAIN}
    try:
        validate.image_request(ImageRequest(**named))
    except ValidationError as error:
        # What the rest of the request lacks is no option's fault.
        wrong = [(path, f"{what}: {named[str(path[0])]!r}") for path, what in error.errors if path[0] in named]
        if wrong:
            raise ValidationError("invalid_option", errors=wrong) from None


def _identified(response: ImageResponse, call: Call) -> ImageResponse:
    return response if response.request_id is not None else replace(response, request_id=call.request_id)


def _as_request(prompt: Any) -> ImageRequest:
    if isinstance(prompt, ImageRequest):
        return prompt
    if isinstance(prompt, str):
        return ImageRequest(prompt=prompt)
    message = f"images are asked for with a prompt or an ImageRequest, not {prompt!r:.80}"
    raise ValidationError("invalid_image_request", message, errors=[((), "wrong_type")])


def _several(images: Any) -> tuple[Image, ...]:
    held = tuple(cast(Iterable[Any], images)) if isinstance(images, Iterable) else (images,)
    _refuse_others(held)
    return held


def _refuse_others(images: Iterable[Any]) -> None:
    if not all(isinstance(image, Image) for image in images):
        message = "images are given as Image values: Image.from_file(...), from_binary, from_base64 or from_url"
        raise ValidationError("invalid_image_request", message, errors=[(("input_images",), "invalid_image")])
