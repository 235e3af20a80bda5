"""Cards, timelines and marble diagrams are exported alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import rxllm
from rxllm import Fake, ToolCall, display
from rxllm.values import Timed

STREAM = rxllm.stream_generate(Fake(["Hel", "lo < & ü"]), "Hi")

DRAWN: dict[str, Any] = {
    "card of a response": rxllm.generate(Fake("ü < é"), "Hi").run(),
    "card of a step": rxllm.step(Fake(ToolCall("c1", "add", {"a": "ü"})), "Hi").run(),
    "card of a chat": rxllm.chat(Fake("ü < é"), "Hi").run(),
    "timeline": display.timeline([Timed(0.5, rxllm.TextDelta("Hé")), Timed(1.0, rxllm.TextDelta("ü"))]),
    "marbles": display.marble_diagram(STREAM, virtual=True),
}


@pytest.mark.parametrize("name", DRAWN)
def test_html_is_returned_or_written(name: str, tmp_path: Path) -> None:
    html, path = DRAWN[name].html(), tmp_path / "drawn.html"
    assert html.startswith(("<div", "<svg"))
    assert DRAWN[name].html(path) is None
    page = path.read_text(encoding="utf-8")
    assert page.startswith('<!doctype html>\n<meta charset="utf-8">')
    assert page.endswith(html)
    assert DRAWN[name].html(str(tmp_path / "other.html")) is None
    assert (tmp_path / "other.html").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["timeline", "marbles"])
def test_svg_is_returned_or_written(name: str, tmp_path: Path) -> None:
    svg, path = DRAWN[name].svg(), tmp_path / "drawn.svg"
    ElementTree.fromstring(svg)
    assert DRAWN[name].svg(path) is None
    assert path.read_text(encoding="utf-8") == svg


def test_a_running_stream_is_exported_as_it_looks(tmp_path: Path) -> None:
    showing = rxllm.show(STREAM, block=False)
    showing.result(30)
    assert "lo &lt; &amp; ü" in showing.html()
    assert showing.html(tmp_path / "card.html") is None
    assert "lo &lt; &amp; ü" in (tmp_path / "card.html").read_text(encoding="utf-8")


def test_the_card_of_a_result_is_what_notebooks_show() -> None:
    for name in ("card of a response", "card of a step", "card of a chat"):
        assert DRAWN[name].html() == DRAWN[name]._repr_html_()
