"""Raw frames, or not."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import Event, RawChunk
from rxllm.operators._shared.each import each
from rxllm.runtime import Stream
from rxllm.values import ProviderPart
from rxllm.values.arguments import check_instance


def include_raw_chunks(include: bool = False) -> Callable[[Observable[Event]], Stream[Event]]:
    """Drop ``RawChunk`` events unless `include`; usage and parts of the message always pass.

    It cannot bring back what was not asked for: the call's option ``include_raw_chunks=True`` makes the decoder emit
    them.

    ::

        source                   --raw--delta--raw--delta--|
        include_raw_chunks()     -------delta-------delta--|

    >>> from rxllm import Fake, stream_generate
    >>> fake = Fake([("raw_chunk", {"x": 1}), "Hi"])
    >>> stream_generate(fake, "Hello", include_raw_chunks=True).pipe(include_raw_chunks()).to_list().run()[1]
    TextDelta(delta='Hi', id='block_0')

    Raises ``ValidationError("invalid_option")`` for a flag that is neither True nor False.
    """
    check_instance("include", include, bool, "True or False")

    def kept(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def see(event: Event) -> None:
            if type(event) is not RawChunk or event.kind == "usage" or isinstance(event.data, ProviderPart):
                on_next(event)

        return see

    return Stream.of if include else each(kept)
