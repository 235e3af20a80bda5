"""A real Redis of our own: started on a free port, killed, paused and started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.judges import judge

SECONDS = 20.0


class RedisServer:
    """Redis with its log in `folder`; what it has answered survives its kill."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self._program = judge("redis-server")
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = unused.getsockname()[1]
        secret = ["--requirepass", password] if password else []
        self._options = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--dir",
            str(folder),
            *secret,
            *options,
        ]
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        command = [self._program, "--port", str(self.port), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + SECONDS
        while b"LOADING" in (answer := self.ask("PING")) or not answer:
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, f"redis-server answers {answer!r}"
            time.sleep(0.01)

    def ask(self, command: str) -> bytes:
        """Send a command on a connection of its own, and return what comes back, "" if it is not there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), SECONDS) as connection:
                connection.sendall(f"{command}\r\n".encode())
                return connection.recv(1 << 20)
        except OSError:
            return b""

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Stop it by a signal; it is gone on return."""
        self._process.send_signal(number)
        self._process.wait(SECONDS)
