"""Run the tool call of an agent: its chat's events come nested, and its answer is the result."""

from __future__ import annotations

from typing import Any

from reactivex import abc, of

from rxllm.collector import is_waiting, nest
from rxllm.events import Event
from rxllm.runtime import Question, Scope
from rxllm.tools._agent import AgentCall, AgentTool, agent_failure, answer_of, blames_caller, chats
from rxllm.tools._settings import ToolSettings, tool_error
from rxllm.tools._tool_execution import ToolExecution
from rxllm.values import ChatResult, LLMError, Thread, ToolCall, ToolError

MOST_DEEP = 16
"""How many tool calls may be inside one another where the innermost is an agent: Python's stack holds about 40."""


class AgentExecution(ToolExecution):
    """One run of an agent, which goes on where it has halted if it is `resumed`."""

    def __init__(
        self,
        tool: AgentTool,
        call: ToolCall,
        settings: ToolSettings,
        question: Question,
        scope: Scope,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        resumed: tuple[Thread, Any] | None,
    ) -> None:
        super().__init__(tool, call, settings, question, scope, observer, scheduler, resumed)
        self._agent = tool

    def _run(self) -> None:
        self._journal = None  # its own calls and tools are noted, and so need no outcome
        if len(self._caller.scope.path) > MOST_DEEP:
            self._fail(self._too_deep())
            return
        self._arm()
        try:
            if self._resumed is None:
                self._settings.check_call(self._agent, self._call)
            resumed = self._resumed or ()
            chat = chats().chat(AgentCall(self._agent, self._call, self._settings, self._question, *resumed))
        except ToolError as error:
            self._fail(error)
            return

        def end(last: Any) -> None:
            self._caller.listen(of(last).pipe(chat.to_result), self._end)

        self._caller.listen(chat.events, end, self._nest)

    def _nest(self, event: Event) -> None:
        self._caller.on_loop(self._report, nest(self._call.id, event))

    def _end(self, result: ChatResult) -> None:
        if result.error is not None:
            self._on_failure(result.error)
        elif is_waiting(result):
            self._finish([])
        else:
            self._return(answer_of(result))

    def _on_failure(self, error: BaseException) -> None:
        if not self._caller.is_approved:
            super()._on_failure(error)
        elif isinstance(error, LLMError) and not blames_caller(error):
            self._fail(agent_failure(self._call, error))
        else:
            self._abort(error)

    def _too_deep(self) -> ToolError:
        message = f"the agent {self._tool.name!r} was not run: it is inside {MOST_DEEP} tool calls already, the most"
        return tool_error(self._call, "handler_raised", f"{message}; give fewer agents agents of their own")
