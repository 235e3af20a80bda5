"""What ``help``, ``dir`` and ``hasattr`` answer on the first day."""

from __future__ import annotations

import pydoc
from types import ModuleType

import pytest

import rxllm
from tests.programs import python, python_without

SCREENS = 90
"""Lines: about two screens."""


def page(module: ModuleType) -> str:
    """What ``help(module)`` prints."""
    return pydoc.plain(pydoc.render_doc(module))


def test_help_of_rxllm_fits_on_two_screens() -> None:
    text = page(rxllm)
    assert len(text.splitlines()) < SCREENS
    for name in ("generate(engine", "`Engine`", "`Fake`", "`tool`", "help(rxllm.operators)"):
        assert name in text


@pytest.mark.judges
@pytest.mark.parametrize(
    "command", [["-m", "pydoc", "rxllm"], ["-c", "help('rxllm')"], ["-c", "import rxllm; help(rxllm)"]]
)
def test_however_it_is_called(command: list[str]) -> None:
    ran = python(*command)
    assert ran.returncode == 0, ran.stderr
    assert "Start with these names" in ran.stdout
    assert len(ran.stdout.splitlines()) < SCREENS


@pytest.mark.parametrize("name", ["generate", "Engine", "Fake", "keys", "operators"])
def test_the_pages_that_it_names_are_there(name: str) -> None:
    assert len(page(getattr(rxllm, name)).splitlines()) > 10


def test_dir_and_star_have_all_names() -> None:
    everything: dict[str, object] = {}
    exec("from rxllm import *", everything)
    assert {*dir(rxllm)} == {*rxllm.__all__} == {*everything} - {"__builtins__"}
    assert {"Fake", "Engine", "TextDelta", "show", "testing"} <= {*dir(rxllm)}
    assert hasattr(rxllm, "__all__")
    assert not hasattr(rxllm, "nothing")


# rxllm.testing where pytest and hypothesis are not installed

BARE = ["pytest", "hypothesis"]


@pytest.mark.judges
def test_help_and_hasattr_of_the_kit_need_no_pytest() -> None:
    code = """
from rxllm import testing
help(testing)
print([name for name in [*dir(testing), "strategies"] if not hasattr(testing, name)], hasattr(testing, "nothing"))
"""
    ran = python_without(BARE, code)
    assert ran.returncode == 0, ran.stderr
    assert "class AdapterConformance" in ran.stdout
    assert "assert_operator" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "['strategies'] False"


@pytest.mark.judges
def test_the_rest_of_the_kit_works_without_them() -> None:
    code = """
from rxllm import Fake, operators as ops, testing
testing.assert_operator(lambda: ops.map_text(str.upper))
testing.assert_adapter(Fake("Hello"))
print(len(testing.PNG.to_binary()))
"""
    ran = python_without(BARE, code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.judges
@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("testing.strategies", "pip install hypothesis"),
        ("from rxllm.testing import strategies", "pip install hypothesis"),
        ("import rxllm.testing.strategies", "pip install hypothesis"),
        ("testing.AdapterConformance().refusal('no reason')", "pip install pytest"),
        ("class TestMine(testing.HTTPAdapterConformance): reasons = ()\nTestMine().refusal('x')", "pip install pytest"),
    ],
)
def test_what_needs_them_says_so_when_it_is_used(code: str, remedy: str) -> None:
    ran = python_without(BARE, f"from rxllm import testing\n{code}")
    assert ran.returncode == 1
    assert remedy in ran.stderr.splitlines()[-1]
