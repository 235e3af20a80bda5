"""Run the chats of agents, for the tools layer below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.pipelines._agent_setup import agent_ids, agent_setup
from rxllm.pipelines._answers import Answers
from rxllm.pipelines._call import Setup
from rxllm.pipelines._options import ChatOptions, set_options
from rxllm.pipelines._resume import resumed_events
from rxllm.tools import AgentCall, AgentChat
from rxllm.values import Request


class AgentChats:
    """The ``Chats`` of ``rxllm.tools``."""

    def engine_with(self, engine: Engine, options: Mapping[str, Any]) -> Engine:
        setup = Setup.of(engine, ChatOptions, options)
        return engine.with_params(**set_options(setup.own_options))

    def chat(self, call: AgentCall) -> AgentChat:
        ids = agent_ids(call.tool, call.call, call.question)
        setup = agent_setup(call.tool, call.settings, **ids).traced_by(call.question.engine)
        thread = call.tool.thread(call.call.arguments) if call.halted is None else call.halted
        events = setup.presented(resumed_events(setup, thread, call.answers or Answers({}, {})))
        return AgentChat(events, ops.to_chat_result(parse=setup.response_format(Request())))
