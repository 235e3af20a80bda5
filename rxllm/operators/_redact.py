"""Replace what must not be shown."""

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
from rxllm.values.argument_checks import check_count, check_instance, invalid_option, shown


def redact(
    pattern: str | re.Pattern[str], replacement: str = "[redacted]", *, max_match: int = 256
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Replace every match of `pattern` in text and thinking, even where it spans several deltas.

    ::

        source                --"my key is sk-"--"12345"--", ok?"------------end--|
        redact(r"sk-\\w+")     --"my key is "--------------"[redacted], ok?"--end--|

    >>> from rxllm import Fake, TextDelta, stream_generate
    >>> events = stream_generate(Fake(["my key is sk-", "12345", ", ok?"]), "Hi").pipe(redact(r"sk-\\w+"))
    >>> [event.delta for event in events if isinstance(event, TextDelta)]
    ['my key is ', '[redacted], ok?']

    Only text that may still become a match is held back, at most `max_match` characters. A match that is longer, or
    looks further ahead, counts only if its first `max_match` characters already contain one. With ``$`` or ``\\B`` in
    the pattern that many characters are always held back. Held text is emitted at the end of its block, unless the
    stream fails with ``on_error``. Matches do not depend on how the text was cut into deltas.

    Deltas, completions and messages agree, and so do the model's answers in ``StepCompleted`` and ``ChatCompleted``.
    Thinking that was changed loses its signature and provider data, which no longer vouch for it. Tool calls, their
    results, users' messages and a response's `parsed` do not change. `replacement` is literal text.

    The events of agents (``Nested``) are redacted in the same way, at any depth, and so are their answers, which are
    the results of tool calls: text and plain data, but not an object that an answer is parsed to.

    Raises ``EngineError("missing_dependency")`` without ``rxllm[redact]``, because Python's own ``re`` cannot tell what
    may still match; ``ValidationError("invalid_option")`` for a `pattern` that is not a regular expression or matches
    the empty text, and for other wrong options.
    """
    compiled = _compile(pattern)
    check_instance("replacement", replacement, str, "a string")
    check_count("max_match", max_match)
    return lift(lambda: Redacting(lambda: Redactor(compiled, replacement, max_match)))


def _compile(pattern: Any) -> Any:
    try:
        regex = import_module("regex")
    except ImportError as error:
        message = "redact() needs regex: pip install 'rxllm[redact]'"
        raise EngineError("missing_dependency", message) from error
    source: Any = getattr(pattern, "pattern", pattern)
    flags: int = getattr(pattern, "flags", 0)
    check_instance("pattern", source, str, "a regular expression of text")
    try:
        compiled = regex.compile(source, flags & ~re.DEBUG)
    except regex.error as error:
        raise invalid_option("pattern", f"is not a regular expression: {shown(source)}: {error}") from error
    if compiled.fullmatch(""):
        raise invalid_option("pattern", f"must not match the empty text, as {shown(source)} does")
    return compiled
