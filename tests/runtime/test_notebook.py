"""In a real Jupyter kernel, whose loop is always running."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rxllm.testing.loopback import Loopback, Reply, chat
from tests.runtime.support import ROOT, STALLED, assert_prompt

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
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=20)
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
import asyncio, time, warnings
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


def test_every_way_in_cells_one_after_another(notebook: Notebook) -> None:
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        begin(notebook, server)
        assert [notebook.run(cell) for cell in CELLS * 2] == ["Hello\n"] * len(CELLS) * 2
        notebook.run("await rxllm.aclose(engine)")


def test_a_subscription_goes_on_after_its_cell(notebook: Notebook) -> None:
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        begin(notebook, server)
        notebook.run("heard = []\nsubscription = ask().subscribe(heard.append)")
        server.wait_requests(1)
        assert notebook.run("while not heard: await asyncio.sleep(0.01)\nprint(*heard)") == "Hello\n"


@pytest.mark.parametrize("way", ["ask().run()", "list(ask())"])
def test_the_stop_button_closes_the_connection(notebook: Notebook, way: str) -> None:
    """Measured from the moment the cell sees the interrupt, which takes the kernel a while to get."""
    times: list[float] = []
    for _ in range(3):
        with Loopback(STALLED) as server:
            begin(notebook, server)
            cell = f"try:\n    {way}\nexcept KeyboardInterrupt:\n    print(time.monotonic())"
            id = notebook.client.execute(cell)
            server.wait_requests(1)
            time.sleep(0.05)  # until the cell waits
            acted = time.monotonic()
            notebook.manager.interrupt_kernel()
            closed = server.connections[0].wait_closed()
            printed = notebook.output(id)
            seen = re.search(r"[\d.]+", printed)
            assert seen is not None, printed
            assert closed - acted < 1.0
            times.append(closed - float(seen[0]))
            notebook.run("await rxllm.aclose(engine)")
    assert_prompt(times)
