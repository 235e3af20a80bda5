"""Many requests at a time, one of which fails, and what they cost together.

Prints::

    A
    a timeout
    C
    6 tokens
    3 of 3, 1 failed
"""

from typing import Any, assert_type

import rxllm
from rxllm import Fake, Request, Response, Usage
from rxllm.values import Progress


def answer(request: Request) -> list[tuple[str, str] | str | Usage]:
    text = request.messages[-1].text
    return [("error", "timeout")] if text == "b" else [text.upper(), Usage(1, 2, total_tokens=3)]


done: list[Progress] = []
responses = rxllm.generate_many(Fake(answer), ["a", "b", "c"], concurrency=2, on_progress=done.append)
total = Usage()
for response in responses:
    assert_type(response, Response[Any])
    print(response.output_text if response.error is None else f"a {response.error.reason}")
    total = assert_type(total + response.usage, Usage)
print(total.total, "tokens")
print(f"{done[-1].done} of {done[-1].total}, {done[-1].failed} failed")
