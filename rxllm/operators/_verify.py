"""Check that a stream follows the rules for events."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector.event_rules import EventRules
from rxllm.events import Event
from rxllm.operators._event_operators import lift
from rxllm.runtime import Stream


def verify() -> Callable[[Observable[Event]], Stream[Event]]:
    """End the stream at the first event that breaks a rule.

    ::

        source       --start--H--i--Hi--end--|
        verify()     --start--H--i--Hi--end--|
        source       --start--H--i--Ho--end--|        (the completion contradicts the deltas)
        verify()     --start--H--i--X

    >>> from rxllm import Engine, Fake, MessageStarted, TextDelta, stream_generate
    >>> watched = Engine(Fake("Hi"), operators=[verify()])        # as middleware it sees the adapter's events
    >>> stream_generate(watched, "Hello").count().run()
    4
    >>> from reactivex import of
    >>> from rxllm import MessageCompleted, assistant
    >>> torn = of(MessageStarted(assistant("")), TextDelta("Hi"), MessageCompleted(assistant("Hi"), "stop"))
    >>> _ = torn.pipe(verify()).subscribe(on_error=lambda error: print(error.metadata["rule"], error.event_index))
    block_closed 2

    Apply this operator to the events of an adapter, ``stream_generate``, ``stream_step``, ``stream`` or
    ``stream_resume``. Put it before operators that drop events. A broken rule ends the stream with
    ``StreamError("malformed_event")``. The error's ``event_index`` is the event's position. ``metadata["event"]`` is
    the event's tag, and ``metadata["rule"]`` is the name of the rule:

    ======================  =========================================================================================
    rule                    requirement
    ======================  =========================================================================================
    ``event``               Every item is an event.
    ``message_started``     Each response has one ``MessageStarted``, which is its first event.
    ``block_closed``        A block is completed before the next block or call begins and before the response ends.
    ``block_text``          A completed block's text equals its joined deltas.
    ``call_id``             The id of a new call is not empty and has not been used before.
    ``call_order``          Call deltas and call completions belong to an open call.
    ``call_name``           A call is completed under the name it started with.
    ``call_raw_arguments``  A call's raw arguments equal its joined deltas.
    ``call_arguments``      A call's arguments equal its parsed raw arguments, or its metadata has an ``error``.
    ``call_completed``      Every call is completed before the response ends.
    ``usage_changed``       Usage is reported only when it has changed.
    ``message_folded``      The completed message equals the fold of the events, whether or not deltas are included.
    ``finish_reason``       A response with calls does not finish with ``stop``, ``other`` or None.
    ``terminal``            Each response has one ``MessageCompleted`` or ``ErrorEvent``, which is its last event.
    ``tool_started``        A call's tool runs only once in a step. Within a response, it starts after the call has
                            begun. It ends after the call is complete, unless it ends with an error.
    ``step_completed``      Tool results follow the end of the response, and the step's only ``StepCompleted``
                            follows the tool results.
    ``nested``              An agent's events arrive while its tool call runs, and its chat ends before the call does.
                            The provider's own agents emit events within the response, once their call has begun.
    ``chat_completed``      A chat of several steps ends with one ``ChatCompleted``, and no event follows it.
    ======================  =========================================================================================

    Operators such as ``ops.time_limits``, ``ops.guard`` and ``ops.budget`` can end a chat anywhere. They first complete
    all open blocks and calls, even inside agents. Then they emit an ``ErrorEvent``.

    Each agent's events (``Nested``) must follow the rules too. The error message names the agent's path.

    Checking an event takes constant time. A response's events are kept until it ends. Errors from the source are passed
    on.
    """
    return lift(EventRules)
