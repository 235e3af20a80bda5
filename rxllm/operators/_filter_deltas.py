"""Drop deltas."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxllm.collector import innermost
from rxllm.events import Event, TextDelta, ThinkingDelta, ToolCallDelta
from rxllm.operators._shared.event_operators import handle_each
from rxllm.runtime import Stream
from rxllm.values.argument_checks import check_instance


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

    The deltas of agents (``Nested``) are dropped too.

    Raises ``ValidationError("invalid_option")`` for a flag that is not True or False.
    """
    for name, flag in ("text", text), ("tool", tool), ("thinking", thinking):
        check_instance(name, flag, bool, "True or False")
    flags = {TextDelta: text, ToolCallDelta: tool, ThinkingDelta: thinking}
    dropped = frozenset(cls for cls, passes in flags.items() if not passes)

    def make_handler(on_next: abc.OnNext[Event], on_error: abc.OnError) -> abc.OnNext[Event]:
        def handle(event: Event) -> None:
            if type(innermost(event)) not in dropped:
                on_next(event)

        return handle

    return handle_each(make_handler) if dropped else Stream.of
