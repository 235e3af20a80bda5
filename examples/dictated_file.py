"""Write a file while a model dictates it, and refuse a path outside the folder before the text is dictated.

    python examples/dictated_file.py                                                  # with a scripted model
    python examples/dictated_file.py anthropic:claude-sonnet-4-5 "Write a long poem to ../poem.txt"

A refusal closes the connection to the model, so the rest of the text is never sent. The model reads the reason and can
try again. A text that is cut off leaves no file.
"""

import json
import sys
from pathlib import Path

import rxllm
from rxllm import ToolCallDelta, ToolCallStarted, ToolExecutionCompleted

FOLDER = Path("dictated").resolve()
POEM = "\n".join(f"Line {number} of a poem without an end." for number in range(1, 101))


@rxllm.tool(eager=True, timeout=600.0)
async def write_file(path: str, text: rxllm.Stream[str]) -> str:
    """Write a text file. The path is relative to your folder."""
    file = (FOLDER / path).resolve()
    if not file.is_relative_to(FOLDER):
        raise rxllm.ToolError("handler_raised", f"{path} is outside your folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as written:
            async for piece in text:
                written.write(piece)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return f"{path} has {file.stat().st_size} bytes"


def dictated(id: str, path: str) -> list[tuple[str, object]]:
    """Return a script for a model that dictates the poem in small pieces."""
    arguments = json.dumps({"path": path, "text": POEM})
    pieces = [arguments[at : at + 40] for at in range(0, len(arguments), 40)]
    deltas = [("tool_call_delta", {"id": id, "name": "write_file", "arguments_delta": piece}) for piece in pieces]
    return [step for delta in deltas for step in (delta, ("delay", 0.002))]


scripted = rxllm.Fake(dictated("c1", "../poem.txt"), dictated("c2", "poem.txt"), "The poem is in poem.txt.")
model, prompt = sys.argv[1:3] if len(sys.argv) == 3 else (scripted, "Write a long poem.")

characters = 0
for event in rxllm.stream(model, prompt, tools=[write_file]):
    match event:
        case ToolCallStarted():
            characters = 0
        case ToolCallDelta(arguments_delta=text):
            characters += len(text)
        case ToolExecutionCompleted(error=None, result=result):
            print(f"saved after {characters} characters: {result}")
        case ToolExecutionCompleted(error=error):
            print(f"refused after {characters} characters: {error}")
        case rxllm.TextCompleted(text=text):
            print(text.strip())
