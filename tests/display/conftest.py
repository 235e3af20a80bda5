"""A real kernel, for tests of what `show` does in its cells."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

SETUP = """
import asyncio, pathlib
import rxllm
from rxllm import Fake
from rxllm import operators as ops

def answer(*script):
    return rxllm.stream_generate(Fake(list(script)), "Hi")

def parts(first, second):
    async def adapter(request, call):
        yield rxllm.TextDelta(first)
        while not gate.exists():
            await asyncio.sleep(0.01)
        yield rxllm.TextDelta(second)

    gate.unlink(missing_ok=True)
    return rxllm.stream_generate(adapter, "Hi")
"""


class Kernel:
    """A kernel, in which the answers of ``parts`` end when its `gate` is there."""

    def __init__(self, manager, client, gate: Path) -> None:
        self._manager, self._client, self.gate = manager, client, gate

    def run(self, code: str, interrupt_at: str | None = None, open_at: str | None = None) -> list[tuple[str, str]]:
        """The outputs of a cell, as (kind, text). Once an output has a text, interrupt the kernel or open the gate."""
        id, outputs = self._client.execute(code), []
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and message["parent_header"].get("msg_id") == id:
                if content["execution_state"] == "idle":
                    return outputs
            elif kind in ("display_data", "update_display_data", "execute_result"):
                outputs.append((kind, content["data"].get("text/html") or content["data"]["text/plain"]))
            elif kind == "comm_msg":  # a widget's
                outputs.append((kind, str(content["data"])))
            elif kind == "error":
                outputs.append((kind, "\n".join(content["traceback"])))
            if interrupt_at is not None and outputs and interrupt_at in outputs[-1][1]:
                interrupt_at = None
                self._manager.interrupt_kernel()
            if open_at is not None and outputs and open_at in outputs[-1][1]:
                self.gate.touch()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    pytest.importorskip("ipykernel", reason="cells need rxllm[notebook]")
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        kernel = Kernel(manager, client, tmp_path_factory.mktemp("gate") / "open")
        kernel.run(f"{SETUP}\ngate = pathlib.Path({str(kernel.gate)!r})")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
