"""This example's models and their tools: a small model on this machine, and a scripted model."""

import asyncio
from typing import Any

import rxllm


@rxllm.tool
async def weather(city: str, context: rxllm.ToolContext) -> dict[str, str | int]:
    """Get the current weather in a city."""
    context.progress(f"looking at the sky over {city}")
    await asyncio.sleep(1)
    if city == "Atlantis":
        raise rxllm.ToolError("handler_raised", "no such city")
    return {"city": city, "sky": "sunny", "celsius": 21}


@rxllm.tool(approval=True)
def order(item: str, amount: int) -> str:
    """Order an item from the shop."""
    return f"{amount} x {item}, here tomorrow"


def slow(kind: str, *pieces: Any) -> list[Any]:
    return [step for piece in pieces for step in ((kind, piece), ("delay", 0.06))]


MARKDOWN = """\
Three fruits and what they **cost**:

| Fruit | Season | Price |
|:--|:--|--:|
| Apple | autumn | €2.50 |
| Cherry | summer | €6.90 |
| Orange | winter | €3.20 |

1. Apples keep for months.
2. Cherries *do not*.

```python
prices = {"apple": 2.50, "cherry": 6.90, "orange": 3.20}
print(f"{sum(prices.values()):.2f}")
```
"""


def scripted(request: rxllm.Request) -> list[Any]:
    """Play a model that orders, asks an expert, writes Markdown, or repeats what the user has written so far."""
    texts = [message.text for message in request.messages if message.role == "user"]
    thoughts = slow("thinking", "An order, ", "a question for the expert, ", "or should I say ", "what I remember?")
    if request.messages[-1].role == "tool":
        return slow(
            "text", "That is ", "what the ", "**expert** says." if "expert" in texts[-1].lower() else "settled."
        )
    if "table" in texts[-1].lower():
        return thoughts + slow("text", *MARKDOWN.splitlines(keepends=True))
    if "order" in texts[-1].lower():
        pieces = ('{"item": ', '"pizza", ', '"amount": ', "2}")
        return thoughts + slow("tool_call_delta", *({"name": "order", "arguments_delta": piece} for piece in pieces))
    if "expert" in texts[-1].lower():
        return [*thoughts, rxllm.ToolCall("", "expert", {"prompt": texts[-1]})]
    words = f"I remember {len(texts)} of your messages: {' '.join(texts)} {'And so on. ' * 9}".split()
    return thoughts + slow("text", *(f"{word} " for word in words))


def expert(request: rxllm.Request) -> list[Any]:
    calls = [rxllm.ToolCall("", "weather", {"city": city}) for city in ("Paris", "Atlantis")]
    return slow("text", "Take ", "sunglasses.") if request.messages[-1].role == "tool" else calls


LOCAL = rxllm.Engine("local", params={"temperature": 0.0, "max_tokens": 300})
AGENT = rxllm.Engine(rxllm.Fake(expert)).with_tools(weather).as_tool(name="expert", description="Ask for the weather.")
MODELS = {
    "local": LOCAL,
    "local with tools": LOCAL.with_tools(weather, order),  # a model this small calls a tool whatever you write
    "scripted": rxllm.Engine(rxllm.Fake(scripted)).with_tools(order, AGENT),
}
