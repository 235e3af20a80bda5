"""The gate of an operator that keeps items waiting, in front of its reader's."""

from rxllm.runtime import Gate, Hold
from rxllm.runtime.context_variables import Reader, current_reader


def test_two_gates_are_full_idle_and_requested_as_one() -> None:
    reader = Gate(2)
    token = current_reader.set(Reader(reader))
    own, woken = Hold(2), list[str]()
    current_reader.reset(token)
    own.waiting.extend("ab")
    reader.waiting.append("r")
    own.when_open(lambda: woken.append("open"))
    own.when_idle(lambda: woken.append("idle"))
    own.when_requested(lambda: woken.append("requested"))
    assert (own.full, own.idle, own.requested, woken) == (True, False, False, [])
    reader.waiting.append("s")
    own.take()
    assert (own.full, woken) == (True, [])  # the reader's is full
    own.take()
    reader.take()
    assert (own.full, woken) == (False, ["open"])
    reader.take()
    assert (own.idle, own.requested, woken) == (True, False, ["open", "idle"])
    reader.request()
    assert (own.requested, woken) == (True, ["open", "idle", "requested"])


def test_a_closed_gate_is_not_idle_though_nothing_waits() -> None:
    own, woken = Hold(2), list[str]()
    own.closed = True
    own.when_idle(lambda: woken.append("idle"))
    own.when_requested(lambda: woken.append("requested"))
    own.when_open(lambda: woken.append("open"))
    assert (own.full, own.idle, own.requested, woken) == (False, False, False, ["open"])
    own.let_through()
    assert (own.idle, own.requested, woken) == (True, True, ["open", "idle", "requested"])
