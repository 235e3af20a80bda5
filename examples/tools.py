"""A chat with a real model on this machine. The model calls a weather tool, reads the result, and answers."""

import rxllm
from rxllm import StepCompleted, ToolExecutionCompleted, ToolExecutionStarted
from rxllm import operators as ops


@rxllm.tool
def weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    return {"city": city, "sky": "sunny", "celsius": 21}


chat = rxllm.stream("local", "What is the weather in Paris?", tools=[weather], temperature=0.0).pipe(
    ops.tap(lambda event: print(f"  runs     {event.name} with {dict(event.arguments)}"), ToolExecutionStarted),
    ops.tap(lambda event: print(f"  returned {event.result}"), ToolExecutionCompleted),
    ops.tap(lambda event: print(f"step: {event.response}"), StepCompleted),
    ops.to_chat_result(),
)
result = chat.run()

print()
print(result.output_text)
print(f"({result.halted_reason} after {len(result.steps)} steps, {result.usage.total} tokens)")
