"""Each example, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import python

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return python(str(EXAMPLES / name), *args, **options)


def test_quickstart_prints_a_real_models_answer():
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    ran = run("quickstart.py")
    assert ran.returncode == 0, ran.stderr
    streamed, _, folded = ran.stdout.partition("\n\n")
    assert streamed.strip()
    assert f"text:          {streamed.splitlines()[0]}" in folded
    assert "finish reason: stop" in folded
    assert "output_tokens=" in folded


@pytest.mark.parametrize("time", range(3))
def test_tools_works_every_time(time: int):
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    ran = run("tools.py")
    assert ran.returncode == 0, ran.stderr
    assert "runs     weather with {'city': 'Paris'}" in ran.stdout
    assert "(completed after 2 steps" in ran.stdout
    assert "sunny" in ran.stdout.splitlines()[-2]


def test_custom_adapter_uses_a_tool_and_says_what_it_found():
    ran = run("custom_adapter.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "add({'numbers': [2, 40]})",
        "That makes 42.",
        "ChatResult('That makes 42.', completed, 2 steps, 7 tokens)",
    ]


def test_reactive_app_cancels_the_running_answer():
    """The second line is typed when the first answer has begun; that one never ends by itself, the second does."""
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    command = [sys.executable, "-u", str(EXAMPLES / "reactive_app.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as app:
        try:
            begun, rest = ask_twice(app, "Tell me a very long story about the sea.\n", "Name three fruits.\n")
            assert app.wait(timeout=60) == 0
        finally:
            app.kill()
    story, _, fruits = (begun + rest).partition("> Name three fruits.")
    assert len(story) < 600
    assert fruits.strip()


def ask_twice(app: subprocess.Popen[str], first: str, second: str) -> tuple[str, str]:
    """What the app says until the first answer has begun, and after the second question."""
    assert app.stdin is not None
    assert app.stdout is not None
    app.stdin.write(first)
    app.stdin.flush()
    begun = ""
    while len(begun) < 80:
        begun += app.stdout.read(1) or pytest.fail(f"the app has ended: {begun!r}")
    app.stdin.write(second)
    app.stdin.close()
    return begun, app.stdout.read()


def test_reactive_app_goes_on_after_an_error():
    environment = {name: held for name, held in os.environ.items() if name != "OPENAI_API_KEY"}
    ran = run("reactive_app.py", "openai:gpt-4.1-mini", input="one\ntwo\n", env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "> two\n[no API key for openai" in ran.stdout


def test_reactive_app_ends_quietly_without_a_question():
    ran = run("reactive_app.py", input="")
    assert (ran.returncode, ran.stderr) == (0, "")
