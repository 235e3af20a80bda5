"""Plugins as pip leaves them: modules and ``.dist-info`` folders on the path."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import rxllm
from rxllm import Engine, EngineError, ValidationError, operators, plugins
from tests.programs import python

Install = Callable[..., None]

SHOUT = """
    from rxllm import TextDelta

    def shout(mark="!"):
        def loud(event):
            return TextDelta(event.delta.upper() + mark, event.id) if type(event) is TextDelta else event

        return lambda events: events.map(loud)
"""
CONNECT = """
    from rxllm import AdapterError, Fake

    def connect(model):
        return Fake(f"from {model}")

    def needs_boto(model):
        import no_such_boto

    def fails(model):
        raise KeyError("acme")

    def refuses(model):
        raise AdapterError("authentication_failed")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package's module and metadata where Python looks for them, and forgets them afterwards."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)

    def install(name: str, version: str, entry_points: str, *, module: str = "", metadata: bool = True) -> None:
        stem = name.replace("-", "_")
        (site / f"{stem}.py").write_text(dedent(module))
        info = site / f"{stem}-{version}.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(dedent(entry_points))
        if metadata:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    yield install
    for name in set(sys.modules) - before:
        if str(site) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def operator(name: str, value: str) -> str:
    return f"[rxllm.operators]\n{name} = {value}\n"


def adapter(name: str, value: str) -> str:
    return f"[rxllm.adapters]\n{name} = {value}\n"


# Operators


def test_an_installed_operator_is_an_attribute_of_ops_plugins(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    loud = rxllm.stream_generate(rxllm.Fake("Hi"), "Hello").pipe(operators.plugins.shout("?"), operators.text())
    assert list(loud) == ["HI?"]


def test_dir_lists_them(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"))
    install("quiet", "1.0", operator("hush", "quiet:hush") + adapter("acme", "quiet:hush"))
    assert {"hush", "shout"} <= {*dir(operators.plugins)}
    assert "acme" not in dir(operators.plugins)
    assert "hush (quiet 1.0), " in repr(operators.plugins)
    assert "shout (loud 1.0)" in repr(operators.plugins)


def test_the_repr_of_one_says_what_it_is_and_whose(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    what = "<ops.plugins.shout, a function that makes an operator: the rxllm.operators plugin 'shout' (loud:shout)"
    assert repr(operators.plugins.shout) == f"{what} from loud 1.0>"


def test_an_unknown_one_names_those_there_are(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"))
    with pytest.raises(AttributeError, match=r"'shut'; the available operators are: .*shout") as caught:
        _ = operators.plugins.shut
    assert caught.value.name == "shut"
    assert not hasattr(operators.plugins, "shut")


@pytest.mark.parametrize(
    ("value", "module", "why"),
    [
        ("loud:shout", "import no_such_module_anywhere", "no_such_module_anywhere"),
        ("loud:shout", "raise RuntimeError('half written')", "RuntimeError: half written"),
        ("loud:shout", "raise SystemExit(3)", "SystemExit: 3"),
        ("loud:shout", "def shut(): ...", "no attribute 'shout'"),
        ("loud:shout", "shout = 7", "is not a function"),
        ("no_such_package_anywhere:shout", "", "no_such_package_anywhere"),
        pytest.param(
            *("!!", "", "plugin 'shout' (!!)"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 15), reason="Python 3.15 reads no such entry point"),
        ),
    ],
)
def test_a_broken_one_says_whose_it_is_and_what_to_do(install: Install, value: str, module: str, why: str) -> None:
    install("loud", "1.0", operator("shout", value), module=module)
    with pytest.raises(EngineError) as caught:
        _ = operators.plugins.shout
    error = caught.value
    assert error.reason == "missing_dependency"
    assert why in error.message
    assert "loud 1.0" in error.message
    assert "pip install --upgrade loud" in error.message
    assert error.metadata == {"distribution": "loud", "version": "1.0"}
    assert error.__cause__ is not None


def test_a_broken_one_does_no_harm_to_the_others(install: Install) -> None:
    install("broken", "1.0", operator("crash", "broken:crash") + adapter("broken", "broken:x"), module="1 / 0")
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    with pytest.raises(EngineError):
        _ = operators.plugins.crash
    assert {"crash", "shout"} <= {*dir(operators.plugins)}
    assert operators.plugins.shout().__name__ == "<lambda>"
    assert rxllm.generate(rxllm.Fake("Hi"), "Hello").run().output_text == "Hi"


def test_one_without_its_brackets_gets_the_hint_that_rxllm_s_own_get(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    what = r"plugins\.shout is a function that makes an operator: write plugins\.shout\(\.\.\.\), with parentheses"
    with pytest.raises(ValidationError, match=what):
        rxllm.stream_generate(rxllm.Fake("Hi"), "Hello").pipe(operators.plugins.shout)
    with pytest.raises(EngineError, match=what):
        Engine(rxllm.Fake("Hi"), operators=(operators.plugins.shout,))


def test_an_operator_in_the_place_of_its_maker_says_whose_it_is(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module="def shout(source): return source")
    with pytest.raises(TypeError, match=r"missing a required argument: 'source'.*from loud 1\.0") as caught:
        operators.plugins.shout()
    assert "makes an operator" in str(caught.value)


def test_a_maker_looks_like_what_the_package_wrote_and_its_errors_are_its_own(install: Install) -> None:
    module = """
        def shout(mark="!"):
            "Louder."
            return lambda events: 1 / 0 if mark else mark.upper(1)

        def strict(mark):
            raise TypeError("mine")
    """
    install("loud", "1.0", operator("shout", "loud:shout") + "strict = loud:strict\n", module=module)
    assert (operators.plugins.shout.__name__, operators.plugins.shout.__doc__) == ("shout", "Louder.")
    assert str(inspect.signature(operators.plugins.shout)) == "(mark='!')"
    with pytest.raises(TypeError, match=r"^mine$"):
        operators.plugins.strict(1)


# Adapters


def test_a_plugin_may_take_options_of_from_model(install: Install) -> None:
    module = """
        from rxllm import Fake

        def connect(model, *, base_url="http://acme.example"):
            return Fake(f"from {model} at {base_url}")
    """
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module=module)
    engine = Engine.from_model("acme:large", base_url="http://localhost", params={"temperature": 0.0})
    assert rxllm.generate(engine, "Hi").run().output_text == "from large at http://localhost"
    with pytest.raises(EngineError, match="unexpected keyword argument 'region'") as caught:
        Engine.from_model("acme:large", region="eu")
    assert caught.value.reason == "unknown_option"
    assert "the rxllm.adapters plugin 'acme' (rxllm_acme:connect)" in caught.value.message


def test_a_plugin_that_takes_no_options_says_what_to_add(install: Install) -> None:
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module=CONNECT)
    with pytest.raises(
        EngineError, match=r"must define connect\(model, \*\*options\), and pass them to its ad"
    ) as caught:
        Engine("acme:large", base_url="http://localhost", api_key="secret")
    assert caught.value.reason == "unknown_option"
    assert caught.value.message.endswith("to its adapter")
    assert "secret" not in caught.value.message


def test_an_installed_adapter_is_a_provider(install: Install) -> None:
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module=CONNECT)
    assert "acme" in rxllm.adapters.providers()
    assert Engine.from_model("acme:large").model == "large"
    assert rxllm.generate("acme:small", "Hi").run().output_text == "from small"


def test_an_adapter_is_made_once_for_each_model(install: Install) -> None:
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module=CONNECT)
    first, second, other = (Engine.from_model(name).adapter for name in ("acme:small", "acme:small", "acme:large"))
    assert first is second
    assert first is not other


def test_listing_imports_nothing(install: Install) -> None:
    points = adapter("acme", "rxllm_acme:connect") + operator("shout", "rxllm_acme:shout")
    install("rxllm-acme", "1.0", points, module="raise AssertionError('imported')")
    assert "acme" in rxllm.adapters.providers()
    assert "shout" in dir(operators.plugins)
    with pytest.raises(EngineError, match="acme"):
        Engine.from_model("nobody:m")
    assert "rxllm_acme" not in sys.modules


@pytest.mark.judges
def test_importing_rxllm_imports_no_plugin(install: Install, tmp_path: Path) -> None:
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module="raise AssertionError('imported')")
    code = "import rxllm, sys; print(rxllm.adapters.providers().count('acme'), 'rxllm_acme' in sys.modules)"
    path = {"PYTHONPATH": str(tmp_path / "site-packages")}
    ran = python("-c", code, env=path)
    assert (ran.stderr, ran.stdout.split()) == ("", ["1", "False"])


@pytest.mark.parametrize(
    ("function", "reason", "why"),
    [
        ("needs_boto", "missing_dependency", "No module named 'no_such_boto'"),
        ("fails", "invalid_engine", "KeyError: 'acme'"),
        ("nothing", "missing_dependency", "no attribute 'nothing'"),
    ],
)
def test_one_that_gives_no_adapter_says_whose_it_is(install: Install, function: str, reason: str, why: str) -> None:
    install("rxllm-acme", "2.1", adapter("acme", f"rxllm_acme:{function}"), module=CONNECT)
    with pytest.raises(EngineError) as caught:
        Engine.from_model("acme:m")
    assert caught.value.reason == reason
    assert why in caught.value.message
    assert "rxllm-acme 2.1" in caught.value.message


@pytest.mark.parametrize("module", ["import rxllm\nclass connect(rxllm.OpenAIChat): ...", "def connect(): ..."])
def test_a_class_or_function_that_takes_no_model_says_what_its_package_should_name(
    install: Install, module: str
) -> None:
    install("rxllm-acme", "2.1", adapter("acme", "rxllm_acme:connect"), module=module)
    with pytest.raises(EngineError) as caught:
        Engine.from_model("acme:m")
    assert caught.value.reason == "invalid_engine"
    assert "from rxllm-acme 2.1" in caught.value.message
    assert "cannot be called with the model's name" in caught.value.message
    assert "such as connect(model, **options)" in caught.value.message
    assert "--upgrade" not in caught.value.message


@pytest.mark.parametrize("given", ["3", "None", "object()", "rxllm.Fake", "[]"])
def test_what_is_no_adapter_says_whose_it_is(install: Install, given: str) -> None:
    module = f"import rxllm\ndef connect(model): return {given}"
    install("rxllm-acme", "2.1", adapter("acme", "rxllm_acme:connect"), module=module)
    with pytest.raises(EngineError, match="is not an adapter") as caught:
        Engine.from_model("acme:m")
    assert caught.value.reason == "invalid_engine"
    assert "from rxllm-acme 2.1 does not return an adapter" in caught.value.message
    assert caught.value.metadata == {"distribution": "rxllm-acme", "version": "2.1"}


def test_a_generator_function_is_an_adapter(install: Install) -> None:
    module = """
        from rxllm import TextDelta

        def connect(model):
            async def adapter(request, call):
                yield TextDelta(model)

            return adapter
    """
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:connect"), module=module)
    assert rxllm.generate("acme:small", "Hi").run().output_text == "small"


def test_a_plugin_s_own_typed_error_passes(install: Install) -> None:
    install("rxllm-acme", "1.0", adapter("acme", "rxllm_acme:refuses"), module=CONNECT)
    with pytest.raises(rxllm.AdapterError) as caught:
        Engine.from_model("acme:m")
    assert caught.value.reason == "authentication_failed"


# Names given twice


def test_a_name_that_two_packages_use_is_an_error_that_names_both_and_what_to_do(install: Install) -> None:
    for name in ("zeta", "Alpha"):
        module = "raise AssertionError('imported')"
        install(name, "1.0", operator("mine", f"{name}:mine") + adapter("ours", f"{name}:connect"), module=module)
    what = r"is used by Alpha 1\.0 \(Alpha:{0}\) and zeta 1\.0 \(zeta:{0}\)\. Uninstall one of the packages, or"
    for use in (lambda: operators.plugins.mine, lambda: plugins.load("rxllm.operators", "mine")):
        with pytest.raises(EngineError, match=r"the name 'mine' in rxllm\.operators " + what.format("mine")) as caught:
            use()
        assert caught.value.reason == "invalid_engine"
    with pytest.raises(EngineError, match=r"the name 'ours' in rxllm\.adapters " + what.format("connect")):
        Engine.from_model("ours:m")


def test_such_a_name_is_listed_and_the_other_plugins_work(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    for name in ("zeta", "Alpha"):
        install(name, "1.0", operator("mine", f"{name}:mine") + adapter("ours", f"{name}:connect"))
    assert dir(operators.plugins).count("mine") == rxllm.adapters.providers().count("ours") == 1
    assert "mine (Alpha 1.0 and zeta 1.0)" in repr(operators.plugins)
    assert callable(operators.plugins.shout("?"))


def test_a_name_of_rxllm_s_own_stays_its_own_and_that_is_logged(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("usurper", "1.0", adapter("openai", "usurper:connect") + adapter("groq", "usurper:connect")[17:])
    with caplog.at_level(logging.WARNING, "rxllm"):
        assert rxllm.adapters.providers().count("openai") == 1
        assert type(Engine.from_model("openai:m").adapter) is rxllm.OpenAIChat
        rxllm.adapters.providers()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "the rxllm.adapters plugin 'openai' (usurper:connect) from usurper 1.0 is ignored" in told[1]
    assert "usurper" not in sys.modules


@pytest.mark.judges
def test_asking_for_that_name_logs_it_too(install: Install, tmp_path: Path) -> None:
    install("usurper", "1.0", adapter("openai", "usurper:connect"))
    code = "from rxllm import Engine; [Engine.from_model('openai:m') for _ in range(3)]"
    path = {"PYTHONPATH": str(tmp_path / "site-packages")}
    ran = python("-c", code, env=path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("from usurper 1.0 is ignored") == 1


# What is damaged on the disk


def test_metadata_that_nobody_can_read_hurts_nobody(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("torn", "1.0", "[rxllm.operators]\nthis is no entry point\n")
    install("loud", "1.0", operator("shout", "loud:shout"), module=SHOUT)
    with caplog.at_level(logging.WARNING, "rxllm"):
        assert callable(operators.plugins.shout)
        assert "openai" in rxllm.adapters.providers()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "torn-1.0.dist-info" in told[0]


def test_beside_unreadable_ones_every_package_counts_once(install: Install, tmp_path: Path) -> None:
    install("torn", "1.0", "[rxllm.operators]\nthis is no entry point\n")
    for name in ("nameless", "anonymous"):
        install(name, "1.0", operator(name, f"{name}:x"), metadata=False)
    install("loud", "2.0", operator("shout", "loud:shout"))
    older = tmp_path / "older" / "loud-1.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (older / "entry_points.txt").write_text(operator("old_shout", "loud:shout"))
    sys.path.append(str(tmp_path / "older"))
    try:
        assert {"anonymous", "nameless", "shout"} <= {*dir(operators.plugins)}
        assert "old_shout" not in dir(operators.plugins)
    finally:
        sys.path.remove(str(tmp_path / "older"))


def test_a_folder_without_metadata_still_gives_its_plugins(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout"), module="import no_such_module_anywhere", metadata=False)
    with pytest.raises(EngineError, match=r"loud:shout.* from an unknown package .*no_such_module_anywhere"):
        _ = operators.plugins.shout


# Values


def test_names_and_load_are_the_bare_functions(install: Install) -> None:
    install("loud", "1.0", operator("shout", "loud:shout") + adapter("acme", "loud:shout"), module=SHOUT)
    assert "shout" in plugins.names("rxllm.operators")
    assert plugins.load("rxllm.operators", "shout") is sys.modules["loud"].shout
    with pytest.raises(KeyError):
        plugins.load("rxllm.operators", "acme")
