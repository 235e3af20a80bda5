"""A program that plays chats in forked processes, kills these wherever it can, and judges what becomes of the chats.

``python -m tests.durable.killing FOLDER STORE [--sample N] [--random N] [--double N] [--seed S] [--chats a,b]``: it
prints a report as JSON. A chat is traced first, with every point that it reaches, and then played once for each point,
killed there, and played on by another process. The program has one thread, and imports what the chats have needed when
they were traced, so that a process costs little more than a fork.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rxllm.durable import Store, open_store
from rxllm.durable._redis import RedisStore
from tests.durable import kill_points, playing
from tests.durable.chats import CHATS
from tests.durable.playing import Outcome

SECONDS = 300.0
"""After which a process is in vain."""


@dataclass
class Case:
    """A chat and where its processes are killed: at a point by name, or after so many seconds."""

    number: int
    chat: str
    kills: list[str | float]
    killed: list[float] = field(default_factory=list)
    missed: int = 0
    """Points that were not reached."""
    pid: int = 0
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.chat} killed at {' and '.join(map(str, self.kills)) or 'no point'}"


class Killing:
    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.place, self.at_once = Path(options.folder), options.store, options.at_once
        self.expected: dict[str, Outcome] = {}
        self.spans: dict[str, float] = {}
        self.number = 0

    def case(self, chat: str, *kills: str | float) -> Case:
        self.number += 1
        return Case(self.number, chat, [*kills])

    def folder_of(self, case: Case) -> Path:
        return self.folder / f"case{case.number}"

    def store(self, case: Case) -> Store:
        if "://" in self.place:
            return RedisStore(self.place, prefix=f"{self.folder.name}-{case.number}")
        return open_store(self.folder_of(case) / "runs.db")

    def play(self, cases: list[Case]) -> None:
        """Play all, some at once, each to its end."""
        waiting, running = deque(cases), dict[int, Case]()
        while waiting or running:
            while waiting and len(running) < self.at_once:
                case = waiting.popleft()
                self.folder_of(case).mkdir()
                self.fork(case)
                running[case.pid] = case
            pid, status = os.waitpid(-1, 0)
            case = running.pop(pid)
            if self.is_over(case, status):
                continue
            self.fork(case)
            running[case.pid] = case

    def is_over(self, case: Case, status: int) -> bool:
        """Note how a process has ended, and return whether it was the last."""
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGKILL, -signal.SIGALRM) and len(case.killed) < len(case.kills):
            case.killed.append(time.monotonic())
            return False
        case.missed = len(case.kills) - len(case.killed)
        if code:
            log = self.folder_of(case) / "failure"
            case.failure = log.read_text() if log.exists() else f"its process ended with {code}"
        return True

    def fork(self, case: Case) -> None:
        sys.stdout.flush()
        if pid := os.fork():
            case.pid = pid
            return
        code = 1
        gc.disable()
        try:
            self.run(case)
            code = 0
        except BaseException:
            (self.folder_of(case) / "failure").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def run(self, case: Case) -> None:
        """Do what the process of a case is forked for."""
        began = time.monotonic()
        kills = len(case.killed)
        kill_points.FOLDER = self.folder_of(case)
        log = (kill_points.FOLDER / "failure").open("w")
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=log)
        kill = case.kills[kills] if kills < len(case.kills) else ""
        if isinstance(kill, str):
            kill_points.POINT = kill
        else:  # nothing handles the alarm, so it kills
            signal.setitimer(signal.ITIMER_REAL, max(kill, 1e-6))
        killed_at = case.killed[-1] if case.killed else None
        played = asyncio.run(playing.play(case.chat, lambda: self.store(case), killed_at))
        if case.chat in self.expected:
            playing.judge(case.chat, played, self.expected[case.chat], kills)
        else:
            outcome = playing.outcome(case.chat, played)
            playing.judge(case.chat, played, outcome, 0)
            trace = {"outcome": vars(outcome), "points": kill_points.REACHED, "seconds": time.monotonic() - began}
            trace["modules"] = [*sys.modules]
            (self.folder / f"trace-{case.chat}").write_text(json.dumps(trace))

    def traces(self, chats: list[str]) -> tuple[dict[str, list[str]], list[Case]]:
        """Play each chat undisturbed, and return the points that it reaches."""
        cases = [self.case(chat) for chat in chats]
        self.play(cases)
        points: dict[str, list[str]] = {}
        for case in cases:
            if not case.failure:
                trace = json.loads((self.folder / f"trace-{case.chat}").read_text())
                self.expected[case.chat] = Outcome(**trace["outcome"])
                for module in trace["modules"]:  # once for all, before the forks that follow
                    with suppress(ImportError):
                        import_module(module)
                self.spans[case.chat], points[case.chat] = trace["seconds"], trace["points"]
        assert threading.active_count() == 1
        gc.collect()
        gc.freeze()
        return points, cases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("store")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--double", type=int, default=0)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--chats", default=",".join(CHATS))
    parser.add_argument("--point", default="")
    options = parser.parse_args()
    began = time.monotonic()
    killing, choice = Killing(options), random.Random(options.seed)
    names = options.chats.split(",")
    points, traced = killing.traces(names)
    every = [(chat, point) for chat in points for point in points[chat]]
    if options.point:
        singles = [(chat, options.point) for chat in points]
    else:
        singles = every if options.sample is None else choice.sample(every, min(options.sample, len(every)))
    cases = [killing.case(chat, point) for chat, point in singles]
    for _ in range(options.double):
        chat, point = choice.choice(every)
        later = choice.uniform(0.0, playing.LEASE + killing.spans[chat] / 2)
        cases.append(killing.case(chat, point, later, choice.choice(points[chat])))
    for _ in range(options.random):
        chat = choice.choice([*points])
        span = killing.spans[chat] / 2
        later = [choice.uniform(0.0, playing.LEASE + span) for _ in range(choice.randint(0, 2))]
        cases.append(killing.case(chat, choice.uniform(0.0, span), *later))
    choice.shuffle(cases)
    killing.play(cases)
    waits = sorted(float(wait) for file in killing.folder.glob("case*/waits") for wait in file.read_text().split())
    report: dict[str, Any] = {
        "points": {chat: len(points[chat]) for chat in points},
        "cases": len(cases),
        "cpu": round(sum(os.times()[:4]), 1),
        "kills": sum(len(case.killed) for case in cases),
        "missed": sum(case.missed for case in cases),
        "seconds": round(time.monotonic() - began, 1),
        "longest wait": round(waits[-1], 2) if waits else 0.0,
        "failures": {f"{case.number}: {case}": case.failure for case in [*traced, *cases] if case.failure},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
