"""Which calls the interpreter waits for at its exit, and for how long."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk, endless
from tests.runtime.support import BEGIN, SILENT, STALLED, finished, now, script

SLOW = Reply([chat_chunk("Hel"), Pause(0.3), *chat("lo")])


def test_at_exit_live_calls_are_waited_for() -> None:
    with Loopback(SLOW) as server:
        assert finished(script(BEGIN + "ask().subscribe(print)", server.url)) == (0, "Hello\n", "")
        assert server.connections[0].closed_by == "client"


def test_at_exit_a_call_that_waits_for_its_next_attempt_is_waited_for_too() -> None:
    busy = Reply.of_json({"error": {"message": "busy"}}, 503)
    code = (
        BEGIN
        + """
import logging
logging.getLogger("rxllm").setLevel(logging.ERROR)
ask().subscribe(print)
import time; time.sleep(0.1)
"""
    )
    with Loopback([busy, SLOW]) as server:
        assert finished(script(code, server.url)) == (0, "Hello\n", "")


@pytest.mark.skipif((3, 12) <= sys.version_info < (3, 12, 2), reason="this Python starts no threads at its exit")
def test_at_exit_a_chat_with_tools_is_waited_for() -> None:
    """New threads cannot be started then."""
    code = (
        BEGIN
        + """
import time
from rxllm import Fake, ToolCall, chat, tool
@tool
def slow(x: int) -> int:
    time.sleep(0.1)
    return len(ask().run())
fake = Fake([("delay", 0.1), ToolCall("c0", "slow", {"x": 1}), ToolCall("c1", "slow", {"x": 2})], "Done.")
asyncio.run_coroutine_threadsafe(asyncio.sleep(0.4), rxllm.runtime.call_loop())
chat(fake, "Hi", tools=[slow]).subscribe(lambda result: print([m.text for m in result.thread if m.role == "tool"]))
"""
    )
    with Loopback(Reply(chat("Hello"))) as server:
        assert finished(script(code, server.url)) == (0, "['5', '5']\n", "")


@pytest.mark.parametrize(
    "reading",
    [
        "items = iter(ask())\nnext(items)",
        "begun = threading.Event()\ndef read():\n    for text in stream_generate(engine, 'Hi'):\n        begun.set()\n"
        "threading.Thread(target=read, daemon=True).start()\nbegun.wait(20)",
        "begun = threading.Event()\nstream = ask().pipe(ops.tap(lambda text: begun.set()))\n"
        "threading.Thread(target=stream.run, daemon=True).start()\nbegun.wait(20)",
    ],
    ids=["an abandoned iterator", "a daemon thread in a for", "a daemon thread in run"],
)
def test_at_exit_what_nobody_reads_any_more_is_closed_at_once(reading: str) -> None:
    code = BEGIN + "ask = lambda: stream_generate(engine, 'Hi').pipe(ops.text())\n" + reading
    with Loopback(STALLED) as server:
        assert finished(script(code, server.url), timeout=15) == (0, "", "")
        assert server.connections[0].closed_by == "client"


PINGS = Reply(endless(lambda count: b": ping\n\n", every=0.05))


@pytest.mark.parametrize("reply", [STALLED, SILENT, PINGS], ids=["stalled", "silent", "pings alone"])
def test_at_exit_a_call_that_has_fallen_silent_is_waited_for_only_so_long(reply: Reply) -> None:
    """As after a ``sys.exit`` in the handler of a signal."""
    code = (
        BEGIN
        + """
import signal, time
import rxllm.runtime.threads as limits
limits.SILENT_SECONDS, limits.FIRST_SECONDS = 0.2, 0.5
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
ask().subscribe(print, lambda error: print(error.reason))
print("up", flush=True)
time.sleep(20)
"""
    )
    with Loopback(reply) as server:
        process = script(code, server.url)
        server.wait_requests(1, 20)
        process.send_signal(signal.SIGTERM)
        code, out, err = finished(process, timeout=15)
        assert (code, out) == (3, "up\ncancelled\n")
        assert "1 calls had been silent for" in err
        assert server.connections[0].closed_by == "client"


def test_at_exit_a_callback_that_blocks_the_loop_is_waited_for_only_so_long() -> None:
    code = """
    import threading, time
    import rxllm.runtime.threads as limits
    from rxllm import from_async_iter
    async def count():
        yield 1
    limits.FIRST_SECONDS = 0.3
    begun = threading.Event()
    from_async_iter(count).subscribe(lambda item: (begun.set(), time.sleep(60)))
    begun.wait(20)
    """
    code, out, err = finished(script(code), timeout=15)
    assert (code, out) == (0, "")
    assert "a callback blocked rxllm's event loop for more than" in err


def test_ctrl_c_at_exit_cancels_them() -> None:
    code = (
        BEGIN
        + """
ask().subscribe(print, lambda error: print(error.reason))
print("bye", flush=True)
"""
    )
    with Loopback(STALLED) as server:
        process = script(code, server.url)
        server.wait_requests(1)
        assert process.stdout is not None
        assert process.stdout.readline() == "bye\n"
        threading.Event().wait(0.3)  # until it waits at exit
        assert process.poll() is None
        acted = now()
        process.send_signal(signal.SIGINT)
        closed = server.connections[0].wait_closed()
        code, out, err = finished(process)
    assert out == "cancelled\n"
    assert "Task was destroyed" not in err
    assert closed - acted < 2


@pytest.mark.parametrize("reply", [Reply(endless(every=0.05)), STALLED, SILENT], ids=["endless", "stalled", "silent"])
def test_ctrl_c_in_the_program_disposes_what_is_subscribed(reply: Reply) -> None:
    code = (
        BEGIN
        + """
import time
stream_generate(engine, "Hi").subscribe(lambda event: None, lambda error: print(error.reason))
time.sleep(60)
"""
    )
    with Loopback(reply) as server:
        process = script(code, server.url)
        server.wait_requests(1)
        threading.Event().wait(0.3)  # until the program sleeps
        acted = now()
        process.send_signal(signal.SIGINT)
        closed = server.connections[0].wait_closed()
        code, out, err = finished(process)
    assert out == "cancelled\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert closed - acted < 2
