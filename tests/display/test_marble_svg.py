"""The picture of a marble diagram, measured: rows, places, colours, labels and the legend."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
import reactivex
from hypothesis import assume, given
from hypothesis import strategies as st
from reactivex import operators as rx

import rxllm
from rxllm import StreamError, TextDelta, ThinkingDelta
from rxllm import operators as ops
from rxllm.display import MarbleDiagram, marble_diagram
from rxllm.display._marble_lanes import QUIET, rows_of
from rxllm.display._marble_svg import _SHAPES, MAX_WIDTH, PALETTE, _width
from rxllm.events import ErrorEvent, MessageStarted, TextCompleted
from tests.pictures import SCENARIOS, answer, plays

VALUES: dict[str, Any] = {
    "d": TextDelta("delta"),
    "t": ThinkingDelta("a thought "),
    "s": MessageStarted(rxllm.assistant("")),
    "c": TextCompleted("delta"),
    "e": ErrorEvent(StreamError("truncated")),
    "v": {"key": "value"},
    "X": StreamError("timeout"),
}

Box = tuple[float, float, float, float]


@dataclass
class Drawn:
    """What is on a picture, from top to bottom."""

    width: float
    texts: list[tuple[str, str, Box]] = field(default_factory=list)
    lines: list[tuple[float, float, float]] = field(default_factory=list)  # y, left and right end
    marks: list[tuple[float, float, str, str]] = field(default_factory=list)  # y, x, kind and colour
    boxes: list[float] = field(default_factory=list)  # the y of each operator

    def row(self, y: float) -> list[tuple[str, str]]:
        """Return the kinds and colours of the items in a row, from left to right."""
        return [
            (kind, colour)
            for place, _, kind, colour in sorted(self.marks)
            if place == y and kind in _SHAPES and kind not in (*QUIET, "at once", "end", "error", "dispose", "running")
        ]


def measure(diagram: MarbleDiagram) -> Drawn:
    root = ElementTree.fromstring(diagram.svg())
    drawn = Drawn(float(root.attrib["width"]))
    for element in root:
        tag, style = element.tag.rpartition("}")[2], element.get("class", "")
        if tag == "text":
            drawn.texts.append((element.text or "", style, box_of(element)))
        if tag == "rect" and style != "card":
            drawn.boxes.append(float(element.attrib["y"]))
        if (
            tag == "path"
            and style == "line soft"
            and (line := re.fullmatch(r"M(\S+) (\S+)H(\S+)", element.attrib["d"]))
        ):
            drawn.lines.append((float(line[2]), float(line[1]), float(line[3])))
        elif tag == "path":
            drawn.marks += marks_of(element)
    return drawn


def box_of(text: ElementTree.Element) -> Box:
    style = text.get("class", "")
    size = next((size for name, size in (("code", 13), ("small", 11)) if name in style), 12)
    width = _width(text.text or "") * size / 12
    anchor = 0.5 if "middle" in style or "code" in style else 1.0 if "end" in style else 0.0
    left, base = float(text.attrib["x"]) - anchor * width, float(text.attrib["y"])
    return left, left + width, base - size * 0.75, base + size * 0.2


def marks_of(path: ElementTree.Element) -> list[tuple[float, float, str, str]]:
    kinds = {shape: kind for kind, (_, _, shape) in _SHAPES.items()}
    found = re.findall(r"M(\S+) ([\d.]+)(m[^M]*)", path.attrib["d"])
    colour = path.get("fill") or path.get("class", "")
    return [
        (float(y), float(x), kinds.get(shape, "several" if "v12" in shape else "at once"), colour)
        for x, y, shape in found
    ]


def overlap(first: Box, second: Box) -> bool:
    return (
        first[0] < second[1] - 0.1
        and second[0] < first[1] - 0.1
        and first[2] < second[3] - 0.1
        and second[2] < first[3] - 0.1
    )


def names_of(diagram: MarbleDiagram) -> set[str]:
    """Return the names of all marks that must be in the legend, from the recorded signals alone."""
    names: set[str] = set()
    for span in (row.span for row in rows_of(diagram._lanes)):
        names |= {_SHAPES[mark.kind][0] for mark in span.marks}
        names |= {_SHAPES[span.outcome][0]} if span.outcome in _SHAPES else {"still running"} - {span.outcome}
        times = [mark.at for mark in span.marks if mark.kind not in QUIET]
        names |= {"at once"} if len(set(times)) < len(times) else set()
    return names - ({"still running"} if all(s.outcome for lane in diagram._lanes for s in lane.spans) else set())


@st.composite
def pieces(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from([*"---sdtcev", "(dt)", "(sdc)", "(ee)"]), min_size=1, max_size=4))
    return "".join(parts) + draw(st.sampled_from(["|", "X", "-", "(d|)"]))


@st.composite
def diagrams(draw: st.DrawFn) -> MarbleDiagram:
    """One or two sources through an operator that may subscribe to the first one twice. No row is dense."""
    sources = draw(st.lists(pieces(), min_size=1, max_size=2))
    times = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), max_size=1))

    def combine(first: Any, *rest: Any) -> Any:
        again = [reactivex.timer(at).pipe(rx.flat_map(first)) for at in times]
        return reactivex.merge(first, *again, *rest)

    streams = [plays(source, **VALUES) for source in sources]
    diagram = marble_diagram(streams, combine, labels=[*"abc"[: len(streams)], "combine"], until=20.0, virtual=True)
    assume("many items" not in diagram.svg())
    return diagram


# Rows


@given(diagrams())
def test_each_subscription_has_a_row_that_starts_and_ends_at_its_times(diagram: MarbleDiagram) -> None:
    drawn, rows = measure(diagram), rows_of(diagram._lanes)
    assert len(drawn.lines) == len(rows)
    assert [y for y, _, _ in drawn.lines] == sorted({y for y, _, _ in drawn.lines})
    starts = sorted((row.span.start, left) for row, (_, left, _) in zip(rows, drawn.lines, strict=True))
    assert all((first[0] < second[0]) == (first[1] < second[1]) for first, second in pairwise(starts))
    for row, (_, left, right) in zip(rows, drawn.lines, strict=True):
        assert left < right or row.span.start == row.span.latest


def test_a_retry_is_a_second_row_that_starts_where_the_first_one_fails() -> None:
    diagram = SCENARIOS["retry_before_content"]()
    first, second, output = measure(diagram).lines
    assert first[1] == output[1] < second[1] < second[2]
    assert second[1] <= first[2]
    assert [text for text, style, _ in measure(diagram).texts if style == "end"] == ["source", "2nd"]


@pytest.mark.parametrize("name", ["hedge", "race", "time_limits", "budget"])
def test_a_disposed_row_ends_with_a_cut(name: str) -> None:
    drawn = measure(SCENARIOS[name]())
    cuts = {(y, x) for y, x, kind, _ in drawn.marks if kind == "dispose"}
    assert (drawn.lines[0][0], drawn.lines[0][2]) in cuts


@given(diagrams())
def test_marks_in_order_of_time_are_in_order_from_left_to_right(diagram: MarbleDiagram) -> None:
    drawn = measure(diagram)
    placed: list[tuple[float, float]] = []
    for row, (y, _, _) in zip(rows_of(diagram._lanes), drawn.lines, strict=True):
        xs = [x for place, x, kind, _ in sorted(drawn.marks) if place == y and kind not in ("at once", "running")]
        times = [mark.at for mark in row.span.marks] + [row.span.latest] * bool(row.span.outcome)
        assert len(xs) == len(times)
        assert all(second - first >= 4 for first, second in pairwise(xs))
        placed += [(at, x) for at, x, mark in zip(times, xs, row.span.marks, strict=False) if mark.kind not in QUIET]
    assert all(first[1] <= second[1] for first, second in pairwise(sorted(placed)) if first[0] < second[0])


# Labels


@given(diagrams())
def test_no_label_overlaps_another_one_or_leaves_the_picture(diagram: MarbleDiagram) -> None:
    drawn = measure(diagram)
    assert [pair for pair in combinations(drawn.texts, 2) if overlap(pair[0][2], pair[1][2])] == []
    assert all(box[0] >= 0 and box[1] <= drawn.width for _, _, box in drawn.texts)


@given(diagrams())
def test_every_item_has_its_whole_label_and_what_starts_or_completes_has_none(diagram: MarbleDiagram) -> None:
    marks = [mark for row in rows_of(diagram._lanes) for mark in row.span.marks if mark.kind not in QUIET]
    errors = [row.span.error for row in rows_of(diagram._lanes) if row.span.error]
    labels = [text for text, style, _ in measure(diagram).texts if style == "middle"]
    assert sorted(label.replace("␣", " ") for label in labels) == sorted(mark.label for mark in [*marks, *errors])


def test_a_label_that_cannot_fit_is_shortened_before_the_picture_grows_without_bound() -> None:
    sentences = [f"{number} " + "word " * 14 for number in range(20)]
    source = reactivex.interval(0.1).pipe(rx.take(20), rx.map(lambda number: sentences[number]))
    drawn = measure(marble_diagram(source, virtual=True))
    assert drawn.width <= MAX_WIDTH + 20
    assert [pair for pair in combinations(drawn.texts, 2) if overlap(pair[0][2], pair[1][2])] == []


# Colours


@given(diagrams())
def test_equal_events_have_equal_colours_in_all_rows(diagram: MarbleDiagram) -> None:
    drawn, colours = measure(diagram), dict[str, str]()
    for row, (y, _, _) in zip(rows_of(diagram._lanes), drawn.lines, strict=True):
        items = [mark for mark in row.span.marks if mark.kind not in QUIET]
        for mark, (kind, colour) in zip(items, drawn.row(y), strict=True):
            assert kind == mark.kind
            assert colours.setdefault(mark.detail, colour) == colour
    assert len({colour for detail, colour in colours.items() if "Error" not in detail}) == len(
        {detail for detail in colours if "Error" not in detail}
    )


def test_content_keeps_its_colour_when_an_operator_unwraps_it_or_adds_a_name() -> None:
    streams = {"a": answer(1, "Hel", 1, "lo").pipe(ops.text()), "b": answer(1.5, "Hel")}
    drawn = measure(marble_diagram(streams, rxllm.merge_labelled, virtual=True))
    first, second, merged = (drawn.row(y) for y, _, _ in drawn.lines)
    assert [colour for _, colour in merged] == [first[0][1], second[0][1], first[1][1]]
    assert first[0] == second[0] != first[1]


def test_only_errors_are_red_and_all_colours_are_legible_on_light_and_dark_pages() -> None:
    svg = SCENARIOS["race"]().svg()
    assert tuple(dict.fromkeys(PALETTE)) == PALETTE
    for colour in (*PALETTE, *re.findall(r"\.bad{fill:(#\w+)}", svg)):
        assert min(contrast(colour, page) for page in ("#ffffff", "#0d1117")) >= 3


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_inside_a_page_a_picture_has_the_colours_of_the_page() -> None:
    svg = SCENARIOS["race"]().svg()
    style = re.search("<style>(.*?)</style>", svg, re.DOTALL)
    assert style is not None
    rules = re.findall(r"([^{}\n]+){([^{}]*)}", re.sub(r"@media[^{]*{", "", style[1]))
    assert {selector for selector, declarations in rules if "#" in declarations} == {
        ".rxm .bad",
        ".rxm .line.bad",
        ".rxm:root",
        ".rxm:root .card",
    }
    assert (".rxm .card", "fill:none") in rules
    assert "prefers-color-scheme:dark" in style[1]


# The legend, the axis and the operators


@given(diagrams())
def test_the_legend_has_every_mark_of_the_picture_and_no_other(diagram: MarbleDiagram) -> None:
    legend = [text for text, style, _ in measure(diagram).texts if style == "soft small"]
    assert len(legend) == len(set(legend))
    assert set(legend) == names_of(diagram)


def test_a_row_of_many_items_has_a_tick_for_each_and_no_labels() -> None:
    source = reactivex.interval(0.5).pipe(rx.take(50))
    drawn = measure(marble_diagram(source, rx.filter(lambda number: number % 25 == 24), virtual=True))
    ticks = [x for y, x, kind, _ in drawn.marks if y == drawn.lines[0][0] and kind == "several"]
    assert len(ticks) == 50
    assert {round(second - first, 1) for first, second in pairwise(sorted(ticks))} == {5.6}
    assert [text for text, style, _ in drawn.texts if style == "middle"] == ["24", "49"]
    assert [text for text, style, _ in drawn.texts if style == "soft small"] == ["value", "many items", "end"]


def test_no_two_marks_have_the_same_name_or_look_the_same() -> None:
    names, _, shapes = zip(*_SHAPES.values(), strict=True)
    assert len({*names}) == len({*shapes}) == len(_SHAPES)


def test_an_operator_is_a_box_with_its_code_between_its_lanes() -> None:
    drawn = measure(marble_diagram(answer(1, "Hi"), ops.text(), rx.map(str.upper), virtual=True))
    code = [(text, box) for text, style, box in drawn.texts if style == "code"]
    assert [text for text, _ in code] == ["ops.text()", "rx.map(str.upper)"]
    heights = [y for line, box in zip(drawn.lines, [*drawn.boxes, 0], strict=True) for y in (line[0], box)][:-1]
    assert heights == sorted(heights)
    assert all(top < box[2] < box[3] < top + 28 for top, (_, box) in zip(drawn.boxes, code, strict=True))


@pytest.mark.parametrize(
    ("duration", "labels"),
    [(2, ["0", "0.5 s", "1 s", "1.5 s", "2 s"]), (5000, ["0", "20 min", "40 min", "1 h", "80 min"]), (0, [])],
)
def test_the_axis_has_times_that_people_read(duration: float, labels: list[str]) -> None:
    source = reactivex.timer(duration) if duration else reactivex.of(1, 2)
    diagram = marble_diagram(source, virtual=True)
    assert [text for text, style, _ in measure(diagram).texts if style == "soft middle"] == labels
    assert "a character is" not in str(diagram)


def test_a_picture_has_a_title_and_a_description_of_each_row() -> None:
    root = ElementTree.fromstring(SCENARIOS["hedge"]().svg())
    title, description = root[0].text, root[1].text
    assert title == "source through hedge(after=2)"
    assert description is not None
    assert description.startswith("source, from 0: start 'start' at 0, is cut at 3 s. 2nd, from 2 s: ")
    assert "text 'Hel' at 3 s, text 'lo' at 4 s" in description


# The pictures of the documentation


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_picture_of_an_operator_shows_a_difference(name: str) -> None:
    lanes = SCENARIOS[name]()._lanes
    shown = [
        [
            (span.start, span.outcome, span.latest, [(mark.at, mark.kind, mark.label) for mark in span.marks])
            for span in lane.spans
        ]
        for lane in lanes
    ]
    assert shown[0] != shown[-1] or len(shown[0]) > 1
    for lane in lanes:
        details: dict[tuple[str, str], set[int]] = {}
        for mark in (mark for span in lane.spans for mark in span.marks if mark.kind not in QUIET):
            details.setdefault((mark.kind, mark.label), set()).add(mark.key)
        assert all(len(keys) == 1 for keys in details.values())


@pytest.mark.parametrize("name", SCENARIOS)
def test_labels_of_a_picture_of_an_operator_are_whole(name: str) -> None:
    drawn = measure(SCENARIOS[name]())
    assert [text for text, _, _ in drawn.texts if "…" in text] == []
    assert [pair for pair in combinations(drawn.texts, 2) if overlap(pair[0][2], pair[1][2])] == []
