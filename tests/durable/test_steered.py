"""Runs that the user corrects while they go on, and which another process goes on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reactivex import Observable, never, of
from reactivex.subject import Subject

import rxllm
from rxllm import ChatResult, Fake, Request, ToolCall
from rxllm.durable import Runs, open_runs
from rxllm.events import Event, Steered, StepCompleted, TextDelta
from tests.durable.support import RAN, add, in_loop, take_over

STEERS: list[Subject[str]] = []


class Model:
    """Says where it is; the last answer does not end while `hangs`."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.hangs = answers, True
        self.asked: list[list[str]] = []

    def __call__(self, request: Request) -> Any:
        texts = [message.text for message in request.messages if message.role == "user"]
        self.asked.append(texts)
        number = sum(message.role == "assistant" for message in request.messages)
        answer = self.answers[number]
        return [*answer, ("delay", 60)] if self.hangs and number == len(self.answers) - 1 else [*answer]


def build(model: Model, steer: Callable[[], Observable[str]], **options: Any) -> Any:
    return lambda input: rxllm.stream(Fake(model), input, steer=steer(), tools=[add], **options)


async def typed(runs: Runs, id: str, steer: Subject[str], text: str, at: Callable[[Event], bool]) -> None:
    """Type when an event is committed, and wait until the correction is."""
    is_typed = False
    async for event in runs.watch(id):
        if not is_typed and at(event):
            is_typed = True
            steer.on_next(text)
        if isinstance(event, Steered):
            return


def says(text: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, TextDelta) and text in event.delta


STORY = ["We start in Rome. ", ("delay", 0.1), "Then we go to Nap", ("delay", 0.3), "les. ", "And Capri. "]


@pytest.mark.parametrize("steer_at", ["sentence", "step"])
@pytest.mark.parametrize("late", [[], ["Hurry!"]])
def test_a_committed_correction_is_kept_by_the_next_process(tmp_path: Path, steer_at: Any, late: list[str]) -> None:
    """The next process hears other corrections, which join the chat later."""
    model = Model(STORY, ["Rome and Naples, then."], ["Yes."])
    model.hangs = False
    steer = Subject[str]()

    async def main() -> None:
        model.answers = (STORY, ["Rome and Naples, then.", ("delay", 60)], ["Yes."])
        path = tmp_path / "runs.db"
        async with open_runs(path, {"chat": build(model, lambda: steer, steer_at=steer_at)}) as runs:
            id = await runs.start("chat", "Plan a trip.")
            await typed(runs, id, steer, "No islands!", says("Nap"))
            before = [event async for event in runs.watch(id).take_while(lambda e: not isinstance(e, Steered))]
        first = next(event.result for event in before if isinstance(event, StepCompleted))
        assert first.response.output_text.endswith("Naples. " if steer_at == "sentence" else "Capri. ")
        model.answers = (STORY, ["Rome and Naples, then."], ["Yes."])
        model.asked.clear()
        steer_again = (lambda: of(*late)) if late else never
        async with open_runs(path, {"chat": build(model, steer_again, steer_at=steer_at)}) as runs:
            await take_over(runs, id)
            result = await runs.result(id)
            events = [event async for event in runs.watch(id)]
        assert isinstance(result, ChatResult)
        users = [message.text for message in result.thread if message.role == "user"]
        assert users == ["Plan a trip.", "No islands!", *late]
        assert result.steps[0].response == first.response
        assert model.asked[0] == ["Plan a trip.", "No islands!"]  # the first answer is not asked again
        assert [event.message.text for event in events if isinstance(event, Steered)] == ["No islands!", *late]

    in_loop(main)


def test_a_step_without_a_correction_stays_so(tmp_path: Path) -> None:
    """The next process hears one at once, and answers it after the step that it asks for."""

    async def main() -> None:
        model = Model([ToolCall("c0", "add", {"x": 1})], ["It is 2."], ["Well."])
        model.answers = (model.answers[0], ["It is 2.", ("delay", 60)], ["Well."])
        model.hangs = False
        path = tmp_path / "runs.db"
        async with open_runs(path, {"chat": build(model, never, steer_at="step")}) as runs:
            id = await runs.start("chat", "Add!")
            await runs.watch(id).filter(says("It is 2.")).first()
        model.answers = (model.answers[0], ["It is 2."], ["Well."])
        model.asked.clear()
        async with open_runs(path, {"chat": build(model, lambda: of("Sure?"), steer_at="step")}) as runs:
            await take_over(runs, id)
            result = await runs.result(id)
        assert isinstance(result, ChatResult)
        assert model.asked == [["Add!"], ["Add!", "Sure?"]]
        assert [message.text for message in result.thread if message.role == "assistant"][1:] == ["It is 2.", "Well."]
        assert RAN == [1]

    in_loop(main)
