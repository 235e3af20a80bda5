"""Two agents, a person who approves an order, and a correction that is typed while the model answers.

A desk calls a botanist and a florist, each a chat with its own model. The florist's order waits for approval, and the
whole chat waits with it, stored as JSON. The models are scripted. An argument replaces all three with a real one:
python examples/agents.py openai:gpt-5
"""

import sys

from reactivex import Subject

import rxllm
from rxllm import Event, Nested, Steered, TextCompleted, TextDelta, ToolCall, ToolExecutionStarted, serializer
from rxllm import operators as ops


@rxllm.tool(approval=True)
def order(flower: str, number: int) -> str:
    """Order flowers, which are delivered today."""
    return f"{number} {flower} are on their way, and arrive at five"


def model(*script: str | ToolCall | list[str | ToolCall | tuple[str, float]]) -> rxllm.Engine:
    return rxllm.Engine.from_model(sys.argv[1]) if sys.argv[1:] else rxllm.Engine(rxllm.Fake(*script))


botanist = model(["Peonies are in season. ", ("delay", 0.2), "Roses are not."]).as_tool(
    name="botanist", description="Knows all about flowers.", system="You are a botanist. Answer in one sentence."
)
florist = model(ToolCall("c1", "order", {"flower": "peonies", "number": 20}), "They arrive at five.").as_tool(
    name="florist", description="Orders flowers.", tools=[order]
)
desk = model(
    ToolCall("c1", "botanist", {"prompt": "Which flowers are in season?"}),
    ToolCall("c2", "florist", {"prompt": "Twenty peonies for today, please."}),
    ["Your peonies come today. ", ("delay", 0.2), "The peony is named after Paeon, ", "who healed the gods, ", "and"],
    "At five o'clock.",
).with_tools(botanist, florist)

typed = Subject[str]()  # what a person types; a window or a web socket would push here


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

stored = serializer.to_json(halted)  # it may wait in a database for days, and continue in another process
halted = serializer.from_json(stored, rxllm.ChatResult)
answers = {}
for call in halted.pending_tool_calls:
    print(f"? {call.name} {dict(call.arguments)} ({call.id}): yes, but twelve are enough")
    answers[call.id] = {**call.arguments, "number": 12}

events = rxllm.stream_resume(desk, halted, approvals=answers, steer=typed.take(1))
result = events.pipe(ops.tap(show), ops.to_chat_result()).run()
print(f"({result.halted_reason})")
