"""What must not be shown, replaced."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from reactivex import Observable

from rxllm.events import Event
from rxllm.operators._lift import lift
from rxllm.operators._shared.redact_events import Redacting
from rxllm.operators._shared.redactor import Redactor
from rxllm.runtime import Stream
from rxllm.values import EngineError
from rxllm.values.arguments import invalid_option


def redact(
    pattern: str | re.Pattern[str], replacement: str = "[redacted]", *, max_match: int = 256
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace every match of `pattern` in text and thinking, also where a match is spread over deltas.

    ::

        source                --"my key is sk-"--"12345"--", ok?"------------------end--|
        redact(r"sk-\\w+")     --"my key is "-----------"[redacted], ok?"--end--|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake(["my key is sk-", "12345", ", ok?"]), "Hi").pipe(redact(r"sk-\\w+"))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['my key is ', '[redacted], ok?']

    Only what may still become a match is held back, and no more than `max_match` characters of it; a match that is
    longer, or looks further ahead, counts if its first `max_match` characters held one already. With ``$`` or ``\\B``
    in the pattern that many are always held back. What is held at the end of its block comes there, unless an
    ``on_error`` ends the stream. Matches do not depend on how the text was cut into deltas.

    Deltas, completions and messages agree, and so do the model's answers in ``StepCompleted`` and ``ChatCompleted``.
    Thinking whose text was changed loses its signature and its provider's data, which no longer vouch for it. Calls,
    their results, users' messages and a response's `parsed` stay as they are. `replacement` is taken as it is.

    Needs ``rxllm[redact]``, because Python's own ``re`` cannot tell what may still match; without it
    ``EngineError("missing_dependency")`` is raised. Raises ``ValidationError("invalid_option")`` for a pattern that is
    none, or that matches the empty text, and for other options that make no sense.
    """
    compiled = _compiled(pattern)
    if not isinstance(replacement, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_option("replacement", f"must be a string, not {replacement!r}")
    if type(max_match) is not int or max_match < 1:
        raise invalid_option("max_match", f"must be a number of characters, 1 or more, not {max_match!r}")
    return lift(lambda: Redacting(lambda: Redactor(compiled, replacement, max_match)))


def _compiled(pattern: Any) -> Any:
    try:
        regex = import_module("regex")
    except ImportError as error:
        message = "redact() needs regex: pip install 'rxllm[redact]'"
        raise EngineError("missing_dependency", message) from error
    source: Any = getattr(pattern, "pattern", pattern)
    flags: int = getattr(pattern, "flags", 0)
    if not isinstance(source, str):
        raise invalid_option("pattern", f"must be a regular expression of text, not {pattern!r}")
    try:
        compiled = regex.compile(source, flags & ~re.DEBUG)
    except regex.error as error:
        raise invalid_option("pattern", f"{source!r} is no regular expression: {error}") from error
    if compiled.fullmatch(""):
        raise invalid_option("pattern", f"{source!r} matches the empty text")
    return compiled
