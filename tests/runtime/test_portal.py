"""Scripts: what happens to calls at the interpreter's end, on Ctrl-C, and in a forked child."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rxllm.testing.loopback import Loopback, Pause, Reply, chat, chat_chunk
from tests.runtime.support import STALLED, finished, now, script

SLOW = Reply([chat_chunk("Hel"), Pause(0.3), *chat("lo")])

BEGIN = """
import asyncio, os, sys, threading
import rxllm
from rxllm import Engine, OpenAIChat, RetryPolicy, generate, operators as ops, stream_generate
engine = Engine(OpenAIChat(base_url=sys.argv[1]), model="m", retry=RetryPolicy(base_delay=0.2, jitter=0))
def ask():
    return stream_generate(engine, "Hi").pipe(ops.to_text())
"""


def test_every_way_in_a_script() -> None:
    code = (
        BEGIN
        + """
async def main():
    print(await ask())
    async for text in ask():
        print(text)
print(ask().run())
asyncio.run(main())
for text in ask():
    print(text)
thread = threading.Thread(target=lambda: print(ask().run()))
thread.start()
thread.join()
asyncio.run(main())
ask().subscribe(print)
"""
    )
    with Loopback(Reply(chat("Hel", "lo"))) as server:
        assert finished(script(code, server.url)) == (0, "Hello\n" * 8, "")


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


def test_the_loops_end_makes_no_noise() -> None:
    code = (
        BEGIN
        + """
async def main():
    seen = asyncio.Event()
    stream_generate(engine, "Hi").subscribe(lambda event: seen.set(), lambda error: print(error.reason))
    await seen.wait()
asyncio.run(main())
"""
    )
    with Loopback(STALLED) as server:
        assert finished(script(code, server.url)) == (0, "cancelled\n", "")
        assert server.connections[0].closed_by == "client"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("used", ["", "print(ask().run(), flush=True)"], ids=["unused", "used"])
def test_a_forked_child_has_its_own(used: str) -> None:
    """And the parent's goes on working, also when the child ends as a program does."""
    code = (
        BEGIN
        + used
        + """
import warnings
warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)  # Python's, of every fork beside threads
child = os.fork()
if child == 0:
    print(ask().run(), flush=True)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(ask().run())
"""
    )
    with Loopback(Reply(chat("Hello"))) as server:
        url = server.url.replace("127.0.0.1", "localhost")  # looking a name up needs a thread
        expected = "Hello\n" * (3 if used else 2)
        assert finished(script(code, url)) == (0, expected, "")
