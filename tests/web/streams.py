"""Streams for the codecs: of scripts, and of recordings."""

from __future__ import annotations

from functools import partial
from typing import Any

import rxllm
from rxllm import Engine, Event, RetryPolicy
from rxllm import operators as ops
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.ollama.decoder import OllamaDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.values import Thread, system, user
from tests.corpus import recordings
from tests.laws import scripts

THREAD = Thread((system("CANARY-system"), user("Hi")))

DECODERS: dict[str, Any] = {
    "openai-chat": partial(ChatDecoder, think_tags=True),  # as one that is served under another address
    "openai-responses": ResponsesDecoder,
    "anthropic-messages": MessagesDecoder,
    "gemini": GeminiDecoder,
    "ollama-chat": OllamaDecoder,
}


def of_script(script: Any, function: Any = rxllm.stream, **options: Any) -> list[Event]:
    """The events of a scripted model with tools of every kind; an error is the last of them."""
    engine = Engine(
        scripts.fake(script),
        tools=tuple(scripts.TOOLS),
        retry=RetryPolicy(max_attempts=2, base_delay=0.0, jitter=0.0),
    )
    return list(function(engine, THREAD, **options).pipe(ops.errors_as_events()))


def of_recordings(api: str, every: int = 1) -> list[tuple[str, list[Event]]]:
    """The events of the recorded streams of `api`, of one in `every`."""
    streams: list[tuple[str, list[Event]]] = []
    for recording in recordings(api)[::every]:
        decoder = DECODERS[api]()
        streams.append((recording.name, [*decoder.feed(recording.body), *decoder.close()]))
    return streams
