import functools
import gc
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from tests import tiers
from tests.examples import USUAL, WANTED

IS_REQUIRED = os.environ.get("RXLLM_JUDGES") == "required"
SHUFFLE = os.environ.get("RXLLM_SHUFFLE")
"""A seed: files, and the tests of each, run in another order."""

# A busy machine is no fault of the code's. The examples of a property are the same in every run, so that a change fails
# for what it changes; RXLLM_EXAMPLES=1000 looks for others.
settings.register_profile(
    "rxllm",
    deadline=None,
    derandomize=WANTED is None,
    max_examples=USUAL,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rxllm")

# A shell ignores Ctrl-C for what it runs in the background, and so would the programs that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every process of the suite, and every program that it starts, would compile all tests and all of rxllm again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What this machine has set up for itself is not what the tests, and the programs that they start, are about.
for _name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OLLAMA_HOST", "RXLLM_TRANSPORT"):
    os.environ.pop(_name, None)


def _is_whole(config: pytest.Config) -> bool:
    """Whether the whole suite runs, and not what is asked for by name; the processes of xdist are told."""
    told = getattr(config, "workerinput", {})
    return told.get("is_whole", config.args_source is pytest.Config.ArgsSource.TESTPATHS)


def _leaves_out_judges(config: pytest.Config) -> bool:
    return _is_whole(config) and not IS_REQUIRED


def pytest_configure(config: pytest.Config) -> None:
    for mark in (tiers.SOCKETS, tiers.JUDGES):
        config.addinivalue_line("markers", mark)
    tiers.leaves_out_judges = _leaves_out_judges(config)
    tiers.watch()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For the whole suite one more than there are processors, since tests wait, and twice as many with judges."""
    processors = min(4, os.cpu_count() or 1)
    return (2 * processors if IS_REQUIRED else processors + 1) if _is_whole(config) else 0


def pytest_configure_node(node: Any) -> None:
    node.workerinput["is_whole"] = _is_whole(node.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _leaves_out_judges(config) and tiers.is_of_judges(collection_path):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in the docstrings of tests: it takes as long as the tests themselves to read."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _leaves_out_judges(config):
        skip = pytest.mark.skip(reason="needs judges: name its file, or run everything with RXLLM_JUDGES=required")
        for item in items:
            if item.get_closest_marker("judges") is not None:
                item.add_marker(skip)
    if SHUFFLE is not None:
        _shuffle(items, random.Random(SHUFFLE))


def _shuffle(items: list[pytest.Item], order: random.Random) -> None:
    """Shuffle files, and the tests of each: those of a file stay together, since they share what is slow to make."""
    files = [list(group) for _, group in groupby(items, lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    tiers.begin()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    if not isinstance(item, pytest.DoctestItem):
        tiers.check(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    with tiers.making(fixturedef.baseid, fixturedef.argname):
        return (yield)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _leaves_out_judges(config):
        files = [str(path) for path in Path(__file__).parent.rglob("test_*.py") if tiers.is_of_judges(path)]
        terminalreporter.line(f"{len(files)} files need judges: RXLLM_JUDGES=required runs them, -rs names them")
        if terminalreporter.hasopt("skipped"):
            terminalreporter.line("\n".join(sorted(files)))


def pytest_collection_finish() -> None:
    gc.freeze()  # what is there now stays until the end: no collection of garbage need look at it again


@pytest.fixture(scope="module", autouse=True)
def _forget(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let go with a module what its functions have cached: the decoded recordings are millions of objects."""
    yield
    for value in vars(getattr(request.node, "obj", None) or object).values():
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == request.node.obj.__name__:
            value.cache_clear()


@pytest.fixture(params=["httpx", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of rxllm's own clients, here and in the programs that the test starts: such tests run with both."""
    monkeypatch.setenv("RXLLM_TRANSPORT", request.param)
    return request.param
