"""Two passes to a structured answer: tools first, without a format; then the format, without tools.

Many models that are held to a JSON schema call no tools, and many that may call tools keep to no schema. With
``structured_finalize=True`` a chat runs to its end as if no ``response_format`` had been asked for. If it ends as
completed, at ``max_turns`` or by ``halt_when``, the model is asked once more, with the format, without tools, and with
a user's message that tells it to (``structured_finalize_nudge``; ``""`` sends none). Where it is not said, a model
whose entry in ``rxllm.models`` has ``tools_with_schema=False`` is asked so too, if there are tools and a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec

from rxllm import validate
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._request import merged
from rxllm.pipelines._step import step_events
from rxllm.runtime import Stream
from rxllm.values import Request, Thread

NUDGE = "Now provide your final structured response."

Ask = Callable[[Thread], Stream[Event]]


def passes(setup: Setup, thread: Thread) -> tuple[Ask, Ask | None]:
    """How a chat asks for its steps, and for the final one, if there is one.

    Raises ``ValidationError("invalid_request")`` where there is no schema to finalize to.
    """
    if not _is_asked(setup):
        return partial(step_events, setup), None
    asked = merged(setup.engine, Request(thread.messages), setup.opts, setup.asked)
    validate.request(asked)
    model = setup.model_info(asked)
    if model is not None:
        validate.capabilities(replace(asked, tools=()), model)  # before any tool has run
    final = _final_pass(setup)
    nudge = setup.opts.get("structured_finalize_nudge", NUDGE)
    # The nudge is in the chat's thread once it has been answered: a chat that failed can be asked again.
    return (
        partial(step_events, _without(setup, setup.engine, "structured_finalize", "response_format")),
        lambda thread: step_events(final, thread.add_user(nudge) if nudge else thread),
    )


def _final_pass(setup: Setup) -> Setup:
    params = {name: value for name, value in setup.engine.params.items() if name not in ("tools", "tool_choice")}
    engine = replace(setup.engine, tools=(), params=params)
    return _without(setup, engine, "structured_finalize", "tools", "tool_choice")


def _is_asked(setup: Setup) -> bool:
    if "structured_finalize" in setup.opts:
        return bool(setup.opts["structured_finalize"])
    asked = merged(setup.engine, Request(), setup.opts, setup.asked)
    model = setup.model_info(asked)
    exclude = model is not None and model.tools_with_schema is False
    return exclude and bool(asked.tools) and _has_schema(asked.response_format)


def _has_schema(wanted: Any) -> bool:
    return isinstance(wanted, Mapping) and cast(Mapping[str, Any], wanted).get("type") == "json_schema"


def _without(setup: Setup, engine: Engine, *names: str) -> Setup:
    def left(held: Any) -> dict[str, Any]:
        return {name: each for name, each in held.items() if name not in names}

    return msgspec.structs.replace(setup, engine=engine, opts=left(setup.opts), asked=left(setup.asked))
