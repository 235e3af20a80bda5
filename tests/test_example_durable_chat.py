"""examples/durable_chat.py, run as a user runs it, against a real connection, and killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rxllm.durable import open_store
from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat, chat_chunk, chat_event, chat_finish
from tests.programs import EXAMPLES, SECONDS
from tests.waiting import wait_until

pytestmark = pytest.mark.judges

CALL = {"index": 0, "id": "c0", "function": {"name": "roll", "arguments": '{"sides": 6}'}}


class Chat:
    """The example as a process, which reads what is typed and has printed `text`."""

    def __init__(self, folder: Path, server: Loopback, *options: str) -> None:
        command = [
            sys.executable,
            "-u",
            *options,
            str(EXAMPLES / "durable_chat.py"),
            str(folder / "chat.db"),
            "openai:m",
        ]
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]
        self._timer = threading.Timer(SECONDS, self._process.kill)
        self._timer.start()
        self.text = ""

    def type(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def until(self, text: str) -> None:
        """Read until `text` has been printed."""
        while not self.text.endswith(text):
            character = self._process.stdout.read(1)
            assert character, f"it has ended: {self.text}"
            self.text += character

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._timer.cancel()

    def end(self) -> None:
        self.text += self._process.communicate()[0]
        self._timer.cancel()
        assert self._process.returncode == 0, self.text


def answers(*replies: Reply) -> Callable[[Request], Reply]:
    """Roll the die when it is asked to; then give one reply after the other."""
    rest = iter(replies)
    rolling = [chat_event({"tool_calls": [CALL]}), chat_finish("tool_calls")]

    def answer(request: Request) -> Reply:
        return Reply(rolling) if request.json["messages"][-1]["content"] == "Roll!" else next(rest)

    return answer


def test_a_killed_chat_continues_with_the_roll_that_it_has_made(tmp_path: Path) -> None:
    with Loopback(answers(Reply([chat_chunk("It "), STALL]), Reply(chat("It ", "is.")), Reply(chat("Bye.")))) as server:
        killed = Chat(tmp_path, server)
        killed.until("> ")
        killed.type("Roll!")
        killed.until("It ")
        killed.kill()
        rolled = killed.text.partition("[rolled ")[2][0]
        again = Chat(tmp_path, server)
        again.until("It is.\n> ")
        assert "> Roll!" in again.text
        assert f"[rolled {rolled}] It \n[asked again] It is." in again.text
        again.type("Thanks!")
        again.until("Bye.\n> ")
        again.end()
        assert [len(request.json["messages"]) for request in server.requests] == [1, 3, 3, 5]
        assert server.requests[-1].json["messages"][2]["content"] == rolled
        last = Chat(tmp_path, server)
        last.end()
        assert last.text.splitlines()[-4:] == ["It is.", "> Thanks!", "Bye.", "> "]


STALLS = """
import runpy, sys, threading, time
time.sleep = lambda seconds: threading.Event().wait()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Run a program in which whoever sleeps does not wake up."""


async def is_rolling(path: Path) -> bool:
    store = open_store(path)
    kinds = [record.kind for run in await store.runs() for record in await store.records(run.id)]
    await store.close()
    return "begin" in kinds


def test_a_die_that_was_still_rolling_rolls_again(tmp_path: Path) -> None:
    with Loopback(answers(Reply(chat("It is.")))) as server:
        killed = Chat(tmp_path, server, "-c", STALLS)
        killed.type("Roll!")
        wait_until(lambda: asyncio.run(is_rolling(tmp_path / "chat.db")))
        killed.kill()
        assert "rolled" not in killed.text
        again = Chat(tmp_path, server)
        again.until("It is.\n> ")
        again.end()
        assert again.text.count("[rolled ") == 1
        assert len(server.requests) == 2


def test_a_real_model_answers(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    command = [sys.executable, str(EXAMPLES / "durable_chat.py"), str(tmp_path / "chat.db")]
    ran = subprocess.run(command, input="Hi!\n", capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout) > len("> \n> \n")
