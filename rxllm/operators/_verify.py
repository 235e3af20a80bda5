"""Check that a stream follows the rules for events."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.collector.event_rules import EventRules
from rxllm.events import Event
from rxllm.operators._event_operators import lift
from rxllm.runtime import Stream


def verify() -> Callable[[Observable[Event]], Stream[Event]]:
    """Pass events that follow the rules; the first event that breaks one ends the stream with an error.

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

    Apply it to the stream of an adapter, ``stream_generate``, ``stream_step``, ``stream`` or ``stream_resume``, before
    any operator that drops events. The error is ``StreamError("malformed_event")``: its ``event_index`` is the position
    of the event, ``metadata["event"]`` its tag and ``metadata["rule"]`` the broken rule:

    ======================  =======================================================================================
    rule                    requires
    ======================  =======================================================================================
    ``event``               only events of the union
    ``message_started``     ``MessageStarted`` first, once per response
    ``block_closed``        a block is completed before the next block, call or end
    ``block_text``          a completion has the text of its deltas
    ``call_id``             a call starts with an id that is not empty and was not used before
    ``call_order``          deltas and completion belong to a call that is open
    ``call_name``           a call is completed with the name it started with
    ``call_raw_arguments``  its raw arguments are its deltas, joined
    ``call_arguments``      its arguments are the raw ones, parsed, or its metadata has an ``error``
    ``call_completed``      every call is completed before the end
    ``usage_changed``       usage is reported once per change
    ``message_folded``      the completed message is the fold of the events, with or without deltas
    ``finish_reason``       a response with calls does not finish as ``stop``, ``other`` or None
    ``terminal``            exactly one ``MessageCompleted`` or ``ErrorEvent``, last in its response
    ``step_completed``      tools run after the response's end and before one ``StepCompleted``
    ``nested``              an agent's events arrive while its tool call runs, which ends with the agent's chat; the
                            provider's own agents emit theirs in the response, after the start of their call
    ``chat_completed``      several steps end with one ``ChatCompleted``, and nothing follows it
    ======================  =======================================================================================

    An operator such as ``ops.time_limits``, ``ops.guard`` or ``ops.budget`` may end a chat anywhere: it completes all
    open blocks and calls, agents' included, and its ``ErrorEvent`` is the last event.

    Each agent's events (``Nested``) must follow all rules on their own; the error message names the agent's path.

    Each event takes constant time; a response's events are kept until its end. An error from the source passes through.
    """
    return lift(EventRules)
