"""Cassettes: a request is answered once by its model, and then by a file."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from reactivex.scheduler import VirtualTimeScheduler

import rxllm
from rxllm import (
    Engine,
    Fake,
    OpenAIChat,
    ToolCall,
    generate,
    generate_many,
    models,
    session,
    stream,
    stream_generate,
    user,
)
from rxllm import operators as ops
from rxllm.adapters import Vertex
from rxllm.events import Event
from rxllm.testing import Cassette, Script, assert_adapter, replay_file, strategies
from rxllm.testing._rules import becomes
from rxllm.testing.loopback import STALL, Cut, Loopback, Reply, chat_chunk
from rxllm.testing.loopback import chat as chat_body
from rxllm.values import AdapterError, EngineError, ModelInfo, Request, StreamError, Usage, ValidationError
from tests.examples import examples
from tests.testing.wires import AnthropicWire, GeminiWire, OllamaWire, OpenAIChatWire, ResponsesWire


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tape.jsonl"


def heads(path: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in path.read_text().splitlines() if line)
    return [line["request"] for line in lines if "request" in line]


def live(server: Loopback, **options: Any) -> OpenAIChat:
    return OpenAIChat(base_url=server.url, **options)


def ask(adapter: Any, question: Any = "Hi", **options: Any) -> Any:
    settings: dict[str, Any] = {"model": "m", "retry": False, **options}
    return stream_generate(adapter, question, **settings)


@pytest.mark.sockets
def test_what_a_server_has_answered_is_answered_again_without_it(path: Path) -> None:
    with Loopback(Reply(chat_body("Apples, ", "pears."))) as server:
        adapter = live(server)
        first = list(ask(Cassette(path, adapter)))
        assert len(server.requests) == 1
    assert list(ask(Cassette(path, adapter))) == first
    assert list(ask(Cassette(path, adapter, "replay"))) == first
    assert type(first[0]).__name__ == "MessageStarted"


def test_a_chat_with_tools_plays_each_of_its_requests(path: Path) -> None:
    def add(x: int) -> int:
        return x + 1

    model = Fake(["Let me see", ToolCall("c1", "add", {"x": 1})], "It is 2")
    engine = Engine(Cassette(path, model), tools=[add])
    first = list(stream(engine, "What is 1 + 1?"))
    again = list(stream(replace(engine, adapter=Cassette(path, Fake("Wrong."), "replay")), "What is 1 + 1?"))
    assert len(model.requests) == 2
    assert len(heads(path)) == 2
    assert again[-1].result.final_response.output_text == "It is 2"  # type: ignore[attr-defined]
    without_ids = [event for event in first if type(event).__name__ != "ChatCompleted"]
    assert [event for event in again if type(event).__name__ != "ChatCompleted"] == without_ids


def test_a_session_goes_on_where_it_was(path: Path) -> None:
    def story(adapter: Any) -> list[str]:
        first = session.start(adapter, "One").run().session
        second = session.reply(adapter, first, "Two").run().session
        return [first.thread[-1].text, second.thread[-1].text]

    assert story(Cassette(path, Fake("1", "2"))) == story(Cassette(path, Fake("no"), "replay")) == ["1", "2"]


def test_a_request_that_has_changed_says_what_has_changed(path: Path) -> None:
    adapter = Cassette(path, Fake("Yes."))
    generate(adapter, "Name three primes.", temperature=0.5).run()
    generate(adapter, [user("One"), rxllm.assistant("Two"), user("Three")]).run()
    with pytest.raises(AdapterError) as raised:
        generate(Cassette(path, Fake("No."), "replay"), "Name four primes.", temperature=1.0, seed=3).run()
    assert raised.value.reason == "no_scripted_response"
    assert raised.value.message.splitlines()[1:] == [
        "  messages.0.content: recorded 'Name three primes.', now 'Name four primes.'",
        "  temperature: recorded 0.5, now 1.0",
        "  seed: recorded nothing, now 3",
        'pass mode="once" to record what is missing',
    ]


def test_a_difference_in_a_long_text_is_shown_where_it_is(path: Path) -> None:
    generate(Cassette(path, Fake("Yes.")), "a" * 5000 + "b" + "c" * 5000).run()
    with pytest.raises(AdapterError) as raised:
        generate(Cassette(path, Fake("No."), "replay"), "a" * 5000 + "d" + "c" * 5000).run()
    line = raised.value.message.splitlines()[1]
    assert len(line) < 300
    assert "aab" in line
    assert "aad" in line


def test_once_tells_the_log_what_has_changed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generate(Cassette(path, Fake("Yes.")), "One").run()
    with caplog.at_level(logging.INFO, "rxllm"):
        generate(Cassette(path, Fake("Yes.")), "Two").run()
    assert "messages.0.content: recorded 'One', now 'Two'" in caplog.text


def test_an_empty_cassette_says_so(path: Path) -> None:
    with pytest.raises(AdapterError, match="has no recordings"):
        generate(Cassette(path, Fake("No."), "replay"), "Hi").run()
    path.touch()
    with pytest.raises(AdapterError, match="has no recordings"):
        generate(Cassette(path, Fake("No."), "replay"), "Hi").run()


def test_what_is_volatile_does_not_count(path: Path) -> None:
    generate(Cassette(path, Fake("Yes.")), "Hi", request_id="a", metadata={"user": 1}, api_key="first-long-key").run()
    options: dict[str, Any] = {"request_id": "b", "metadata": {"user": 2}, "headers": {"x-run": "7"}}
    assert generate(Cassette(path, Fake("No."), "replay"), "Hi", **options).run().output_text == "Yes."


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"temperature": 0.1},
        {"tools": [lambda x: x]},
        {"options": {"n": 2}},
        {"include_raw_chunks": True},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_what_the_model_sees_counts(path: Path, change: dict[str, Any]) -> None:
    def f(x: int) -> int:
        return x

    change = {"tools": [f]} if "tools" in change else change
    generate(Cassette(path, Fake("Yes.")), "Hi").run()
    with pytest.raises(AdapterError):
        generate(Cassette(path, Fake("No."), "replay"), "Hi", **change).run()


HALF = "caf\udce9"  # a byte that is not UTF-8, as sys.argv and input() pass it on


@pytest.mark.parametrize("number", [1, 10**30])
def test_half_a_surrogate_pair_and_a_long_number_come_back(path: Path, number: int) -> None:
    call = ToolCall("c1", "add", {"x": number})
    for mode in ("once", "replay"):
        engine = Engine(Cassette(path, Fake(HALF, call), mode))
        assert generate(engine, HALF).run().output_text == HALF
        assert generate(engine, HALF, seed=1).run().tool_calls[0].arguments == {"x": number}


@pytest.mark.sockets
def test_two_providers_share_a_file(path: Path) -> None:
    with Loopback(Reply(chat_body("From one."))) as server:
        adapter = live(server)
        ask(Cassette(path, adapter)).pipe(ops.to_text()).run()
        ask(Cassette(path, Fake("From the other."))).pipe(ops.to_text()).run()
    texts = [ask(Cassette(path, engine, "replay")).pipe(ops.to_text()).run() for engine in (adapter, Fake("No."))]
    assert texts == ["From one.", "From the other."]


def test_bytes_stand_in_the_file_as_their_hash(path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
    question = user("What is it?", picture)
    encoded = user("And?", rxllm.values.Image.from_base64("iVBORw0KGgo" * 500, "image/png"))
    data_url = user("And?", rxllm.values.Image.from_url("data:image/png;base64," + "iVBORw0KGgo" * 500))
    adapter = Cassette(path, Fake("A kestrel."))
    for message in (question, encoded, data_url):
        generate(adapter, [message]).run()
        assert generate(Cassette(path, Fake("No."), "replay"), [message]).run().output_text == "A kestrel."
    assert path.stat().st_size < 3000
    other = user("What is it?", picture[:-1])
    with pytest.raises(AdapterError, match="sha256"):
        generate(Cassette(path, Fake("No."), "replay"), [other]).run()


CANARY = "sk-canary-0123456789abcdef"


@pytest.mark.sockets
@pytest.mark.parametrize("wire", [OpenAIChatWire, ResponsesWire, AnthropicWire, GeminiWire, OllamaWire])
@pytest.mark.parametrize("place", ["adapter", "call", "header", "call header", "option", "url", "prompt"])
def test_no_key_is_ever_written(path: Path, wire: Any, place: str) -> None:
    suite = wire()
    script = Script(texts=("Your key is ", CANARY, "."))
    body = [*suite.said(script), *suite.ended(script)]
    connection: dict[str, Any] = {"api_key": CANARY if place in ("adapter", "prompt") else "another-long-key"}
    options: dict[str, Any] = {}
    if place == "call":
        options = {"api_key": CANARY}
    elif place == "header":
        connection["headers"] = {"x-api-key": CANARY}
    elif place == "call header":
        options = {"headers": {"authorization": f"Bearer {CANARY}"}}
    elif place == "option":
        options = {"options": {"extra": {"api_key": CANARY}}}
    question = f"Is {CANARY} my key?" if place == "prompt" else "Hi"
    with Loopback(Reply(body)) as server:
        url = f"{server.url}?key={CANARY}" if place == "url" else server.url
        cassette = Cassette(path, suite.adapter(url, **connection), "record")
        ask(cassette, question, include_raw_chunks=True, **options).pipe(ops.to_response()).run()
    with Loopback(Reply.of_json({"error": {"message": f"no such key: {CANARY}"}}, 401)) as server:
        url = f"{server.url}?key={CANARY}" if place == "url" else server.url
        cassette = Cassette(path, suite.adapter(url, **connection), "record")
        with pytest.raises(rxllm.LLMError):
            ask(cassette, question + "?", **options).pipe(ops.to_response()).run()
    assert len(heads(path)) == 2
    assert CANARY not in path.read_text()
    assert "another-long-key" not in path.read_text()
    assert CANARY not in repr(cassette)


async def later() -> str:
    return f"{CANARY}-1"


KEYS: dict[str, Callable[[], dict[str, Any]]] = {
    "function": lambda: {"api_key": lambda: f"{CANARY}-1"},
    "coroutine function": lambda: {"api_key": later},
    "refreshed": lambda: {"api_key": map(f"{CANARY}-{{}}".format, count(1)).__next__},
}


@pytest.mark.sockets
@pytest.mark.parametrize("place", ["adapter", "call"])
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_that_a_function_returns_is_never_written(path: Path, kind: str, place: str) -> None:
    def repeat(request: Any) -> Reply:
        return Reply(chat_body(json.dumps(dict(request.headers))))

    key = KEYS[kind]()
    with Loopback(repeat) as server:
        cassette = Cassette(path, live(server, **(key if place == "adapter" else {})), "record")
        for _ in range(2):
            ask(cassette, include_raw_chunks=True, **(key if place == "call" else {})).to_list().run()
    assert "[key]" in path.read_text()
    assert CANARY not in path.read_text()


@pytest.mark.sockets
def test_the_token_of_googles_credentials_is_never_written(path: Path) -> None:
    credentials = pytest.importorskip("google.oauth2.credentials").Credentials(CANARY)

    def repeat(request: Any) -> Reply:
        part = {"text": f"You sent {request.headers['authorization']}."}
        chunk = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
        return Reply([b"data: %b\n\n" % json.dumps(chunk).encode()])

    with Loopback(repeat) as server:
        cassette = Cassette(path, Vertex(base_url=server.url, project="p", credentials=credentials), "record")
        ask(cassette, model="gemini-2.5-pro", include_raw_chunks=True).to_list().run()
    assert "You sent [key]." in path.read_text()
    assert CANARY not in path.read_text()


@pytest.mark.parametrize("speed", [math.inf, 1.0, 2.0])
def test_it_plays_at_once_or_in_its_time(path: Path, speed: float) -> None:
    def timed(adapter: Any) -> list[tuple[float, Any]]:
        scheduler, seen = VirtualTimeScheduler(0.0), list[tuple[float, Any]]()
        source = adapter.stream(Request((user("Hi"),)), rxllm.values.Call())
        source.subscribe(lambda event: seen.append((scheduler.now.timestamp(), event)), scheduler=scheduler)
        scheduler.advance_to(100.0)
        return seen

    model = Fake(["a", ("delay", 4), "b", ("delay", 2), "c"])
    first = timed(Cassette(path, model))
    again = timed(Cassette(path, Fake("no"), "replay", speed=speed))
    assert again == [(0.0 if speed == math.inf else at / speed, event) for at, event in first]
    assert first[-1][0] == 6.0


def test_once_calls_again_what_has_failed(path: Path) -> None:
    broken = Fake(AdapterError("authentication_failed"), ["Half", ("error", "provider_unavailable")], "Whole.")
    adapter = Cassette(path, broken)
    for _ in range(2):
        with pytest.raises(rxllm.LLMError):
            ask(adapter).pipe(ops.to_text()).run()
        assert not path.exists()
    assert ask(adapter).pipe(ops.to_text()).run() == "Whole."
    assert ask(adapter).pipe(ops.to_text()).run() == "Whole."
    assert len(broken.requests) == 3


def test_once_calls_again_what_was_left(path: Path) -> None:
    adapter = Cassette(path, Fake("Hello"))
    ask(adapter).take(2).run()
    assert not path.exists()
    ask(adapter).take_while(lambda event: type(event).__name__ != "MessageCompleted", inclusive=True).run()
    assert becomes(path.exists, 5.0)  # the subscriber had all of it, and left afterwards
    assert len(heads(path)) == 1


def test_a_recorded_failure_is_that_failure_again_and_so_retries_play(path: Path) -> None:
    limited = AdapterError("rate_limited", "slow down", status=429, provider="fake", retry_after=0.01)
    quick = {"base_delay": 0.0, "jitter": 0.0}
    first = list(ask(Cassette(path, Fake(limited, "Now."), "record"), retry=quick))
    assert len(heads(path)) == 2
    taped = Cassette(path, Fake("no"), "replay")
    assert list(ask(taped, retry=quick)) == first
    assert list(ask(taped, retry=quick)) == first
    with pytest.raises(AdapterError) as raised:
        list(ask(taped))
    assert raised.value == limited


@pytest.mark.sockets
def test_a_failure_in_midstream_is_that_again(path: Path) -> None:
    with Loopback(Reply([chat_chunk("Hel"), Cut.RESET])) as server:
        adapter = live(server)
        first = list(ask(Cassette(path, adapter, "record")))
    assert list(ask(Cassette(path, adapter, "replay"))) == first
    assert type(first[-1]).__name__ == "ErrorEvent"


@pytest.mark.sockets
def test_a_stream_that_was_left_never_plays_as_whole(path: Path) -> None:
    with Loopback(Reply([chat_chunk("Hel"), STALL])) as server:
        adapter = live(server)
        first = ask(Cassette(path, adapter, "record")).take(2).to_list().run()
        assert server.connections[0].wait_closed() is not None
    again: list[Event] = []
    with pytest.raises(StreamError) as raised:
        ask(Cassette(path, adapter, "replay")).do_action(again.append).run()
    assert raised.value.reason == "cancelled"
    assert again[:2] == first
    assert ask(Cassette(path, adapter, "replay")).take(2).to_list().run() == first


def test_record_replaces_what_was_recorded(path: Path) -> None:
    generate(Cassette(path, Fake("Old.")), "One").run()
    generate(Cassette(path, Fake("Kept.")), "Two").run()
    new = Cassette(path, Fake("New.", "Newer."), "record")
    assert [generate(new, "One").run().output_text for _ in range(2)] == ["New.", "Newer."]
    taped = Cassette(path, Fake("no"), "replay")
    texts = [generate(taped, question).run().output_text for question in ("One", "One", "One", "Two")]
    assert texts == ["New.", "Newer.", "New.", "Kept."]
    assert list(path.parent.iterdir()) == [path]


def test_equal_requests_of_a_batch_play_in_turn(path: Path) -> None:
    model = Fake(["a", ("delay", 0.01)], ["b", ("delay", 0.01)], ["c", ("delay", 0.01)])
    adapter = Cassette(path, model)

    def batch(adapter: Any) -> list[str]:
        return sorted(answer.output_text for answer in generate_many(adapter, ["Same"] * 3, concurrency=3))

    assert batch(adapter) == batch(adapter) == batch(Cassette(path, Fake("no"), "replay")) == ["a", "b", "c"]
    assert len(model.requests) == 3


def test_a_race_plays_without_the_losers(path: Path) -> None:
    slow, quick = Fake([("delay", 60), "Late."]), Fake("Quick.")

    def race(mode: Any) -> str:
        lanes = [ask(Cassette(path, model, mode), question) for model, question in ((slow, "A"), (quick, "B"))]
        return rxllm.race(*lanes).pipe(ops.to_text()).run()

    assert [race("once"), race("replay")] == ["Quick.", "Quick."]


@pytest.mark.judges
def test_what_a_killed_process_has_left_does_not_count(path: Path) -> None:
    adapter = Cassette(path, Fake("One."))
    generate(adapter, "One").run()
    whole = path.read_bytes()
    generate(Cassette(path, Fake("Two.")), "Two").run()
    both = path.read_bytes()
    for length in range(len(whole), len(both) - 1):
        path.write_bytes(both[:length])
        assert generate(Cassette(path, Fake("no"), "replay"), "One").run().output_text == "One."
        with pytest.raises(AdapterError):
            generate(Cassette(path, Fake("no"), "replay"), "Two").run()
        assert generate(Cassette(path, Fake("Again.")), "Two").run().output_text == "Again."
        assert generate(Cassette(path, Fake("no"), "replay"), "Two").run().output_text == "Again."


PROGRAM = """
import sys
from rxllm import Fake, generate
from rxllm.testing import Cassette
path, name, count = sys.argv[1:]
adapter = Cassette(path, Fake("x" * 20_000))
for number in range(int(count)):
    generate(adapter, f"{name} {number}").run()
    print(number, flush=True)
"""


@pytest.mark.judges
def test_processes_share_a_file_and_may_be_killed(path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, path, name, "100000" if name == "c" else "30"], stdout=subprocess.PIPE
        )
        for name in "abc"
    ]
    victim = started[2]
    assert victim.stdout is not None
    for _ in range(5):
        victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    for process in started:
        process.communicate(timeout=60)
    taped = Cassette(path, Fake("no"), "replay")
    for name in "ab":
        for number in range(30):
            assert len(generate(taped, f"{name} {number}").run().output_text) == 20_000
    assert len(generate(taped, "c 4").run().output_text) == 20_000


def test_threads_share_a_cassette(path: Path) -> None:
    adapter = Cassette(path, Fake("x" * 1000))
    threads = [
        threading.Thread(target=lambda n=n: [generate(adapter, f"{n} {m}").run() for m in range(10)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heads(path)) == 40
    assert generate(Cassette(path, Fake("no"), "replay"), "3 9").run().output_text == "x" * 1000


def test_a_model_is_named_and_has_its_price(path: Path) -> None:
    models.put(ModelInfo("cassettes:priced", input_price=1.0, output_price=2.0))

    class Priced(Fake):
        provider = "cassettes"

    engine = Engine(Priced(["Yes.", Usage(1000, 1000)]), model="priced")
    cost = generate(engine, "Hi").run().usage.total_cost
    assert cost is not None
    answers = [generate(Cassette(path, engine), "Hi").run() for _ in range(2)]
    assert [answer.usage.total_cost for answer in answers] == [cost, cost]
    assert heads(path)[0]["model"] == "priced"
    assert generate(Engine(Cassette(path, engine, "replay"), model="priced"), "Hi").run().usage.total_cost == cost


@pytest.mark.sockets
def test_the_name_of_a_model_needs_no_key_to_replay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with Loopback(Reply(chat_body("Yes."))) as server:
        adapter = OpenAIChat(base_url=server.url, api_key="a-long-key")
        assert adapter.provider == "openai"
        stream_generate(Cassette(path, Engine(adapter, "gpt-4o")), "Hi").run()
    assert generate(Cassette(path, rxllm.Engine(OpenAIChat(), "gpt-4o"), "replay"), "Hi").run().output_text == "Yes."


def test_an_engine_with_more_settings_is_refused(path: Path) -> None:
    with pytest.raises(EngineError, match="also has params; write dataclasses"):
        Cassette(path, Engine(Fake("Hi"), params={"temperature": 0.0}))


def test_wrong_arguments_are_refused(path: Path) -> None:
    with pytest.raises(ValidationError, match="mode must be 'once', 'replay' or 'record', not 'all'"):
        Cassette(path, Fake("Hi"), "all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="speed must be a positive number"):
        Cassette(path, Fake("Hi"), speed=0)
    with pytest.raises(TypeError):
        Cassette(5, Fake("Hi"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(EngineError):
        Cassette(path, None)


def test_copies_begin_again(path: Path) -> None:
    engine = Engine(Cassette(path, Fake("Hi"), speed=2.0))
    ask(engine).run()
    for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine)), copy.copy(engine)):
        assert ask(other).pipe(ops.to_text()).run() == "Hi"
        assert other.adapter.speed == 2.0


@pytest.mark.sockets
def test_it_closes_the_clients_of_its_adapter(path: Path) -> None:
    async def main() -> None:
        with Loopback(Reply(chat_body("Yes."))) as server:
            engine = Engine(Cassette(path, live(server)))
            await ask(engine)
            await rxllm.aclose(engine)
            server.connections[0].wait_closed()

    asyncio.run(main())


def test_a_file_of_record_is_not_a_cassette_and_a_cassette_of_one_plays_as_a_file(path: Path) -> None:
    answer = list(ask(Cassette(path, Fake("Hi"))))
    assert list(replay_file(path)) == answer
    generate(Cassette(path, Fake("Hi")), "More").run()
    with pytest.raises(ValidationError, match="is a Cassette with 2 recordings"):
        replay_file(path).run()
    plain = path.with_name("plain.jsonl")
    ask(Fake("Hi")).pipe(rxllm.testing.record(plain)).run()
    with pytest.raises(ValidationError, match="was written by `record`"):
        generate(Cassette(plain, Fake("no")), "Hi").run()


def test_a_bad_line_is_an_error_that_names_it(path: Path) -> None:
    ask(Cassette(path, Fake("Hi"))).run()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "<<<<<<< HEAD", *lines[3:]]) + "\n")
    with pytest.raises(ValidationError, match=r"tape.jsonl, line 4: "):
        ask(Cassette(path, Fake("no"), "replay")).run()


def test_an_answer_that_cannot_be_written_is_an_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        ask(Cassette(path, Fake("Hi"))).run()


def test_a_missing_folder_is_made(path: Path) -> None:
    deep = path.parent / "a" / "b" / "tape.jsonl"
    ask(Cassette(deep, Fake("Hi"))).run()
    assert len(heads(deep)) == 1


@given(strategies.lawful_events)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_answer_comes_back(path: Path, emitted: list[Event]) -> None:
    path.unlink(missing_ok=True)
    first = list(ask(Cassette(path, Fake(emitted), "record")))
    assert list(ask(Cassette(path, Fake("no"), "replay"))) == first


@given(strategies.requests)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_request_is_found_again(path: Path, request: Request) -> None:
    path.unlink(missing_ok=True)
    Cassette(path, Fake("Hi")).stream(request, rxllm.values.Call()).run()
    assert Cassette(path, Fake("no"), "replay").stream(request, rxllm.values.Call()).pipe(ops.to_text()).run() == "Hi"


@pytest.mark.parametrize("mode", ["once", "record"])
def test_it_keeps_the_rules_of_adapters(path: Path, mode: Any) -> None:
    assert_adapter(Cassette(path, Fake("Hello"), mode))


def test_images_are_not_for_cassettes(path: Path) -> None:
    with pytest.raises(EngineError, match="image"):
        rxllm.generate_image(Cassette(path, Fake("Hi")), "a kestrel").run()
