"""A real Redis of our own, which can be killed, paused and started again."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
from pathlib import Path

from tests.judges import judge
from tests.waiting import PATIENCE, wait_until

PORTS = range(20_000, 32_000)
"""Below those that systems give to whoever asks for any: a server that is stopped for a moment gets its port back."""


class RedisServer:
    """Redis with its log in `folder`; what it has answered survives its kill."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self.folder = folder
        self._socket = str(folder / "s")
        secret = ["--requirepass", password] if password else []
        self._command = [judge("redis-server"), "--bind", "127.0.0.1", "--unixsocket", self._socket]
        self._command += ["--save", "", "--appendonly", "yes", "--dir", str(folder), *secret, *options]
        ports = random.sample(PORTS, 10)
        while True:
            self.port = ports.pop()
            try:
                self.start()
                break
            except ChildProcessError:
                if not ports:
                    raise
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers. Raises ``ChildProcessError`` if it ends."""
        command = [*self._command, "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def is_there() -> bool:
            if self._process.poll() is not None:
                raise ChildProcessError("redis-server has ended")
            return (answer := self.ask("PING")) != b"" and b"LOADING" not in answer

        wait_until(is_there)

    def ask(self, command: str) -> bytes:
        """Send a command on a connection of its own, and return what comes back, "" if it is not there."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:  # which no other server listens at
                connection.settimeout(PATIENCE)
                connection.connect(self._socket)
                connection.sendall(f"{command}\r\n".encode())
                return connection.recv(1 << 20)
        except OSError:
            return b""

    def calls(self, command: str) -> int:
        """Return how often the command has been called since ``CONFIG RESETSTAT``."""
        found = self.ask("INFO commandstats").partition(f"cmdstat_{command}:calls=".encode())[2]
        return int(found.partition(b",")[0] or 0)

    def clients(self, options: str = "") -> int:
        """Return the number of connections, without the one that asks."""
        return self.ask(f"CLIENT LIST {options}").count(b" addr=127.0.0.1:")

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Stop it by a signal; it is gone on return."""
        self._process.send_signal(number)
        self._process.wait(PATIENCE)
