import functools
import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code's.
settings.register_profile("rxllm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rxllm")

# A shell ignores Ctrl-C for what it runs in the background, and so would the programs that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What this machine has set up for itself is not what the tests, and the programs that they start, are about.
for _name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OLLAMA_HOST", "RXLLM_TRANSPORT"):
    os.environ.pop(_name, None)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """As many as there are processors for the whole suite; what is asked for by name runs in this process."""
    return None if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


def pytest_collection_finish() -> None:
    gc.freeze()  # what is there now stays until the end: no collection of garbage need look at it again


@pytest.fixture(scope="module", autouse=True)
def _forget(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let go with a module what its functions have cached: the decoded recordings are millions of objects."""
    yield
    for value in vars(getattr(request.node, "obj", None) or object).values():
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == request.node.obj.__name__:
            value.cache_clear()
