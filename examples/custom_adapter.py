"""Turn anything that produces text into an adapter, an async generator of chunks. Here a function produces it."""

import re
from collections.abc import AsyncIterator, Iterator

import rxllm
from rxllm import TextDelta, ToolExecutionStarted, chunks
from rxllm import operators as ops


def words(text: str) -> Iterator[str]:
    """Stand in for a model: answer `text` word by word."""
    yield from re.findall(r"\S+\s*", f"That makes {text}." if text.isdigit() else f"You said: {text}")


async def adder(request: rxllm.Request, call: rxllm.values.Call) -> AsyncIterator[chunks.StreamChunk]:
    last = request.messages[-1]  # the user's question, or the tool's result
    numbers = [int(number) for number in re.findall(r"\d+", last.text)]
    if request.tools and last.role == "user" and numbers:
        yield chunks.thinking("I had better not do sums in my head.")
        yield chunks.tool_call("add", {"numbers": numbers})
    else:
        for word in words(last.text):
            yield chunks.text(word)
    yield chunks.meta({"usage": {"input_tokens": len(last.text.split())}})


@rxllm.tool
def add(numbers: list[int]) -> int:
    """Add numbers."""
    return sum(numbers)


if __name__ == "__main__":
    chat = rxllm.stream(adder, "How much are 2 and 40?", tools=[add]).pipe(
        ops.tap(lambda event: print(f"{event.name}({event.arguments})"), ToolExecutionStarted),
        ops.tap(lambda event: print(event.delta, end="", flush=True), TextDelta),
    )
    print(f"\n{chat.pipe(ops.to_chat_result()).run()}")
