"""`show` in a terminal, in a pipe and in any program: what is printed, and what comes back."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest
from reactivex import empty, of, throw
from reactivex.internal.exceptions import SequenceContainsNoElementsError

import rxllm
from rxllm import AdapterError, ChatResult, Fake, Response, StepResult, ToolCall
from rxllm import operators as ops
from rxllm.display import Showing, _show
from rxllm.display._plain import Screen
from rxllm.testing.loopback import STALL, Loopback, Reply, chat_chunk
from tests.closing import also_next, assert_closed, next_call
from tests.waiting import PATIENCE, until, wait_until

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


def parts(*parts):
    """Answer with those that are texts. Before it goes on, wait until those that are functions return something."""

    async def adapter(request, call):
        for part in parts:
            if isinstance(part, str):
                yield rxllm.TextDelta(part)
            else:
                await until(part)

    return rxllm.stream_generate(adapter, "Hi", retry=False)


class Board(Screen):
    """A screen that keeps what it is told to draw."""

    def __init__(self) -> None:
        self.drawn, self.finished = [], []

    def open(self, cards, stop):
        self.drawn.append(cards)

    def add(self, item):
        pass

    def draw(self, cards, now):
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
        is_back = threading.Event()
        showing = rxllm.show(parts("a", is_back.is_set, "b"), block=False)
        assert isinstance(showing, Showing)
        assert capsys.readouterr().out in ("", "a")
        is_back.set()
        return await showing

    assert asyncio.run(main()).output_text == "ab"


@pytest.mark.sockets
def test_disposing_a_handle_closes_the_connection_and_keeps_what_came(board):
    with Loopback(also_next(Reply([chat_chunk("0 "), chat_chunk("1 "), STALL]))) as server:
        engine = rxllm.Engine(rxllm.OpenAIChat(base_url=server.url, api_key="k"), model="m")
        showing = rxllm.show(rxllm.stream_generate(engine, "Hi"), block=False)
        wait_until(lambda: "1 " in texts(board)[-1])
        showing.dispose()
        next_call(server).run()
        assert_closed(server.connections[0])
        assert showing.result(PATIENCE).output_text == "0 1 "
        showing.dispose()  # again, and after the end


def test_cancelling_the_task_that_awaits_a_handle_stops_the_stream():
    async def main():
        showing = rxllm.show(answer(*HALF), block=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(showing, 1.0)
        return await asyncio.to_thread(showing.result, PATIENCE)

    assert asyncio.run(main()).output_text in ("", "half ")


def test_a_failed_stream_raises_when_its_handle_is_awaited():
    showing = rxllm.show(throw(ValueError("x")), block=False)
    with pytest.raises(ValueError, match="x"):
        showing.result(PATIENCE)


# Drawing


def test_the_last_piece_is_drawn_though_nothing_follows_it(board):
    rxllm.show(parts("Hel", "lo", lambda: "Hello" in texts(board), "!"))


def test_a_card_is_there_before_the_first_token_and_its_time_ticks(board):
    rxllm.show(parts(lambda: len(board.drawn) >= 3, "x"))
    assert texts(board)[:3] == ["", "", ""]


def test_the_time_on_the_card_moves_while_nothing_arrives(board):
    rxllm.show(parts("x", lambda: texts(board).count("x") >= 3, "y"))


def test_a_silent_value_is_not_drawn_again(board):
    looks = []

    class Over(threading.Event):
        """Counts how often it is asked whether there is something to draw."""

        def wait(self, timeout=None):
            looks.append(timeout)
            return super().wait(timeout)

    async def items():
        yield 1
        await until(lambda: board.drawn[-1][None].has_value)
        drawn, begun = len(board.drawn), len(looks)
        await until(lambda: len(looks) > begun + 20)
        assert len(board.drawn) == drawn

    showing = Showing(rxllm.from_async_iter(items), [], board)
    showing._over = Over()
    assert showing.run() == 1


def test_a_slow_screen_does_not_slow_the_stream_and_its_draws_are_dropped(board):
    begun, ended, draw = threading.Event(), threading.Event(), board.draw
    in_time = []

    def draw_slowly(cards, now):
        begun.set()
        in_time.append(ended.wait(PATIENCE))
        draw(cards, now)

    board.draw = draw_slowly
    stream = parts("0 ", begun.is_set, *(f"{n} " for n in range(1, 20)))
    drawn = []

    def end(event):
        drawn.extend(board.drawn)
        ended.set()

    rxllm.show(stream.pipe(ops.tap(end, rxllm.events.MessageCompleted)))
    assert in_time[0]
    assert len(drawn) == 1
    [cards] = board.finished
    assert cards[None].state.current_text.endswith("19 ")


def test_a_screen_that_fails_is_reported_and_the_stream_goes_on(board, caplog):
    board.draw = lambda cards, now: 1 / 0
    report = "the display will not be updated until the stream ends"
    assert rxllm.show(parts("a", lambda: report in caplog.text, "b")).output_text == "ab"


def test_a_stopped_stream_is_marked_kept_and_raises_one_line(board):
    def interrupt():
        wait_until(lambda: "half " in texts(board))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as raised:
        rxllm.show(answer(*HALF))
    assert raised.value._render_traceback_() == ["Stopped. The partial result is in rxllm.display.last."]
    [cards] = board.finished
    assert cards[None].end == "stopped"
    assert rxllm.display.last.output_text == "half "
    assert rxllm.display.last.thinking == "hm"


def test_no_thread_is_left(board):
    rxllm.show(answer("a"))
    rxllm.show(answer("a"), block=False).result(PATIENCE)
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
    assert process.wait(PATIENCE) == 0, output.decode()
    return output.decode()


@pytest.mark.judges
def test_a_terminal_without_rich_gets_everything_as_it_comes():
    out = on_a_terminal(PROGRAM.format(plain=True)).replace("\r\n", "\n")
    assert out.startswith("hm\n\nIt is **so** �[31m\n\ndouble(x=2)\n\n→ 4\n\n4\n")
    assert out.endswith("ann:\nA\n\nbob:\nB\n")


@pytest.mark.judges
def test_a_terminal_with_rich_gets_the_card():
    pytest.importorskip("rich")
    out = on_a_terminal(PROGRAM.format(plain=False))
    assert "**" not in out  # the Markdown is drawn
    assert "�[31m" in out
    assert "double" in out
    assert "done · " in out
    assert re.search(r"─ ann ─+.*─ bob ─", out)  # side by side


def test_the_text_of_a_tool_message_is_shown_as_it_is():
    message = rxllm.Message("tool", "<awaiting user response>", tool_call_id="c0")
    assert message._repr_markdown_() == "**tool**\n\n`<awaiting user response>`"


@rxllm.tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x
