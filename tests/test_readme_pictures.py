"""The pictures of the README and the pages show what their code does today.

`tests/web/test_web_chat_browser.py` has that of the web chat.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures import cache, hero, run, screens

FOLDER = Path(hero.__file__).parent
REMEDY = "run python -m docs.pictures"


def picture(name: str) -> str:
    return (FOLDER / name).read_text()


@pytest.mark.judges
def test_the_race_ends_as_its_picture_says() -> None:
    pytest.importorskip("httpx")
    assert hero.described(picture("hero.svg")) == hero.described(hero.draw(hero.race())), REMEDY


@pytest.mark.parametrize(("name", "draw"), [("card.svg", screens.card), ("terminal.svg", screens.terminal)])
def test_a_screen_shows_what_its_picture_shows(name: str, draw: Callable[[], str]) -> None:
    assert screens.without_times(picture(name)) == screens.without_times(draw()), REMEDY


@pytest.mark.parametrize(("name", "draw"), [("timeline.svg", run.timeline), ("cache.svg", cache.timeline)])
def test_a_timeline_is_that_of_its_run(name: str, draw: Callable[[], str]) -> None:
    assert picture(name) == draw(), REMEDY


def test_a_picture_is_small_and_asks_no_other_server() -> None:
    names = ["hero.svg", "card.svg", "terminal.svg", "timeline.svg", "cache.svg", "web_chat.png"]
    assert [name for name in names if (FOLDER / name).stat().st_size > 400_000] == []
    for name in names[:-1]:
        ElementTree.fromstring(picture(name))
        assert "https://" not in picture(name)
        assert "url(http" not in picture(name)
