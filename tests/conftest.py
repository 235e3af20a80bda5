import functools
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import USUAL, WANTED

IS_REQUIRED = os.environ.get("RXLLM_JUDGES") == "required"

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

# What this machine has set up for itself is not what the tests, and the programs that they start, are about.
for _name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OLLAMA_HOST", "RXLLM_TRANSPORT"):
    os.environ.pop(_name, None)


def _is_whole(config: pytest.Config) -> bool:
    """Whether the whole suite runs, and not what is asked for by name; the processes of xdist are told."""
    told = getattr(config, "workerinput", {})
    return told.get("is_whole", config.args_source is pytest.Config.ArgsSource.TESTPATHS)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors for the whole suite, since tests wait; none for what is asked for by name."""
    return min(4, (os.cpu_count() or 1) + 1) if _is_whole(config) else 0


def pytest_configure_node(node: Any) -> None:
    node.workerinput["is_whole"] = _is_whole(node.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_whole(config) and not IS_REQUIRED:
        skip = pytest.mark.skip(reason="takes seconds: name its file, or run everything with RXLLM_JUDGES=required")
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(skip)


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
