"""examples/mqtt_sensor.py between a real broker and a real connection to a model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from rxllm.testing.loopback import Loopback, Pause, Reply, Request, chat, chat_chunk
from tests.judges import judge
from tests.programs import EXAMPLES
from tests.waiting import pauses, until, wait_until

if TYPE_CHECKING:
    import aiomqtt
else:
    aiomqtt = pytest.importorskip("aiomqtt", reason="the example needs rxllm[test]")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="aiomqtt needs a loop with add_reader there"),
    pytest.mark.judges,
]

SENSOR = str(EXAMPLES / "mqtt_sensor.py")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a broker of our own."""
    program = judge("mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with subprocess.Popen([program, "-p", str(port)], stderr=subprocess.DEVNULL) as broker:
        try:
            wait_until(lambda: accepts(port) or broker.poll() is not None)
            assert broker.poll() is None, "another program has taken the port"
            yield port
        finally:
            broker.terminate()


def accepts(port: int) -> bool:
    """Return whether a program accepts connections on `port` of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Model:
    """Remarks on a reading; while it is not `free`, it has only begun to. `readings` are those it was sent."""

    def __init__(self) -> None:
        self.free = True
        self.readings: list[int] = []

    def __call__(self, request: Request) -> Reply:
        self.readings.append(int(request.json["messages"][-1]["content"].split()[2]))
        return Reply(self._remark(self.readings[-1]))

    def _remark(self, reading: int) -> Iterator[bytes | Pause]:
        yield chat_chunk("It is ")
        yield from pauses(lambda: self.free)
        yield from chat(f"{reading}.")


class Room:
    """The sensor and the switch, and who reads the remarks."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client

    async def measure(self, reading: int, *, retain: bool = False) -> None:
        """Publish a reading. It is on its way to the example when this returns."""
        await self._client.publish("room/temperature", str(reading), qos=1, retain=retain)

    async def switch(self, to: str) -> None:
        await self._client.publish("room/remarks/switch", to)

    async def remark(self) -> str:
        return (await anext(self._client.messages)).payload.decode()


@contextlib.asynccontextmanager
async def remarks(port: int, *model: str, **environment: str) -> AsyncIterator[tuple[Room, subprocess.Popen[str]]]:
    """Yield the room, whose first reading is 20, while the example runs."""
    async with aiomqtt.Client("127.0.0.1", port) as client:
        await client.subscribe("room/remarks")
        room = Room(client)
        await room.measure(20, retain=True)  # it is there for the example whenever that begins
        command = [sys.executable, SENSOR, "127.0.0.1", str(port), *model]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
        with process:
            try:
                yield room, process
            finally:
                process.kill()


def test_the_newest_reading_alone_waits_for_the_model(port: int) -> None:
    async def main() -> None:
        async with remarks(port, "openai:m", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="k") as (room, _):
            assert await room.remark() == "20: It is 20."
            model.free = False
            await room.measure(21)
            await until(lambda: len(server.requests) == 2)
            for reading in range(22, 60):
                await room.measure(reading)
            assert model.readings == [20, 21]
            model.free = True
            assert await room.remark() == "21: It is 21."
            while "59" not in await room.remark():
                pass
        assert model.readings == sorted(set(model.readings))
        assert len(model.readings) < 10

    model = Model()
    with Loopback(model) as server:
        asyncio.run(main())


def test_the_switch_stops_the_remarks_and_they_go_on_with_the_newest_reading(port: int) -> None:
    async def main() -> None:
        async with remarks(port, "openai:m", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="k") as (room, _):
            assert await room.remark() == "20: It is 20."
            await room.switch("off")
            for reading in range(30, 35):
                await room.measure(reading)
            await room.switch("on")
            assert await room.remark() == "34: It is 34."
        assert model.readings == [20, 34]

    model = Model()
    with Loopback(model) as server:
        asyncio.run(main())


def test_ctrl_c_ends_it_and_its_call(port: int) -> None:
    async def main() -> None:
        model.free = False
        async with remarks(port, "openai:m", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="k") as (_, process):
            await until(lambda: len(server.requests) == 1)
            process.send_signal(signal.SIGINT)
            _, errors = await asyncio.to_thread(process.communicate)
            assert (process.returncode, errors) == (130, "")
            await until(lambda: server.connections[0].closed_at is not None)

    model = Model()
    with Loopback(model) as server:
        asyncio.run(main())


def test_a_model_on_this_machine_remarks_without_a_key(port: int) -> None:
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")

    async def main() -> None:
        async with remarks(port) as (room, _):
            reading, _, remark = (await room.remark()).partition(": ")
            assert reading == "20"
            assert remark

    asyncio.run(main())
