"""Type questions and watch the answers stream. A new question cancels the answer that is still streaming.

When an answer is cancelled, its connection is closed, so the model stops working on it. If a call fails, the app shows
the error and continues. To end the app, press Ctrl-D or Ctrl-C. To choose another model, name it:
python examples/reactive_app.py openai:gpt-4.1-mini
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from reactivex import Observable, concat, of

import rxllm
from rxllm import operators as ops

ENGINE = rxllm.Engine(sys.argv[1] if len(sys.argv) > 1 else "local")


async def questions() -> AsyncIterator[str]:
    """Yield the lines of standard input as they are typed."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip():
            yield line.strip()


def answer(question: str) -> Observable[str]:
    """Stream the text of an answer. An error becomes part of that text."""
    text = rxllm.stream_generate(ENGINE, question).pipe(ops.text())
    text_or_error = text.catch(lambda error, _: of(f"[{error}]"))
    return concat(of(f"\n> {question}\n"), text_or_error, of("\n"))


def main() -> None:
    answers = rxllm.from_async_iter(questions).switch_map(answer)  # switch_map cancels the previous answer
    # run() needs at least one item, but without a question there is no answer. So the empty string comes first.
    rxllm.run(answers.start_with("").pipe(ops.tap(lambda text: print(text, end="", flush=True))))


if __name__ == "__main__":
    main()
