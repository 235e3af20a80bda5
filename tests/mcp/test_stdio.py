"""The process of a server over stdio: its bounds, and its end in every case."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import AdapterError, LLMError, ToolCall, ToolContext, ToolExecutionCompleted, ToolProgress, mcp
from rxllm.mcp._stdio import Process
from tests.mcp.chats import PLAIN, calling, open_files, outcome, program
from tests.programs import python
from tests.waiting import PATIENCE, until, wait_until


def pid_of(connection: mcp.Stdio) -> int:
    process = connection._process
    assert process is not None
    assert process._transport is not None
    return process._transport.get_pid()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# The life of the process


@pytest.mark.judges
def test_one_process_serves_all_tools_of_a_connection() -> None:
    with program("serve()") as connection:
        tools = mcp.tools(connection).run()
        pids = {outcome(calling(tools, name).run()) for name in ("f", "g", "f")}
        assert pids == {str(pid_of(connection))}
        again = asyncio.run(_listed(connection))
        assert [tool.name for tool in again] == ["f", "g"]
        assert {outcome(calling(again, "f").run())} == pids


async def _listed(connection: Any) -> tuple[rxllm.Tool, ...]:
    return await mcp.tools(connection)


@pytest.mark.judges
def test_the_process_ends_when_the_connection_is_closed_and_begins_again_when_it_is_used() -> None:
    connection = program("serve()")
    tools = mcp.tools(connection).run()
    first = pid_of(connection)
    connection.close()
    assert not is_alive(first)
    assert outcome(calling(tools, "f").run()) == str(pid_of(connection)) != str(first)
    second = pid_of(connection)
    asyncio.run(connection.aclose())
    assert not is_alive(second)
    assert not [thread for thread in threading.enumerate() if thread.name == "rxllm-mcp"]


@pytest.mark.judges
def test_the_process_ends_with_its_last_tool() -> None:
    tools = asyncio.run(_listed([sys.executable, "-c", f"{PLAIN}\nserve()"]))
    (pid,) = {int(outcome(calling(tools, name).run())) for name in ("f", "g")}
    assert is_alive(pid)
    del tools

    def has_ended() -> bool:
        gc.collect()  # again, because the thread of the last call may still hold its tool
        return not is_alive(pid)

    wait_until(has_ended)


@pytest.mark.judges
def test_the_process_and_its_children_end_though_they_ignore_all_else() -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    RESULTS["tools/call"]["content"][0]["text"] = str(child.pid)
    serve()
    time.sleep(600)
    """
    connection = program(body)
    child = int(outcome(calling(mcp.tools(connection).run(), "f").run()))
    parent = pid_of(connection)
    connection.close()
    wait_until(lambda: not is_alive(child) and not is_alive(parent))


STARTS_A_CHILD = """
code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
def start(folder, **options):
    file = os.path.join(folder, "pid")
    subprocess.Popen([sys.executable, "-c", code, file], **options)
    while not (os.path.exists(file) and open(file).read()): time.sleep(0.01)
"""


@pytest.mark.judges
@pytest.mark.parametrize("options", ["", "start_new_session=True", "process_group=0"])
@pytest.mark.parametrize(
    ("serving", "end"),
    [("serve()", "close"), ("serve(); time.sleep(600)", "close"), ("serve(lambda message: os._exit(3))", "call")],
    ids=["a close", "a close that it ignores", "its crash"],
)
def test_the_children_of_a_server_end_with_it(options: str, serving: str, end: str, tmp_path: Path) -> None:
    connection = program(f"{STARTS_A_CHILD}\nstart({str(tmp_path)!r}, {options})\n{serving}")
    tools = mcp.tools(connection).run()
    child = int((tmp_path / "pid").read_text())
    assert is_alive(child)
    connection.close() if end == "close" else calling(tools, "f").run()
    wait_until(lambda: not is_alive(child))


@pytest.mark.judges
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)"])
@pytest.mark.parametrize("options", ["", "start_new_session=True"])
def test_the_children_of_a_server_end_with_our_process(options: str, end: str, tmp_path: Path) -> None:
    body = f"{PLAIN}\n{STARTS_A_CHILD}\nstart({str(tmp_path)!r}, {options})\nserve()"
    script = f"import os, sys; from rxllm import mcp; tools = mcp.tools([sys.executable, '-c', {body!r}]).run(); {end}"
    python("-c", script)
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(child))


@pytest.mark.judges
@pytest.mark.parametrize(
    "end", ["", "os._exit(0)", "sys.exit(1)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 2)"]
)
def test_the_process_ends_with_ours(end: str) -> None:
    script = f"""
    import os, sys, rxllm
    from rxllm import mcp
    tools = mcp.tools([sys.executable, "-c", {(PLAIN + chr(10) + "serve()")!r}]).run()
    model = rxllm.Fake(rxllm.ToolCall("c1", "f", {{}}), "Done.")
    print(rxllm.chat(model, "Go.", tools=tools).run().steps[0].tool_results[0].text, flush=True)
    {end}
    """
    ran = python("-c", textwrap.dedent(script))
    pid = int(ran.stdout)
    wait_until(lambda: not is_alive(pid))


@pytest.mark.judges
def test_a_call_that_is_left_is_cancelled_and_the_process_serves_on() -> None:
    body = """
    cancelled = []
    def on_call(message):
        if message["params"]["name"] == "g":
            return True
        RESULTS["tools/call"]["content"][0]["text"] = json.dumps(cancelled)
    class Input:
        def __iter__(self):
            for line in iter(sys.__stdin__.readline, ""):
                message = json.loads(line)
                if message["method"] == "notifications/cancelled":
                    cancelled.append(message["params"]["requestId"])
                yield line
    sys.stdin = Input()
    serve(on_call)
    """

    async def main(connection: mcp.Stdio) -> None:
        tools = await mcp.tools(connection)
        process = connection._process
        assert process is not None
        left = calling(tools, "g").subscribe()
        await until(lambda: process._inboxes)
        (request,) = process._inboxes
        left.dispose()
        assert outcome(await calling(tools, "f")) == f"[{request}]"
        assert not process._inboxes

    with program(body) as connection:
        asyncio.run(main(connection))


# Hostile programs


NEW_PAGES = """
plain, cursors = send, iter(range(1_000))
def send(**message):
    is_list = "tools" in message.get("result", ())
    plain(**message | ({"result": {"tools": [], "nextCursor": f"{next(cursors)}"}} if is_list else {}))
serve()
"""


def failure(connection: mcp.Stdio) -> LLMError:
    with connection, pytest.raises(LLMError) as raised:
        mcp.tools(connection).run()
    assert not [thread for thread in threading.enumerate() if thread.name == "rxllm-mcp"]
    return raised.value


@pytest.mark.judges
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", "ended with exit code 3"),
        ("print('no key', file=sys.stderr); sys.exit(1)", "it wrote: no key"),
        ("os.close(1); time.sleep(600)", "has closed its output"),
        ("time.sleep(600)", "did not answer"),
        ("while True: sys.stdout.write('x' * 65536)", "too long"),
        ("while True: print('garbage')", "did not answer"),
        ("while True: sys.stderr.write('x' * 65536)", "did not answer"),
        ("while True: send(method='notifications/message', params={})", "did not answer"),
        ("while True: send(id=1, method='ping')", ""),
        ("RESULTS['initialize']['protocolVersion'] = '1999-01-01'; serve()", "needs version '1999-01-01'"),
        (NEW_PAGES, "100 pages"),
    ],
)
def test_a_hostile_program_fails_in_time(body: str, said: str) -> None:
    is_endless = said in ("did not answer", "")
    assert said in failure(program(body, timeout=1.5 if is_endless else PATIENCE)).message


@pytest.mark.judges
@pytest.mark.parametrize(
    "connection",
    [
        mcp.Stdio("no-such-program-anywhere"),
        mcp.Stdio("a\0b"),
        mcp.Stdio(sys.executable, cwd="/no/such/folder"),
        mcp.Stdio(sys.executable, cwd=3.5),  # pyright: ignore[reportArgumentType]
        mcp.Stdio(sys.executable, env={"A=B": "C"}),
    ],
)
def test_a_program_that_cannot_be_started_says_so(connection: mcp.Stdio) -> None:
    error = failure(connection)
    assert isinstance(error, AdapterError)
    assert error.reason == "provider_unavailable"
    assert "cannot be started" in error.message


@pytest.mark.judges
def test_a_program_that_reads_no_input_does_not_fill_the_memory() -> None:
    """Its calls time out, until too much is unread; then the process is given up, and the next call starts another."""
    with program("serve(lambda message: time.sleep(600))") as connection:
        tools = mcp.tools(connection).run()
        first = connection._process
        assert first is not None
        told: list[str] = []
        while connection._process is first:
            model = rxllm.Fake(rxllm.ToolCall("c1", "f", {"x": "x" * 8_000_000}), "Done.")
            told.append(outcome(rxllm.chat(model, "Go.", tools=tools, tool_timeout=1.0).run()))
        assert [text for text in told if "1.0 s" not in text and "unread" not in text] == []
        assert first.failure is not None
        assert "bytes of its input unread" in first.failure.message


@pytest.mark.judges
def test_garbage_between_the_messages_is_passed_over() -> None:
    body = """
    print("starting...", flush=True)
    print('{"jsonrpc": "2.0", "id": [1], "result": {}}', flush=True)
    print("[" * 100_000, flush=True)
    sys.stdout.buffer.write(b"\\xff\\xfe\\n")
    serve()
    """
    with program(body) as connection:
        assert len(mcp.tools(connection).run()) == 2


@pytest.mark.judges
def test_a_process_that_dies_in_a_call_fails_it_and_the_next_call_starts_another() -> None:
    with program("serve(lambda message: message['params']['name'] == 'g' and os._exit(7))") as connection:
        tools = mcp.tools(connection).run()
        first = pid_of(connection)
        assert "exit code 7" in outcome(calling(tools, "g").run())
        assert int(outcome(calling(tools, "f").run())) != first


@pytest.mark.judges
def test_many_notices_do_not_pile_up() -> None:
    body = """
    def flood(message):
        token = message["params"]["_meta"]["progressToken"]
        for i in range(100_000):
            send(method="notifications/progress", params={"progressToken": token, "progress": i})
    serve(flood)
    """
    with program(body) as connection:
        assert outcome(calling(mcp.tools(connection).run(), "f").run()) == str(pid_of(connection))


@pytest.mark.judges
def test_many_responses_to_one_request_do_not_pile_up_while_the_loop_is_blocked() -> None:
    body = """
    def flood(message):
        path = message["params"]["arguments"]["path"]
        while not os.path.exists(path + ".go"):
            os.sched_yield()
        for i in range(20_000):
            send(id=message["id"], result={"content": []})
        open(path, "w").close()
        return True
    serve(flood)
    """

    async def main(connection: mcp.Stdio, path: Path) -> None:
        (tool, _) = await mcp.tools(connection)
        arguments = {"path": str(path)}
        call = asyncio.ensure_future(tool.bind(arguments, ToolContext(ToolCall("c1", "f", arguments)))())
        process = connection._process
        assert process is not None
        await until(lambda: process._inboxes)
        (inbox,) = process._inboxes.values()
        path.with_suffix(".go").touch()
        wait_until(path.exists)
        assert len(inbox._items) <= 1
        await call

    with program(body) as connection, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(connection, Path(folder, "sent")))


@pytest.mark.judges
def test_our_environment_stays_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    body = "RESULTS['tools/call']['content'][0]['text'] = ' '.join(os.environ); serve()"
    with program(body, env={"MINE": "1"}) as connection:
        names = outcome(calling(mcp.tools(connection).run(), "f").run()).split()
    assert {"MINE", "PATH"} <= set(names)
    assert "OPENAI_API_KEY" not in names


@pytest.mark.judges
@pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")  # of every fork beside threads
def test_a_fork_leaves_the_process_to_its_parent() -> None:
    with program("serve()") as connection:
        tools = mcp.tools(connection).run()
        assert connection._process is not None
        child = os.fork()
        if child == 0:
            connection._process.abandon()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert outcome(calling(tools, "f").run()) == str(pid_of(connection))


@pytest.mark.judges
def test_a_forked_child_starts_a_process_of_its_own() -> None:
    with program("serve()") as connection:
        tools = mcp.tools(connection).run()
        parent, (reading, writing) = pid_of(connection), os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(100)
            os.write(writing, outcome(calling(tools, "f").run()).encode())
            connection.close()
            del tools
            gc.collect()  # which must not touch the parent's pipes
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 100).decode() not in ("", str(parent))
        os.close(reading)
        os.close(writing)
        assert outcome(calling(tools, "f").run()) == str(parent)


@pytest.mark.judges
def test_a_secret_of_its_environment_is_in_no_error() -> None:
    env = {"MY_TOKEN": "s3cret-key"}
    error = failure(program("print('bad', os.environ['MY_TOKEN'], file=sys.stderr); sys.exit(1)", env=env))
    assert "it wrote: bad [key]" in error.message
    body = "serve(lambda m: send(id=m['id'], error={'code': 1, 'message': 'bad ' + os.environ['MY_TOKEN']}) or True)"
    with program(body, env=env) as connection:
        assert "bad [key]" in outcome(calling(mcp.tools(connection).run(), "f").run())


FORKING = """
if os.fork() == 0:
    os.setsid()
    signal.alarm(600)
    signal.pause()
"""
"""Leaves a child outside of the process group, which keeps its output open."""


@pytest.mark.judges
def test_a_child_that_keeps_the_output_open_holds_nothing_up() -> None:
    connection = program(FORKING + "serve()")
    tools = mcp.tools(connection).run()
    files = open_files()
    connection.close()
    assert open_files() < files
    assert not [thread for thread in threading.enumerate() if thread.name == "rxllm-mcp"]
    with program(FORKING + "serve(lambda message: os._exit(3))") as connection:
        assert "exit code 3" in outcome(calling(mcp.tools(connection).run(), "f").run())
    del tools


@pytest.mark.judges
def test_a_hundred_megabytes_of_complaints_do_not_stop_a_call() -> None:
    with program("serve(lambda m: [sys.stderr.write('x' * 2**20) for _ in range(100)] and None)") as connection:
        assert outcome(calling(mcp.tools(connection).run(), "f").run()) == str(pid_of(connection))
        assert len(connection._process._stderr) == 2_000  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.judges
def test_a_program_that_exits_with_each_call_leaves_nothing() -> None:
    with program("serve(lambda message: os._exit(7))") as connection:
        tools = mcp.tools(connection).run()
        for _ in range(5):
            assert "exit code 7" in outcome(calling(tools, "f").run())
        calls = [ToolCall(f"c{index}", "f", {}) for index in range(8)]
        result = rxllm.chat(rxllm.Fake(calls, "Done."), "Go.", tools=tools, tool_timeout=PATIENCE).run()
        assert [message.text.count("exit code 7") for message in result.thread if message.role == "tool"] == [1] * 8
        wait_until(lambda: gc.collect() >= 0 and _processes() <= 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "rxllm-mcp"]


def _processes() -> int:
    return sum(isinstance(item, Process) for item in gc.get_objects())


@pytest.mark.judges
def test_answers_and_progress_go_to_the_call_that_they_are_of() -> None:
    body = """
    calls = []
    def answer(call, text):
        send(id=call["id"], result={"content": [{"type": "text", "text": text}]})
    def on_call(message):
        calls.append(message)
        if len(calls) == 2:
            first, second = calls
            tokens = [call["params"]["_meta"]["progressToken"] for call in calls]
            for token in (*tokens, 999, "other", None, [1]):
                send(method="notifications/progress", params={"progressToken": token, "progress": token})
            send(id=999, result={})
            send(id=f"0{first['id']}", result={})
            answer(second, "second")
            send(method="notifications/progress", params={"progressToken": tokens[1], "progress": "late"})
            answer(second, "again")
            answer(first, "first")
        return True
    serve(on_call)
    """
    with program(body) as connection:
        model = rxllm.Fake([ToolCall("c1", "f", {}), ToolCall("c2", "g", {})], "Done.")
        events = list(rxllm.stream(model, "Go.", tools=mcp.tools(connection).run()))
        assert connection._process is not None
        assert not connection._process._inboxes
    results = {event.id: event.result for event in events if isinstance(event, ToolExecutionCompleted)}
    assert results == {"c1": "first", "c2": "second"}
    progress = [(event.id, event.data) for event in events if isinstance(event, ToolProgress)]
    assert {id for id, _ in progress} == {"c1", "c2"}
    assert all(len(data) == 1 and isinstance(data["progress"], int) for _, data in progress)
    assert len(progress) == 2
