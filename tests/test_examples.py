"""Each example, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import python

pytestmark = pytest.mark.judges

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return python(str(EXAMPLES / name), *args, **options)


def test_quickstart_prints_a_real_models_answer():
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    finished = run("quickstart.py")
    assert finished.returncode == 0, finished.stderr
    streamed, _, folded = finished.stdout.partition("\n\n")
    assert streamed.strip()
    assert f"text:          {streamed.splitlines()[0]}" in folded
    assert "finish reason: stop" in folded
    assert "output_tokens=" in folded


@pytest.mark.parametrize("time", range(3))
def test_tools_works_every_time(time: int):
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    finished = run("tools.py")
    assert finished.returncode == 0, finished.stderr
    assert "runs     weather with {'city': 'Paris'}" in finished.stdout
    assert "(completed after 2 steps" in finished.stdout
    assert "sunny" in finished.stdout.splitlines()[-2]


def test_custom_adapter_uses_a_tool_and_says_what_it_found():
    finished = run("custom_adapter.py")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        "add({'numbers': [2, 40]})",
        "That makes 42.",
        "ChatResult('That makes 42.', completed, 2 steps, 7 tokens)",
    ]


def test_agents_wait_for_an_approval_and_take_a_correction():
    finished = run("agents.py")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        "> Please order twenty flowers that are in season.",
        "botanist {'prompt': 'Which flowers are in season?'}",
        "    Peonies are in season. Roses are not.",
        "florist {'prompt': 'Twenty peonies for today, please.'}",
        "? order {'flower': 'peonies', 'number': 20} (c2/c1): yes, but twelve are enough",
        "florist {'prompt': 'Twenty peonies for today, please.'}",
        "    order {'flower': 'peonies', 'number': 12}",
        "    They arrive at five.",
        "Your peonies arrive today.",
        "> When exactly?",
        "At five o'clock.",
        "(completed)",
    ]
    assert len((EXAMPLES / "agents.py").read_text().splitlines()) < 80


def test_reactive_app_cancels_the_running_answer():
    """The second question is typed once the first answer, which would be very long, has begun."""
    pytest.importorskip("xllamacpp", reason="the example's model needs rxllm[local]")
    command = [sys.executable, "-u", str(EXAMPLES / "reactive_app.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as app:
        try:
            before, rest = ask_twice(app, "Tell me a very long story about the sea.\n", "Name three fruits.\n")
            assert app.wait() == 0
        finally:
            app.kill()
    story, _, fruits = (before + rest).partition("> Name three fruits.")
    assert len(story) < 600
    assert fruits.strip()


def ask_twice(app: subprocess.Popen[str], first: str, second: str) -> tuple[str, str]:
    """Return what the app prints until the first answer has begun, and after the second question."""
    assert app.stdin is not None
    assert app.stdout is not None
    app.stdin.write(first)
    app.stdin.flush()
    before = ""
    while len(before) < 80:
        before += app.stdout.read(1) or pytest.fail(f"the app has ended: {before!r}")
    app.stdin.write(second)
    app.stdin.close()
    return before, app.stdout.read()


def test_reactive_app_goes_on_after_an_error():
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    finished = run("reactive_app.py", "openai:gpt-4.1-mini", input="one\ntwo\n", env=environment)
    assert finished.returncode == 0, finished.stderr
    assert "> two\n[no API key for openai" in finished.stdout


def test_reactive_app_ends_quietly_without_a_question():
    finished = run("reactive_app.py", input="")
    assert (finished.returncode, finished.stderr) == (0, "")
