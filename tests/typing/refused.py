"""What a type checker refuses: each comment must be needed. Checked by pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import rxllm
import rxllm.adapters
import rxllm.images
from rxllm import Fake, TextDelta, tool
from rxllm import operators as ops

fake = Fake("Hi")
events = rxllm.stream_generate(fake, "Hello")

# Options are a closed set

rxllm.generate(fake, "Hi", top_k=1)  # pyright: ignore[reportCallIssue]
rxllm.generate(fake, "Hi", max_turns=1)  # pyright: ignore[reportCallIssue]
rxllm.step(fake, "Hi", max_turns=1)  # pyright: ignore[reportCallIssue]
rxllm.generate(fake, "Hi", temperature="hot")  # pyright: ignore[reportArgumentType]
rxllm.chat(fake, "Hi", mode="sometimes")  # pyright: ignore[reportArgumentType]
rxllm.chat(fake, "Hi", on_tool_error="ignore")  # pyright: ignore[reportArgumentType]
rxllm.chat(fake, "Hi", halt_when=lambda step: step.nothing)  # pyright: ignore
rxllm.chat(fake, "Hi", steer="Stop")  # pyright: ignore[reportArgumentType]
rxllm.chat(fake, "Hi", steer_at="word")  # pyright: ignore[reportArgumentType]
rxllm.step(fake, "Hi", steer_at="step")  # pyright: ignore[reportCallIssue]
rxllm.generate(fake, "Hi", response_format=3)  # pyright: ignore
rxllm.generate(fake, "Hi", response_format=int, top_k=1)  # pyright: ignore[reportCallIssue]
rxllm.generate(fake, 3)  # pyright: ignore[reportArgumentType]
rxllm.generate(fake, ["Hi"])  # pyright: ignore[reportArgumentType]
rxllm.generate(fake, rxllm.generate(fake, "Hi").run())  # pyright: ignore[reportArgumentType]
rxllm.user("Hi", 3)  # pyright: ignore[reportArgumentType]
print(rxllm.Thread() + 3)  # pyright: ignore

# A scripted model takes pieces of script

Fake(5)  # pyright: ignore[reportArgumentType]
Fake(["a", 5])  # pyright: ignore[reportArgumentType]

# Operators fit where their input is

events.pipe(ops.to_text(), ops.text())  # pyright: ignore
events.pipe(ops.tap(lambda event: event.nothing, TextDelta))  # pyright: ignore
events.pipe(ops.only(TextDelta)).map(lambda event: event.nothing)  # pyright: ignore

# What is not there

rxllm.stream_generat(fake, "Hi")  # pyright: ignore
ops.txt()  # pyright: ignore
rxllm.testing.Loopbak  # pyright: ignore
rxllm.adapters.OpenAi  # pyright: ignore
rxllm.images.Nothing  # pyright: ignore
events.output_text  # pyright: ignore
rxllm.generate(fake, "Hi").output_text  # pyright: ignore
rxllm.generate(fake, "Hi").run().text  # pyright: ignore
rxllm.Engine(fake, operators=[ops.text()])  # pyright: ignore
rxllm.Engine(fake, tools=["add"])  # pyright: ignore
rxllm.Engine(fake, base_url="http://localhost/v1")  # pyright: ignore

# A decorated function keeps its parameters


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


add("1")  # pyright: ignore[reportArgumentType]
add()  # pyright: ignore[reportCallIssue]
tool(handler=print)  # pyright: ignore
tool(name="x", timeout="5")  # pyright: ignore
rxllm.resume(fake, "Hi", approvals={"c1": 1})  # pyright: ignore
rxllm.chat(fake, "Hi", approve_timeout="5")  # pyright: ignore[reportArgumentType]

# Values and events are frozen

TextDelta("Hi").delta = "no"  # pyright: ignore[reportAttributeAccessIssue]
