"""What a subscriber's own bug prints: once, what happened, and the frames of the program."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import rxllm
from rxllm import AdapterError, Fake
from rxllm import operators as ops
from tests.programs import python
from tests.waiting import wait_until

START = """
import asyncio, json, rxllm
from rxllm import operators as ops

def show(event):
    return event.nothing

def parse(text):
    return json.loads(text)

hello = rxllm.stream_generate(rxllm.Fake("Hello there"), "Hi")
slow = rxllm.stream_generate(rxllm.Fake(["Hello ", ("delay", 0.01), "there"]), "Hi")

async def wait(subscription):
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)
"""
BUG = "AttributeError: 'MessageStarted' object has no attribute 'nothing'"


def printed(tmp_path: Path, code: str) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(START + code)
    return python(str(program)).stderr.splitlines()


@pytest.mark.judges
@pytest.mark.parametrize(
    "code",
    [
        "hello.subscribe(on_next=show)",
        "slow.subscribe(on_next=show)",
        "hello.map(show).subscribe(print)",
        "slow.pipe(ops.tap(show)).subscribe(print)",
        "rxllm.generate(rxllm.Fake('Hi'), 'Hi', on_event=show).subscribe(print)",
        "async def main(): await wait(hello.subscribe(show))\nasyncio.run(main())",
        "async def main(): await wait(slow.map(show).subscribe(print))\nasyncio.run(main())",
    ],
)
def test_an_error_that_nobody_handles_is_printed_once_with_the_users_frames(tmp_path: Path, code: str) -> None:
    lines = printed(tmp_path, code)
    assert lines[0].startswith("unhandled error: AttributeError(")
    assert "on_error" in lines[0]
    assert lines[-1] == BUG
    assert [line.split(",")[0] for line in lines if line.startswith("  File")] == [f'  File "{tmp_path}/program.py"']
    assert "\n".join(lines).count(BUG) == 1


@pytest.mark.judges
def test_frames_below_the_users_stay(tmp_path: Path) -> None:
    lines = printed(tmp_path, "hello.pipe(ops.text()).map(parse).subscribe(print)")
    files = [line.split('"')[1] for line in lines if line.startswith("  File")]
    assert files[0] == f"{tmp_path}/program.py"
    assert files[1:]
    assert all("json" in file for file in files[1:])


@pytest.mark.judges
@pytest.mark.parametrize(
    "code",
    [
        "hello.map(show).run()",
        "list(hello.map(show))",
        "async def main(): await hello.map(show)\nasyncio.run(main())",
        "async def main(): return [item async for item in hello.map(show)]\nasyncio.run(main())",
    ],
)
def test_where_somebody_waits_it_is_raised_there_and_not_logged(tmp_path: Path, code: str) -> None:
    lines = printed(tmp_path, code)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == BUG
    assert "\n".join(lines).count(BUG) == 1
    assert len(lines) < 30


@pytest.mark.judges
def test_a_failed_call_is_one_line(tmp_path: Path) -> None:
    nobody_there = 'rxllm.OpenAIChat(base_url="http://127.0.0.1:9/v1", api_key="sk-secret")'
    code = f'rxllm.generate({nobody_there}, "Hi", model="m", retry=False).subscribe(print)'
    (line,) = printed(tmp_path, code)
    assert "AdapterError('network_error', 'http://127.0.0.1:9/v1/chat/completions could not be reached" in line
    assert "sk-secret" not in line


def logged(caplog: pytest.LogCaptureFixture) -> str:
    wait_until(lambda: caplog.records)
    return caplog.text


def test_at_debug_all_frames_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "rxllm"):
        rxllm.stream_generate(Fake("Hi"), "Hello").map(lambda event: 1 / 0).subscribe(print)
        text = logged(caplog)
    assert "autodetachobserver.py" in text


def test_a_bug_without_a_frame_of_the_users_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failing = Fake(script=[ZeroDivisionError("in the script")])
    rxllm.stream_generate(failing, "Hello").subscribe(print)
    assert "Traceback" in logged(caplog)


def test_the_error_itself_keeps_all_its_frames(caplog: pytest.LogCaptureFixture) -> None:
    rxllm.stream_generate(Fake("Hi"), "Hello").map(lambda event: 1 / 0).subscribe(print)
    logged(caplog)
    (record,) = caplog.records
    assert record.exc_info is not None
    _, error, shown = record.exc_info
    assert error is not None
    assert error.__traceback__ is not None
    assert shown is not error.__traceback__


def test_an_error_with_an_on_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = []
    refused = Fake(script=[AdapterError("rate_limited")])
    rxllm.stream_generate(refused, "Hi", retry=False).pipe(ops.text()).subscribe(print, errors.append)
    wait_until(lambda: errors)
    assert [error.reason for error in errors if isinstance(error, AdapterError)] == ["rate_limited"]
    rxllm.stream_generate(Fake("Hi"), "Hello").map(lambda event: 1 / 0).subscribe(print)  # a later one is logged
    assert "ZeroDivisionError" in logged(caplog)
    assert len(caplog.records) == 1
