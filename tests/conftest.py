import functools
import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

MOST_WORKERS = 4
"""Each may run a model in its process."""

# A busy machine is no fault of the code's.
settings.register_profile("rxllm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rxllm")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in as many processes as there are processors; what is asked for by name runs in this one."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.getoption("numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist = "logical", "worksteal"
        config.option.maxprocesses = config.option.maxprocesses or MOST_WORKERS


def pytest_collection_finish() -> None:
    gc.freeze()  # what is there now stays until the end: no collection of garbage need look at it again


@pytest.fixture(scope="module", autouse=True)
def _forget(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let go with a module what its functions have cached: the decoded recordings are millions of objects."""
    yield
    for value in vars(getattr(request.node, "obj", None) or object).values():
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == request.node.obj.__name__:
            value.cache_clear()
