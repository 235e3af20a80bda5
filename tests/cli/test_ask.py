"""``python -m rxllm ask``."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reactivex import from_iterable

import rxllm
from rxllm import ChatResult, Event, Fake, serializer
from rxllm import operators as ops
from rxllm.cli import main
from rxllm.testing import sandbox
from rxllm.testing.loopback import STALL, Loopback, Reply, chat, chat_chunk, chat_event, chat_finish, endless
from tests.cli.terminal import CTRL_C, Terminal, environment, piped
from tests.closing import SILENT, assert_closed
from tests.programs import python_without
from tests.waiting import PATIENCE

pytestmark = pytest.mark.judges

HELLO = Reply(chat("Hel", "lo"))
BEGUN = Reply([chat_chunk("Once upon"), STALL])
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return str(file)


def sent(server: Loopback) -> list[tuple[str, object]]:
    return [(message["role"], message["content"]) for message in server.requests[-1].json["messages"]]


# Pipes


@pytest.mark.judges
def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    thoughts = chat_event({"reasoning_content": "Let me think."})
    with Loopback(Reply([thoughts, *chat("Hel", "lo")])) as server:
        finished = piped("ask", "Say", "hello", server=server)
    assert (finished.returncode, finished.stdout) == (0, "Hello\n")
    assert finished.stderr == "Let me think.\n"
    assert sent(server) == [("user", "Say hello")]


@pytest.mark.judges
def test_text_that_is_piped_in_follows_the_prompt_and_the_system_prompt_comes_first() -> None:
    with Loopback(HELLO) as server:
        piped("ask", "Summarise:", "--system", "Be brief.", server=server, input="a long text\n")
    assert sent(server) == [("system", "Be brief."), ("user", "Summarise:\n\na long text")]


@pytest.mark.judges
def test_text_that_is_piped_in_can_be_the_question() -> None:
    with Loopback(HELLO) as server:
        assert piped("ask", server=server, input="Hi\n").stdout == "Hello\n"
    assert sent(server) == [("user", "Hi")]


@pytest.mark.judges
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_piped_in_bytes_that_are_no_text_are_replaced(locale: str) -> None:
    with Loopback(HELLO) as server:
        ran = subprocess.run(
            [sys.executable, "-m", "rxllm", "ask"],
            input=b"caf\xe9",
            capture_output=True,
            env=environment(server, LC_ALL=locale, PYTHONIOENCODING="utf-8"),
            timeout=PATIENCE,
        )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"Hello\n", b"")
    assert sent(server) == [("user", "caf\ufffd")]


@pytest.mark.judges
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(closed: str) -> None:
    with Loopback(HELLO) as server:
        command = f"{sys.executable} -m rxllm ask Hi {closed}"
        ran = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(server),
            timeout=PATIENCE,
        )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == (b"" if ">&-" in closed.split() else b"Hello\n")
    assert sent(server) == [("user", "Hi")]


@pytest.mark.judges
def test_files_are_attached(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("buy milk")
    with Loopback(HELLO) as server:
        piped("ask", "What is there to do?", "-f", str(file), server=server)
    assert "buy milk" in json.dumps(server.requests[0].json["messages"])


@pytest.mark.judges
def test_the_text_comes_as_it_is_generated() -> None:
    command = [sys.executable, "-m", "rxllm", "ask", "Hi"]
    with (
        Loopback(BEGUN) as server,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(server)) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(9) == b"Once upon"
        process.kill()


@pytest.mark.judges
def test_a_reader_that_leaves_ends_the_call_quietly() -> None:
    command = [sys.executable, "-m", "rxllm", "ask", "Hi"]
    with (
        Loopback(Reply(endless())) as server,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(4)
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr.read() == b""
        server.connections[0].wait_closed()
        assert_closed(server.connections[0])


# Events and JSON


@pytest.mark.judges
def test_events_are_lines_of_json_and_fold_to_the_result() -> None:
    with Loopback(HELLO) as server:
        finished = piped("ask", "Hi", "--events", server=server)
    events: list[Event] = [serializer.from_json(line) for line in finished.stdout.splitlines()]
    assert isinstance(events[0], rxllm.MessageStarted)
    assert [event.delta for event in events if isinstance(event, rxllm.TextDelta)] == ["Hel", "lo"]
    result = rxllm.run(from_iterable(events).pipe(ops.to_chat_result()))
    assert isinstance(result, ChatResult)
    assert (result.output_text, result.halted_reason, finished.stderr) == ("Hello", "completed", "")


@pytest.mark.judges
def test_an_answer_by_a_schema_is_printed_as_json(schema: str) -> None:
    with Loopback(Reply(chat('{"n"', ": 7}"))) as server:
        finished = piped("ask", "How many?", "--json", schema, server=server)
    assert (finished.returncode, json.loads(finished.stdout), finished.stderr) == (0, {"n": 7}, "")
    assert server.requests[0].json["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.judges
def test_an_answer_that_does_not_fit_the_schema_is_an_error(schema: str) -> None:
    pytest.importorskip("jsonschema_rs", reason="schemas are checked with rxllm[schema]")
    with Loopback(Reply(chat('{"n": "seven"}'))) as server:
        finished = piped("ask", "How many?", "--json", schema, server=server)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert_one_line(finished.stderr, "seven")


@pytest.mark.parametrize("text", ["[1]", "{", None])
def test_a_schema_that_cannot_be_read_is_wrong_usage(text: str | None, tmp_path: Path, capsys) -> None:
    file = tmp_path / "schema.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["ask", "Hi", "--json", str(file)])
    assert ended.value.code == 2
    assert f"{file} must be a file with a JSON schema" in capsys.readouterr().err


# Errors


def assert_one_line(errors: str, *words: str) -> None:
    assert errors.startswith("rxllm: ")
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
    assert [word for word in words if word not in errors] == []


@pytest.mark.judges
def test_an_error_is_one_line_with_its_remedy() -> None:
    finished = piped("ask", "Hi", OPENAI_API_KEY="")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert_one_line(finished.stderr, "no API key for openai", "OPENAI_API_KEY")


@pytest.mark.judges
def test_debug_shows_where_an_error_comes_from() -> None:
    finished = piped("ask", "Hi", "--debug", OPENAI_API_KEY="")
    assert finished.returncode == 1
    assert "Traceback" in finished.stderr
    assert "EngineError" in finished.stderr


@pytest.mark.judges
def test_an_error_in_the_middle_comes_after_the_text() -> None:
    with Loopback(Reply([chat_chunk("Hel")])) as server:
        finished = piped("ask", "Hi", server=server)
    assert (finished.returncode, finished.stdout) == (1, "Hel\n")
    assert_one_line(finished.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "opnai:gpt-5"], ["no provider 'opnai'", "openai"]),
        (["-f", "no-such-file.png"], ["no-such-file.png", "No such file"]),
    ],
)
def test_wrong_values_are_one_line_too(arguments: list[str], words: list[str], capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["ask", "Hi", *arguments]) == 1
    assert_one_line(capsys.readouterr().err, *words)


def test_without_a_question_there_is_a_hint_and_the_code_of_wrong_usage(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["ask"]) == 2
    assert_one_line(capsys.readouterr().err, 'write ask "..."')


def test_without_the_local_model_a_newcomer_is_told_both_ways_out() -> None:
    code = 'from rxllm.cli import main; raise SystemExit(main(["ask", "Hi"]))'
    variables = {name: value for name, value in environment().items() if name != "RXLLM_MODEL"}
    finished = python_without(["xllamacpp"], code, input="", env=variables)
    assert finished.returncode == 1
    assert_one_line(finished.stderr, "pip install 'rxllm[local]'", "--model provider:name", "providers")


@pytest.mark.judges
def test_an_incomplete_answer_is_noted() -> None:
    with Loopback(Reply([chat_chunk("Hel"), chat_finish("length")])) as server:
        finished = piped("ask", "Hi", server=server)
    assert (finished.returncode, finished.stdout) == (0, "Hel\n")
    assert finished.stderr == "the answer is incomplete: length\n"


def test_the_model_of_a_sandbox_serves_in_process_too(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with sandbox(Fake([("thinking", "Hm."), "2, ", "3"])):
        assert main(["ask", "Primes?", "--model", "openai:gpt-5"]) == 0
    assert capsys.readouterr() == ("2, 3\n", "Hm.\n")


# Ctrl-C


@pytest.mark.judges
def test_ctrl_c_in_a_terminal_ends_it_with_130_and_closes_the_socket() -> None:
    with Loopback(BEGUN) as server, Terminal("ask", "Tell me a story", server=server) as terminal:
        terminal.wait_for("Once upon")
        terminal.type(CTRL_C)
        code, rest = terminal.leave()
        server.connections[0].wait_closed()
        assert_closed(server.connections[0])
    assert code == 130
    assert "Traceback" not in rest


@pytest.mark.judges
def test_ctrl_c_before_the_first_token_ends_it_too() -> None:
    with Loopback(SILENT) as server, Terminal("ask", "Hi", server=server) as terminal:
        server.wait_requests(1, PATIENCE)
        terminal.type(CTRL_C)
        assert terminal.leave() == (130, "^C\n")
        server.connections[0].wait_closed()
        assert_closed(server.connections[0])


@pytest.mark.judges
def test_an_interrupt_of_a_pipe_ends_it_with_130() -> None:
    command = [sys.executable, "-m", "rxllm", "ask", "Hi"]
    with (
        Loopback(BEGUN) as server,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        server.connections[0].wait_closed()
        assert process.wait(PATIENCE) == 130
        assert (process.stdout.read(), process.stderr.read()) == (b" upon\n", b"")


# A terminal


@pytest.mark.judges
def test_in_a_terminal_thinking_is_dim_and_has_lines_of_its_own() -> None:
    frames = [chat_event({"reasoning_content": "Hm."}), *chat("Hi")]
    with Loopback(Reply(frames)) as server, Terminal("ask", "Hi", server=server) as terminal:
        assert terminal.leave() == (0, "\x1b[2mHm.\x1b[0m\nHi\n")
    with Loopback(Reply(frames)) as server, Terminal("ask", "Hi", server=server, NO_COLOR="1") as terminal:
        assert terminal.leave() == (0, "Hm.\nHi\n")


@pytest.mark.judges
def test_a_model_cannot_control_the_terminal() -> None:
    tricks = "\u202e\x1b]52;c;Zm9v\x07\x1b[2Ja\rb\x9b31m\tc\n"
    with Loopback(Reply(chat(tricks))) as server, Terminal("ask", "Hi", server=server) as terminal:
        code, screen = terminal.leave()
    assert code == 0
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*screen}
    assert screen.endswith("ab\ufffd31m\tc\n")
    with Loopback(Reply(chat(tricks))) as server:
        assert piped("ask", "Hi", server=server).stdout == tricks.replace("\r", "\n")  # subprocess reads any newline


@pytest.mark.judges
def test_the_local_model_answers_without_a_key() -> None:
    pytest.importorskip("xllamacpp", reason="the local model needs rxllm[local]")
    finished = piped("ask", "Name a fruit.", "--model", "local")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()


def test_importing_rxllm_does_not_import_the_client() -> None:
    code = "import sys, rxllm; raise SystemExit('rxllm.cli' in sys.modules or 'argparse' in sys.modules)"
    assert python_without([], code).returncode == 0


def test_the_help_is_short(capsys) -> None:
    for command in ([], ["ask"], ["chat"], ["providers"], ["new-plugin"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"])
        assert ended.value.code == 0
        assert len(capsys.readouterr().out.splitlines()) <= 30


@pytest.mark.judges
def test_the_temperature_reaches_the_model() -> None:
    with Loopback(HELLO) as server:
        assert piped("ask", "Hi", "--temperature", "0.5", server=server).returncode == 0
        assert piped("ask", "Hi", server=server).returncode == 0
    assert [request.json.get("temperature") for request in server.requests] == [0.5, None]


def test_a_wrong_temperature_is_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["ask", "Hi", "-t", "3"]) == 1
    assert_one_line(capsys.readouterr().err, "temperature must be a number from 0 to 2, not 3.0")


def test_the_version_is_printed() -> None:
    finished = piped("--version")
    assert (finished.returncode, finished.stdout) == (0, f"rxllm {rxllm.__version__}\n")
