"""A judge that is absent skips its tests by name, or fails them where all are required."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.judges import judge, node

pytestmark = pytest.mark.judges


def test_a_judge_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", os.pathsep.join(("", str(python.parent))))
    assert Path(judge(python.name)).samefile(python)


def test_an_absent_judge_skips_its_test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RXLLM_JUDGES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-judge is not installed: apt-get install no-such-judge"):
        judge("no-such-judge")


def test_an_absent_judge_fails_its_test_where_all_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RXLLM_JUDGES", "required")
    with pytest.raises(pytest.fail.Exception, match=r"no-such-judge is not installed.*RXLLM_JUDGES=required"):
        judge("no-such-judge")


def test_no_judge_is_asked_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", str(python.parent))
    monkeypatch.setenv("RXLLM_JUDGES", "none")
    with pytest.raises(pytest.skip.Exception, match="RXLLM_JUDGES=none"):
        judge(python.name)
    with pytest.raises(pytest.skip.Exception, match="RXLLM_JUDGES=none"):
        node()
