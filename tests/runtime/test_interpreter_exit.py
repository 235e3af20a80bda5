"""Which calls the interpreter waits for at its exit, and for how long."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from subprocess import Popen

import pytest

from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk, endless
from tests.closing import SILENT, STALLED
from tests.runtime.support import BEGIN, finished, script

pytestmark = pytest.mark.judges

PATIENT = (
    BEGIN
    + """
import rxllm.runtime.threads as limits
sys.modules["rxllm.runtime.portal"].CLOSE_SECONDS = limits.CLOSE_SECONDS = 60
"""
)
"""A script that begins so gives the calls that it cancels at its exit as long as they need to close."""

WATCHED = (
    PATIENT
    + """
from tests.waiting import blocks_in, until, wait_until
def exits():
    return blocks_in("rxllm.runtime.threads")
def say_when_it_exits():
    wait_until(exits)
    print("exits", flush=True)
threading.Thread(target=say_when_it_exits, daemon=True).start()
"""
)
"""A script that begins so prints ``exits`` once the interpreter waits for calls at its exit."""


def line(process: Popen[str]) -> str:
    """The next line of the program's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_at_exit_live_calls_are_waited_for() -> None:
    exits = threading.Event()

    def answer() -> Iterator[bytes | Pause]:
        yield chat_chunk("Hel")
        while not exits.is_set():
            yield Pause(0.001)
        yield from chat("lo")

    with Loopback(Reply(answer())) as server:
        process = script(WATCHED + "ask().subscribe(print)", server.url)
        assert line(process) == "exits\n"
        exits.set()
        assert finished(process) == (0, "Hello\n", "")
        assert server.connections[0].closed_by == "client"


def test_at_exit_a_call_that_waits_for_its_next_attempt_is_waited_for_too() -> None:
    busy = Reply.of_json({"error": {"message": "busy"}}, 503)
    code = (
        BEGIN
        + """
import logging
failed = threading.Event()
class Told(logging.Handler):
    def emit(self, record):
        failed.set()
logging.getLogger("rxllm").addHandler(Told())
stream_generate(engine, "Hi", retry=RetryPolicy(base_delay=1.0, jitter=0)).pipe(ops.to_text()).subscribe(print)
failed.wait()
"""
    )
    with Loopback([busy, Reply(chat("Hello"))]) as server:
        assert finished(script(code, server.url)) == (0, "Hello\n", "")


@pytest.mark.skipif((3, 12) <= sys.version_info < (3, 12, 2), reason="this Python starts no threads at its exit")
def test_at_exit_a_chat_with_tools_is_waited_for() -> None:
    """New threads cannot be started then."""
    code = (
        WATCHED
        + """
from rxllm import Fake, ToolCall, chat, from_async_iter, tool
fake = Fake([ToolCall("c0", "measure", {"x": 1}), ToolCall("c1", "measure", {"x": 2})], "Done.")
async def at_exit():
    await until(exits)
    yield None
class AtExit:
    def stream(self, request, call):
        return from_async_iter(at_exit).flat_map(lambda _: fake.stream(request, call))
@tool
def measure(x: int) -> int:
    return len(ask().run())
chat(AtExit(), "Hi", tools=[measure]).subscribe(
    lambda result: print([m.text for m in result.thread if m.role == "tool"])
)
"""
    )
    with Loopback(Reply(chat("Hello"))) as server:
        assert finished(script(code, server.url)) == (0, "exits\n['5', '5']\n", "")


@pytest.mark.parametrize(
    "reading",
    [
        "items = iter(ask())\nnext(items)",
        "begun = threading.Event()\ndef read():\n    for text in stream_generate(engine, 'Hi'):\n        begun.set()\n"
        "threading.Thread(target=read, daemon=True).start()\nbegun.wait()",
        "begun = threading.Event()\nstream = ask().pipe(ops.tap(lambda text: begun.set()))\n"
        "threading.Thread(target=stream.run, daemon=True).start()\nbegun.wait()",
    ],
    ids=["an abandoned iterator", "a daemon thread in a for", "a daemon thread in run"],
)
def test_at_exit_a_call_that_nobody_reads_any_more_is_closed_at_once(reading: str) -> None:
    code = BEGIN + "ask = lambda: stream_generate(engine, 'Hi').pipe(ops.text())\n" + reading
    with Loopback(STALLED) as server:
        assert finished(script(code, server.url)) == (0, "", "")  # and no word of a call that was silent
        assert server.connections[0].closed_by == "client"


PINGS = Reply(endless(lambda count: b": ping\n\n"))


@pytest.mark.parametrize("reply", [STALLED, SILENT, PINGS], ids=["stalled", "silent", "pings alone"])
def test_at_exit_a_call_that_has_fallen_silent_is_waited_for_only_so_long(reply: Reply) -> None:
    """As after a ``sys.exit`` in the handler of a signal."""
    code = (
        PATIENT
        + """
import signal
limits.SILENT_SECONDS = limits.FIRST_SECONDS = 1.0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
ask().subscribe(print, lambda error: print(error.reason))
print("up", flush=True)
signal.pause()
"""
    )
    with Loopback(reply) as server:
        process = script(code, server.url)
        assert line(process) == "up\n"
        server.wait_requests(1)
        process.send_signal(signal.SIGTERM)
        code, out, err = finished(process)
        assert (code, out) == (3, "cancelled\n")
        assert "1 calls had been silent for" in err
        assert server.connections[0].closed_by == "client"


def test_at_exit_a_callback_that_blocks_the_loop_is_waited_for_only_so_long() -> None:
    code = """
    import threading
    import rxllm.runtime.threads as limits
    from rxllm import from_async_iter
    async def count():
        yield 1
    limits.FIRST_SECONDS = 1.0
    begun = threading.Event()
    from_async_iter(count).subscribe(lambda item: (begun.set(), threading.Event().wait()))
    begun.wait()
    """
    code, out, err = finished(script(code))
    assert (code, out) == (0, "")
    assert "a callback blocked rxllm's event loop for more than" in err


def test_ctrl_c_at_exit_cancels_them() -> None:
    code = (
        WATCHED
        + """
limits.SILENT_SECONDS = limits.FIRST_SECONDS = 3600
ask().subscribe(print, lambda error: print(error.reason))
"""
    )
    with Loopback(STALLED) as server:
        process = script(code, server.url)
        server.wait_requests(1)
        assert line(process) == "exits\n"
        process.send_signal(signal.SIGINT)
        code, out, err = finished(process)
        assert server.connections[0].closed_by == "client"
    assert out == "cancelled\n"
    assert "Task was destroyed" not in err


@pytest.mark.parametrize("reply", [Reply(endless()), STALLED, SILENT], ids=["endless", "stalled", "silent"])
def test_ctrl_c_in_the_program_disposes_what_is_subscribed(reply: Reply) -> None:
    code = (
        PATIENT
        + """
import signal
limits.SILENT_SECONDS = limits.FIRST_SECONDS = 3600
stream_generate(engine, "Hi").subscribe(lambda event: None, lambda error: print(error.reason))
print("up", flush=True)
signal.pause()
"""
    )
    with Loopback(reply) as server:
        process = script(code, server.url)
        assert line(process) == "up\n"
        server.wait_requests(1)
        process.send_signal(signal.SIGINT)
        code, out, err = finished(process)
        assert server.connections[0].closed_by == "client"
    assert out == "cancelled\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
