from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

import rxllm
from rxllm import Engine, EngineError, Fake, plugins

MADE: list[str] = []


def make(model: str) -> Fake:
    """What a package's entry point names."""
    MADE.append(model)
    return Fake(f"from {model}")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    points = EntryPoints(
        [
            EntryPoint("acme", f"{__name__}:make", "rxllm.adapters"),
            EntryPoint("broken", "no_such_package_anywhere:make", "rxllm.adapters"),
            EntryPoint("shout", "builtins:str", "rxllm.operators"),
            EntryPoint("acme", "builtins:int", "another.group"),
        ]
    )

    def entry_points(**params: Any) -> EntryPoints:
        return points.select(**params)

    monkeypatch.setattr(EntryPoint, "load", _load)
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    monkeypatch.setattr("rxllm.plugins.entry_points", entry_points)


def _load(point: EntryPoint) -> Any:
    if point.value == f"{__name__}:make":  # this module may have been imported under a name of pytest's own
        return make
    module, _, name = point.value.partition(":")
    return getattr(__import__(module), name)


def test_names_are_listed_by_group() -> None:
    assert plugins.names("rxllm.adapters") == ["acme", "broken"]
    assert plugins.names("rxllm.operators") == ["shout"]


def test_a_plugin_is_loaded_by_name() -> None:
    assert plugins.load("rxllm.operators", "shout") is str
    assert plugins.load("rxllm.adapters", "acme") is make


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        plugins.load("rxllm.operators", "acme")


def test_a_plugin_that_does_not_load_says_which_and_why() -> None:
    with pytest.raises(EngineError) as caught:
        plugins.load("rxllm.adapters", "broken")
    assert caught.value.reason == "missing_dependency"
    assert "'broken'" in caught.value.message
    assert "no_such_package_anywhere" in caught.value.message
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_plugins_adapter_is_found_by_its_provider_name() -> None:
    engine = Engine.from_model("acme:large")
    assert (engine.model, MADE) == ("large", ["large"])
    assert rxllm.generate("acme:small", "Hi").run().output_text == "from small"


def test_a_broken_plugin_does_not_hurt_the_others() -> None:
    assert rxllm.generate("acme:m", "Hi").run().output_text == "from m"


def test_an_unknown_provider_names_the_plugins_too() -> None:
    with pytest.raises(EngineError, match="acme"):
        Engine.from_model("nobody:m")


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    plugins.names("rxllm.adapters")
    assert MADE == []
