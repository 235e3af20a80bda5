"""Two agents, a person who approves an order, and a correction that the user types while the model answers.

A desk calls two agents, a botanist and a florist, each with its own model. The florist's order needs approval. Until a
person approves it, the whole chat is stored as JSON. The models are scripted. To replace all three, name a real model:
python examples/agents.py openai:gpt-5
"""

import sys

from reactivex import Subject

import rxllm
from rxllm import Event, Nested, Steered, TextCompleted, TextDelta, ToolCall, ToolExecutionStarted, serializer
from rxllm import operators as ops


@rxllm.tool(approval=True)
def order(flower: str, number: int) -> str:
    """Order flowers for delivery today."""
    return f"{number} {flower} are on their way and will arrive at five"


def model(*script: str | ToolCall | list[str | ToolCall | tuple[str, float]]) -> rxllm.Engine:
    return rxllm.Engine(sys.argv[1]) if sys.argv[1:] else rxllm.Engine(rxllm.Fake(*script))


botanist = model(["Peonies are in season. ", ("delay", 0.2), "Roses are not."]).as_tool(
    name="botanist", description="Knows all about flowers.", system="You are a botanist. Answer in one sentence."
)
florist = model(ToolCall("c1", "order", {"flower": "peonies", "number": 20}), "They arrive at five.").as_tool(
    name="florist", description="Orders flowers.", tools=[order]
)
desk = model(
    ToolCall("c1", "botanist", {"prompt": "Which flowers are in season?"}),
    ToolCall("c2", "florist", {"prompt": "Twenty peonies for today, please."}),
    ["Your peonies arrive today. ", ("delay", 0.2), "The peony is named after Paeon, ", "who healed the gods, ", "and"],
    "At five o'clock.",
).with_tools(botanist, florist)

typed = Subject[str]()  # what the user types; in an app, a window or a web socket would push it


def show(event: Event) -> None:
    path, inner = (event.path, event.event) if isinstance(event, Nested) else ((), event)
    indent = "    " * len(path)
    match inner:
        case ToolExecutionStarted(name=name, arguments=arguments):
            print(f"{indent}{name} {dict(arguments)}")
        case TextCompleted(text=text):
            print(f"{indent}{text.strip()}")
        case Steered(message=message):
            print(f"> {message.text}")
        case TextDelta(delta=text) if not path and "." in text:
            typed.on_next("When exactly?")  # the user is impatient
        case _:
            pass


question = "Please order twenty flowers that are in season."
print(f"> {question}")
halted = rxllm.stream(desk, question).pipe(ops.tap(show), ops.to_chat_result()).run()

stored = serializer.to_json(halted)  # it can stay in a database for days, and another process can continue the chat
halted = serializer.from_json(stored, rxllm.ChatResult)
answers = {}
for call in halted.pending_tool_calls:
    print(f"? {call.name} {dict(call.arguments)} ({call.id}): yes, but twelve are enough")
    answers[call.id] = {**call.arguments, "number": 12}

events = rxllm.stream_resume(desk, halted, approvals=answers, steer=typed.take(1))
result = events.pipe(ops.tap(show), ops.to_chat_result()).run()
print(f"({result.halted_reason})")
