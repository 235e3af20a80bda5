"""An engine with tools, middleware and an observer, made from lists.

Prints::

    add took part
    CallFinished CallStarted
    That makes 42.
"""

from typing import assert_type

import rxllm
from rxllm import ChatResult, Engine, Fake, Request, Stream, ToolCall
from rxllm import operators as ops
from rxllm.telemetry import Telemetry


@rxllm.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("add took part")
    return a + b


@rxllm.tool
def subtract(a: int, b: int) -> int:
    """Subtract b from a."""
    return a - b


def brief(request: Request) -> Request:
    return rxllm.request(request, max_tokens=100)


seen: list[str] = []


def watch(value: Telemetry) -> None:
    seen.append(type(value).__name__)


tools = [add, subtract]
engine = Engine(
    Fake(ToolCall("c1", "add", {"a": 2, "b": 40}), "That makes 42, said bob@example.org."),
    model="gpt-5",
    tools=tools,
    operators=[ops.redact(r", said \S+@\S+\w", replacement=""), ops.smooth()],
    prepare=[brief],
    observers=[watch],
    params={"temperature": 0.0},
)
answer = rxllm.chat(engine, "How much are 2 and 40?")
assert_type(answer, Stream[ChatResult])
result = answer.run()
print(*sorted({name for name in seen if name.startswith("Call")}))
print(assert_type(result.output_text, str))
