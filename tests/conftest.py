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
