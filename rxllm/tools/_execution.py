"""`execution`: run one tool call as a stream of events.

What a tool raises is logged with its traceback, unless it is a `ToolError`, and goes to the model by ``on_tool_error``.
What an approver raises, an answer that it cannot give, arguments of its own that do not fit the tool, and a result that
cannot be encoded are errors of the caller's code: they end the stream through ``on_error``. An approver runs as a tool
does, see ``_caller``. If its answer leaves the call to the caller, the stream ends without an outcome.
"""

from __future__ import annotations

from typing import Any

from reactivex import abc

from rxllm.events import Event
from rxllm.runtime import Question, Scope, Stream
from rxllm.tools._agent import AgentTool
from rxllm.tools._agent_execution import AgentExecution
from rxllm.tools._settings import ToolSettings
from rxllm.tools._tool_execution import ToolExecution
from rxllm.values import Thread, Tool, ToolCall


def execution(
    tool: Tool,
    call: ToolCall,
    settings: ToolSettings,
    question: Question,
    scope: Scope,
    edited_call: ToolCall | None = None,
    resumed: tuple[Thread, Any] | None = None,
) -> Stream[Event]:
    """Return the stream of ``ToolExecutionStarted``, progress, ``ToolExecutionCompleted`` and the outcome of `call`.

    It fails only by an error of the caller's code, see above. `question` is what the step asks its model, `scope` is
    the step's. The tool runs with the arguments of `edited_call`, if there is one. An agent that halts for the caller
    has neither a ``ToolExecutionCompleted`` nor an outcome; it goes on when it is `resumed` from its thread with the
    caller's answers. So does a tool that asks the user and is to be called again, see ``_question``.
    """

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        run = (
            AgentExecution(tool, call, settings, question, scope, observer, scheduler, resumed)
            if isinstance(tool, AgentTool)
            else ToolExecution(tool, call, settings, question, scope, observer, scheduler, resumed)
        )
        if edited_call is not None:
            run.edit(edited_call)
        run.start()
        return run

    return Stream(subscribe)
