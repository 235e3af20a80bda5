"""Two passes to a structured answer: tools first, without a format; then the format, without tools.

Many models call no tools when they are held to a JSON schema, and do not keep to a schema when they may call tools.
With ``structured_finalize=True`` a chat runs to its end as if it had no ``response_format``. If it ends as completed,
at ``max_turns`` or by ``halt_when``, the model is asked once more, with the format, without tools, and with a user's
message that asks for the answer (``structured_finalize_nudge``; ``""`` sends none). Without the option, the chats of a
model whose entry in ``rxllm.models`` has ``tools_with_schema=False`` run this way if they have tools and a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from rxllm import validate
from rxllm.engine import Engine
from rxllm.events import Event
from rxllm.pipelines._call import Setup
from rxllm.pipelines._step import step_events
from rxllm.runtime import Stream
from rxllm.values import Request, Thread

NUDGE = "Now provide your final structured response."

Ask = Callable[[Thread], Stream[Event]]


def passes(setup: Setup, thread: Thread) -> tuple[Ask, Ask | None]:
    """Return how a chat asks for its steps, and for the final one, if there is one.

    Raises ``ValidationError("invalid_request")`` if there is no schema to finalize to.
    """
    if not _is_wanted(setup):
        return partial(step_events, setup), None
    request = setup.complete(Request(thread.messages))
    validate.request(request)
    model = setup.model_info(request)
    if model is not None:
        validate.capabilities(replace(request, tools=()), model)  # before any tool has run
    final = setup.without(_without_tools(setup.engine), "structured_finalize", "tools", "tool_choice")
    nudge = setup.options.get("structured_finalize_nudge", NUDGE)
    # The nudge enters the chat's thread only once it has been answered: a chat that failed can be asked again.
    return (
        partial(step_events, setup.without(setup.engine, "structured_finalize", "response_format")),
        lambda thread: step_events(final, thread.add_user(nudge) if nudge else thread),
    )


def _without_tools(engine: Engine) -> Engine:
    params = {name: value for name, value in engine.params.items() if name not in ("tools", "tool_choice")}
    return replace(engine, tools=(), params=params)


def _is_wanted(setup: Setup) -> bool:
    if "structured_finalize" in setup.options:
        return bool(setup.options["structured_finalize"])
    request = setup.complete(Request())
    model = setup.model_info(request)
    exclude = model is not None and model.tools_with_schema is False
    return exclude and bool(request.tools) and _is_schema(request.response_format)


def _is_schema(response_format: Any) -> bool:
    return (
        isinstance(response_format, Mapping) and cast(Mapping[str, Any], response_format).get("type") == "json_schema"
    )
