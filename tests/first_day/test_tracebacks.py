"""What the most frequent mistakes print: the cause and the remedy in three lines, after a short traceback."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from pathlib import Path

import httpx
import pytest

import rxllm
from rxllm import AdapterError, EngineError, Fake, LLMError
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values.errors import ERROR_CLASSES
from tests.programs import python

START = """
import asyncio, traceback
from pathlib import Path
import rxllm
from rxllm import Engine, Fake, OpenAIChat, serializer
from rxllm.testing.loopback import Loopback, Reply

class City:
    name: str

CUT = Fake(['{"name": "Par', ("finish", "length")])
"""

END = """
async def main():
    await CALL

def show(name):
    print(name)
    print(traceback.format_exc(), end="\\f")

try:
    CALL.run()
except BaseException:
    show("run")
try:
    for item in CALL:
        print(item)
except BaseException:
    show("for")
try:
    asyncio.run(main())
except BaseException:
    show("await")
"""

NOT_FOUND = """
server = Loopback(Reply({body!r}, status=404, headers={{"content-type": {kind!r}}}))
server.__enter__()
engine = Engine(OpenAIChat(base_url=server.url, api_key="k"), model="m")
"""

PATH = "write from_json(Path('saved/answer.json').read_text())"

CASES = {
    "missing key": ("", 'rxllm.generate("openai:gpt-5", "Hi")', "set the environment variable OPENAI_API_KEY"),
    "server down": (
        'engine = Engine(OpenAIChat(base_url="http://127.0.0.1:9/v1", api_key="k"), model="m", retry=False)',
        'rxllm.generate(engine, "Hi")',
        "is the server running?",
    ),
    "a page at the base_url": (
        NOT_FOUND.format(body=b"<html><title>Not Found</title></html>", kind="text/html"),
        'rxllm.generate(engine, "Hi")',
        "is the base_url right?",
    ),
    "wrong base_url": (
        NOT_FOUND.format(body=b'{"detail":"Not Found"}', kind="application/json"),
        'rxllm.generate(engine, "Hi")',
        "is the base_url right?",
    ),
    "invalid option": ("", 'rxllm.generate(Fake("x"), "Hi", temperature="hot")', "must be a number from 0 to 2"),
    "plain class": ("", 'rxllm.generate(Fake("x"), "Hi", response_format=City)', "write a @dataclass"),
    "cut answer": ("", 'rxllm.generate(CUT, "Hi", response_format=dict[str, str])', "pass a larger max_tokens"),
    "path as str": ("", 'serializer.from_json("saved/answer.json")', PATH),
    "Path": ("", 'serializer.from_json(Path("saved/answer.json"))', PATH),
}

LINES = 20


@pytest.mark.judges
@pytest.mark.parametrize("case", CASES)
def test_a_frequent_mistake_prints_its_remedy_in_twenty_lines(tmp_path: Path, case: str) -> None:
    start, call, remedy = CASES[case]
    program = tmp_path / "program.py"
    program.write_text(START + start + END.replace("CALL", call))
    environment = {name: text for name, text in os.environ.items() if not name.endswith("_API_KEY")}
    ran = python(str(program), env=environment)
    printed = ran.stdout.split("\f")[:-1]
    assert len(printed) == 3, ran.stderr
    for text in printed:
        name, *lines = text.strip().splitlines()
        last = max(index for index, line in enumerate(lines) if line.startswith("rxllm."))
        assert remedy in "\n".join(lines[last:])
        assert len(lines[last:]) <= 3
        assert "validation failed" not in text
        assert len(lines) <= LINES, f"{name}: {text}"


@pytest.mark.parametrize("name", ["LLMError", "AdapterError", "ImageAdapterError", "StreamError", "EngineError"])
def test_an_error_is_called_by_the_name_that_users_import(name: str) -> None:
    cls = getattr(rxllm, name)
    assert f"{cls.__module__}.{cls.__qualname__}" == f"rxllm.{name}"


def test_every_error_of_the_library_is_there_under_its_name() -> None:
    own = {cls for cls in ERROR_CLASSES.values() if cls.__module__.startswith("rxllm")}
    assert all(getattr(rxllm, cls.__name__) is cls and cls.__module__ == "rxllm" for cls in own)


def test_a_pickle_that_names_the_module_of_the_class_is_read() -> None:
    error = AdapterError("timeout", provider="openai")
    old = pickle.dumps(error, protocol=0).replace(b"crxllm\n", b"crxllm.values.errors\n")
    assert b"rxllm.values.errors" in old
    assert pickle.loads(old) == pickle.loads(pickle.dumps(error)) == error


@pytest.mark.sockets
def test_the_exception_of_the_transport_is_kept_and_not_printed() -> None:
    engine = rxllm.Engine(rxllm.OpenAIChat(base_url="http://127.0.0.1:9/v1", api_key="k"), model="m", retry=False)
    with pytest.raises(AdapterError) as caught:
        rxllm.generate(engine, "Hi").run()
    assert isinstance(caught.value.__context__, httpx.ConnectError)
    assert "httpx" not in "".join(traceback.format_exception(caught.value))


def test_the_users_own_frames_stay_in_the_error_and_in_its_cause() -> None:
    def key() -> str:
        raise OSError("no vault")

    with pytest.raises(EngineError) as caught:
        rxllm.generate(rxllm.Engine(rxllm.OpenAIChat(api_key=key), model="m"), "Hi").run()
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-1] == "key"
    with pytest.raises(ZeroDivisionError) as raised:
        rxllm.generate(Fake("Hi"), "Hi").map(lambda response: 1 / 0).run()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames][-1] == "<lambda>"
    assert not any("reactivex" in frame.filename for frame in frames)


def test_at_debug_all_frames_are_raised(caplog: pytest.LogCaptureFixture) -> None:
    def frames() -> list[str]:
        with pytest.raises(LLMError) as caught:
            rxllm.generate(Fake(AdapterError("timeout")), "Hi", retry=False).run()
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    short = frames()
    with caplog.at_level(logging.DEBUG, "rxllm"):
        assert len(frames()) > len(short)


def test_a_cause_that_is_its_own_cause_ends_the_search() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(ValueError, match="first"):
        rxllm.generate(Fake(first), "Hi").run()


@pytest.mark.sockets
def test_a_model_that_is_not_there_is_no_fault_of_the_base_url() -> None:
    reply = Reply(b'{"error":"model \'x\' not found"}', status=404)
    with Loopback(reply) as server, pytest.raises(AdapterError) as caught:
        rxllm.generate(rxllm.Ollama(base_url=server.url), "Hi", model="x").run()
    assert caught.value.message == f"model 'x' not found ({server.url}/api/chat)"
