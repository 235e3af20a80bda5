"""A scripted image model for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from reactivex import abc
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.adapters.images import refuse_operation
from rxllm.runtime import Stream, clock, fail
from rxllm.values import Call, Image, ImageAdapterError, ImageRequest, ImageResponse, ImageUsage, ValidationError
from rxllm.values.argument_checks import is_seconds, shown

Piece = Image | ImageUsage | ImageResponse | BaseException | tuple[str, Any]
Turn = Piece | Sequence[Piece]  # the sequence must be a list, but `list[Piece]` would reject a `list[Image]`


class FakeImages:
    """An image adapter that plays scripted turns instead of calling a model.

    If there is only one turn, it answers every call. If there are several, each subscription plays the next one.

    >>> from rxllm.pipelines import generate_image
    >>> dot = Image.from_data_uri("data:image/gif;base64,R0lGODlhAQABAAAAACw=")
    >>> generate_image(FakeImages(dot), "a dot").run().images == (dot,)
    True

    Pass each turn as an argument, one turn as ``script=[...]``, or several as ``scripts=[[...], ...]``. You can also
    pass a function that takes the request and returns a turn. A turn is one piece, or a list of pieces:

    ==========================================  ===============================================================
    piece                                       meaning
    ==========================================  ===============================================================
    an `Image`                                  an image in the response
    an `ImageUsage`, ``("usage", {..})``        the usage; by default, it contains only the number of images
    an `ImageResponse`                          the response; the request's metadata is added to it
    ``("delay", seconds)``                      a pause, timed by the subscription's scheduler
    an exception, ``("error", "timeout")``      a failed call; the second item is one of
                                                `ImageAdapterError.REASONS`
    ==========================================  ===============================================================

    `requests` lists all the requests that were made, even those whose operation is not supported.

    Raises ``ValidationError("invalid_option")`` if a piece has any other form. Once all turns have been played, calls
    fail with ``ImageAdapterError("unknown")``.
    """

    def __init__(
        self,
        *turns: Turn | Callable[[ImageRequest], Turn],
        script: Iterable[Piece] | None = None,
        scripts: Iterable[Iterable[Piece]] | None = None,
        operations: Collection[str] = ("generate", "edit", "variation"),
    ) -> None:
        if sum(argument is not None for argument in (turns or None, script, scripts)) != 1:
            message = "pass the turns of FakeImages in exactly one way: as arguments, as script= or as scripts="
            raise ValidationError("invalid_option", message)
        self.requests: list[ImageRequest] = []
        self.operations = frozenset(operations)
        self._function = turns[0] if len(turns) == 1 and callable(turns[0]) else None
        all_turns = turns or [list(pieces) for pieces in ([script] if script is not None else scripts or ())]
        self._turns = [] if self._function else [_pieces(turn) for turn in all_turns]
        self._played = 0

    def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
        """Return a stream that plays the next turn each time it is subscribed to."""

        def subscribe(
            observer: abc.ObserverBase[ImageResponse], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            return _play(self._next_turn, request, observer, scheduler)

        return Stream(subscribe)

    def _next_turn(self, request: ImageRequest) -> list[Piece]:
        refuse_operation(request, "fake", self.operations)
        if self._function is not None:
            return _pieces(self._function(request))
        index = 0 if len(self._turns) == 1 else self._played
        self._played += 1
        if index >= len(self._turns):
            message = f"no scripted image: all {len(self._turns)} turns have been played"
            raise ImageAdapterError("unknown", message, provider="fake", metadata={"cause": "no_scripted_image"})
        return self._turns[index]

    def __repr__(self) -> str:
        turns = "a function" if self._function else f"{len(self._turns)} turns"
        return f"FakeImages({turns}, {len(self.requests)} requests)"


def _pieces(turn: Any) -> list[Piece]:
    return [_check_piece(piece) for piece in (cast(list[Any], turn) if isinstance(turn, list) else [turn])]


def _check_piece(piece: Any) -> Piece:
    match piece:
        case Image() | ImageUsage() | ImageResponse() | BaseException():
            return piece
        case ("delay", seconds) if is_seconds(seconds):
            return cast(Piece, piece)
        case ("error", str(reason)) if reason in ImageAdapterError.REASONS:
            return cast(Piece, piece)
        case ("usage", Mapping()):
            with suppress(TypeError):
                return ImageUsage(**cast(Mapping[str, Any], piece[1]))
        case _:
            pass
    reasons = ", ".join(sorted(ImageAdapterError.REASONS))
    message = (
        f"{shown(piece)} is not a valid script item; "
        "use an Image, an ImageUsage, an ImageResponse, an exception, ('delay', seconds), ('usage', {...}) "
        f"or ('error', reason), where reason is one of {reasons}"
    )
    raise ValidationError("invalid_option", message)


def _play(
    next_turn: Callable[[ImageRequest], list[Piece]],
    request: ImageRequest,
    observer: abc.ObserverBase[ImageResponse],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    pieces: list[Piece]
    try:
        pieces = next_turn(request)
    except BaseException as error:
        pieces = [error]

    def answer(_scheduler: abc.SchedulerBase, _state: Any) -> None:
        try:
            observer.on_next(_response(pieces, request))
        except BaseException as error:
            fail(observer, error)
        else:
            observer.on_completed()

    seconds = sum(float(piece[1]) for piece in pieces if isinstance(piece, tuple) and piece[0] == "delay")
    waiting = SingleAssignmentDisposable()  # create it first, because the answer may arrive on another thread
    if seconds:
        waiting.disposable = clock(scheduler).schedule_relative(seconds, answer)
    else:
        waiting.disposable = (scheduler or CurrentThreadScheduler.singleton()).schedule(answer)
    return waiting


def _response(pieces: list[Piece], request: ImageRequest) -> ImageResponse:
    images: list[Image] = []
    response, usage = ImageResponse(model=request.model), None
    for piece in pieces:
        match piece:
            case Image():
                images.append(piece)
            case ImageUsage():
                usage = piece
            case ImageResponse():
                response = piece
            case BaseException():
                raise piece
            case ("error", reason):
                raise ImageAdapterError(reason, provider="fake")
            case _:  # a delay, which has already passed
                pass
    metadata = {**request.metadata, **response.metadata}
    if response.images and not images:
        return replace(response, metadata=metadata)
    return replace(response, images=tuple(images), usage=usage or ImageUsage(images=len(images)), metadata=metadata)
