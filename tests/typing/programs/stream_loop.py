"""The events of a stream in a plain loop.

Prints::

    (Primes are easy.) 2, 3, 5.
    12 tokens, stop
"""

from typing import assert_type

import rxllm
from rxllm import ErrorEvent, Event, Fake, MessageCompleted, TextDelta, ThinkingDelta, Usage, UsageUpdated

usage = Usage()
finish_reason: str | None = None
model = Fake([("thinking", "Primes are easy."), "2, ", "3, ", "5.", Usage(4, 8)])
for event in rxllm.stream_generate(model, "Name three primes."):
    assert_type(event, Event)
    match event:
        case ThinkingDelta(delta=text):
            print(f"({text})", end=" ")
        case TextDelta(delta=text):
            print(assert_type(text, str), end="", flush=True)
        case UsageUpdated():
            usage = event.usage
        case MessageCompleted():
            finish_reason = event.finish_reason
        case ErrorEvent():
            raise event.error
        case _:
            pass
print(f"\n{usage.total} tokens, {finish_reason}")
