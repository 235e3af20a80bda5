"""Advice for users who use a wrong name or forget ``.run()``.

`ADVICE` has a section for each place where names are looked up, such as a class or a call.

>>> advice("Response", "stop_reason")
'finish_reason'
>>> unknown_option("call", "stop_sequences", ["END"], {"stop", "seed"})
"there is no option 'stop_sequences' (did you mean 'stop'?)"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from rxllm.values.argument_checks import call_fault, did_you_mean, is_count, shown
from rxllm.values.errors import EngineError
from rxllm.values.secret_names import is_secret_name

P = ParamSpec("P")
S = TypeVar("S")


def advice(place: str, name: str, **words: object) -> str:
    """Return the advice about `name` at `place`, or "" if there is none.

    `words` are the values for the placeholders in the advice.
    """
    return filled(_entry(place, name).replace("`", ""), name=name, **words)


def first_code(places: Iterable[str], name: str) -> str:
    """Return the first code snippet in the advice about `name` at any of the `places`, or "" if there is none."""
    code = next((code for place in places for code in codes(_entry(place, name))), "")
    return filled(code, name=name)


def codes(text: str) -> list[str]:
    return re.findall("`(.+?)`", text)


def filled(text: str, **words: object) -> str:
    """Replace the placeholders in `text`, leaving all other braces alone."""
    return re.sub(r"\{(\w+)\}", lambda match: str(words.get(match[1], match[0])), text)


def _entry(place: str, name: str) -> str:
    return next((text for names, text in ADVICE.get(place, {}).items() if name in names.split()), "")


def no_attribute(owner: str, name: str, known: Iterable[str], remedy: str = "") -> AttributeError:
    """Return an ``AttributeError`` that suggests what to write instead of `name`."""
    if remedy:
        hint = f"; write {remedy}"
    else:
        hint = "" if name.startswith("_") else did_you_mean(name, (other for other in known if other[:1] != "_"))
    # If the error were given the object, Python would append its own suggestion.
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)


def no_field(cls: type, name: str) -> AttributeError:
    """Return the ``AttributeError`` to raise when an instance of `cls` has no attribute `name`.

    Building the hint takes much longer than looking up an attribute, and most of these errors are never read:
    ``hasattr`` and ``getattr`` with a default discard them. Therefore the hint is built when the error is read.
    """
    if name.startswith("_"):
        return AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name)
    return AttributeError(_NoField(cls, name), name=name)


class _NoField:
    """The text of an ``AttributeError``, built when it is read."""

    __slots__ = ("_cls", "_name")

    def __init__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __str__(self) -> str:
        cls, name = self._cls, self._name
        known = {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
        remedy = next(filter(None, (advice(base.__name__, name) for base in cls.__mro__)), "")
        return str(no_attribute(f"{cls.__name__!r} object", name, sorted(known), remedy))

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def unknown_option(place: str, name: str, value: Any, known: Collection[str], owner: str = "") -> str:
    """Return the error message for an unknown option.

    `owner` is the class or function that was given the option, or "" for a call.
    """
    fault = f"{owner} has no option {name!r}" if owner else f"there is no option {name!r}"
    words = {"owner": owner, **_words(name, value)}
    remedy = advice(place, name, **words)
    if remedy in known:
        return f"{fault} (did you mean {remedy!r}?)"
    if remedy and not remedy.isidentifier():
        return f"{fault}; {remedy}"
    near = did_you_mean(name, known if owner else [*known, *_OPTIONS_OF_MANY])
    if owner and (near or not _entry(place, ANY)):
        return f"{fault}{near}; it takes {', '.join(known)}"
    if "api_key" in near:
        words["data"] = "..."
    return f"{fault}{near}; {filled(_entry(place, ANY).replace('`', ''), name=name, **words)}"


def explains_options(place: str) -> Callable[[Callable[Concatenate[S, P], None]], Callable[Concatenate[S, P], None]]:
    """Decorate an ``__init__`` so that unknown arguments raise ``EngineError("unknown_option")``.

    The error's message includes the advice for `place`.
    """

    def decorate(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(init)
        def explaining(self: S, *args: P.args, **kwargs: P.kwargs) -> None:
            try:
                init(self, *args, **kwargs)
            except TypeError:
                if call_fault(init, self, *args, **kwargs) is None:  # raised inside `init`
                    raise
                raise EngineError("unknown_option", _misfit(type(self).__name__, place, init, kwargs)) from None

        return explaining

    return decorate


def _misfit(cls: str, place: str, init: Callable[..., Any], options: dict[str, Any]) -> str:
    from inspect import signature  # inspect is slow to import, and only errors need it

    parameters = [*signature(init).parameters.values()][1:]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    unknown = next((name for name in options if name not in names), None)
    if unknown is None:
        return f"{cls} takes its options by keyword: {', '.join(names)}"
    return unknown_option(place, unknown, options[unknown], names, cls)


def _words(name: str, value: Any) -> dict[str, object]:
    is_data = _is_json_data(value)
    count = value if is_count(value) else None
    text = "..." if is_secret_name(name) else shown(value)
    return {
        "value": text,
        "data": text if is_data else "...",
        "it": "it" if is_data else "JSON",
        "count": count or 3,
        "attempts": count + 1 if count else 3,
    }


def _is_json_data(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


ANY = "*"
"""The key for advice on options that have no advice of their own."""

_OPTIONS_OF_MANY = ("concurrency", "journal", "on_progress", "ordered", "usd")
"""Options of ``generate_many``. They are also suggested when an option of another call is misspelled."""

_PASS_ON = "to pass {it} to the provider unchanged, write `options={'{name}': {data}}`"

ADVICE: dict[str, dict[str, str]] = {
    # Each text names the attribute to use, or gives an expression to write instead.
    "Response": {
        "text output choices": "`output_text`",
        "content": "`output_text`, or `message.parts` to get images and thinking too",
        "reasoning reasoning_content": "`thinking`",
        "delta": "`output_text`, or `rxllm.stream_generate(...)` to receive the text as it arrives",
        "output_parsed": "`parsed`",
        "stop_reason": "`finish_reason`",
        "usage_metadata": "`usage`",
        "cost": "`usage.total_cost`",
        "latency duration elapsed": "`seconds`",
        "ttft": "`first_token_seconds`",
        "thread": "`rxllm.chat(...)`, which returns a ChatResult with the thread",
    },
    "StepResult": {
        "text content output": "`output_text`",
        "message finish_reason error thinking tool_calls raise_for_error": "`response.{name}`",
        "messages": "`thread.messages`",
    },
    "ChatResult": {
        "text content output": "`output_text`",
        "message thinking id model": "`final_response.{name}`",
        "response": "`final_response`",
        "tool_calls": "`pending_tool_calls` for the unanswered calls, or the tool_calls of each step's response",
        "interruptions interrupts approvals pending_approvals pending": "`pending_tool_calls`",
        "question": "`pending_question`",
        "messages": "`thread.messages`",
        "turns": "`steps`",
        "cost": "`usage.total_cost`",
        "latency duration elapsed": "`seconds`",
        "ttft": "`first_token_seconds`",
    },
    "Turn": {
        "thread": "`session.thread`",
        "messages": "`session.thread.messages`",
        "parsed usage steps halted_reason pending_tool_calls": "`result.{name}`",
    },
    "Session": {"session_id": "`id`"},
    "Thread": {"append extend add": "`thread = thread + message`, which returns a new thread"},
    "Message": {"output_text result": "`text`"},
    "ToolCall": {"function": "`name` and `arguments`", "args input": "`arguments`"},
    "Usage": {
        "prompt_tokens": "`input_tokens`",
        "completion_tokens": "`output_tokens`",
        "cached_tokens cache_read_input_tokens": "`cached_input_tokens`",
        "cache_creation_input_tokens": "`cache_write_input_tokens`",
        "thinking_tokens": "`reasoning_tokens`",
        "tokens": "`total`",
        "cost": "`total_cost`",
    },
    "Image": {"url uri": "`data`, which is the URL if the source is 'url'"},
    "Stream attributes": {
        "cancel dispose stop close unsubscribe abort": (
            "a stream does not run, its subscriptions do; write `subscription = stream.subscribe(...)`, and "
            "`subscription.dispose()` to stop the call, or leave the loop that iterates over the stream"
        ),
        "exhaust_map exhaustMap": (
            "write `stream.map(fn).exclusive()` to skip items while fn's stream runs, or "
            "`stream.pipe(ops.keep_latest(), ops.map_async(fn, concurrency=1))` to keep the newest one"
        ),
        "merge_map mergeMap": (
            "write `stream.flat_map(fn)`, or `stream.map(fn).merge(max_concurrent=3)` for a few at a time"
        ),
        "retry_when retryWhen": (
            "write `.retry(3)`, or pass the option `retry={'max_attempts': 3}` to the call to wait between attempts"
        ),
    },
    "_Event": {
        "choices": "`event.delta` if the event is a TextDelta; to receive only the text, use `.pipe(ops.text())`",
        "delta": (
            "`isinstance(event, rxllm.TextDelta)` to check the event first; to receive only the text, use "
            "`.pipe(ops.text())`"
        ),
    },
    "Engine": {
        "generate": "`rxllm.generate(engine, request)`",
        "chat": "`rxllm.chat(engine, thread)`",
        "stream": "`rxllm.stream(engine, thread)`, or `rxllm.stream_generate(engine, request)`",
        "run": "`rxllm.generate(engine, request).run()`",
        "replace copy with_options": "`rxllm.Engine(engine, errors='raise')`, which changes these settings",
    },
    # Names in modules
    "rxllm": {
        "CallDetails CallFinished CallStarted ChatFinished ChatStarted FirstToken ImagesFinished ImagesStarted Outcome "
        "RetryAttempt StepFinished StepStarted Telemetry ToolFinished ToolStarted Trace Tracer": (
            "`rxllm.telemetry.{name}`"
        ),
        "FakeImages GeminiImages OpenAIImages HTTPImageAdapter ImageAdapter": "`rxllm.images.{name}`",
        "Attachment FilePart FunctionTool Halt ImagePart ImageUsage Labelled MessageLike ModelInfo Part Partial "
        "Progress ProviderPart ResponseFormat SessionStatus SourcePart Spending TextAt TextPart ThinkingPart "
        "TokenCount ToolCallPart Turn request_key": "`rxllm.values.{name}`",
        "Adapter HTTPAdapter providers": "`rxllm.adapters.{name}`",
        "ChatOptions GenerateOptions ImageOptions Input StepOptions": "`rxllm.pipelines.{name}`",
        "Journal Limiter ToolRecord": "`rxllm.runtime.{name}`",
        "cache cached record cassette Cassette": (
            "`rxllm.testing.Cassette('answers.jsonl', engine)`, an engine that pays for each answer once and replays "
            "it; for a batch, write `rxllm.generate_many(engine, requests, journal='out.jsonl')`"
        ),
        "use_transport": "`rxllm.http.use_transport`",
        "progress_bar": "`rxllm.display.progress_bar`",
        "AgentTool": "`rxllm.tools.AgentTool`",
        "Prepared": "`rxllm.engine.Prepared`",
        "image": "`rxllm.user(text, path)` to send a picture, or `rxllm.generate_image(...)` to make one",
        "file picture pdf document attachment": "`rxllm.user(text, path)`",
        "call": '`rxllm.generate(engine, request)`, or `rxllm.ToolCall("c1", name, {...})` for a tool call',
        "tool_call": '`rxllm.ToolCall("c1", name, {...})`',
        "complete completion ask prompt invoke generate_text": "`rxllm.generate(engine, request)`",
        "agenerate acompletion ainvoke generate_async": "`await rxllm.generate(engine, request)`",
        "achat": "`await rxllm.chat(engine, request, tools=[...])`",
        "Agent agent create_agent": (
            "`rxllm.chat(engine, request, tools=[...])`; to use an agent in another chat, write "
            "`engine.as_tool(name=...)`"
        ),
        "as_tool agent_tool subagent handoff": "`engine.as_tool(name=...)`",
        "UsageLimits usage_limits": "`rxllm.Budget(tokens=...)`, with `operators.budget(budget)`",
        "interrupt ApprovalRequired": "`@rxllm.tool(approval=True)`, or `rxllm.ask_user(question)`",
        "Command RunState DeferredToolResults": "`rxllm.resume(engine, halted, approvals={...})`",
        "stream_text stream_chat astream": "`rxllm.stream(engine, request)`",
        "OpenAI AsyncOpenAI ChatOpenAI": "`rxllm.OpenAIChat()`, or the engine `'openai:gpt-5'`",
        "Model Client LLM LLMClient": "`rxllm.Engine('openai:gpt-5')`",
        "UserMessage HumanMessage": "`rxllm.user(text)`",
        "SystemMessage": "`rxllm.system(text)`",
        "AIMessage AssistantMessage": "`rxllm.assistant(text)`",
        "Conversation History Messages": "`rxllm.Thread()`",
        "function_tool tool_plain": "`@rxllm.tool`",
        "guard input_guard input_guardrail": "`alongside(check)`, or `operators.guard(check)`",
        "trim_messages trim": "`trim_thread(tokens=...)`, in `Engine(prepare=[...])`",
        "summarize compact compaction": "`compact_thread(engine, at=...)`, in `Engine(prepare=[...])`",
        "token_counter num_tokens tokens": "`rxllm.count_tokens(engine, request)`",
        "batch map generate_all": "`rxllm.generate_many(engine, requests)`",
        "AuthenticationError": "`rxllm.AdapterError`, and check whether error.reason is 'authentication_failed'",
        "RateLimitError": "`rxllm.AdapterError`, and check whether error.reason is 'rate_limited'",
        "api_key": "`rxllm.keys.put('openai', ...)`, or pass api_key= to the call or the adapter",
        "ops op": "`from rxllm import operators as ops`, or `rxllm.operators`",
    },
    "rxllm.operators": {
        "retry": "`retry_before_content(...)`, which never repeats text, or reactivex's `stream.retry(...)`",
        "timeout": "`time_limits(first=..., idle=...)`, or reactivex's `stream.timeout(...)`",
        "timeouts": "`time_limits(first=..., idle=..., total=...)`",
        "tally": "`trace(function)`, or reactivex's `stream.count()`",
        "checkpoint": "`trace(function)`, or reactivex's `stream.do_action(on_error=...)`",
        "do_action": "`tap(function)`, or reactivex's `stream.do_action(...)`",
        "catch": "`fallback(engine)`, or reactivex's `stream.catch(...)`",
        "print log debug do on_event": "`tap(print)`, or `trace()`",
        "rate_limit limit throttle": "`rate_limited(...)`",
        "json parse to_parsed to_json": "`parsed(type)`, or `partials(type)`",
        "partial_json": "`partials(object)`, and read each partial's so_far, which is plain JSON data",
        "partial partial_object partial_output stream_object": "`partials(type)`",
        "collect to_result response": "`to_response()`",
        "on_finish on_end on_abort finalize": "`finally_result(function)`",
        "guardrail guardrails check moderate": "`guard(check)`, or `rxllm.alongside(check)`",
        "pause pausable valve": "`gate(while_open)`",
        "latest drop sample_latest": "`keep_latest()`",
        "share share_replay broadcast": "`share_folded()`",
        "cache cached record replay": (
            "`rxllm.testing.Cassette('answers.jsonl', engine)`, an engine that pays for each answer once and replays it"
        ),
        "exhaust_map": "`keep_latest()`, which drops items while the consumer is busy",
        "retry_when": "`retry_before_content(...)`, or reactivex's `stream.retry(...)`",
        "tools call_tools execute_tools": "`run_tools(tools, thread=thread)`",
        "tokens deltas to_texts": "`text()`",
        "merge_labelled merge_labeled": "`rxllm.merge_labelled(...)`",
    },
    # If the advice on an option is a single name, that is rxllm's own name for the option.
    "call": {
        "openai_api_key anthropic_api_key google_api_key": "api_key",
        "extra_headers": "headers",
        "max_completion_tokens max_output_tokens max_new_tokens max_tokens_to_sample maxOutputTokens num_predict": (
            "max_tokens"
        ),
        "max_steps max_iterations max_iter max_rounds recursion_limit": "max_turns",
        "model_name model_id deployment_id": "model",
        "extra_body model_kwargs": "options",
        "effort": "reasoning_effort",
        "output schema response_model response_schema output_type output_schema output_format result_type text_format "
        "format": "response_format",
        "random_seed random_state": "seed",
        "thread_id conversation_id": "session_id",
        "stop_sequences stopSequences stop_words": "stop",
        "request_timeout timeout_seconds read_timeout": "timeout",
        "function_call": "tool_choice",
        "functions toolsets": "tools",
        "topP": "top_p",
        "n candidate_count best_of num_generations": (
            "for several answers, write `rxllm.generate_many(engine, [request] * {count})`"
        ),
        "max_retries num_retries retries": (
            "write `retry={'max_attempts': {attempts}}`, or `retry=False`; max_attempts includes the first attempt"
        ),
        "max_attempts": (
            "write `retry={'max_attempts': {count}}`, or `retry=False`; max_attempts includes the first attempt"
        ),
        "top_k top_a": _PASS_ON,  # rxllm's `top_p` is a different option
        "system_prompt system_message system_instruction instructions": "system",
        "messages prompt prompts input inputs contents history message_history chat_history": (
            "pass the prompt or the conversation as the second argument, after the engine"
        ),
        "stream streaming": (
            "to receive the events as they arrive, call `rxllm.stream_generate(...)`, `rxllm.stream_step(...)` or "
            "`rxllm.stream(...)`"
        ),
        "base_url api_base endpoint azure_endpoint openai_api_base": (
            "pass the URL to the engine, as in `rxllm.Engine.from_model('openai:...', base_url=...)`, or to an "
            "adapter, as in `rxllm.OpenAIChat(base_url=...)`"
        ),
        "client http_client async_client http_async_client": (
            "pass an HTTP client to the adapter, as in `rxllm.OpenAIChat(client=...)`, and a Dask client to "
            "`rxllm.cluster.generate_many`"
        ),
        "default_headers": "to send them with every call, pass them to the adapter: `rxllm.OpenAIChat(headers={...})`",
        "organization project": (
            "send it as the header 'OpenAI-Organization' or 'OpenAI-Project', as in "
            "`rxllm.OpenAIChat(headers={'OpenAI-Organization': ...})`"
        ),
        "transport http_transport": (
            "call `rxllm.http.use_transport('aiohttp')` once to set it for all calls; to use your own transport, pass "
            "a client that uses it: `rxllm.OpenAIChat(client=...)`"
        ),
        "output_retries result_retries validation_retries": (
            "`rxllm.generate(...).retry(2)` sends the request again if the answer does not match the response_format"
        ),
        "callbacks callback callback_manager event_stream_handler success_callback hooks": (
            "write `on_event=function` to receive the events of one call, or "
            "`rxllm.Engine(..., observers=[function])` to receive the telemetry of all calls"
        ),
        "concurrency max_workers": (
            "`rxllm.generate_many(engine, requests, concurrency=8)` sends 8 requests at a time"
        ),
        "journal ordered on_progress": (
            "it is an option of generate_many, as in `rxllm.generate_many(engine, requests, journal='out.jsonl')`"
        ),
        "cache caching use_cache cached": (
            "to pay for each answer once, ask a cassette: `rxllm.testing.Cassette('answers.jsonl', engine)`; for a "
            "batch, write `rxllm.generate_many(engine, requests, journal='out.jsonl')`"
        ),
        "resume resume_from checkpoint": (
            "a batch continues from its journal: `rxllm.generate_many(engine, requests, journal='out.jsonl')`; to "
            "continue a halted chat, write `rxllm.resume(engine, halted)`"
        ),
        "rate_limit rate_limiter requests_per_minute tokens_per_minute requests_per_second rpm tpm": (
            "write `rxllm.Engine(..., operators=[rxllm.operators.rate_limited(requests_per_minute=500)])`"
        ),
        "tracing tracer traces telemetry instrument": "write `rxllm.Engine(..., observers=[rxllm.otel.traces()])`",
        "logprobs response_logprobs": (
            "write `options={'logprobs': True}`; you will find them in `response.metadata['logprobs']`"
        ),
        "thinking think reasoning thinking_config thinking_budget": (
            "write `reasoning_effort='low'`, or another value that the provider accepts; if the provider has its own "
            "option for this, pass it in `options={...}`"
        ),
        "json_mode response_mime_type": (
            "write `response_format={'type': 'json_object'}`, or pass a type as response_format"
        ),
        "deps dependencies": "write `context={'name': ...}`, which tools receive as `rxllm.ToolContext.context`",
        "config generation_config model_settings settings": (
            "write each setting as an option, such as `temperature=0.0`; for all calls, write "
            "`rxllm.Engine(..., params={...})`"
        ),
        "fallback fallbacks": "write `rxllm.Engine(..., operators=[rxllm.operators.fallback(other)])`",
        "usage_limits max_budget budget usd": (
            "write `rxllm.Engine(..., operators=[rxllm.operators.budget(tokens=1000)])`, or pass a `rxllm.Budget` to "
            "that operator"
        ),
        "agents subagents sub_agents handoffs": (
            "use each agent as a tool: `tools=[engine.as_tool(name=..., description=...)]`"
        ),
        "approvals results deferred_tool_results": (
            "to continue a halted chat, write `rxllm.resume(engine, halted, approvals={...}, results={...})`"
        ),
        "prepare history_processors max_history num_history_messages": (
            "write `rxllm.Engine(..., prepare=[rxllm.trim_thread(tokens=8000)])`"
        ),
        "operators observers": "pass it to the engine: write `rxllm.Engine(..., operators=[...], observers=[...])`",
        "provider custom_llm_provider model_provider": "write the engine as 'provider:model'",
        "verbose debug": (
            "write `on_event=print`; to see what the library logs, call `logging.basicConfig()` and "
            "`logging.getLogger('rxllm').setLevel(logging.DEBUG)`"
        ),
        "keep_partial": (
            "pass it to the operator that makes the result: `rxllm.session.stream_reply(engine, session, text)"
            ".pipe(ops.finally_result(save, ops.to_session(session, keep_partial=True)))`, or "
            "`ops.to_chat_result(thread, keep_partial=True)` for a chat"
        ),
        "mock_response": "pass `rxllm.Fake('...')` as the engine",
        ANY: _PASS_ON,
    },
    "Engine(...)": {
        "headers timeout": (
            'to pass it to the adapter, write `Engine.from_model("openai:gpt-5", {name}=...)`; to pass it to every '
            "call, write `params={'{name}': ...}`"
        ),
        "api_key base_url client": 'pass it to the adapter: `Engine.from_model("openai:gpt-5", {name}=...)`',
        "budget": "write it as an operator: `operators=[rxllm.operators.budget({value})]`",
        "system_prompt system_message system_instruction instructions": "system",
        "agents handoffs": "write `Engine(..., tools=[engine.as_tool(name=...)])`",
        "options": "pass call options in `params={'options': ...}`",
        ANY: "if it is a call option, write `params={'{name}': {value}}`",
    },
    "HTTPBase(...)": {
        "model model_name": (
            'pass the model to the engine, as in `Engine({owner}(...), model="...")`, or to the call, as in '
            '`model="..."`'
        ),
        "max_retries retry": (
            'write `Engine({owner}(...), retry={"max_attempts": 3})`; max_attempts includes the first attempt'
        ),
        "temperature top_p max_tokens stop seed reasoning_effort tools response_format": (
            'pass it to the call or, for all calls, to the engine: `params={"{name}": ...}`'
        ),
        "url api_base endpoint host azure_endpoint": "write `base_url=...`",
        "key token auth_token openai_api_key anthropic_api_key": "write `api_key=...`",
        "http_client async_client http_async_client": "write `client=...`",
        "default_headers extra_headers": "write `headers={...}`",
    },
    "Fake(...)": {
        "delay": 'put it in the script: `Fake([("delay", {data}), "Hello"])`',
        "usage": 'put it in the script: `Fake(["Hello", rxllm.Usage(3, 5)])`',
        "tool_calls": 'put it in the script: `Fake([rxllm.ToolCall("c1", "add", {"a": 1})], "done")`',
        "error": 'put it in the script: `Fake(("error", "rate_limited"))`',
        "finish_reason": 'put it in the script: `Fake(["Hello", ("finish", "length")])`',
        "thinking": 'put it in the script: `Fake([("thinking", "hm"), "Hello"])`',
        "responses answers turns messages text response content": (
            'pass one argument for each answer: `Fake("first", "second")`'
        ),
        "model": 'pass the model to the engine: `Engine(Fake("Hello"), model="...")`',
        "tools": 'pass tools to the engine: `Engine(Fake("Hello"), tools=[...])`',
    },
    "FilePart(...)": {
        "mimeType mimetype mime media_type mediaType content_type contentType": "mime_type",
        "filename fileName file_name": "name",
        "uri href": "url",
    },
    "web.chat(...)": {
        "context deps user": (
            "the tools of a conversation receive its session's context: save such a session first, as in `await "
            "store.save(rxllm.Session(id=..., context={...}))`; for all conversations, write `rxllm.Engine(..., "
            "context={...})`"
        ),
        "tools model prepare operators": "pass it to the engine: `rxllm.Engine(..., {name}=...)`",
        "sessions session_store": "store",
    },
    # For functions that lack an argument
    "arguments": {
        "partials": "`ops.partials(City)`, with a class such as a dataclass or a pydantic model",
        "parsed": "`ops.parsed(City)`, with a class such as a dataclass or a pydantic model",
        "Cassette": "`rxllm.testing.Cassette('answers.jsonl', 'openai:gpt-5')`, and ask that in place of the engine",
        "Stream.of": "`rxllm.Stream.of(reactivex.from_iterable(items))`",
        "timeout": "`rxllm.Engine(adapter, params={'timeout': rxllm.Timeouts(first=10)})`",
    },
    "Budget(...)": {"dollars cost max_cost": "write `usd=...`"},
    "tool(...)": {
        "tool_timeout timeout_seconds time_limit": "timeout",
        "needs_approval requires_approval require_approval confirm": "approval",
        "parameters input_schema args_schema inputSchema": "schema",
        "function func fn callback": "handler",
    },
    # For streams that are used as if they were results, because ``.run()`` was not called.
    "Stream": {
        "result": (
            "it is a call that has not run yet; write `{call}.run().{attribute}`, or "
            "`(await {call}).{attribute}` in async code"
        ),
        "operator": "{operator} is an operator: write `.pipe(ops.{operator}(...))`",
        "attribute": "it has not run yet; iterate over its items, or use `.run()` or await to get its result",
        "item sum mapping": "it has not run yet; write `{call}.run()`, or await it in async code",
        "json": (
            "a Stream has no JSON form, because it has not run yet; write `return await stream` or, in a web server, "
            "`return rxllm.web.streaming_response(stream)`"
        ),
        "thread message": "it is a stream that has not run yet: write `.run()`, or await it",
        "tools": "the Stream has not run yet; write `tools=mcp.tools(url).run()`, or await it in async code",
        "setting": "the Stream has not run yet; write `.run()`, or await it in async code",
    },
}
"""Advice on wrong names, keyed by place and then by name.

Code is enclosed in backticks, which error messages omit. Advice on options can contain these placeholders:

* ``{name}``: the wrong name;
* ``{owner}``: the class that the option was passed to;
* ``{value}``: the option's value;
* ``{data}``: the option's value if it is JSON data, otherwise ``...``;
* ``{it}``: the word "it" if the value is JSON data, otherwise "JSON";
* ``{count}``: the option's value if it is a positive integer, otherwise 3;
* ``{attempts}``: the option's value plus 1 if it is a positive integer, otherwise 3.
"""
