"""trim_thread: send no more of a conversation than a number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rxllm import validate
from rxllm.pipelines._exchanges import exchange_starts, from_exchange
from rxllm.values import Message, Request, estimated_tokens, message_tokens
from rxllm.values.argument_checks import check_count, explains_call


@explains_call("trim_thread(tokens=8000)")
def trim_thread(*, tokens: int) -> Callable[[Request], Request]:
    """Return a function for ``Engine(prepare=[...])`` that sends the newest exchanges only, within about `tokens`.

    >>> from rxllm import Engine, Fake, Thread, assistant, chat
    >>> model = Fake("2, 3, 5.")
    >>> thread = Thread() + "A long story, please." + assistant("Once upon a time. " * 50) + "Now three primes."
    >>> result = chat(Engine(model, prepare=[trim_thread(tokens=100)]), thread).run()
    >>> [message.text for message in model.requests[0].messages], len(result.thread)
    (['Now three primes.'], 4)

    An exchange is a user's message with everything up to the next one, so a tool call stays with its results. System
    messages are always sent, and so is the last exchange: if that alone is too long, it is left to the provider, whose
    refusal is ``AdapterError("context_length_exceeded")``. The thread and the results keep every message.

    Tokens are estimated, at four bytes of text a token, see `count_tokens`; tools and the format count too. Leave some
    room, for that and for the answer.

    Raises ``ValidationError("invalid_option")`` unless `tokens` is a whole number of at least 1.
    """
    check_count("tokens", tokens)

    def trim(request: Request) -> Request:
        validate.request(request)
        messages = request.messages
        starts = exchange_starts(messages)
        left = tokens - estimated_tokens(replace(request, messages=from_exchange(messages, len(messages))))
        end, kept = len(messages), None
        for start in reversed(starts):
            left -= sum(map(message_tokens, _spoken(messages[start:end])))
            if left < 0 and kept is not None:
                return replace(request, messages=from_exchange(messages, kept))
            end = kept = start
        return request

    return trim


def _spoken(messages: tuple[Message, ...]) -> list[Message]:
    return [message for message in messages if message.role != "system"]
