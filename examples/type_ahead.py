"""A terminal window that answers while you type. Three models race to answer, and the first wins.

Whenever you pause, it asks the question in the box and cancels the previous answer. As soon as one model begins to
answer, the calls to the others are cancelled and their connections closed. To quit, press Ctrl-Q.

    pip install rxllm textual
    python examples/type_ahead.py                                               # three stand-ins, which need no key
    python examples/type_ahead.py openai:gpt-5-mini anthropic:claude-haiku-4-5  # or your own models
"""

import asyncio
import random
import sys

from reactivex import Observable, Subject, empty
from reactivex.scheduler.eventloop import AsyncIOScheduler
from textual.app import App, ComposeResult
from textual.widgets import Input, Label, Static

import rxllm
from rxllm import Engine, Fake, Response
from rxllm import operators as ops

PAUSE = 0.4
"""Seconds without a keystroke before the question is asked."""


def stand_in(name: str) -> Engine:
    """Return a model that thinks for a while and then answers slowly."""

    def answer(request: rxllm.Request) -> list[object]:
        words = f"You ask: {request.messages[-1].text!r} I am {name}, and I was quick today.".split()
        thinking = ("delay", random.uniform(0.1, 1.0))
        return [thinking, *(piece for word in words for piece in (f"{word} ", ("delay", 0.1)))]

    return Engine(Fake(answer), model=name)


class TypeAhead(App[None]):
    CSS = "#answer { height: 1fr; border: round $primary; padding: 1 2; margin: 0 1 } #asked { margin: 0 2 }"

    def __init__(self, engines: dict[str, Engine]) -> None:
        super().__init__()
        self.engines = engines
        self.questions = Subject[str]()

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Why is the sky blue?")
        yield Static(id="answer", markup=False)
        yield Label("Ask a question, and keep typing", id="asked")

    def on_mount(self) -> None:
        answers = rxllm.Stream.of(self.questions).debounce(PAUSE).distinct_until_changed().switch_map(self.ask)
        self.answers = answers.subscribe(self.show, scheduler=AsyncIOScheduler(asyncio.get_running_loop()))

    def on_unmount(self) -> None:
        self.answers.dispose()

    def on_input_changed(self, typed: Input.Changed) -> None:
        self.questions.on_next(typed.value.strip())

    def ask(self, question: str) -> Observable[Response]:
        """Stream the answer so far, twenty times a second. A failure becomes part of the answer."""
        if not question:
            return empty()
        self.query_one("#asked", Label).update(f"Asked {', '.join(self.engines)}")
        racers = [rxllm.stream_generate(engine, question) for engine in self.engines.values()]
        return rxllm.race(*racers).pipe(ops.errors_as_events(), ops.snapshots(every=0.05))

    def show(self, answer: Response) -> None:
        self.query_one("#answer", Static).update(str(answer.error or answer.output_text))
        if "race" in answer.metadata:
            self.query_one("#asked", Label).update(f"{[*self.engines][answer.metadata['race']['winner']]} was first")


if __name__ == "__main__":
    chosen = {name: Engine.from_model(name) for name in sys.argv[1:]}
    TypeAhead(chosen or {name: stand_in(name) for name in ("Ada", "Grace", "Alan")}).run()
