import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from rxllm.durable import Store, open_store
from tests.durable import support
from tests.durable.redis_server import RedisServer

MakeStore = Callable[[], Store]


def pytest_itemcollected(item: pytest.Item) -> None:
    """A Redis is a process, whichever test starts it."""
    if {"redis_server", "own_redis"} & {*getattr(item, "fixturenames", ())}:
        item.add_marker("judges")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    support.RAN.clear()


@pytest.fixture(scope="session")
def _redis_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "no")
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis_of_all: RedisServer) -> RedisServer:
    """An empty Redis, which the tests share one after the other."""
    _redis_of_all.ask("FLUSHALL")
    return _redis_of_all


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may stop, fill or configure, and whose connections it may count."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.judges)])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """What opens a store at one place, empty at first; picklable."""
    if request.param == "sqlite":
        return partial(open_store, str(tmp_path / "runs.db"))
    return partial(open_store, request.getfixturevalue("redis_server").url)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
