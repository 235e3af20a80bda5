"""A chat in which the model calls tools, one of them asynchronous, and a second turn.

Prints::

    calls weather with {'city': 'Paris'}
    Sunny, at 21 degrees.
    completed after 2 steps
    6 messages, the last: You are welcome.
"""

from typing import assert_type

import rxllm
from rxllm import ChatResult, Fake, Thread, ToolCall, ToolContext


@rxllm.tool
async def weather(city: str, context: ToolContext) -> dict[str, str | int]:
    """Get the weather in a city."""
    context.progress({"asking": city})
    return {"sky": "sunny", "celsius": 21}


model = Fake(ToolCall("c1", "weather", {"city": "Paris"}), "Sunny, at 21 degrees.", "You are welcome.")
result = rxllm.chat(model, "How is the weather in Paris?", tools=[weather], max_turns=4).run()
assert_type(result, ChatResult)
for step in result.steps:
    for call in step.response.tool_calls:
        print("calls", assert_type(call.name, str), "with", dict(call.arguments))
print(result.output_text)
print(result.halted_reason, "after", len(result.steps), "steps")

thread = assert_type(result.thread, Thread) + rxllm.user("Thanks!")
second = rxllm.chat(model, thread, tools=[weather]).run()
last = second.thread.last
print(len(second.thread), "messages, the last:", last.text if last is not None else "none")
