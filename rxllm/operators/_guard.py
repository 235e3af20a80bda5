"""Check text while it arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._shared.guard_checks import GuardSettings
from rxllm.operators._shared.guarding import Guarding
from rxllm.operators._shared.operate import operate
from rxllm.runtime import Stream
from rxllm.values.argument_checks import call_fault, check_function, check_instance, check_seconds, is_count
from rxllm.values.argument_checks import check as check_argument


def guard(
    check: Callable[[str], Any] | Callable[[str, str], Any],
    every: Literal["sentence"] | int = "sentence",
    max_lag: float | None = None,
    on_late: Literal["fail", "release"] = "fail",
    *,
    thinking: bool = True,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Check each sentence while it arrives, release what has passed, and end the stream at one that has not.

    ::

        source         --start--A-B.--C-D.--call--end--|
        check          -----------(ok)--(no)
        guard(check)   --start----(AB.)-(error)|            (the connection is closed, no tool runs)

    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> def no_numbers(text): return "it names a number" if any(map(str.isdigit, text)) else None
    >>> model = Fake(["I know it. ", "The code ", "is 4711. ", "Use it!"])
    >>> response = stream_generate(model, "Hi").pipe(guard(no_numbers), ops.to_response()).run()
    >>> response.output_text, response.error.reason, response.error.message
    ('I know it. ', 'guard_tripped', "the guard 'no_numbers' tripped: it names a number")

    ``check(text)`` gets each part of the answer once: a sentence (of at most 1,024 characters), or, if `every` is a
    number, so many characters; the end of a block ends a part. A check that takes two arguments, ``check(text,
    before)``, also gets the 2,048 characters of the answer in front of it. It returns its verdict, an awaitable of it,
    or a stream, such as a small model's, whose last item it is:

    ==========================  ==================================================================
    None, True, no item         the text has passed, and is released
    False, the reason as text   ``StreamError("guard_tripped")``
    an exception, other values  ``StreamError("guard_failed")``
    nothing within `max_lag`    ``StreamError("guard_late")``, or the release of the text, see below
    ==========================  ==================================================================

    Completions, tool calls, usage and the end wait for the text before them, so the result has what was shown, and no
    more. Up to four checks run at once; what they find counts in the order of the text. At a trip the source is
    disposed, open blocks are completed, and an ``ErrorEvent`` ends the stream; before the first event it is
    ``on_error``. The error's metadata has the `guard`, the `reason` if there is one, and the `text`, cut to 80
    characters: do not show it. No tool of the step runs, whether the guard is an engine's operator or comes after
    ``stream``; what an engine's guard has stopped is not sent to the model again either. After ``stream`` it comes in
    front of what holds events back, such as `smooth`, `gate` and `share_folded`: tools do not wait for text that is on
    its way to the guard. An ``on_error`` of the source passes at once, without what waits.

    With ``on_late="fail"`` nothing unchecked is shown, and a check may take `max_lag` seconds; without a `max_lag` it
    takes as long as it likes, so give it a timeout of its own. With ``on_late="release"`` no event waits longer than
    `max_lag`. A late check can still end the stream, until its response is complete, or four newer ones run.

    Thinking is checked too, unless `thinking` is False. Raw frames, which repeat text before it is checked, are
    dropped. White space alone passes. Tool calls and their results are not checked: that is what ``approve`` is for.
    What agents write (``Nested``) is checked like the chat's own text, that of each agent by itself. A plain function
    is called on the call's loop and must not block it. While 1,024 events wait, the source waits too.
    For the user's input see ``rxllm.alongside``.

    Raises ``ValidationError("invalid_option")`` for wrong arguments, and for ``on_late="release"`` without a `max_lag`.
    """
    check_function("check", check)
    sees_before = call_fault(check, "") is not None
    fits = not sees_before or call_fault(check, "", "") is None
    check_argument("check", check, fits, "a function of a text, or of a text and the text before it")
    check_argument("every", every, every == "sentence" or is_count(every), "'sentence' or a whole number of characters")
    check_argument("on_late", on_late, on_late in ("fail", "release"), "'fail' or 'release'")
    if max_lag is not None or on_late == "release":
        check_seconds("max_lag", max_lag)
    check_instance("thinking", thinking, bool, "True or False")
    settings = GuardSettings(check, sees_before, every, max_lag, on_late, thinking)
    return operate(lambda source, observer, scheduler: Guarding(settings, observer, scheduler).start(source))
