"""Advice for unknown options: the names that other libraries use, and where rxllm has the same.

The libraries are the openai SDK, litellm, langchain, instructor, pydantic-ai and the providers' own APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rxllm.values.argument_checks import did_you_mean, is_count, shown
from rxllm.values.secret_names import is_secret_name


def advice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return the error message for an option `name` that is not among the `known` ones."""
    known = set(known)
    if _MEANT.get(name) in known:
        return f"there is no option {name!r} (did you mean {_MEANT[name]!r}?)"
    remedy = _ELSEWHERE.get(name)
    if name in _ANSWERS:
        remedy = f"for several answers write rxllm.generate_many(engine, [request] * {value if is_count(value) else 3})"
    elif name in _RETRIES:
        attempts = _RETRIES[name] + value if is_count(value) else 3
        remedy = f"write retry={{'max_attempts': {attempts}}}, which counts the first attempt too, or retry=False"
    if remedy is not None:
        return f"there is no option {name!r}: {remedy}"
    near = "" if name in _PROVIDERS_OWN else did_you_mean(name, known | _BATCHES)
    what, written = ("it", shown(value)) if _is_json_data(value) else ("JSON", "...")
    written = "..." if is_secret_name(name) or "api_key" in near else written
    remedy = f"to pass {what} to the provider unchanged, write options={{{name!r}: {written}}}"
    return f"there is no option {name!r}{near}; {remedy}"


def _is_json_data(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_RETRIES = {"max_retries": 1, "num_retries": 1, "retries": 1, "max_attempts": 0}
"""Options that limit the attempts at a call, and the number of attempts that each does not count."""

_ANSWERS = frozenset({"n", "candidate_count", "best_of", "num_generations"})
"""Options for the number of answers to one request."""

_BATCHES = frozenset({"concurrency", "journal", "on_progress", "ordered"})
"""Arguments of ``generate_many`` besides the options of its calls."""

_PROVIDERS_OWN = frozenset({"top_k", "top_a"})
"""Options of providers with names close to rxllm's and other meanings."""

_MEANT = {
    other: name
    for name, others in {
        "api_key": "openai_api_key anthropic_api_key google_api_key",
        "headers": "extra_headers",
        "max_tokens": (
            "max_completion_tokens max_output_tokens max_new_tokens max_tokens_to_sample maxOutputTokens num_predict"
        ),
        "max_turns": "max_steps max_iterations max_iter max_rounds recursion_limit",
        "model": "model_name model_id deployment_id",
        "options": "extra_body model_kwargs",
        "reasoning_effort": "effort",
        "response_format": (
            "output schema response_model response_schema output_type output_schema output_format result_type "
            "text_format format"
        ),
        "seed": "random_seed random_state",
        "session_id": "thread_id conversation_id",
        "stop": "stop_sequences stopSequences stop_words",
        "timeout": "request_timeout timeout_seconds read_timeout",
        "tool_choice": "function_call",
        "tools": "functions toolsets",
        "top_p": "topP",
    }.items()
    for other in others.split()
}
"""Names that other libraries give to options that take the same values."""

_ELSEWHERE = {
    other: remedy
    for others, remedy in {
        "system system_prompt system_message system_instruction instructions": (
            "write the system prompt as a message: [rxllm.system(...), rxllm.user(...)]; that of an agent is "
            "engine.as_tool(name=..., system=...)"
        ),
        "messages prompt prompts input inputs contents history message_history chat_history": (
            "pass the prompt or the conversation as the second argument, after the engine"
        ),
        "stream streaming": "stream_generate(...), stream_step(...) and stream(...) emit the events as they come",
        "base_url api_base endpoint azure_endpoint openai_api_base": (
            "the address belongs to the engine: rxllm.Engine.from_model('openai:...', base_url=...), or an "
            "adapter, rxllm.OpenAIChat(base_url=...)"
        ),
        "client http_client async_client http_async_client": (
            "the HTTP client belongs to the adapter: rxllm.OpenAIChat(client=...); one of Dask to "
            "rxllm.cluster.generate_many"
        ),
        "default_headers": "headers of every call belong to the adapter: rxllm.OpenAIChat(headers={...})",
        "organization project": (
            "send it as a header: rxllm.OpenAIChat(headers={'OpenAI-Organization': ...}), or 'OpenAI-Project'"
        ),
        "transport http_transport": (
            "write rxllm.http.use_transport('aiohttp') once, for all calls; a client with a transport of your own "
            "is rxllm.OpenAIChat(client=...)"
        ),
        "output_retries result_retries validation_retries": (
            "generate(...).retry(2) asks once more for an answer that does not fit its response_format"
        ),
        "callbacks callback callback_manager event_stream_handler success_callback hooks": (
            "write on_event=function for the events of a call, or rxllm.Engine(..., observers=[function]) for the "
            "telemetry of all calls"
        ),
        "concurrency max_workers": (
            "rxllm.generate_many(engine, requests, concurrency=8) asks for many answers at a time"
        ),
        "journal ordered on_progress": (
            "it belongs to many requests: rxllm.generate_many(engine, requests, journal='out.jsonl')"
        ),
        "rate_limit rate_limiter requests_per_minute tokens_per_minute requests_per_second rpm tpm": (
            "write rxllm.Engine(..., operators=[rxllm.operators.rate_limited(requests_per_minute=500)])"
        ),
        "tracing tracer traces telemetry instrument": "write rxllm.Engine(..., observers=[rxllm.otel.traces()])",
        "logprobs response_logprobs": "write options={'logprobs': True}; they come in response.metadata['logprobs']",
        "thinking think reasoning thinking_config thinking_budget": (
            "write reasoning_effort='low' or another word of the provider, or what only the provider knows in "
            "options={...}"
        ),
        "json_mode response_mime_type": "write response_format={'type': 'json_object'}, or a type",
        "deps dependencies": "write context={'name': ...}, which tools receive as ToolContext.context",
        "config generation_config model_settings settings": (
            "write each setting as an option, temperature=0.0, or for all calls rxllm.Engine(..., params={...})"
        ),
        "fallback fallbacks": "write rxllm.Engine(..., operators=[rxllm.operators.fallback(other)])",
        "usage_limits max_budget budget": (
            "write rxllm.Engine(..., operators=[rxllm.operators.budget(tokens=1000)]), or pass it a rxllm.Budget"
        ),
        "agents subagents sub_agents handoffs": (
            "a chat is a tool of another: tools=[engine.as_tool(name=..., description=...)]"
        ),
        "approvals results deferred_tool_results": (
            "a halted chat goes on with rxllm.resume(engine, halted, approvals={...}, results={...})"
        ),
        "prepare history_processors max_history num_history_messages": (
            "write rxllm.Engine(..., prepare=[rxllm.trim_thread(tokens=8000)])"
        ),
        "operators observers": "it belongs to the engine: write rxllm.Engine(..., operators=[...], observers=[...])",
        "provider custom_llm_provider model_provider": "write the engine as 'provider:model'",
        "verbose debug": (
            "write on_event=print, or, for what the library logs, logging.basicConfig() and "
            "logging.getLogger('rxllm').setLevel(logging.DEBUG)"
        ),
        "keep_partial": (
            "it belongs to the fold: rxllm.session.stream_reply(engine, session, "
            "text).pipe(ops.finally_result(save, ops.to_session(session, keep_partial=True))), or "
            "ops.to_chat_result(thread, keep_partial=True) for a chat"
        ),
        "mock_response": "pass rxllm.Fake('...') as the engine",
    }.items()
    for other in others.split()
}
"""What to write instead of names that no option has."""
