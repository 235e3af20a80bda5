"""Two passes to a structured answer: tools first, without a format; then the format, without tools.

Many models that are held to a JSON schema call no tools, and many that may call tools keep to no schema. With
``structured_finalize=True`` a chat runs to its end as if no ``response_format`` had been asked for. If it ends as
completed, at ``max_turns`` or by ``halt_when``, the model is asked once more, with the format, without tools, and with
a user's message that tells it to (``structured_finalize_nudge``; ``""`` sends none).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rxllm import validate
from rxllm.engine import Engine
from rxllm.pipelines._call import Setup
from rxllm.pipelines._request import merged
from rxllm.values import Request, Thread

NUDGE = "Now provide your final structured response."

FINALIZED = ("completed", "max_turns", "halt_when")
"""The ends of the first pass that the second follows; any other is the chat's."""


def first_pass(setup: Setup, thread: Thread) -> Setup:
    """The loop's own calls. Raises ``ValidationError("invalid_request")`` where there is no schema to finalize to."""
    if not _is_asked(setup):
        return setup
    validate.request(merged(setup.engine, Request(thread.messages), setup.opts, setup.asked))
    return _without(setup, setup.engine, "structured_finalize", "response_format")


def final_pass(setup: Setup) -> Setup | None:
    """The one call that follows; None if there is none."""
    if not _is_asked(setup):
        return None
    params = {name: held for name, held in setup.engine.params.items() if name not in ("tools", "tool_choice")}
    engine = replace(setup.engine, tools=(), params=params)
    return _without(setup, engine, "structured_finalize", "tools", "tool_choice")


def nudged(thread: Thread, setup: Setup) -> Thread:
    """`thread`, and the message that tells the model to answer now."""
    nudge = setup.opts.get("structured_finalize_nudge", NUDGE)
    return thread.add_user(nudge) if nudge else thread


def _is_asked(setup: Setup) -> bool:
    return bool(setup.opts.get("structured_finalize"))


def _without(setup: Setup, engine: Engine, *names: str) -> Setup:
    def left(held: Any) -> dict[str, Any]:
        return {name: each for name, each in held.items() if name not in names}

    return replace(setup, engine=engine, opts=left(setup.opts), asked=left(setup.asked))
