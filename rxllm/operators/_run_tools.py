"""The operator that runs the tools that a response calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from reactivex import Observable

from rxllm.engine import as_engine
from rxllm.events import Event
from rxllm.operators._event_operators import operate
from rxllm.operators._tool_step import ToolStep
from rxllm.runtime import Stream
from rxllm.tools import Approve, Encoder, Executor, OnToolError, ToolSettings
from rxllm.values import Thread, Tool, ValidationError, as_tools
from rxllm.values.argument_checks import invalid_option
from rxllm.values.sessions import Input, as_thread


def run_tools(
    tools: Iterable[Tool | Callable[..., Any]] = (),
    *,
    thread: Input | None = None,
    mode: Literal["auto", "manual"] = "auto",
    context: Mapping[str, Any] | None = None,
    on_tool_error: OnToolError = "continue",
    tool_timeout: float | None = 30.0,
    max_concurrency: int | None = None,
    eager: bool | None = None,
    executor: Executor | None = None,
    encoder: Encoder | None = None,
    approve: Approve | None = None,
    approve_timeout: float | None = None,
    engine: Any = None,
    session_id: str | None = None,
    request_id: str | None = None,
) -> Callable[[Observable[Event]], Stream[Event]]:
    """Emit the events of a response, run the tools that it calls, and end with a ``StepCompleted``.

    ::

        source          --start--call--end--|
        run_tools()     --start--call--end--started--completed--encoded--(step)|

    >>> from rxllm import Fake, Thread, ToolCall, stream_generate, tool
    >>> @tool
    ... def double(x: int) -> int: return 2 * x
    >>> model, thread = Fake(ToolCall("c1", "double", {"x": 21})), Thread().add_user("Double 21")
    >>> stream_generate(model, thread).pipe(run_tools([double], thread=thread)).run().result.tool_results
    (Message('tool', '42'),)

    `tools` contains tools, or functions that ``rxllm.tool`` can turn into tools. Results are sent to the model as text
    or JSON; pydantic models, dataclasses, datetimes, enums and sets are encoded too. `thread` is the input to the model
    call: a thread, messages or text. The thread in the ``StepCompleted`` is `thread` followed by the answer and the
    results, in the order of the tool calls.

    With ``mode="manual"``, no tools run and the caller has to answer the tool calls. A tool marked ``manual`` is always
    left to the caller. At most `max_concurrency` tools run at once; by default there is no limit. `tool_timeout` limits
    the run time of each tool, in seconds, unless the tool sets its own timeout. If the model calls a tool that does not
    exist, none of the tools run, and an ``ErrorEvent`` with ``EngineError("unknown_tool")`` is emitted.

    A tool that fails does not end the stream. With ``on_tool_error="continue"``, the model receives the error as the
    tool's result; with ``"halt"``, the chat halts. `on_tool_error` can also be a function that takes the `ToolCall` and
    the `ToolError`, and returns ``"continue"`` or ``"halt"``, a replacement for the result, or ``halt(...)``. If it
    re-raises the error, the chat halts too. Halts are emitted after all tools have finished, in the order of the tool
    calls. Any exception that is not a `ToolError` is logged with its traceback. A result that cannot be encoded is
    logged as well, and treated as a ``ToolError("encoding_failed")``.

    A tool with ``approval=True`` runs only if ``approve(tool_call)`` returns True or a mapping. The tool receives the
    mapping in place of the model's arguments, which stay in the thread. False, or text that gives the reason,
    denies the call. With ``halt("approval")``, or without `approve`, the caller decides later. `approve` may return an
    awaitable, or an Observable that ends with the answer. An unanswered call is denied after `approve_timeout` seconds.

    Three outcomes of `approve` are bugs in the caller's code: an exception, an answer other than those above
    (``TypeError``), and arguments that the tool does not accept (``ValidationError("invalid_option")``). They end the
    stream through ``on_error`` and are not sent to the model.

    A tool with ``eager=True`` starts as soon as its call is complete, while the model is still writing::

        source          --start--call--end--text----------|
        run_tools()     --start--call--end-(started)-text-(completed)-|(encoded)(step)|

    Its events are emitted at once, except for the result, which follows the response. If the response then fails or is
    restarted, or if it ends but its calls do not run, the tool is stopped, and the tool's result is dropped. If `eager`
    is True, ``idempotent`` tools start early too, but agents do not. If `eager` is False, no tool starts early.
    ``manual`` tools never start early, and neither do tools that need approval. If the source emits on another thread,
    no tool starts early.

    A tool with ``Stream`` parameters starts while the model is still writing them. If the tool fails or halts before
    its arguments are complete, the response ends there, and the source is disposed::

        source          --start--call--{"path": "/etc", "text": "a--b
        run_tools()     --start--call--{"path": "/etc", "text": "a--b-(incomplete)(failed)(end)(encoded)(step)|

    If given, ``executor(tool, arguments, context)`` is called instead of each tool's handler, and ``encoder(result)``
    returns the text for the model. Tools receive `context`, `engine`, `session_id` and `request_id` in their
    `ToolContext`. `request_id` defaults to the chat's request id, or else to a new id; the model call uses the same id.

    Raises ``ValidationError("invalid_option")`` for invalid options or if `thread` is missing.
    """
    settings = ToolSettings(
        tools=as_tools(tools),
        mode=mode,
        context=context or {},
        on_tool_error=on_tool_error,
        tool_timeout=tool_timeout,
        max_concurrency=max_concurrency,
        eager=eager,
        executor=executor,
        encoder=encoder,
        approve=approve,
        approve_timeout=approve_timeout,
        engine=None if engine is None else as_engine(engine),
        session_id=session_id,
        request_id=request_id,
    )
    model_input = _checked_thread(thread)
    return operate(
        lambda source, observer, scheduler: ToolStep(settings, model_input, observer, scheduler).start(source)
    )


def _checked_thread(thread: Input | None) -> Thread:
    if thread is None:
        fault = "is missing: write run_tools(tools, thread=thread), with the thread that you sent to the model"
        raise invalid_option("thread", fault)
    try:
        return as_thread(thread)
    except ValidationError as error:
        raise invalid_option("thread", error.errors[0][1]) from None
