"""The terminal client behind a pseudo-terminal, as a person uses it, and behind pipes. No wait is without a bound."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from rxllm.testing.loopback import Loopback
from tests.programs import python
from tests.waiting import PATIENCE
from tests.window import Window

fcntl = pytest.importorskip("fcntl", reason="Windows has no pseudo-terminals")
pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
termios = pytest.importorskip("termios", reason="Windows has no pseudo-terminals")

ROOT = Path(__file__).parents[2]
CTRL_C, CTRL_D = "\x03", "\x04"


def environment(server: Loopback | None = None, **variables: str) -> dict[str, str]:
    """This process's environment with rxllm on the path, where OpenAI's model is behind `server`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": path, "RXLLM_MODEL": "openai:m", "OPENAI_API_KEY": "k", "TERM": "dumb"}
    if server is not None:
        own["OPENAI_BASE_URL"] = server.url
    return {**os.environ, **own, **variables}


def piped(
    *arguments: str, server: Loopback | None = None, input: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the client to its end, with pipes for its input, output and errors."""
    return python("-m", "rxllm", *arguments, input=input, env=environment(server, **variables))


class Terminal:
    """The client with a terminal of its own.

    `screen` is what has appeared and was not waited for, `window` is what a person sees, and `received` is everything.
    """

    def __init__(
        self, *arguments: str, server: Loopback | None = None, columns: int = 80, rows: int = 24, **variables: str
    ) -> None:
        self._arguments = arguments
        self._environment = environment(server, **variables)
        for name in ("COLUMNS", "LINES"):
            self._environment.pop(name, None)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.screen = self.received = ""
        self.window = Window(columns, rows)

    def __enter__(self) -> Self:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.window.rows, self.window.columns, 0, 0))

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C goes to the terminal's own session

        command = [sys.executable, "-m", "rxllm", *self._arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=self._environment, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(slave)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> str:
        """Return what has appeared, up to the end of `text`."""
        assert self._read_until(lambda: text in self.screen), f"{text!r} has not appeared in {self.screen!r}"
        before, found, self.screen = self.screen.partition(text)
        return before + found

    def receive(self, accept: Callable[[str], object]) -> None:
        """Wait until `received` is accepted."""
        assert self._read_until(lambda: accept(self.received)), f"only {self.received!r} was received"

    def see(self, text: str) -> str:
        """Wait until `text` is in the window, and return all that the window has shown so far."""
        assert self._read_until(lambda: text in self.window.visible), f"{text!r} is not in {self.window.text}"
        return self.window.text

    def interrupt_prompt(self, text: str) -> str:
        """Press Ctrl-C once, and wait for `text`.

        CPython does not notice one that comes before readline waits for keys until another signal comes. A change of
        the window's size is one that means nothing.
        """
        self.type(CTRL_C)
        for _ in range(int(PATIENCE / 0.1)):
            if self._read_until(lambda: text in self.screen, 0.1):
                break
            self.process.send_signal(signal.SIGWINCH)
        return self.wait_for(text)

    def leave(self) -> tuple[int, str]:
        """Return the exit code and what has appeared since, once the client has ended."""
        self._read_until(lambda: False)
        return self.process.wait(PATIENCE), self.screen

    def _read_until(self, is_enough: Callable[[], object], seconds: float = PATIENCE) -> bool:
        end = time.monotonic() + seconds
        while not is_enough():
            readable, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            try:
                data = os.read(self._master, 65536) if readable else b""
            except OSError:  # Linux: the client has closed its side
                data = b""
            if not data:
                return False
            text = self._decoder.decode(data)
            self.received += text
            self.window.feed(text)
            self.screen += re.sub(r"\x1b\[\?2004[hl]\r?", "", text.replace("\r\n", "\n"))
        return True
