"""A chat that survives the death of its process. Kill it at any moment and start it again: the answer continues.

    python examples/durable_chat.py                             # with a small model on this machine
    python examples/durable_chat.py chat.db openai:gpt-5-mini   # or with another model

Ask it to roll a die, then end it with ``kill -9`` or close the terminal. When you start it again, finished rolls and
answers are still there. If an answer was cut off, it is requested again.
"""

import random
import sys
import time

import rxllm
from rxllm import durable
from rxllm.session import stream_reply

LEASE = 3.0  # seconds until another process continues the answer of a process that died


@rxllm.tool(idempotent=True)  # an unfinished roll can be repeated, because the user has not seen it
def roll(sides: int) -> int:
    """Roll a die.

    Args:
        sides: How many sides the die has.
    """
    time.sleep(1.0)
    return random.randint(1, sides)


def show(runs: durable.Runs, id: str) -> None:
    """Print an answer from its beginning, as it arrives."""
    try:
        for event in runs.watch(id):
            match event:
                case rxllm.TextDelta(delta=text):
                    print(text, end="", flush=True)
                case rxllm.ToolExecutionCompleted(result=result):
                    print(f"[rolled {result}] ", end="", flush=True)
                case rxllm.StepRestarted():
                    print("\n[asked again] ", end="", flush=True)
                case _:
                    pass
    except rxllm.LLMError as error:
        print(error, end="")
    print()


def chat(path: str = "chat.db", model: str = "local") -> None:
    def build(text: str, session: rxllm.Session) -> rxllm.Stream[rxllm.Event]:
        return stream_reply(model, session, text, tools=[roll])

    with durable.open_runs(path, {"chat": build}, lease=LEASE) as runs:
        saved = runs.session("me").run()
        for message in saved.session.messages:
            print(f"{'> ' if message.role == 'user' else ''}{message.text}")
        if saved.run is not None:
            print("[continuing]", flush=True)
            while saved.run not in runs.produced and runs.session("me").run().run is not None:
                runs.recover().run()
                time.sleep(0.1)
            show(runs, saved.run)
        while text := input("> "):
            show(runs, runs.start("chat", text, session=runs.session("me").run()).run())


if __name__ == "__main__":
    try:
        chat(*sys.argv[1:])
    except (EOFError, KeyboardInterrupt):
        print()
