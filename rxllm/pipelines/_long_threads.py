"""Keep a long conversation within the context window.

A summary is stored in the answer message, as ``metadata["summary"]``, so it is part of the thread's JSON. This entry
contains the summary's `text`, the number of `messages` that the summary replaces, and the `digest` of these messages.
System messages are not counted. Later calls use the latest summary whose digest still matches the thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Literal, Unpack

import msgspec
from reactivex import Observable, just, throw
from reactivex import operators as rx_ops

from rxllm import validate
from rxllm.engine import Engine, Prepared, as_engine
from rxllm.events import Custom
from rxllm.pipelines._generate import generate
from rxllm.pipelines._setup import Input, Setup, as_request
from rxllm.pipelines.options import GenerateOptions, request_id, with_options
from rxllm.runtime import Deferred, Stream, policy, result_of, retrying
from rxllm.values import (
    AdapterError,
    FilePart,
    ImagePart,
    LLMError,
    Message,
    Part,
    Request,
    Response,
    TextPart,
    TokenCount,
    assistant,
    estimated_tokens,
    message_tokens,
    system,
    user,
)
from rxllm.values.argument_checks import check, check_count, check_function, explains_call, is_whole, must_be
from rxllm.values.errors import ValidationError
from rxllm.values.json_text import json_bytes, json_text

_log = logging.getLogger("rxllm")

INSTRUCTIONS = (
    "Summarize the conversation in the user's message for the assistant who will continue it. Keep names, numbers, "
    "decisions, results of tools, open questions, and what the user wants. Write nothing but the summary, in the "
    "language of the conversation."
)
QUESTION = "What has been said so far?"
"""The user message before the summary, for chat templates that require roles to alternate."""


@with_options(GenerateOptions)
def count_tokens(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[TokenCount]:
    """Count the tokens of `request` for its model.

    >>> from rxllm import Fake
    >>> count_tokens(Fake("2, 3, 5."), "Name three primes.").run()
    TokenCount(tokens=9, estimated=True)

    The engine's tools, options and system prompt are included. Anthropic, Gemini, Vertex AI, OpenAI's Responses API and
    the local model count the tokens themselves. Counting takes one request, with the same key, retries and errors as
    any other request. For other models and servers, the number is an estimate, and ``estimated`` is True. The estimate
    is 1 token per 4 bytes of text, plus 4 per message. An image or non-text file adds 1,000, and an image with
    ``detail="low"`` adds 100.

    The engine's `prepare` functions are not called. Your own adapter can also count tokens if it has a method
    ``count_tokens(request, call)`` that returns an Observable of one `TokenCount`.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    request = as_request(request)
    return setup.returned_by("count_tokens", Deferred(lambda: _count(setup, request)), TokenCount, request)


def _count(setup: Setup, request: Request) -> Observable[TokenCount]:
    request = setup.with_system(setup.complete(request))
    validate.request(request)
    count = getattr(setup.engine.adapter, "count_tokens", None)
    if count is None:
        return just(TokenCount(estimated_tokens(request), estimated=True))
    call = setup.call(request_id(setup.options))
    rules: Any = policy(setup.options.get("retry", setup.engine.retry), setup.engine.retry)
    counts: Any = retrying(lambda: count(request, call), rules)
    return counts


@explains_call("trim_thread(tokens=8000)")
def trim_thread(*, tokens: int) -> Callable[[Request], Request]:
    """Send only the newest exchanges, up to about `tokens` tokens.

    >>> from rxllm import Engine, Fake, Thread, assistant, chat
    >>> model = Fake("2, 3, 5.")
    >>> thread = Thread() + "A long story, please." + assistant("Once upon a time. " * 50) + "Now three primes."
    >>> result = chat(Engine(model, prepare=[trim_thread(tokens=100)]), thread).run()
    >>> [message.text for message in model.requests[0].messages], len(result.thread)
    (['Now three primes.'], 4)

    Pass the returned function to ``Engine(prepare=[...])``. An exchange is a user message and everything up to the next
    user message. System messages and the last exchange are always sent. If the last exchange is too long for the
    provider, the call fails with ``AdapterError("context_length_exceeded")``. The thread and the results keep every
    message.

    Tokens are estimated as in `count_tokens`, including tools and the response format. Leave room for the answer.

    Each time another exchange is dropped, the provider's cache misses everything after the system messages. Thinking
    that is bound to the dropped messages is no longer sent, because Claude 5.5 and similar models would refuse it.

    Raises ``ValidationError("invalid_option")`` if `tokens` is not an integer >= 1.
    """
    check_count("tokens", tokens)

    def trim(request: Request) -> Request:
        validate.request(request)
        messages = request.messages
        starts = exchange_starts(messages)
        left = tokens - estimated_tokens(replace(request, messages=_from_exchange(messages, len(messages))))
        end, kept = len(messages), None
        for start in reversed(starts):
            left -= sum(map(message_tokens, _spoken(messages[start:end])))
            if left < 0 and kept is not None:
                return replace(request, messages=_from_exchange(messages, kept))
            end = kept = start
        return request

    return trim


@explains_call('compact_thread("openai:gpt-5-mini", at=20_000)')
@with_options(GenerateOptions)
def compact_thread(
    engine: Engine | str | Any,
    *,
    at: int,
    keep: int = 2,
    instructions: str = INSTRUCTIONS,
    on_error: Literal["raise", "continue"] = "raise",
    count: Callable[[Request], Any] | None = None,
    **opts: Unpack[GenerateOptions],
) -> Callable[[Request], Any]:
    """Summarize long threads with `engine`.

    Pass the returned function to ``Engine(prepare=[...])``, as its first entry. If a request has more than `at` tokens,
    a summary replaces all but the last `keep` exchanges.

    >>> from rxllm import Fake, Thread, assistant, chat
    >>> summaries, model = Fake("The user likes foxes."), Fake("Rex?")
    >>> thread = Thread() + "I like foxes. " * 50 + assistant("So do I.") + "A name for one?"
    >>> result = chat(Engine(model, prepare=[compact_thread(summaries, at=100, keep=1)]), thread).run()
    >>> [message.text for message in model.requests[0].messages]
    ['What has been said so far?', 'The user likes foxes.', 'A name for one?']
    >>> len(result.thread), result.thread.last.metadata["summary"]["messages"]
    (4, 2)

    The model receives the system messages, the summary, and the last exchanges. The thread and the results keep every
    message. An exchange is a user message and everything up to the next user message. A thread of at most `keep`
    exchanges is never summarized.

    Each summary is generated only once, and stored in the metadata of the answer's message. Later steps and turns reuse
    it while the messages that it replaces stay the same. When a request exceeds `at` again, the old summary and the
    messages after it are summarized together.

    A separate call generates the summary, with the options `opts` and the system message `instructions`. The usage of
    this call is added to the answer's usage. Right after the answer starts, it emits
    ``Custom("thread_compacted", {"messages", "tokens_before", "tokens_after", "usage"})``. If the summary fails, the
    answer fails with the same error. With ``on_error="continue"``, the request is sent without a new summary, and a
    warning is logged. The answer then emits ``Custom("thread_compaction_failed", {"error"})``.

    After each new summary, the provider's cache misses everything after the system messages once. Thinking in the kept
    exchanges is bound to the messages that the summary replaces, so it is no longer sent to Claude 5.5 and similar
    models, which would refuse it.

    Tokens are estimated. For exact numbers at every step, pass
    ``count=lambda request: rxllm.count_tokens(engine, request)``.

    Raises ``ValidationError("invalid_option")`` if an argument is invalid. Invalid options raise the same errors as in
    ``generate``.
    """
    check_count("at", at)
    check_count("keep", keep)
    check("instructions", instructions, isinstance(instructions, str), "a string")  # pyright: ignore[reportUnnecessaryIsInstance]
    check("on_error", on_error, on_error in ("raise", "continue"), '"raise" or "continue"')
    if count is not None:
        check_function("count", count)
    engine = as_engine(engine)
    Setup.of(engine, GenerateOptions, opts)  # raises an error if an option is invalid

    def prepare(request: Request) -> Any:
        validate.request(request)
        last = _last_summary(_spoken(request.messages))
        sent = replace(request, messages=_with_summary(request.messages, last))
        starts = exchange_starts(request.messages)
        place = starts[-keep] if len(starts) >= keep else 0
        if len(_spoken(request.messages[:place])) <= last.messages:
            return sent
        if count is None:
            return compacted(request, sent, last, place, estimated_tokens(sent))
        counted = result_of(partial(count, sent)).map(_tokens)
        return counted.flat_map(lambda tokens: result_of(lambda: compacted(request, sent, last, place, tokens)))

    def compacted(request: Request, sent: Request, last: _Summary, place: int, tokens: int) -> Any:
        if tokens <= at:
            return sent
        older = _spoken(request.messages[:place])
        text = _transcript(last.text, older[last.messages :])
        summary = generate(engine, Request((system(instructions), user(text))), **opts)
        finished = summary.map(partial(_replace_older, request, older, tokens))
        return finished if on_error == "raise" else finished.pipe(rx_ops.catch(partial(_send_whole, sent)))

    return prepare


class _Summary(msgspec.Struct, frozen=True):
    """A summary of a thread's first messages.

    `messages` is how many messages the summary replaces, not counting system messages.
    """

    messages: int = 0
    digest: str = ""
    text: str = ""


def _spoken(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message for message in messages if message.role != "system")


def _last_summary(spoken: Sequence[Message]) -> _Summary:
    for message in reversed(spoken):
        match message.metadata.get("summary"):
            case {"messages": int(number), "digest": str(digest), "text": str(text)}:
                if 0 < number <= len(spoken) and digest == _digest(spoken[:number]):
                    return _Summary(number, digest, text)
            case _:
                pass
    return _Summary()


def _digest(messages: Sequence[Message]) -> str:
    calls = [[(call.id, call.name, call.arguments) for call in message.tool_calls] for message in messages]
    texts = [(message.role, message.name, message.content, message.tool_call_id) for message in messages]
    return sha256(json_bytes([texts, calls])).hexdigest()[:32]


def _with_summary(messages: tuple[Message, ...], summary: _Summary) -> tuple[Message, ...]:
    if not summary.messages:
        return messages
    places = [i for i, message in enumerate(messages) if message.role != "system"]
    place = places[summary.messages] if summary.messages < len(places) else len(messages)
    head = (message for message in messages[:place] if message.role == "system")
    return (*head, user(QUESTION), assistant(summary.text), *messages[place:])


def _replace_older(request: Request, older: Sequence[Message], tokens: int, response: Response[Any]) -> Prepared:
    response.raise_for_error()
    text = response.output_text.strip()
    if not text:
        message = f"the summary of the conversation is empty (finish reason {response.finish_reason})"
        raise AdapterError("malformed_response", message)
    summary = _Summary(len(older), _digest(older), text)
    sent = replace(request, messages=_with_summary(request.messages, summary))
    numbers = {"messages": len(older), "tokens_before": tokens, "tokens_after": estimated_tokens(sent)}
    event = Custom("thread_compacted", {**numbers, "usage": response.usage})
    return Prepared(sent, {"summary": msgspec.structs.asdict(summary)}, event, response.usage)


def _send_whole(sent: Request, error: Exception, _: Any) -> Observable[Prepared]:
    if not isinstance(error, LLMError):
        return throw(error)
    _log.warning(
        "the conversation could not be summarized, so it is sent without a new summary: %s", type(error).__name__
    )
    return just(Prepared(sent, event=Custom("thread_compaction_failed", {"error": error})))


def _tokens(result: Any) -> int:
    tokens = result.tokens if isinstance(result, TokenCount) else result
    if is_whole(tokens):
        return int(tokens)
    fault = must_be("a function that returns a TokenCount or a number of tokens", result)
    raise ValidationError("invalid_option", errors=[(("count",), fault)])


def exchange_starts(messages: Sequence[Message]) -> list[int]:
    """Return the indexes of the messages that start an exchange.

    >>> from rxllm.values import assistant, system, user
    >>> exchange_starts([system("Be brief."), user("Hi"), assistant("Hello"), user("Bye")])
    [1, 3]

    Messages before the first user message also form an exchange, unless they are system messages. No exchange starts
    between a tool call and its result. If a call has no result, no exchange starts after it, because trimming must not
    hide the unanswered call.
    """
    starts: list[int] = []
    reach = _last_results(messages)
    answered = -1  # an exchange can start only after this index
    for i, message in enumerate(messages):
        if message.role != "system" and (not starts or message.role == "user") and answered < i:
            starts.append(i)
        answered = max(answered, reach.get(i, -1))
    return starts


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """Map the index of each message that calls tools to the index of the last result of those calls.

    If a result is missing, the message is mapped to the length of the thread.
    """
    made_at: dict[str, int] = {}
    reach: dict[int, int] = {}
    unanswered: dict[str, int] = {}
    for i, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in made_at:
            reach[made_at[message.tool_call_id]] = i
            unanswered.pop(message.tool_call_id, None)
        made_at.update((call.id, i) for call in message.tool_calls)
        unanswered.update((call.id, i) for call in message.tool_calls if not call.metadata.get("server"))
    return reach | dict.fromkeys(unanswered.values(), len(messages))


def _from_exchange(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    return tuple(message for i, message in enumerate(messages) if i >= start or message.role == "system")


def _transcript(before: str, messages: Sequence[Message]) -> str:
    """Return `messages` as text, preceded by the summary `before`.

    >>> from rxllm.values import assistant, user
    >>> print(_transcript("The user likes foxes.", [user("A name for one?"), assistant("Rex.")]))
    summary of what came before: The user likes foxes.
    <BLANKLINE>
    user: A name for one?
    <BLANKLINE>
    assistant: Rex.

    Thinking is left out. An image becomes ``[image]``, and a file is replaced by its name or type.
    """
    head = [f"summary of what came before: {before}"] if before else []
    return "\n\n".join((*head, *_lines(messages)))


def _lines(messages: Iterable[Message]) -> Iterator[str]:
    names: dict[str | None, str] = {}
    for message in messages:
        text = _text(message)
        if message.role == "tool":
            yield f"result of {names.get(message.tool_call_id, 'a tool')}: {text}"
        elif text:
            yield f"{message.role}: {text}"
        for call in message.tool_calls:
            names[call.id] = call.name
            yield f"{message.role} calls {call.name}({call.raw_arguments or json_text(call.arguments)})"


def _text(message: Message) -> str:
    if isinstance(message.content, dict):
        return json_text(message.content)
    return "".join(map(_shown, message.parts)).strip()


def _shown(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text
        case ImagePart():
            return " [image] "
        case FilePart(file=file):
            return f" [file {file.get('name') or file.get('mime_type') or 'without a name'}] "
        case _:
            return ""
