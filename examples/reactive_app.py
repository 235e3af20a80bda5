"""Type questions; each is answered as it streams, and a new one cancels the answer that is still coming.

Cancelling closes the old answer's connection, so the model stops working on it. An error is shown and the app goes on.
End with Ctrl-D, or Ctrl-C. Another model can be named: python examples/reactive_app.py openai:gpt-4.1-mini
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from reactivex import Observable, concat, of

import rxllm
from rxllm import operators as ops

ENGINE = rxllm.Engine.from_model(sys.argv[1] if len(sys.argv) > 1 else "local")


async def typed_lines() -> AsyncIterator[str]:
    """The lines of standard input, as they are typed."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip():
            yield line.strip()


def answer(question: str) -> Observable[str]:
    """The pieces of an answer; what goes wrong is part of the conversation."""
    pieces = rxllm.stream_generate(ENGINE, question).pipe(ops.text())
    safe = pieces.catch(lambda error, _: of(f"[{error}]"))
    return concat(of(f"\n> {question}\n"), safe, of("\n"))


def main() -> None:
    answers = rxllm.from_async_iter(typed_lines).switch_map(answer).start_with("")
    rxllm.run(answers.pipe(ops.tap(lambda piece: print(piece, end="", flush=True))))


if __name__ == "__main__":
    main()
