"""Leave out deltas."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.events import Event, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values.arguments import check_instance


def filter_deltas(
    text: bool = True, tool: bool = True, thinking: bool = True
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Drop the deltas whose flag is False; completions always pass, so the fold stays the same.

    ::

        source                        --H--i--Hi--|        (two deltas and their completion)
        filter_deltas(text=False)     --------Hi--|

    >>> from rxllm import Fake, stream_generate
    >>> quiet = stream_generate(Fake("Hi"), "Hello").pipe(filter_deltas(text=False))
    >>> [type(event).__name__ for event in quiet]
    ['MessageStarted', 'TextCompleted', 'MessageCompleted']

    Raises ``ValidationError("invalid_option")`` for a flag that is neither True nor False.
    """
    for name, flag in ("text", text), ("tool", tool), ("thinking", thinking):
        check_instance(name, flag, bool, "True or False")
    flags = {TextDelta: text, ToolCallDelta: tool, ThinkingDelta: thinking}
    dropped = frozenset(cls for cls, kept in flags.items() if not kept)

    def kept(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def see(event: Event) -> None:
            if type(event) not in dropped:
                on_next(event)

        return see

    return handle_each(kept) if dropped else Stream.of
