"""Scripts: every way to read a stream, at the end of a loop, and in a forked child."""

from __future__ import annotations

import os

import pytest

from rxllm.testing.loopback import Loopback, Reply, chat
from tests.closing import STALLED
from tests.runtime.support import BEGIN, finished, script

pytestmark = pytest.mark.judges


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


FORKED = """
import warnings
warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
import signal
from rxllm import StreamError, from_async_iter, operators as ops, stream
async def numbers():
    for number in range(1_000):
        yield number
        await asyncio.sleep(0)
items = iter(from_async_iter(numbers))
next(items)
shared = stream(engine, "Hi").pipe(ops.share_folded(grace=0.0))
watching = shared.subscribe(on_error=lambda error: None)
child = os.fork()
if child == 0:
    signal.alarm(60)
    for read in (lambda: [*items], shared.run):
        try:
            print("read", read())
        except StreamError as error:
            print(error.reason, "forked" in error.message or "loop" in error.message, flush=True)
    print(from_async_iter(numbers).take(2).to_list().run(), flush=True)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(next(items) >= 0)
items.close()
watching.dispose()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_call_of_the_parent_fails_in_a_forked_child_at_once() -> None:
    with Loopback(STALLED) as server:
        code, out, err = finished(script(BEGIN + FORKED, server.url))
    assert (code, out.splitlines(), err) == (0, ["cancelled True", "cancelled True", "[0, 1]", "True"], "")
