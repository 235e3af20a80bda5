"""A terminal window that answers while you type. Three models race to answer, and the first wins.

Whenever you pause, it asks the question in the box and cancels the previous answer. Each model has a lane. As soon as
one of them begins to answer, the others are struck out: their calls are cancelled and their connections closed. To
quit, press Ctrl-Q. In a pipe, each line is a question, and the lanes and the answer are plain lines.

    pip install rxllm textual
    python examples/type_ahead.py                                               # three stand-ins, which need no key
    python examples/type_ahead.py openai:gpt-5-mini anthropic:claude-haiku-4-5  # or your own models
    echo "Why is the sky blue?" | python examples/type_ahead.py
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterable
from functools import partial

from reactivex import Observable, Subject, empty
from reactivex.scheduler.eventloop import AsyncIOScheduler
from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import Input, Static

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


class Race:
    """A race of models to answer a question: what the lanes show, and the answer so far, twenty times a second."""

    def __init__(self, engines: dict[str, Engine], question: str) -> None:
        self.names = [*engines]
        self.winner: str | None = None
        self.began = self.ended = time.monotonic()
        racers = (
            rxllm.stream_generate(engine, question).pipe(ops.tap(partial(self.finish, name), rxllm.TextDelta))
            for name, engine in engines.items()
        )
        self.answers = rxllm.race(*racers).pipe(ops.errors_as_events(), ops.snapshots(every=0.05))

    def finish(self, name: str, event: rxllm.TextDelta) -> None:
        """Note who was the first to answer."""
        if self.winner is None:
            self.winner, self.ended = name, time.monotonic()

    def lanes(self, answer: Response | None = None) -> Text:
        """Draw a line for each model. Those that lose are struck out."""
        lines = Text()
        for name in self.names:
            if name == self.winner:
                lines.append(f"{name:12}first after {self.ended - self.began:.1f} s\n", "bold green")
            elif self.winner is not None:
                lines.append(name, "dim strike").append(f"{' ' * (12 - len(name))}cancelled\n", "dim")
            elif answer is not None and answer.error is not None:
                lines.append(f"{name:12}failed\n", "red")
            else:
                lines.append(f"{name:12}{time.monotonic() - self.began:.1f} s\n", "blue")
        return lines


class TypeAhead(App[None]):
    CSS = """
    #lanes { height: auto; margin: 1 2 0 2 }
    #answer { height: 1fr; border: round $primary; padding: 1 2; margin: 0 1 }
    """

    def __init__(self, engines: dict[str, Engine]) -> None:
        super().__init__()
        self.engines = engines
        self.questions = Subject[str]()
        self.race: Race | None = None
        self.lanes = Static("\n".join(engines), id="lanes", markup=False)
        self.answer = Static(id="answer", markup=False)

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Ask a question, and keep typing")
        yield self.lanes
        yield self.answer

    def on_mount(self) -> None:
        self.set_interval(0.1, self.draw_lanes)
        answers = rxllm.Stream.of(self.questions).debounce(PAUSE).distinct_until_changed().switch_map(self.ask)
        self.answers = answers.subscribe(self.show, scheduler=AsyncIOScheduler(asyncio.get_running_loop()))

    def on_unmount(self) -> None:
        self.answers.dispose()

    def on_input_changed(self, typed: Input.Changed) -> None:
        self.questions.on_next(typed.value.strip())

    def ask(self, question: str) -> Observable[Response]:
        """Start a race. A failure becomes part of the answer."""
        if not question:
            return empty()
        self.race = Race(self.engines, question)
        return self.race.answers

    def show(self, answer: Response) -> None:
        self.answer.update(str(answer.error or answer.output_text))
        self.draw_lanes(answer)

    def draw_lanes(self, answer: Response | None = None) -> None:
        if self.race is not None:
            self.lanes.update(self.race.lanes(answer))
            if answer is not None and answer.error is not None:
                self.race = None  # the clocks stop


def answer_lines(engines: dict[str, Engine], questions: Iterable[str]) -> None:
    """Answer each question in plain lines."""
    for question in questions:
        race = Race(engines, question.strip())
        answer = race.answers.run()  # the last snapshot
        print(race.lanes(answer).plain)
        print(answer.error or answer.output_text, end="\n\n")


if __name__ == "__main__":
    chosen = {name: Engine(name) for name in sys.argv[1:]}
    models = chosen or {name: stand_in(name) for name in ("Ada", "Grace", "Alan")}
    if sys.stdin.isatty() and sys.stdout.isatty():
        TypeAhead(models).run()
    else:
        answer_lines(models, sys.stdin)
