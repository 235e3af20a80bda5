"""SIGKILL of real processes before and after every store call and around every tool effect, over many chats.

See ``tests.durable.killing`` for how they are killed, ``playing`` for what is judged, and ``chats`` for the chats.
RXLLM_KILLS=1234 is a seed. RXLLM_KILLS=all kills everywhere on both stores, and a thousand times more at random; that
takes longer than a test may, so add ``-o faulthandler_timeout=0``.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from tests.durable.chats import CHATS
from tests.durable.redis_server import RedisServer
from tests.programs import python
from tests.runtime.support import ROOT

pytestmark = pytest.mark.judges

WANTED = os.environ.get("RXLLM_KILLS", "")
IS_REQUIRED = os.environ.get("RXLLM_JUDGES") == "required"
SEED = WANTED if WANTED.isdigit() else str(random.SystemRandom().randrange(10**6))
SECONDS = 3000.0


def kill(folder: Path, store: str, half: int, *options: str) -> None:
    names = ",".join([*CHATS][half::2])
    arguments = (str(folder), store, "--seed", SEED, "--chats", names, *options)
    program = python("-m", "tests.durable.killing", *arguments, cwd=ROOT, timeout=SECONDS)
    assert program.returncode == 0, program.stderr[-3000:]
    report = json.loads(program.stdout.splitlines()[-1])
    failures = report.pop("failures")
    print(f"RXLLM_KILLS={SEED}", report, file=sys.stderr)
    assert report["kills"] > 0
    assert not failures, f"RXLLM_KILLS={SEED}: {len(failures)} of {report['cases']}: {json.dumps(failures)[:6000]}"


def options(part: str, sample: int) -> list[str]:
    """Return how much is killed: `part` where it is required, and a sample elsewhere."""
    if WANTED == "all":
        return ["--double", "250", "--random", "250"]
    if IS_REQUIRED:
        return [*part.split(), "--double", "10", "--random", "10"]
    return ["--sample", str(sample), "--double", str(sample // 4), "--random", str(sample // 4)]


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("half", [0, 1])
def test_nothing_is_lost_nor_done_twice_in_sqlite(tmp_path: Path, half: int) -> None:
    kill(tmp_path, "sqlite", half, *options("--sample 60", 24))


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("half", [0, 1])
def test_nothing_is_lost_nor_done_twice_in_redis(tmp_path: Path, own_redis: RedisServer, half: int) -> None:
    kill(tmp_path, own_redis.url, half, *options("--sample 24", 12))
