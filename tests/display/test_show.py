"""`show` in a terminal, in a pipe and in any program: what is printed, and what comes back."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from reactivex import Observable, empty, of, throw
from reactivex.internal.exceptions import SequenceContainsNoElementsError

import rxllm
from rxllm import AdapterError, ChatResult, Fake, Response, StepResult, ToolCall
from rxllm import operators as ops
from rxllm.display import Showing, _show
from rxllm.display._plain import Screen
from rxllm.testing.loopback import Loopback, Reply, endless

HALF = [("thinking", "hm"), "half ", ("delay", 60), "whole"]


def test_a_pipe_gets_the_text_alone_and_the_response_comes_back(capsys):
    response = rxllm.show(rxllm.stream_generate(Fake([("thinking", "hm"), "Hel", "lo"]), "Hi"))
    assert capsys.readouterr().out == "Hello\n"
    assert isinstance(response, Response)
    assert response.output_text == "Hello"


def test_a_step_gives_its_step_result_and_a_chat_its_chat_result(capsys):
    assert isinstance(rxllm.show(rxllm.stream_step(Fake("Hi"), "Hello")), StepResult)
    chat = rxllm.stream(Fake(["I double.", ToolCall("c0", "double", {"x": 2})], "4"), "Double 2", tools=[double])
    assert isinstance(rxllm.show(chat), ChatResult)
    assert capsys.readouterr().out == "Hi\nI double.\n\n4\n"


def test_other_items_are_printed_one_by_one_and_the_last_comes_back(capsys):
    assert rxllm.show(of(1, 2)) == 2
    assert capsys.readouterr().out == "1\n2\n"


def test_a_stream_without_items_has_no_result_as_for_run():
    with pytest.raises(SequenceContainsNoElementsError):
        rxllm.show(empty())


def test_an_error_is_raised_after_what_had_come_was_shown(capsys):
    failing = rxllm.stream_generate(Fake(["Hel", ("error", "timeout")]), "Hi").pipe(ops.raise_errors())
    with pytest.raises(AdapterError):
        rxllm.show(failing)
    assert capsys.readouterr().out == "Hel\n"
    assert rxllm.display.last.output_text == "Hel"


def test_a_streamed_error_goes_to_standard_error_and_is_kept(capsys):
    response = rxllm.show(rxllm.stream_generate(Fake(["Hel", ("error", "timeout")]), "Hi"))
    assert response.error == AdapterError("timeout", provider="fake")
    assert capsys.readouterr() == ("Hel\n", "AdapterError: adapter error (fake): timeout\n")


def test_race_hedge_merge_are_printed_one_after_the_other_with_a_dict_of_results(capsys):
    streams = {"ann": answer("A"), "bob": answer(("error", "timeout")), "cy": of(1, 2), "eve": throw(OSError("no"))}
    results = rxllm.show(streams)
    out = capsys.readouterr().out
    assert "ann:\nA\n\nbob:\nAdapterError: adapter error (fake): timeout\n\ncy:\n2\n\neve:\n" in out
    assert results["ann"].output_text == "A"
    assert results["bob"].error == AdapterError("timeout", provider="fake")
    assert results["cy"] == 2
    assert rxllm.show(rxllm.merge_labelled({"a": answer("A"), "b": answer("B")}))["b"].output_text == "B"


def answer(*script):
    return rxllm.stream_generate(Fake(list(script)), "Hi")


def test_a_wrong_argument_is_named():
    with pytest.raises(rxllm.ValidationError, match="stream must be an Observable"):
        rxllm.show("Hello")
    with pytest.raises(rxllm.ValidationError, match="streams"):
        rxllm.show({"a": "Hello"})
    with pytest.raises(rxllm.ValidationError, match="block must be True or False"):
        rxllm.show(answer("A"), block="no")


def test_last_is_the_latest_result_and_other_names_are_missing():
    response = rxllm.show(answer("A"))
    assert rxllm.display.last is response
    with pytest.raises(AttributeError, match="lats"):
        rxllm.display.lats


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Board(Screen):
    """A screen that keeps what it is told to draw; each draw takes `slow` seconds."""

    def __init__(self, slow: float = 0.0) -> None:
        self.drawn, self.finished, self.slow = [], [], slow

    def open(self, cards, stop):
        self.drawn.append(cards)

    def add(self, item):
        pass

    def draw(self, cards, now):
        time.sleep(self.slow)
        self.drawn.append(cards)

    def finish(self, cards, now):
        self.finished.append(cards)


@pytest.fixture
def board(monkeypatch):
    board = Board()
    monkeypatch.setattr("rxllm.display._show.choose_screen", lambda: board)
    return board


def texts(board):
    return [cards[None].state.current_text for cards in board.drawn]


# Without blocking


def test_a_handle_comes_back_at_once_and_is_awaited_for_the_result(capsys):
    async def main():
        showing = rxllm.show(answer("a", ("delay", 0.05), "b"), block=False)
        assert isinstance(showing, Showing)
        assert capsys.readouterr().out in ("", "a")
        return await showing

    assert asyncio.run(main()).output_text == "ab"


def test_disposing_a_handle_closes_the_connection_and_keeps_what_came(board):
    with Loopback(Reply(endless(every=0.01))) as server:
        engine = rxllm.Engine(rxllm.OpenAIChat(base_url=server.url, api_key="k"), model="m")
        showing = rxllm.show(rxllm.stream_generate(engine, "Hi"), block=False)
        wait_until(lambda: "1 " in texts(board)[-1])
        began = time.monotonic()
        showing.dispose()
        assert server.connections[0].wait_closed() - began < 0.05
        assert showing.result(10).output_text.startswith("0 ")
        showing.dispose()  # again, and after the end


def test_cancelling_the_task_that_awaits_a_handle_stops_the_stream():
    async def main():
        showing = rxllm.show(answer(*HALF), block=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(showing, 0.05)
        return await asyncio.to_thread(showing.result, 10)

    assert asyncio.run(main()).output_text in ("", "half ")


def test_a_failed_stream_raises_when_its_handle_is_awaited():
    showing = rxllm.show(throw(ValueError("x")), block=False)
    with pytest.raises(ValueError, match="x"):
        showing.result(10)


# Drawing


def test_what_came_last_is_drawn_though_nothing_follows_it(board):
    """Two pieces at once, then silence: both are drawn while it lasts."""
    rxllm.show(answer("Hel", "lo", ("delay", 0.3), "!"))
    assert "Hello" in texts(board)


def test_a_card_is_there_before_the_first_token(board):
    rxllm.show(answer(("delay", 0.2), "x"))
    assert texts(board)[0] == ""
    assert len(board.drawn) >= 3  # its time ticks


def test_the_time_on_the_card_moves_while_nothing_arrives(board):
    rxllm.show(answer("x", ("delay", 0.5), "y"))
    assert texts(board).count("x") >= 3


def test_a_silent_value_is_not_drawn_again(board):
    rxllm.show(rxllm.Stream.of(Observable(lambda observer, scheduler: _late(observer))))
    assert len(board.drawn) <= 3


def _late(observer):
    observer.on_next(1)
    timer = threading.Timer(0.4, observer.on_completed)
    timer.start()
    return rxllm.Stream.of(empty()).subscribe()


def test_a_slow_screen_does_not_slow_the_stream_and_its_draws_are_dropped(board):
    board.slow = 0.3
    ended = []
    began = time.monotonic()
    stream = answer(*(piece for n in range(20) for piece in (f"{n} ", ("delay", 0.005))))
    rxllm.show(stream.pipe(ops.tap(lambda event: ended.append(time.monotonic()), rxllm.events.MessageCompleted)))
    assert ended[0] - began < 0.3
    assert len(board.drawn) <= 3
    [cards] = board.finished
    assert cards[None].state.current_text.endswith("19 ")


def test_a_screen_that_fails_is_reported_and_the_stream_goes_on(board, caplog):
    board.draw = lambda cards, now: 1 / 0
    assert rxllm.show(answer("a", ("delay", 0.1), "b")).output_text == "ab"
    assert "the display will not be updated until the stream ends" in caplog.text


def test_a_stopped_stream_is_marked_kept_and_raises_one_line(board, monkeypatch):
    def interrupt(event):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt) as raised:
        rxllm.show(answer(*HALF).pipe(ops.tap(interrupt, rxllm.TextDelta)))
    assert raised.value._render_traceback_() == ["Stopped. The partial result is in rxllm.display.last."]
    [cards] = board.finished
    assert cards[None].end == "stopped"
    assert rxllm.display.last.output_text == "half "
    assert rxllm.display.last.thinking == "hm"


def test_no_thread_is_left(board):
    rxllm.show(answer("a"))
    rxllm.show(answer("a"), block=False).result(10)
    names = ("rxllm-show", "rxllm-draw")
    wait_until(lambda: not any(thread.name.startswith(names) for thread in threading.enumerate()))


def test_slow_draws_have_longer_pauses():
    assert _show.pause_after(0.0) == _show.REFRESH_SECONDS
    assert _show.pause_after(0.01) == pytest.approx(1.5)


# On a terminal

PROGRAM = """
import rxllm, sys
if {plain}: sys.modules["rich"] = None
@rxllm.tool
def double(x: int) -> int: return 2 * x
fake = rxllm.Fake([("thinking", "hm"), "It is **so** \\x1b[31m", rxllm.ToolCall("c0", "double", {{"x": 2}})], "4")
rxllm.show(rxllm.stream(fake, "?", tools=[double]))
rxllm.show({{"ann": rxllm.stream_generate(rxllm.Fake("A"), "?"), "bob": rxllm.stream_generate(rxllm.Fake("B"), "?")}})
"""


def on_a_terminal(program: str) -> str:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    output = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(leader)
    assert process.wait(30) == 0, output.decode()
    return output.decode()


def test_a_terminal_without_rich_gets_everything_as_it_comes():
    out = on_a_terminal(PROGRAM.format(plain=True)).replace("\r\n", "\n")
    assert out.startswith("hm\n\nIt is **so** �[31m\n\ndouble(x=2)\n\n→ 4\n\n4\n")
    assert out.endswith("ann:\nA\n\nbob:\nB\n")


def test_a_terminal_with_rich_gets_the_card():
    pytest.importorskip("rich")
    out = on_a_terminal(PROGRAM.format(plain=False))
    assert "**" not in out  # the Markdown is drawn
    assert "�[31m" in out
    assert "double" in out
    assert "done · " in out
    assert re.search(r"─ ann ─+.*─ bob ─", out)  # side by side


def test_what_a_tool_was_told_is_shown_as_it_is():
    message = rxllm.Message("tool", "<awaiting user response>", tool_call_id="c0")
    assert message._repr_markdown_() == "**tool**\n\n`<awaiting user response>`"


@rxllm.tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x
