"""Names that people look for in ``rxllm`` and ``rxllm.operators``, and what to write for each."""

_TOOL_CALL = 'rxllm.ToolCall("c1", name, {...})'
_GENERATE = "rxllm.generate(engine, request)"
_CHAT = "rxllm.chat(engine, request, tools=[...])"
_PICTURE = "rxllm.user(text, path)"

_ROOMS = {
    "rxllm.telemetry": (
        "CallDetails CallFinished CallStarted ChatFinished ChatStarted FirstToken ImagesFinished "
        "ImagesStarted Outcome RetryAttempt StepFinished StepStarted Telemetry ToolFinished ToolStarted Trace "
        "Tracer"
    ),
    "rxllm.images": "FakeImages GeminiImages OpenAIImages HTTPImageAdapter ImageAdapter",
    "rxllm.values": (
        "Attachment Call FilePart FunctionTool Halt Image ImagePart ImageRequest ImageResponse ImageUsage "
        "Labelled MessageLike ModelInfo Part Partial Progress ProviderPart ResponseFormat SessionStatus "
        "SourcePart Spending TextAt TextPart ThinkingPart TokenCount ToolCallPart Turn image_request "
        "request_key"
    ),
    "rxllm.adapters": "Adapter HTTPAdapter providers",
    "rxllm.pipelines": "ChatOptions GenerateOptions ImageOptions Input StepOptions",
    "rxllm.runtime": "Journal Limiter ToolRecord use_transport",
    "rxllm.display": "progress_bar",
    "rxllm.tools": "AgentTool",
    "rxllm.engine": "Prepared",
}
"""The rooms of names that programs seldom need."""

OF_RXLLM = {
    **{name: f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()},
    "image": f"{_PICTURE} to send a picture, rxllm.generate_image(...) to make one",
    **dict.fromkeys(("file", "picture", "pdf", "document", "attachment"), _PICTURE),
    "call": f"{_GENERATE}, or {_TOOL_CALL} for the call of a tool",
    "tool_call": _TOOL_CALL,
    **dict.fromkeys(("complete", "completion", "ask", "prompt", "invoke", "generate_text"), _GENERATE),
    **dict.fromkeys(("agenerate", "acompletion", "ainvoke", "generate_async"), f"await {_GENERATE}"),
    "achat": f"await {_CHAT}",
    **dict.fromkeys(
        ("Agent", "agent", "create_agent"), f"{_CHAT}; an agent for another chat is engine.as_tool(name=...)"
    ),
    **dict.fromkeys(("as_tool", "agent_tool", "subagent", "handoff"), "engine.as_tool(name=...)"),
    **dict.fromkeys(("UsageLimits", "usage_limits"), "rxllm.Budget(tokens=...), with operators.budget(budget)"),
    **dict.fromkeys(("interrupt", "ApprovalRequired"), "@rxllm.tool(approval=True), or rxllm.ask_user(question)"),
    **dict.fromkeys(("Command", "RunState", "DeferredToolResults"), "rxllm.resume(engine, halted, approvals={...})"),
    **dict.fromkeys(("stream_text", "stream_chat", "astream"), "rxllm.stream(engine, request)"),
    **dict.fromkeys(("OpenAI", "AsyncOpenAI", "ChatOpenAI"), "rxllm.OpenAIChat(), or the engine 'openai:gpt-5'"),
    **dict.fromkeys(("Model", "Client", "LLM", "LLMClient"), "rxllm.Engine('openai:gpt-5')"),
    **dict.fromkeys(("UserMessage", "HumanMessage"), "rxllm.user(text)"),
    "SystemMessage": "rxllm.system(text)",
    **dict.fromkeys(("AIMessage", "AssistantMessage"), "rxllm.assistant(text)"),
    **dict.fromkeys(("Conversation", "History", "Messages"), "rxllm.Thread()"),
    **dict.fromkeys(("function_tool", "tool_plain"), "@rxllm.tool"),
    **dict.fromkeys(("guard", "input_guard", "input_guardrail"), "alongside(check), or operators.guard(check)"),
    **dict.fromkeys(("trim_messages", "trim"), "trim_thread(tokens=...), in Engine(prepare=[...])"),
    **dict.fromkeys(("summarize", "compact", "compaction"), "compact_thread(engine, at=...), in Engine(prepare=[...])"),
    **dict.fromkeys(("token_counter", "num_tokens", "tokens"), "rxllm.count_tokens(engine, request)"),
    **dict.fromkeys(("batch", "map", "generate_all"), "rxllm.generate_many(engine, requests)"),
    "AuthenticationError": "rxllm.AdapterError, and look whether error.reason is 'authentication_failed'",
    "RateLimitError": "rxllm.AdapterError, and look whether error.reason is 'rate_limited'",
    "api_key": "rxllm.keys.put('openai', ...), or pass api_key= to the call or the adapter",
    **dict.fromkeys(("ops", "op"), "from rxllm import operators as ops, or rxllm.operators"),
}

OF_OPERATORS = {
    "retry": "retry_before_content(...), which never repeats text, or stream.retry(...) of reactivex",
    "timeout": "time_limits(first=..., idle=...), or stream.timeout(...) of reactivex",
    "timeouts": "time_limits(first=..., idle=..., total=...)",
    "tally": "trace(function), or stream.count() of reactivex",
    "checkpoint": "trace(function), or stream.do_action(on_error=...) of reactivex",
    "do_action": "tap(function), or stream.do_action(...) of reactivex",
    "catch": "fallback(engine), or stream.catch(...) of reactivex",
    **dict.fromkeys(("print", "log", "debug", "do", "on_event"), "tap(print), or trace()"),
    **dict.fromkeys(("rate_limit", "limit", "throttle"), "rate_limited(...)"),
    **dict.fromkeys(("json", "parse", "to_parsed", "to_json"), "parsed(type), or partials(type)"),
    "partial_json": "partials(object), and the so_far of each for plain JSON data",
    **dict.fromkeys(("partial", "partial_object", "partial_output", "stream_object"), "partials(type)"),
    **dict.fromkeys(("collect", "to_result", "response"), "to_response()"),
    **dict.fromkeys(("on_finish", "on_end", "on_abort", "finalize"), "finally_result(function)"),
    **dict.fromkeys(("guardrail", "guardrails", "check", "moderate"), "guard(check), or rxllm.alongside(check)"),
    **dict.fromkeys(("pause", "pausable", "valve"), "gate(while_open)"),
    **dict.fromkeys(("latest", "drop", "sample_latest"), "keep_latest()"),
    **dict.fromkeys(("share", "share_replay", "broadcast"), "share_folded(grace)"),
    **dict.fromkeys(("tools", "call_tools", "execute_tools"), "run_tools(tools, thread=thread)"),
    **dict.fromkeys(("tokens", "deltas", "to_texts"), "text()"),
    **dict.fromkeys(("merge_labelled", "merge_labeled"), "rxllm.merge_labelled(...)"),
}
