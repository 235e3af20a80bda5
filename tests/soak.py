"""Run the README's test command many times, beside other work and in random order: ``python -m tests.soak``.

``--times 5`` runs the suite five times beside two processes that use a processor each, and five times shuffled. It
prints what failed in each run, and fails if anything did.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    """Keep `count` processors busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(label: str, **environment: str) -> bool:
    """Run the suite once, and return whether it passes."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest"]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    print(f"{label}: {time.monotonic() - began:.0f} s, {ran.stdout.splitlines()[-1]}", flush=True)
    for line in ran.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}", flush=True)
    return ran.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--burners", type=int, default=2)
    options = parser.parse_args()
    passed: list[bool] = []
    with burners(options.burners):
        passed += [run(f"beside {options.burners} burners") for _ in range(options.times)]
    passed += [run(f"shuffled by {seed}", RXLLM_SHUFFLE=str(seed)) for seed in range(options.times)]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
