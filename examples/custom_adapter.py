"""An adapter of one's own: an async generator of chunks, round anything that makes words. Here that is a generator."""

import re
from collections.abc import AsyncIterator, Iterator

import rxllm
from rxllm import TextDelta, ToolExecutionStarted, chunks
from rxllm import operators as ops


def words(said: str) -> Iterator[str]:
    """Stands for the model: it knows how to say a thing, word by word."""
    yield from re.findall(r"\S+\s*", f"That makes {said}." if said.isdigit() else f"You said: {said}")


async def adder(request: rxllm.Request, call: rxllm.Call) -> AsyncIterator[chunks.StreamChunk]:
    last = request.messages[-1]
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
