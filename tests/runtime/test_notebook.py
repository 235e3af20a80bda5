"""In a real Jupyter kernel, whose loop is always running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rxllm.testing.loopback import Loopback, Reply, chat
from tests.closing import STALLED, also_next, assert_closed
from tests.runtime.support import ROOT
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.sockets, pytest.mark.judges]

manager = pytest.importorskip("jupyter_client.manager", reason="needs ipykernel and jupyter_client")
pytest.importorskip("ipykernel")


class Notebook:
    """A kernel and its cells' output."""

    def __init__(self) -> None:
        self.manager, self.client = manager.start_new_kernel(cwd=str(ROOT))

    def run(self, cell: str) -> str:
        """What the cell prints. Raises ``AssertionError`` with its traceback if it fails."""
        return self.output(self.client.execute(cell))

    def output(self, id: str) -> str:
        printed = ""
        while True:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != id:
                continue
            match message["msg_type"], message["content"]:
                case "stream", content:
                    printed += content["text"]
                case "error", content:
                    raise AssertionError("\n".join(content["traceback"]))
                case "status", {"execution_state": "idle"}:
                    return printed

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    yield made
    made.close()


def begin(notebook: Notebook, server: Loopback) -> None:
    notebook.run(f"""
import asyncio, warnings
warnings.simplefilter("error", RuntimeWarning)
import rxllm
from rxllm import Engine, OpenAIChat, operators as ops, stream_generate
engine = Engine(OpenAIChat(base_url={server.url!r}), model="m", retry=False)
ask = lambda: stream_generate(engine, "Hi").pipe(ops.to_text())
""")


CELLS = [
    "print(ask().run())",
    "print(await ask())",
    "for text in ask(): print(text)",
    "async for text in ask(): print(text)",
    "with rxllm.to_iter(ask()) as items: print(*items)",
    "heard = asyncio.Event()\nask().subscribe(lambda text: (print(text), heard.set()))\nawait heard.wait()",
    "print(*[text.run() for text in [ask(), ask()]][:1])",
]


@pytest.mark.judges
def test_every_way_in_cells_one_after_another(notebook: Notebook) -> None:
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        begin(notebook, server)
        assert [notebook.run(cell) for cell in CELLS * 2] == ["Hello\n"] * len(CELLS) * 2
        notebook.run("await rxllm.aclose(engine)")


@pytest.mark.judges
def test_a_subscription_goes_on_after_its_cell(notebook: Notebook) -> None:
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        begin(notebook, server)
        notebook.run("heard = []\nsubscription = ask().subscribe(heard.append)")
        server.wait_requests(1)
        assert notebook.run("from tests.waiting import until\nawait until(lambda: heard)\nprint(*heard)") == "Hello\n"


STOPPED = """
import threading
from pathlib import Path
from types import SimpleNamespace
from tests.closing import next_call
from tests.waiting import blocks_in, wait_until
def say_when_the_cell_waits():
    wait_until(lambda: blocks_in("rxllm.runtime._reading"))
    Path({waits!r}).touch()
threading.Thread(target=say_when_the_cell_waits).start()
try:
    {way}
except KeyboardInterrupt:
    next_call(SimpleNamespace(url={url!r})).run()
    print("stopped")
"""


@pytest.mark.parametrize("way", ["ask().run()", "list(ask())"])
def test_the_stop_button_closes_the_connection(notebook: Notebook, way: str, tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    with Loopback(also_next(STALLED)) as server:
        begin(notebook, server)
        cell = notebook.client.execute(STOPPED.format(waits=str(waits), way=way, url=server.url))
        wait_until(waits.exists)
        server.wait_requests(1)
        notebook.manager.interrupt_kernel()
        assert notebook.output(cell) == "stopped\n"
        assert_closed(server.connections[0])
        notebook.run("await rxllm.aclose(engine)")
