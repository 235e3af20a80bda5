"""The terminal's screen: what is printed above the live part, and that nothing is lost or printed twice."""

from __future__ import annotations

import io
import re

import pytest

import rxllm
from rxllm import AdapterError, Usage, events
from rxllm import operators as ops
from rxllm.display._card import Card
from rxllm.display._plain import Plain
from tests.window import Window

pytest.importorskip("rich", reason="a terminal's cards need rich")

from rich.console import Console

from rxllm.display._rich import Terminal


class Drawing:
    """A card on a terminal of its own, which is drawn after each event."""

    def __init__(self, columns: int = 60, rows: int = 12) -> None:
        self.window = Window(columns, rows)
        self.file = io.StringIO()
        self.card = Card(0.0)
        console = Console(file=self.file, width=columns, height=rows, force_terminal=True, legacy_windows=False)
        self.terminal = Terminal(console)
        self.terminal.open({None: self.card}, None)

    def add(self, *items: events.Event) -> str:
        """Draw `items` one by one, and return what the window has shown so far."""
        for item in items:
            self.card = self.card.add(item, 1.0)
            self.terminal.draw({None: self.card}, 1.0)
            self._feed()
        return self.window.text

    def finish(self) -> str:
        self.terminal.finish({None: self.card.finish("done", 2.0)}, 2.0)
        self._feed()
        return self.window.text

    def _feed(self) -> None:
        self.window.feed(self.file.getvalue())
        self.file.seek(0)
        self.file.truncate()


def deltas(text: str, size: int = 7) -> list[events.Event]:
    return [events.TextDelta(text[start : start + size]) for start in range(0, len(text), size)]


def test_a_paragraph_that_is_over_is_not_drawn_again() -> None:
    drawing = Drawing()
    drawing.add(*deltas("One.\n\nTwo.\n\nThree"))
    drawing.card = drawing.card.add(events.TextDelta(" and"), 1.0)
    drawing.terminal.draw({None: drawing.card}, 1.0)
    assert "One" not in drawing.file.getvalue()
    assert "Three and" in drawing.file.getvalue()
    drawing._feed()
    assert drawing.finish().startswith("One.\n\nTwo.\n\nThree and\n\n")


BLOCKS = {
    "list": "".join(f"{n}. item{n}\n" for n in range(1, 41)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| item{n} | {'x' * (n % 9)} |\n" for n in range(1, 41)),
    "code": "```python\n" + "".join(f"item{n} = 1\n\n" for n in range(1, 41)) + "```\n",
    "paragraph": "".join(f"item{n} is one of many words. " for n in range(1, 41)),
}


@pytest.mark.judges
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_that_is_taller_than_the_window_shows_its_end_and_is_whole_at_last(kind: str) -> None:
    drawing = Drawing()
    drawing.add(*deltas(f"Before.\n\n{BLOCKS[kind]}"))
    assert "item40" in drawing.window.visible
    drawing.add(*deltas("\n\nAfter.\n\nThe end.\n"))
    text = drawing.finish()
    assert re.findall(r"item\d+", text) == [f"item{n}" for n in range(1, 41)]
    assert re.findall(r"Before|After|The end", text) == ["Before", "After", "The end"]


@pytest.mark.judges
def test_a_draw_is_written_at_once_and_replaces_only_lines_in_the_window() -> None:
    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return super().write(text)

    writes: list[str] = []
    drawing = Drawing()
    drawing.terminal._console.file = Writes()
    for delta in deltas("One.\n\n" + "".join(BLOCKS.values())):
        writes.clear()
        drawing.card = drawing.card.add(delta, 1.0)
        drawing.terminal.draw({None: drawing.card}, 1.0)
        assert len(writes) == 1
        assert writes[0].count("\x1b[1A") < drawing.window.rows


def test_a_step_that_starts_again_is_drawn_below_the_one_that_was_cut_off() -> None:
    drawing = Drawing()
    drawing.add(*deltas("One.\n\nTwo.\n\nThr"))
    text = drawing.add(events.StepRestarted("timeout", 2), *deltas("Uno.\n\nDos.\n\nTres.\n"))
    assert re.findall("One|started again|Uno|Dos", text) == ["One", "started again", "Uno", "Dos"]


CALL = {"id": "c1", "name": "double"}
CALLED = [
    events.TextDelta("I double."),
    events.ToolCallStarted(**CALL),
    events.ToolCallCompleted(**CALL, arguments={"x": 2}, raw_arguments='{"x": 2}'),
]


def test_a_tool_is_printed_once_with_its_result() -> None:
    drawing = Drawing()

    @rxllm.tool
    def double(x: int) -> str:
        """Double x."""
        return "four"

    turns = [["I double.", rxllm.ToolCall("c1", "double", {"x": 2})], ["One.\n\n", "The result is 4."]]
    drawing.add(*rxllm.to_iter(rxllm.stream(rxllm.Fake(scripts=turns), "Double 2", tools=[double])))
    text = drawing.finish()
    assert text.count("I double.") == text.count("double {") == text.count("four") == 1
    assert "running" not in text


def test_a_text_may_grow_after_a_tool_call() -> None:
    drawing = Drawing()
    drawing.add(*CALLED, *deltas(" And I add."))
    assert drawing.finish().count("I double.") == 1


def test_thinking_gives_way_to_a_note() -> None:
    drawing = Drawing()
    assert "hmm" in drawing.add(events.ThinkingDelta("hmm"))
    text = drawing.add(*deltas("One.\n\nTwo.")) and drawing.finish()
    assert text.startswith("(thinking)\n\nOne.\n\nTwo.\n\n")
    assert "hmm" not in text


def test_long_thinking_shows_its_last_words() -> None:
    drawing = Drawing()
    text = drawing.add(events.ThinkingDelta("".join(f"thought{n} " for n in range(100))))
    first, *_ = shown = re.findall(r"\S*thought\d+", text)
    assert first.startswith("…thought")
    assert shown[-1] == "thought99"
    assert len(shown) < 40


BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("view", ["a terminal", "printed", "a timeline"])
def test_bidirectional_controls_are_shown_as_escapes(view: str, capsys: pytest.CaptureFixture[str]) -> None:
    tricks = "".join(map(chr, BIDI))
    call = rxllm.ToolCall("c1", f"pay{tricks}", {"to": f"ada{tricks}"})
    scene = list(rxllm.stream_generate(rxllm.Fake([f"Hi {tricks}", call]), "?"))
    if view == "a terminal":
        drawing = Drawing()
        shown = drawing.add(*scene) + drawing.finish()
    elif view == "a timeline":
        timed = rxllm.stream(rxllm.Fake([call], "No."), "?").pipe(ops.timed())
        shown = str(rxllm.timeline(list(timed)))
    else:
        screen = Plain(text_only=False)
        for event in scene:
            screen.add(event)
        shown = capsys.readouterr().out
    assert "\\u202e" in shown
    assert not {*tricks} & {*shown}


def test_html_is_shown_as_it_was_written() -> None:
    drawing = Drawing()
    drawing.add(events.TextDelta("A Vec<String>, and\n\n<details>more</details>\n"))
    assert drawing.finish().startswith("A Vec<String>, and\n\n<details>more</details>\n\n")


def test_the_status_line_breaks_between_its_texts() -> None:
    drawing = Drawing(columns=34)
    drawing.add(events.TextDelta("Hi"), events.UsageUpdated(Usage(1000, 2000, total_cost=0.5)))
    *_, status = drawing.finish().split("\n\n")
    assert len(status.splitlines()) > 1
    assert {"1.00 s to the first token", "3,000 tokens", "cost 0.5"} <= set(re.split(r" ·\s", status))


def test_an_error_is_below_the_text() -> None:
    drawing = Drawing()
    drawing.add(events.TextDelta("Hal"), events.ErrorEvent(AdapterError("timeout", provider="fake")))
    assert re.match(r"Hal\n\nAdapterError: .*timeout\n\nfailed", drawing.finish())


def test_cards_side_by_side_are_live_until_they_end() -> None:
    drawing = Drawing()
    cards = {label: Card(0.0).add(events.TextDelta("One.\n\nTwo.\n\n"), 1.0) for label in ("ann", "bob")}
    drawing.terminal.draw(cards, 1.0)
    drawing.terminal.finish(cards, 2.0)
    drawing._feed()
    assert drawing.window.text.count("One.") == 2
    assert re.match(r"╭─+ ann ─+╮╭─+ bob ─+╮\n", drawing.window.text)
