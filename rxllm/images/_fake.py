"""A scripted image model for tests: it gives the images it was told to, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from reactivex import abc
from reactivex.disposable import SingleAssignmentDisposable
from reactivex.scheduler import CurrentThreadScheduler

from rxllm.images._adapter import refuse
from rxllm.runtime import Stream, clock, fail
from rxllm.values import Call, Image, ImageAdapterError, ImageRequest, ImageResponse, ImageUsage, ValidationError
from rxllm.values.arguments import is_seconds

Piece = Image | ImageUsage | ImageResponse | BaseException | tuple[str, Any]
Turn = Piece | Sequence[Piece]  # a list when it runs; but list[Image] is no list[Piece]

OPERATIONS = ("generate", "edit", "variation")


class FakeImages:
    """An image adapter that plays turns: one alone answers every call, several are used up, one per subscription.

    >>> from rxllm.pipelines import generate_image
    >>> dot = Image.from_data_uri("data:image/gif;base64,R0lGODlhAQABAAAAACw=")
    >>> generate_image(FakeImages(dot), "a dot").run().images == (dot,)
    True

    Give turns as arguments, one as ``script=[...]``, several as ``scripts=[[...], ...]``, or a function of the request
    that returns a turn. A turn is a piece of script, or a list of such pieces:

    ==========================================  =========================================================
    piece                                       means
    ==========================================  =========================================================
    an `Image`                                  one image of the response
    an `ImageUsage`, ``("usage", {..})``        its usage; without one, the number of its images
    an `ImageResponse`                          the response; only the request's metadata are added
    ``("delay", seconds)``                      a pause, on the subscription's scheduler
    an exception, ``("error", "timeout")``      the call fails so, for a reason of `ImageAdapterError`
    ==========================================  =========================================================

    `requests` holds what was asked, in order, also what was refused because it is not among the `operations`.

    Raises ``ValidationError("invalid_option")`` for a script that means nothing; a call fails with
    ``ImageAdapterError("unknown")`` when the turns are used up.
    """

    def __init__(
        self,
        *turns: Turn | Callable[[ImageRequest], Turn],
        script: Iterable[Piece] | None = None,
        scripts: Iterable[Iterable[Piece]] | None = None,
        operations: Collection[str] = OPERATIONS,
    ) -> None:
        if sum(given is not None for given in (turns or None, script, scripts)) != 1:
            message = "FakeImages takes its turns as arguments, or as script=, or as scripts="
            raise ValidationError("invalid_option", message)
        self.requests: list[ImageRequest] = []
        self.operations = frozenset(operations)
        self._function = turns[0] if len(turns) == 1 and callable(turns[0]) else None
        given = turns or [list(each) for each in ([script] if script is not None else scripts or ())]
        self._turns = [] if self._function else [_pieces(turn) for turn in given]
        self._played = 0

    def generate(self, request: ImageRequest, call: Call) -> Stream[ImageResponse]:
        """The next turn, once per subscription."""

        def subscribe(
            observer: abc.ObserverBase[ImageResponse], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            return _play(self._next, request, observer, scheduler)

        return Stream(subscribe)

    def _next(self, request: ImageRequest) -> list[Piece]:
        refuse(request, "fake", self.operations)
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


def _play(
    next_turn: Callable[[ImageRequest], list[Piece]],
    request: ImageRequest,
    observer: abc.ObserverBase[ImageResponse],
    scheduler: abc.SchedulerBase | None,
) -> abc.DisposableBase:
    """Answer, once the turn's pauses are over. What goes wrong, the subscriber's own exception too, is `on_error`."""
    try:
        pieces, failed = next_turn(request), None
    except BaseException as error:
        pieces, failed = [], error

    def answer(_scheduler: abc.SchedulerBase, _state: Any) -> None:
        try:
            if failed is not None:
                raise failed
            observer.on_next(_response(pieces, request))
        except BaseException as error:
            fail(observer, error)
        else:
            observer.on_completed()

    seconds = sum(float(piece[1]) for piece in pieces if isinstance(piece, tuple) and piece[0] == "delay")
    waiting = SingleAssignmentDisposable()  # before it is answered, maybe on another thread
    if seconds:
        waiting.disposable = clock(scheduler).schedule_relative(seconds, answer)
    else:
        waiting.disposable = (scheduler or CurrentThreadScheduler.singleton()).schedule(answer)
    return waiting


def _response(pieces: list[Piece], request: ImageRequest) -> ImageResponse:
    images: list[Image] = []
    made, usage = ImageResponse(model=request.model), None
    for piece in pieces:
        match piece:
            case Image():
                images.append(piece)
            case ImageUsage():
                usage = piece
            case ("usage", counted):
                usage = ImageUsage(**counted)
            case ImageResponse():
                made = piece
            case BaseException():
                raise piece
            case ("error", reason):
                raise ImageAdapterError(reason, provider="fake")
            case _:  # a delay, which is over
                pass
    metadata = {**request.metadata, **made.metadata}
    if made.images and not images:
        return replace(made, metadata=metadata)
    usage = usage or ImageUsage(images=len(images))
    return replace(made, images=tuple(images), usage=usage, metadata=metadata)


def _pieces(turn: Any) -> list[Piece]:
    pieces = cast(list[Piece], turn) if isinstance(turn, list) else [cast(Piece, turn)]
    for piece in pieces:
        if not _means_something(piece):
            reasons = ", ".join(sorted(ImageAdapterError.REASONS))
            words = (
                f"an Image, ImageUsage, ImageResponse, an exception, or a tuple of delay, usage, or error and {reasons}"
            )
            raise ValidationError("invalid_option", f"{piece!r} is no piece of script: {words}")
    return pieces


def _means_something(piece: Any) -> bool:
    match piece:
        case Image() | ImageUsage() | ImageResponse() | BaseException():
            return True
        case ("delay", seconds):
            return is_seconds(seconds)
        case ("error", reason):
            return isinstance(reason, str) and reason in ImageAdapterError.REASONS
        case ("usage", Mapping()):
            try:
                ImageUsage(**cast(Mapping[str, Any], piece[1]))
            except TypeError:
                return False
            return True
        case _:
            return False
