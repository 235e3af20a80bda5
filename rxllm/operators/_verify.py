"""Hold a stream to the rules."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.rules.phases import Rules
from rxllm.runtime import Stream


def verify() -> Callable[[Observable[Event]], Stream[Event]]:
    """Pass events on for as long as they are lawful; the first that is not ends the stream with an error.

    ::

        source       --start--H--i--Hi--end--|
        verify()     --start--H--i--Hi--end--|
        source       --start--H--i--Ho--end--|        (the completion is not what the deltas say)
        verify()     --start--H--i--X

    >>> from rxllm import Engine, Fake, MessageStarted, TextDelta, stream_generate
    >>> watched = Engine(Fake("Hi"), operators=[verify()])        # as middleware it sees what the adapter says
    >>> stream_generate(watched, "Hello").count().run()
    4
    >>> from reactivex import of
    >>> from rxllm import MessageCompleted, assistant
    >>> torn = of(MessageStarted(assistant("")), TextDelta("Hi"), MessageCompleted(assistant("Hi"), "stop"))
    >>> _ = torn.pipe(verify()).subscribe(on_error=lambda error: print(error.metadata["rule"], error.event_index))
    block_closed 2

    It takes the streams of an adapter, of ``stream_generate``, ``stream_step``, ``stream`` and ``stream_resume``; put
    it before what drops deltas. The error is ``StreamError("malformed_event")``: its ``event_index`` is the place,
    ``metadata["rule"]`` what is broken, ``metadata["event"]`` the tag of the event:

    ======================  =======================================================================================
    rule                    says
    ======================  =======================================================================================
    ``event``               nothing but events of the union
    ``message_started``     ``MessageStarted`` first, once per response
    ``block_closed``        a block is completed before the next block, call or end
    ``block_text``          a completion says what its deltas said
    ``call_id``             a call starts with an id that is not empty and was not used before
    ``call_order``          deltas and completion belong to a call that is open
    ``call_name``           a call is completed under the name it has started with
    ``call_raw_arguments``  its raw arguments are what its deltas said
    ``call_arguments``      its arguments are what the raw ones parse to, or its metadata names an ``error``
    ``call_completed``      every call is completed before the end
    ``usage_changed``       usage is said once per change
    ``message_folded``      the completed message is the fold of the events, deltas or no deltas
    ``finish_reason``       a response with calls does not finish as ``stop``, ``other`` or None
    ``terminal``            exactly one ``MessageCompleted`` or ``ErrorEvent``, last in its response
    ``step_completed``      tools run between the response's end and one ``StepCompleted``
    ``chat_completed``      several steps end with one ``ChatCompleted``, and nothing follows it
    ======================  =======================================================================================

    Constant work per event, and the response's events are kept until its end. What the source raises passes.
    """
    return lift(Rules)
