"""``python -m rxllm chat``, through a pseudo-terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rxllm.testing.loopback import STALL, Loopback, Reply, Request, chat, chat_chunk
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, piped
from tests.closing import assert_closed

pytestmark = pytest.mark.judges

BEGUN = Reply([chat_chunk("Once upon"), STALL])


def echo(request: Request) -> Reply:
    """Answer with the number of messages, and the last of them in capitals."""
    messages = request.json["messages"]
    return Reply(chat(f"{len(messages)}: ", messages[-1]["content"].upper()))


def roles(server: Loopback) -> list[str]:
    return [message["role"] for message in server.requests[-1].json["messages"]]


def test_a_conversation_goes_on_line_after_line_until_ctrl_d() -> None:
    with Loopback(echo) as server, Terminal("chat", "-s", "Be brief.", server=server) as terminal:
        terminal.wait_for("> ")
        terminal.type("one\n")
        terminal.wait_for("2: ONE\n> ")
        terminal.type("\n")  # an empty line is no message
        terminal.wait_for("> ")
        terminal.type("two\n")
        terminal.wait_for("4: TWO\n> ")
        terminal.type(CTRL_D)
        code, _ = terminal.leave()
    assert code == 0
    assert len(server.requests) == 2
    assert roles(server) == ["system", "user", "assistant", "user"]


def test_a_line_can_be_edited_and_an_earlier_one_comes_back() -> None:
    with Loopback(echo) as server, Terminal("chat", server=server, TERM="xterm") as terminal:
        terminal.wait_for("> ")
        terminal.type("onx\x7fe\n")
        terminal.wait_for("1: ONE")
        terminal.wait_for("> ")
        terminal.type("\x10\n")  # Ctrl-P: the line before
        terminal.wait_for("3: ONE")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        terminal.leave()


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    def answer(request: Request) -> Reply:
        return BEGUN if request.json["messages"][-1]["content"] == "story" else echo(request)

    with Loopback(answer) as server, Terminal("chat", server=server) as terminal:
        terminal.wait_for("> ")
        terminal.type("story\n")
        terminal.wait_for("Once upon")
        terminal.type(CTRL_C)
        terminal.wait_for("> ")
        terminal.type("go on\n")
        terminal.wait_for("GO ON\n> ")
        assert_closed(server.connections[0])
        assert roles(server)[0] == "user"
        texts = [message["content"] for message in server.requests[-1].json["messages"]]
        assert texts == ["story", "Once upon", "go on"]  # the text before the stop is still known
        terminal.type(CTRL_D)
        assert terminal.leave()[0] == 0


def test_ctrl_c_at_the_prompt_drops_the_line_and_twice_it_leaves() -> None:
    with Loopback(echo) as server, Terminal("chat", server=server) as terminal:
        terminal.wait_for("> ")
        terminal.type("never mind")
        terminal.wait_for("never mind")  # Ctrl-C drops keys that are not read yet, and readline waits for them
        terminal.interrupt_prompt("press Ctrl-C again, or Ctrl-D, to quit\n> ")
        terminal.type("one\n")
        terminal.wait_for("1: ONE\n> ")
        terminal.interrupt_prompt("quit\n> ")
        terminal.interrupt_prompt("\n")
        code, rest = terminal.leave()
    assert code == 0
    assert "Traceback" not in rest


def test_the_second_ctrl_c_after_a_stopped_answer_leaves() -> None:
    with Loopback(BEGUN) as server, Terminal("chat", server=server) as terminal:
        terminal.wait_for("> ")
        terminal.type("story\n")
        terminal.wait_for("Once upon")
        terminal.type(CTRL_C)
        terminal.wait_for("> ")
        terminal.interrupt_prompt("\n")
        assert terminal.leave()[0] == 0


def test_an_error_is_one_line_and_the_conversation_goes_on() -> None:
    busy = Reply.of_json({"error": {"message": "no such model"}}, 404)
    cut = Reply([chat_chunk("Hal")])
    with Loopback([busy, cut, Reply(chat("Hello"))]) as server, Terminal("chat", server=server) as terminal:
        terminal.wait_for("> ")
        terminal.type("one\n")
        assert "rxllm: " in terminal.wait_for("\n> ").removeprefix("one\n")
        terminal.type("two\n")
        assert "Hal\nrxllm: " in terminal.wait_for("\n> ")
        terminal.type("three\n")
        assert "Traceback" not in terminal.wait_for("Hello\n> ")
        terminal.type(CTRL_D)
        assert terminal.leave()[0] == 0
    # The message that was refused is dropped; the one whose answer was cut off stays, with what came of it.
    assert [message["content"] for message in server.requests[-1].json["messages"]] == ["two", "Hal", "three"]


def test_lines_of_a_pipe_are_messages_and_get_no_prompt() -> None:
    with Loopback(echo) as server:
        finished = piped("chat", server=server, input="one\ntwo\n")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "1: ONE\n3: TWO\n", "")


def test_an_error_ends_a_pipe() -> None:
    with Loopback(Reply.of_json({"error": {"message": "no such model"}}, 404)) as server:
        finished = piped("chat", server=server, input="one\ntwo\n")
    assert finished.returncode == 1
    assert len(server.requests) == 1
    assert finished.stderr.startswith("rxllm: ")


def test_files_go_with_the_first_message(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("buy milk")
    with Loopback(Reply(chat("Yes."))) as server:
        piped("chat", "-f", str(file), server=server, input="one\ntwo\n")
    contents = [str(message["content"]) for message in server.requests[-1].json["messages"]]
    assert ["buy milk" in content for content in contents] == [True, False, False]
