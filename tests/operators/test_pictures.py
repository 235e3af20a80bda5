"""Pictures that cannot lie: each operator's is drawn again, and compared with the one in the docs."""

from __future__ import annotations

import pytest

from rxllm import operators as ops
from tests import pictures


@pytest.mark.parametrize("name", ops.__all__)
def test_every_operator_has_a_picture(name: str) -> None:
    assert name in pictures.SCENARIOS, f"add an entry for {name} to SCENARIOS in tests/pictures.py"


def test_every_picture_is_of_an_operator() -> None:
    assert pictures.SCENARIOS.keys() == {*ops.__all__, "merge_labelled"}
    assert {file.stem for file in pictures.FOLDER.iterdir()} == pictures.SCENARIOS.keys()


@pytest.mark.parametrize("name", pictures.SCENARIOS)
def test_a_picture_is_what_the_operator_does(name: str) -> None:
    drawn = pictures.SCENARIOS[name]().svg()
    assert (pictures.FOLDER / f"{name}.svg").read_text() == drawn, "run python -m tests.operators_page"


def test_the_pictures_are_small() -> None:
    assert max(file.stat().st_size for file in pictures.FOLDER.iterdir()) < 8_000
