"""``ask`` and ``chat`` on a terminal that can redraw lines: answers are the cards of `rxllm.show`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rxllm.testing.loopback import (
    DONE,
    STALL,
    Loopback,
    Pause,
    Reply,
    Request,
    chat,
    chat_chunk,
    chat_event,
    chat_finish,
)
from tests.cli.terminal import CTRL_C, Terminal, piped

pytest.importorskip("rich", reason="cards in a terminal need rich")

XTERM = "xterm-256color"

MARKDOWN = """\
The first three primes are **2**, **3** and **5**, and each of them has exactly two divisors.

| number | prime |
|-------:|:------|
| 4 | no |

```python
def is_prime(n: int) -> bool:
    return all(n % d for d in range(2, n))
```

A `Vec<String>` is a Vec<String>.
"""

LONG = "".join(
    f"Paragraph {n} has words that run past the edge of a narrow window, and ends with mark{n}.\n\n"
    f"* item{n}, which is one of a list\n* another one\n\n"
    for n in range(30)
)


def answer(text: str, size: int = 30) -> Reply:
    """Answer in chunks of `size` characters, with the usage and the name of a model that has a price."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    frames = [*map(chat_chunk, pieces), chat_finish(usage=usage), DONE]
    return Reply([frame.replace(b'"loopback"', b'"gpt-4o"') if isinstance(frame, bytes) else frame for frame in frames])


@pytest.mark.judges
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_an_answer_is_markdown_with_the_model_the_tokens_and_the_cost_below(columns: int) -> None:
    with (
        Loopback(answer(MARKDOWN)) as server,
        Terminal("ask", "Primes?", "-m", "openai:gpt-4o", server=server, columns=columns, TERM=XTERM) as terminal,
    ):
        assert terminal.leave()[0] == 0
    text = terminal.window.text
    assert "**" not in text
    assert "```" not in text
    assert "number  prime\n" in text
    assert "A Vec<String> is a Vec<String>." in text
    *_, status = text.split("\n\n")
    facts = re.split(r" ·\s", status)
    assert {"gpt-4o", "1,500 tokens"} <= set(facts)
    assert any(fact.startswith("cost 0.0") for fact in facts)


@pytest.mark.judges
@pytest.mark.parametrize("columns", [40, 80])
def test_lines_break_between_words(columns: int) -> None:
    with Loopback(answer(LONG)) as server, Terminal(
        "ask", "Write.", server=server, columns=columns, TERM=XTERM
    ) as terminal:  # fmt: skip
        terminal.leave()
    words = {*LONG.replace("*", "•").split()}
    text, _, _ = terminal.window.text.rpartition("\n\n")  # the status line
    assert {*text.split()} == words


@pytest.mark.judges
@pytest.mark.parametrize(("columns", "rows"), [(40, 10), (80, 24), (120, 50)])
def test_a_long_answer_is_there_once_and_in_order(columns: int, rows: int) -> None:
    frames = [frame for piece in LONG.split(" ") for frame in (chat_chunk(f"{piece} "), Pause(0.002))]
    with (
        Loopback(Reply([*frames, chat_finish(), DONE])) as server,
        Terminal("ask", "Write.", server=server, columns=columns, rows=rows, TERM=XTERM) as terminal,
    ):
        assert terminal.leave()[0] == 0
    assert re.findall(r"mark\d+|item\d+", terminal.window.text) == [
        mark for n in range(30) for mark in (f"mark{n}", f"item{n}")
    ]


@pytest.mark.judges
def test_a_spinner_turns_until_the_first_token() -> None:
    with Loopback(Reply(before=STALL)) as server, Terminal("ask", "Hi", server=server, TERM=XTERM) as terminal:
        terminal.receive(lambda text: len({*re.findall("([⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]).*waiting for the first token", text)}) > 2)
        terminal.type(CTRL_C)
        assert terminal.leave()[0] == 130
    assert not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", terminal.window.text)
    assert "^C" not in terminal.window.text


@pytest.mark.judges
def test_ctrl_c_stops_the_answer_and_the_chat_continues() -> None:
    def reply(request: Request) -> Reply:
        return Reply(chat("Fine.")) if len(request.json["messages"]) > 1 else Reply([chat_chunk("Once upon"), STALL])

    with Loopback(reply) as server, Terminal("chat", server=server, TERM=XTERM) as terminal:
        terminal.wait_for("> ")
        terminal.type("story\n")
        terminal.see("Once upon")
        terminal.type(CTRL_C)
        terminal.see("Once upon\n\nstopped · ")
        server.connections[0].wait_closed()
        terminal.type("thanks\n")
        terminal.see("Fine.")
        terminal.type("/quit\n")
        assert terminal.leave()[0] == 0
    assert [message["content"] for message in server.requests[1].json["messages"]] == ["story", "Once upon", "thanks"]


@pytest.mark.judges
def test_an_error_is_shown_once_and_the_chat_continues() -> None:
    busy = Reply.of_json({"error": {"message": "no such model"}}, 404)
    with (
        Loopback([busy, Reply([chat_chunk("Hal")]), Reply(chat("Hello"))]) as server,
        Terminal("chat", server=server, TERM=XTERM) as terminal,
    ):
        terminal.wait_for("> ")
        terminal.type("one\n")
        assert terminal.see("failed").count("no such model") == 1
        terminal.type("two\n")
        terminal.see("Hal\n")
        terminal.type("three\n")
        assert "rxllm: " not in terminal.see("Hello\n")
        terminal.type("/quit\n")
        assert terminal.leave()[0] == 0
    with Loopback(busy) as server, Terminal("ask", "Hi", server=server, TERM=XTERM) as terminal:
        assert terminal.leave()[0] == 1


TOOLS = '''
import rxllm

@rxllm.tool(approval=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"

@rxllm.tool
def list_files() -> list[str]:
    """List the files."""
    return ["old.txt"]

tools = [delete_file, list_files]
'''


def call(id: str, name: str, **arguments: str) -> bytes:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return chat_event({"tool_calls": [{"index": int(id), "id": f"c{id}", "type": "function", "function": function}]})


def ask_tools(request: Request) -> Reply:
    if request.json["messages"][-1]["role"] == "tool":
        return Reply(chat("I am done."))
    calls = [call("0", "delete_file", path="old.txt"), call("1", "list_files")]
    return Reply([chat_chunk("I clean up."), *calls, chat_finish("tool_calls"), DONE])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mytools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.judges
@pytest.mark.parametrize("term", [XTERM, "dumb"])
@pytest.mark.parametrize(
    ("typed", "result"), [("y", "deleted old.txt"), ("", "it was not approved"), ("I need it", "I need it")]
)
def test_a_tool_that_needs_approval_asks_for_it(term: str, typed: str, result: str, folder: Path) -> None:
    with (
        Loopback(ask_tools) as server,
        Terminal("chat", "--tools", "mytools:tools", server=server, TERM=term) as terminal,
    ):
        terminal.wait_for("> ")
        terminal.type("Clean up\n")
        terminal.see("Allow delete_file(path='old.txt')?\ny for yes, n for no, or a reason to deny it:")
        terminal.type(f"{typed}\n")
        text = terminal.see("I am done.")
        terminal.type("/quit\n")
        assert terminal.leave()[0] == 0
    assert text.count("I clean up.") == 1
    deletion, listing = [message["content"] for message in server.requests[-1].json["messages"][-2:]]
    assert result in deletion
    assert "old.txt" in listing
    if term == XTERM:
        assert re.search(r"delete_file \{.*\} waits for approval", text)
        assert result in text
        assert text.count("list_files") == 1


@pytest.mark.judges
def test_without_a_terminal_a_tool_that_needs_approval_is_denied(folder: Path) -> None:
    with Loopback(ask_tools) as server:
        finished = piped("ask", "Clean up", "--tools", "mytools:tools", server=server)
    assert (finished.returncode, finished.stdout) == (0, "I clean up.\nI am done.\n")
    assert "there is no terminal" in server.requests[-1].json["messages"][-2]["content"]


@pytest.mark.judges
@pytest.mark.parametrize("place", ["mytools:nothing", "nothing:tools", "my tools"])
def test_tools_that_are_not_there_are_wrong_usage(place: str, folder: Path) -> None:
    finished = piped("ask", "Hi", "--tools", place)
    assert finished.returncode == 2
    assert f"{place} must be module:name" in finished.stderr


@pytest.mark.judges
@pytest.mark.parametrize("term", [XTERM, "dumb"])
def test_help_is_a_command_and_an_unknown_one_lists_them_too(term: str) -> None:
    def reply(request: Request) -> Reply:
        return Reply(chat(f"{len(request.json['messages'])} messages"))

    with Loopback(reply) as server, Terminal("chat", "-s", "Be brief.", server=server, TERM=term) as terminal:
        terminal.see("/help lists the commands")
        terminal.wait_for("> ")
        terminal.type("/help\n")
        assert "there is no" not in terminal.wait_for("stop the answer")
        terminal.type("/helq me\n")
        assert "unknown command /helq:\n/help" in terminal.wait_for("stop the answer").replace("\r", "")
        terminal.type("/etc/hosts is a file\n")
        terminal.wait_for("2 messages")
        terminal.type("More\n")
        terminal.wait_for("4 messages")
        terminal.type("/new\n")
        terminal.type("Hi\n")
        terminal.wait_for("2 messages")
        terminal.type("/quit\n")
        assert terminal.leave()[0] == 0
    assert len(server.requests) == 3


# Plain text


@pytest.mark.judges
def test_no_color_leaves_the_colours_out() -> None:
    for variables in ({"NO_COLOR": "1"}, {}):
        with (
            Loopback(answer(MARKDOWN)) as server,
            Terminal("ask", "Primes?", server=server, TERM=XTERM, **variables) as terminal,
        ):
            terminal.leave()
        colours = re.findall(r"\x1b\[(?:\d+;)*[34][0-8](?:;\d+)*m", terminal.received)
        assert bool(colours) is not bool(variables)
        assert "def is_prime" in terminal.window.text


@pytest.mark.judges
def test_a_dumb_terminal_gets_the_text_and_no_codes() -> None:
    with Loopback(answer(MARKDOWN)) as server, Terminal("ask", "Primes?", server=server) as terminal:
        terminal.leave()
    assert terminal.received.replace("\r\n", "\n") == MARKDOWN


@pytest.mark.judges
@pytest.mark.parametrize("term", [XTERM, "dumb"])
def test_a_pipe_gets_the_bytes_of_the_answer(term: str) -> None:
    with Loopback(answer(MARKDOWN)) as server:
        finished = piped("ask", "Primes?", server=server, TERM=term, FORCE_COLOR="1")
        commands = piped("chat", server=server, TERM=term, input="/help\n")
    assert (finished.stdout, finished.stderr) == (MARKDOWN, "")
    assert (commands.stdout, commands.stderr) == (MARKDOWN, "")
