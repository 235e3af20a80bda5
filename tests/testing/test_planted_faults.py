"""The table of planted faults: a sound adapter of an outsider's, with one fault each, and what of the kit finds it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from rxllm.testing import HTTPAdapterConformance
from tests.testing.planted import (
    CASES,
    FAULTS,
    Outsiders,
    found,
)

pytestmark = pytest.mark.judges

TABLE = Path(__file__).parent.parent / "golden" / "planted_faults.json"
"""Which rules and cases find which fault. On a slow machine others may fail too."""


def test_the_sound_adapter_passes() -> None:
    assert found(Outsiders) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    before = json.loads(TABLE.read_text(encoding="utf-8"))[fault]
    assert before
    assert {*before} <= {*found(FAULTS[fault])}, "for another table: python -m tests.golden --write-faults"


def test_the_cases_are_the_suites() -> None:
    assert all(inspect.isfunction(getattr(HTTPAdapterConformance, case)) for case in CASES)
