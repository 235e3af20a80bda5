"""The journal of generate_many: its file is read again after every crash, and nothing in it is asked again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rxllm
from rxllm import (
    AdapterError,
    Budget,
    Engine,
    EngineError,
    Fake,
    Request,
    Response,
    Usage,
    ValidationError,
    generate_many,
    request,
    serializer,
)
from rxllm import operators as ops
from rxllm.testing.loopback import STALL, Loopback, Reply, chat
from rxllm.testing.loopback import Request as Received
from rxllm.values import Progress
from tests.programs import SECONDS, python
from tests.waiting import PATIENCE, turns, until, wait_until

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs signals, or files that only POSIX has")


def shout(request: Request) -> Any:
    text = request.messages[-1].text
    return AdapterError("invalid_request") if text == "no" else [text.upper(), Usage(2, 1)]


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, all of which are whole."""
    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def texts(source: Any) -> list[str]:
    return [response.output_text for response in source]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_answered_request_is_not_asked_again(tmp_path: Path, ordered: bool) -> None:
    fake, path = Fake(shout), tmp_path / "out.jsonl"
    for questions, asked in (["a", "b"], 2), (["a", "b"], 2), (["c", "b", "a"], 3):
        answers = texts(generate_many(fake, questions, journal=path, ordered=ordered))
        assert sorted(answers) == sorted(text.upper() for text in questions)
        assert not ordered or answers == [text.upper() for text in questions]
        assert len(fake.requests) == asked
    assert len(lines(path)) == 3


def test_a_response_from_the_journal_is_equal_to_the_answer(tmp_path: Path) -> None:
    def run(journal: Path | None) -> list[Response]:
        return list(generate_many(Fake(shout), ["a", "\u2028 \x85 \r\n \U0001f41f \ud800"], journal=journal))

    assert run(tmp_path / "out") == run(tmp_path / "out") == run(None)


def test_a_line_has_the_key_the_id_and_the_response(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (response,) = generate_many(Fake(shout), {"first": "a"}, journal=path, temperature=0.5)
    (line,) = lines(path)
    assert list(line) == ["request_key", "id", "response"]
    assert line["request_key"] == rxllm.values.request_key(request("a", temperature=0.5), "Fake")
    assert line["id"] == response.metadata.pop("request_id") == "first"
    assert serializer.from_data(line["response"]) == response


def test_equal_requests_are_told_apart_by_their_order(tmp_path: Path) -> None:
    fake, path = Fake(["one"], ["two"], ["three"]), tmp_path / "out"
    assert sorted(texts(generate_many(fake, ["a", "a"], journal=path, concurrency=1))) == ["one", "two"]
    assert texts(generate_many(fake, ["a", "a", "a"], journal=path)) == ["one", "two", "three"]


def test_a_failed_request_is_not_in_the_file_and_asked_again(tmp_path: Path) -> None:
    fake, path, seen = Fake(shout), tmp_path / "out", list[Progress]()
    for _ in range(2):
        answers = list(generate_many(fake, ["a", "no", "b"], journal=path, on_progress=seen.append))
        assert [response.error is None for response in answers] == [True, False, True]
    assert [one.messages[-1].text for one in fake.requests] == ["a", "no", "b", "no"]
    assert len(lines(path)) == 2
    assert [(one.done, one.failed, one.journaled, one.usage.total) for one in (seen[2], seen[5])] == [
        (3, 1, 0, 6),
        (3, 1, 2, 6),
    ]


def test_an_id_goes_with_its_response(tmp_path: Path) -> None:
    for journal in (None, tmp_path / "out", tmp_path / "out"):
        answers = list(generate_many(Fake(shout), {7: "a", 8: "no"}, journal=journal))
        assert [(one.metadata["request_id"], one.error is None) for one in answers] == [(7, True), (8, False)]
        (one,) = generate_many(Fake(shout), {"7": "a"}, journal=journal, ordered=False)
        assert one.metadata == {"request_id": "7", "request_index": 0}


def test_another_request_under_a_known_id_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    path, fake = tmp_path / "out", Fake(shout)
    list(generate_many(fake, {"x": "a", "y": "b"}, journal=path))
    before = path.read_bytes()
    changed: list[Callable[[], Any]] = [
        lambda: generate_many(fake, {"new": "c", "y": "other"}, journal=path),
        lambda: generate_many(fake, {"new": "c", "y": "b"}, journal=path, temperature=0.1),
        lambda: generate_many(Engine(fake, model="m"), {"new": "c", "y": "b"}, journal=path),
    ]
    for change in changed:
        with pytest.raises(
            ValidationError,
            match=r"requests\.y differs in its messages, model, tools or options from the request with this id",
        ) as caught:
            change().run()
        assert caught.value.reason == "invalid_request"
    assert (len(fake.requests), path.read_bytes()) == (2, before)


def test_notes_on_a_request_do_not_change_it(tmp_path: Path) -> None:
    path, fake = tmp_path / "out", Fake(shout)
    for run in range(2):
        generate_many(fake, {"x": request("a", metadata={"run": run})}, journal=path, metadata={"at": run}).run()
    assert len(fake.requests) == 1


@dataclass
class City:
    name: str


def test_a_value_is_parsed_again(tmp_path: Path) -> None:
    path, fake = tmp_path / "out", Fake('{"name": "Lima"}')
    for _ in range(2):
        (response,) = generate_many(fake, ["Where?"], journal=path, response_format=City)
        assert response.parsed == City("Lima")
    assert len(fake.requests) == 1
    bad = Fake('{"nom": "Lima"}')
    for count in (1, 2):  # an answer that does not fit is a failure
        (response,) = generate_many(bad, ["Where else?"], journal=path, response_format=City)
        assert (response.error is not None, len(bad.requests)) == (True, count)


def test_an_answer_that_fits_no_longer_is_asked_again(tmp_path: Path) -> None:
    strict = False

    @dataclass
    class Loud:
        name: str

        def __post_init__(self) -> None:
            if strict and not self.name.isupper():
                raise ValueError("not loud")

    fake = Fake(['{"name": "Lima"}'], ['{"name": "LIMA"}'])
    loud = generate_many(fake, {"x": "Where?"}, journal=tmp_path / "out", response_format=Loud)
    assert [one.parsed for one in loud] == [Loud("Lima")]
    strict = True
    for _ in range(2):
        assert [one.parsed for one in loud] == [Loud("LIMA")]
    assert len(fake.requests) == 2


def test_answers_from_the_journal_count_in_a_budget(tmp_path: Path) -> None:
    def run(questions: list[str]) -> Budget:
        shared = Budget(tokens=2_000)
        engine = Engine(Fake(shout), operators=[ops.budget(shared)])
        list(generate_many(engine, questions, journal=tmp_path / "out", max_tokens=100))
        return shared

    assert run(["a", "b", "c"]).spent.tokens == 9
    assert run(["a", "b", "c"]).spent.tokens == 9
    assert run(["a", "d"]).spent.tokens == 6


def test_a_request_that_a_budget_refuses_is_asked_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "out"
    poor = Engine(Fake(shout), operators=[ops.budget(Budget(tokens=110))])
    answers = list(generate_many(poor, ["a", "b", "c"], journal=path, max_tokens=100, concurrency=1))
    assert [one.error is None for one in answers] == [True, True, False]
    assert texts(generate_many(Fake(shout), ["a", "b", "c"], journal=path, max_tokens=100)) == ["A", "B", "C"]


@pytest.mark.parametrize(("name", "value"), [("journal", ""), ("journal", 3), ("ordered", "yes"), ("on_progress", 3)])
def test_wrong_options_of_a_batch_are_refused_at_the_call(name: str, value: Any) -> None:
    options: Any = {name: value}
    with pytest.raises(ValidationError, match=f"{name} must be .*, not {value!r}"):
        generate_many(Fake(shout), ["a"], **options)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_batch_in_which_every_request_is_refused_at_once_ends(tmp_path: Path, concurrency: int) -> None:
    path = tmp_path / "out"
    poor = Engine(Fake(shout), operators=[ops.budget(Budget(tokens=1))])
    answers = generate_many(poor, ["a", "b"], journal=path, concurrency=concurrency)

    async def main() -> list[Response]:
        return await answers.to_list()

    assert [one.error is None for one in asyncio.run(main())] == [False, False]
    assert texts(generate_many(Fake(shout), ["a", "b"], journal=path)) == ["A", "B"]  # the file is free


def test_the_tool_that_asks_many_keeps_to_the_budget_of_its_chat(tmp_path: Path) -> None:
    shared = Budget(tokens=100_000)

    @rxllm.tool
    async def ask_both() -> str:
        """Ask both."""
        return " ".join(
            [one.output_text async for one in generate_many(Fake(shout), ["a", "b"], journal=tmp_path / "o")]
        )

    script = [("tool_call", {"id": "c1", "name": "ask_both", "arguments": {}}), Usage(1, 1)]
    engine = Engine(Fake(scripts=[script, ["Done", Usage(1, 1)]]), tools=[ask_both], operators=[ops.budget(shared)])
    assert rxllm.chat(engine, "Go").run().thread[-2].text == "A B"
    assert shared.spent.calls == 4


# Files that are torn, foreign or used


@pytest.mark.judges
def test_a_file_that_ends_anywhere_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    list(generate_many(Fake(shout), {"x": "a", "y": "b", "z": "ü"}, journal=path, concurrency=1))
    whole = path.read_bytes()
    sizes = [size for size in range(len(whole) + 1) if size % 5 == 0 or b"\n" in whole[max(size - 3, 0) : size + 3]]
    for size in sizes:
        for end in (b"", b"\0\0"):
            path.write_bytes(whole[:size] + end)
            fake = Fake(shout)
            assert texts(generate_many(fake, {"x": "a", "y": "b", "z": "ü"}, journal=path, concurrency=1)) == [
                "A",
                "B",
                "Ü",
            ]
            assert len(fake.requests) == 3 - whole[:size].count(b"\n")
            assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"my notes", "the last line"),
        (b'{"id": 1, "prompt": "Hi"}', "the last line"),
        (b'{"id": 1, "prompt": "Hi"}\n', "line 1"),
        (b"\n", "line 1"),
        (b"\x89PNG\r\n\x1a\n", "line 1"),
        (b'{"request_key": "k", "response": {}}\n{"request_key": "k", "resp\n', "line 2"),
        (b'{"request_key": "k", "response": %b%b}\n' % (b"[" * 3000, b"]" * 3000), "line 1"),
        (b"%b%b\n" % (b"[" * 100_000, b"]" * 100_000), "line 1"),
    ],
)
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path, content: bytes, place: str) -> None:
    path, fake = tmp_path / "notes", Fake(shout)
    path.write_bytes(content)
    with pytest.raises(ValidationError, match=f"journal must be a file written by generate_many, but {place} of"):
        generate_many(fake, ["a"], journal=path).run()
    assert (path.read_bytes(), fake.requests) == (content, [])


def test_two_streams_do_not_write_to_one_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "out"
        fake = Fake([("delay", 60), "Hi"])
        first = generate_many(fake, ["a"], journal=path).subscribe()
        await until(lambda: fake.requests)
        with pytest.raises(EngineError, match="another process or stream is writing to the journal") as caught:
            await generate_many(Fake(shout), ["b"], journal=path)
        assert caught.value.reason == "journal_in_use"
        first.dispose()
        assert [answer.output_text for answer in await generate_many(Fake(shout), ["b"], journal=path)] == ["B"]

    asyncio.run(main())


def test_whoever_reads_the_file_meanwhile_does_not_unlock_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for _ in generate_many(Fake(["A"], [("delay", 60), "B"]), ["a", "b"], journal=path):
        assert lines(path)
        with pytest.raises(EngineError):
            generate_many(Fake(shout), ["c"], journal=path).run()
        break


def test_a_stream_that_is_left_gives_the_file_free_and_can_be_run_again(tmp_path: Path) -> None:
    source = generate_many(Fake(shout), list("abcdefgh"), journal=tmp_path / "out", concurrency=1)
    for _ in range(20):
        for response in source:
            assert response.output_text == "A"
            break
    assert texts(source) == list("ABCDEFGH")


@pytest.mark.parametrize("place", ["missing/out.jsonl", "."])
def test_a_path_that_cannot_be_written_is_an_error_before_anything_is_asked(tmp_path: Path, place: str) -> None:
    fake = Fake(shout)
    with pytest.raises(EngineError, match="pass a writable path") as caught:
        generate_many(fake, ["a"], journal=tmp_path / place).run()
    assert (caught.value.reason, fake.requests) == ("journal_failed", [])
    assert isinstance(caught.value.__cause__, OSError)


@posix
def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(EngineError, match="is not a regular file"):
            generate_many(Fake(shout), ["a"], journal=path).run()


PROGRAM_OF_A_SMALL_DISK = """
import resource, signal, sys
import rxllm
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # half of a module's would be left in its folder, for all programs to come
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
fake = rxllm.Fake(lambda request: request.messages[-1].text.upper())
count = 0
try:
    for response in rxllm.generate_many(fake, [f"a{n}" for n in range(20)], journal=sys.argv[1], concurrency=3):
        count += 1
except rxllm.EngineError as error:
    print(error.reason, count)
"""


@pytest.mark.judges
@posix
def test_half_a_line_that_a_full_disk_has_taken_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "out"
    program = python("-c", PROGRAM_OF_A_SMALL_DISK, str(path))
    reason, count = program.stdout.split()
    assert reason == "journal_failed", program.stderr
    assert int(count) <= len(lines(path)) == 4
    fake = Fake(shout)
    assert texts(generate_many(fake, [f"a{n}" for n in range(20)], journal=path)) == [f"A{n}" for n in range(20)]
    assert len(fake.requests) == 16


def test_an_answer_that_has_no_json_ends_the_stream(tmp_path: Path) -> None:
    def note(source: Any) -> Any:
        return source.pipe(ops.tap(lambda event: None)).map(with_object)

    def with_object(event: Any) -> Any:
        import msgspec

        return msgspec.structs.replace(event, metadata={"it": object()}) if hasattr(event, "finish_reason") else event

    with pytest.raises(EngineError, match=r"metadata\.it") as caught:
        generate_many(Engine(Fake("Hi"), operators=[note]), ["a"], journal=tmp_path / "out").run()
    assert caught.value.reason == "journal_failed"


def test_a_request_that_has_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        generate_many(Fake("Hi"), ["a", request("b", options={"it": object()})], journal=tmp_path / "out").run()
    assert caught.value.errors[0][0] == ("requests", 1, "options", "it")


@pytest.mark.parametrize("journal", [5, b"out", True])
def test_a_journal_is_a_path(journal: Any) -> None:
    with pytest.raises(ValidationError, match="journal must be the path of a file"):
        generate_many(Fake("Hi"), ["a"], journal=journal)


@pytest.mark.parametrize("ids", [{None: "a"}, {1.5: "a"}, {True: "a"}])
def test_ids_are_texts_or_whole_numbers(ids: Any) -> None:
    with pytest.raises(ValidationError, match="requests must be a mapping whose keys are strings or integers"):
        generate_many(Fake("Hi"), ids)


def test_a_slow_disk_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write to the disk lasts until the loop has turned."""
    sync, writes = os.fsync, list[int]()

    async def main() -> list[Response]:
        loop = asyncio.get_running_loop()

        def slow(file: int) -> None:
            asyncio.run_coroutine_threadsafe(turns(), loop).result(PATIENCE)
            writes.append(file)
            sync(file)

        monkeypatch.setattr(os, "fsync", slow)
        return await generate_many(Fake(shout), list("abcd"), journal=tmp_path / "out")

    assert [answer.output_text for answer in asyncio.run(main())] == list("ABCD")
    assert writes


# Many, and processes that are killed


@pytest.mark.judges
def test_two_thousand_of_which_some_fail(tmp_path: Path) -> None:
    failing = set(range(0, 2000, 10))

    def answer(request: Request) -> Any:
        number = int(request.messages[-1].text)
        return AdapterError("provider_unavailable") if number in failing else [str(number), Usage(1, 1)]

    fake, progress = Fake(answer), list[Progress]()
    questions = {number: str(number) for number in range(2000)}

    def run() -> list[Response]:
        return list(generate_many(fake, questions, journal=tmp_path / "o", on_progress=progress.append, retry=False))

    assert sum(one.error is not None for one in run()) == 200
    failing.clear()
    asked = len(fake.requests)
    assert [one.output_text for one in run()] == list(questions.values())
    assert len(fake.requests) - asked == 200
    last = progress[-1]
    assert (last.done, last.failed, last.total, last.journaled, last.usage) == (2000, 0, 2000, 1800, Usage(2000, 2000))
    assert len({line["id"] for line in lines(tmp_path / "o")}) == len(lines(tmp_path / "o")) == 2000


BATCH = """
import sys
import rxllm
engine = rxllm.Engine(rxllm.OpenAIChat(base_url=sys.argv[1] + "/v1", api_key="k"), model="m")
print("ready", flush=True)
many = {f"r{number}": f"question {number}" for number in range(int(sys.argv[3]))}
for response in rxllm.generate_many(engine, many, journal=sys.argv[2], ordered=sys.argv[4] == "yes", retry=False):
    print(response.metadata["request_id"], bool(response.error), flush=True)
"""


@pytest.mark.judges
@posix
@pytest.mark.parametrize("ordered", ["yes", "no"])
@pytest.mark.timeout(300)
def test_a_batch_that_is_killed_again_and_again_asks_nothing_again_that_is_in_its_file(
    tmp_path: Path, ordered: str
) -> None:
    """After a random number of answers, or of requests, SIGKILL; one question in ten fails the first time.

    The last question is answered in the last runs alone, so that none of the others ends before it is killed.
    """
    total, chance, path = 160, random.Random(7), tmp_path / "out"
    failed: set[str] = set()
    stalled = {f"question {total - 1}"}

    def answer(received: Received) -> Reply:
        question = received.json["messages"][-1]["content"]
        if question.endswith("0") and question not in failed:
            failed.add(question)
            return Reply.of_json({"error": {"message": "busy"}}, 500)
        return Reply([STALL] if question in stalled else chat(question.upper()))

    with Loopback(answer) as server:
        command = [sys.executable, "-c", BATCH, server.url, str(path), str(total), ordered]
        asked, emitted, shown = 0, 0, ""
        for turn in range(8):
            known, count = ids_in(path), chance.randrange(2, 40)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as batch:
                assert batch.stdout is not None
                if turn % 2:
                    enough = asked + min(count, total - len(known))
                    wait_until(lambda: len(server.requests), enough.__le__)
                else:
                    for _ in range(min(total, len(known) + count)):
                        emitted += batch.stdout.readline().endswith("False\n")
                batch.send_signal(signal.SIGKILL)
                assert batch.wait(SECONDS) == -signal.SIGKILL
            asked = not_asked_again(server, asked, known)
        stalled.clear()
        for _ in range(2):  # what has failed in the first is answered in the second
            known = ids_in(path)
            ran = python(*command[1:])
            assert ran.returncode == 0, ran.stderr
            assert len(ran.stdout.splitlines()) == 1 + total
            asked, shown = not_asked_again(server, asked, known), ran.stdout
        assert "True" not in shown
    assert Counter(line["id"] for line in lines(path)) == Counter(f"r{number}" for number in range(total))
    assert emitted > 0


def ids_in(path: Path) -> set[str]:
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {json.loads(line)["id"] for line in whole}


def not_asked_again(server: Loopback, since: int, known: set[str]) -> int:
    new = [received.json["messages"][-1]["content"] for received in server.requests[since:]]
    assert known.isdisjoint("r" + question.removeprefix("question ") for question in new)
    return since + len(new)


@pytest.mark.judges
@posix
def test_the_lock_of_a_process_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def answer(received: Received) -> Reply:
        stalls = received.json["messages"][-1]["content"] == "question 1"
        return Reply([STALL] if stalls else chat("Hi"))

    with Loopback(answer) as server:
        command = [sys.executable, "-c", BATCH, server.url, str(path), "2", "yes"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as batch:
            assert batch.stdout is not None
            assert [batch.stdout.readline() for _ in range(2)] == ["ready\n", "r0 False\n"]
            with pytest.raises(EngineError, match="another process"):
                generate_many(Fake(shout), ["a"], journal=path).run()
            batch.kill()
        assert texts(generate_many(Fake(shout), ["a"], journal=path)) == ["A"]
