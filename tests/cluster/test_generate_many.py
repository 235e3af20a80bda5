"""Many requests on the workers of Dask: real processes, killed for real, and a provider over real sockets."""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import reactivex

import rxllm
from rxllm import (
    AdapterError,
    Budget,
    Engine,
    EngineError,
    Fake,
    OpenAIChat,
    Response,
    RetryPolicy,
    StreamError,
    ValidationError,
    models,
    tool,
)
from rxllm import operators as ops
from rxllm.cluster import _lanes, _worker, generate_many
from rxllm.cluster._generate_many import _WORKERS
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.values import ModelInfo, Progress
from tests.cluster.provider import ANSWER, PROMPT, Provider, is_cut, pids, refusal
from tests.programs import SECONDS, python, python_without
from tests.waiting import PATIENCE, wait_until

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.judges, pytest.mark.timeout(300)]

RETRY = RetryPolicy(base_delay=0.0, jitter=0.0)


@contextmanager
def cluster_of(workers: int, **options: Any) -> Iterator[Any]:
    quiet = {"dashboard_address": "127.0.0.1:0", "silence_logs": 50, "memory_limit": 0}
    name = f"tests-{uuid4().hex}"
    with (
        distributed.LocalCluster(name=name, n_workers=workers, threads_per_worker=1, **quiet, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster_of(2) as client:
        yield client


@pytest.fixture
def threads() -> Iterator[Any]:
    with cluster_of(2, processes=False) as client:
        yield client


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if "client" not in request.fixturenames:
        yield
        wait_until(lambda: not _own_clusters())  # which close after their run, with words that another test would read
        return
    client = request.getfixturevalue("client")
    yield
    wait_until(lambda: not any(client.run(lanes, on_error="ignore").values()))


def lanes() -> list[str]:
    return list(_worker._lanes)


def set_key(key: str) -> None:
    os.environ["OPENAI_API_KEY"] = key


def shout(request: Any) -> str:
    return request.messages[-1].text.upper()


def upper(request: Any) -> Any:
    if request.messages[-1].text == "fail":
        return AdapterError("invalid_request", "no")
    return [request.messages[-1].text.upper(), rxllm.Usage(3, 2)]


def asked(server: Loopback, **settings: Any) -> Engine:
    return Engine(OpenAIChat(base_url=server.url), model="m", retry=RETRY, **settings)


# Results


def test_the_results_are_those_of_one_process(client: Any) -> None:
    questions = ["a", "b", "fail", "c"]
    engine = Engine(Fake(upper), model="m", params={"temperature": 0.5, "max_tokens": 9})
    assert list(generate_many(engine, questions, client=client)) == list(rxllm.generate_many(engine, questions))


def test_requests_are_asked_as_they_arrive(client: Any) -> None:
    arriving = rxllm.Stream.of(reactivex.of("a", "b", "fail", "c"))
    engine = Engine(Fake(upper), model="m")
    assert list(generate_many(engine, arriving, client=client)) == list(rxllm.generate_many(engine, arriving))


def test_they_come_in_order_or_as_they_finish_with_progress(client: Any) -> None:
    seen: list[Progress] = []
    questions = [str(number * 30) for number in range(6)]

    def ask(ordered: bool) -> list[Response[Any]]:
        seen.clear()
        with Loopback(Provider(lambda number: number == 0 and len(seen) < 5)) as server:
            many = generate_many(asked(server), questions, client=client, ordered=ordered, on_progress=seen.append)
            return list(many)

    assert [response.output_text for response in ask(ordered=True)] == [f"{text} is a number" for text in questions]
    assert [(progress.done, progress.total) for progress in seen] == [(done, 6) for done in range(1, 7)]
    free = ask(ordered=False)
    assert free[-1].output_text == "0 is a number"
    assert sorted(response.metadata["request_index"] for response in free) == list(range(6))


def test_they_come_one_by_one(client: Any) -> None:
    provider = Provider()
    with Loopback(lambda request: Reply(endless(every=1.0)) if b'"7"' in request.body else provider(request)) as server:
        many = generate_many(asked(server), [str(number) for number in range(8)], client=client, concurrency=8)
        with rxllm.to_iter(many) as responses:
            assert [next(responses).output_text[0] for _ in range(7)] == list("0123456")
            assert server.open_count >= 1


@dataclass
class City:
    name: str


def test_an_answer_is_parsed_here(client: Any) -> None:
    @dataclass
    class Local:
        name: str

    for format in (City, Local):
        many = generate_many(Fake('{"name": "Lima"}'), ["Capital of Peru?"], client=client, response_format=format)
        assert [answer.parsed for answer in many.run()] == [format("Lima")]
    (wrong,) = generate_many(Fake("Lima"), ["Capital of Peru?"], client=client, response_format=City).run()
    assert isinstance(wrong.error, ValidationError)
    assert wrong.output_text == "Lima"


def test_settings_and_options_travel(client: Any) -> None:
    factor = 2

    @tool
    def times(x: int) -> int:
        """Multiply."""
        return factor * x

    def describe(request: Any) -> str:
        names = [tool.name for tool in request.tools]
        prompts = [message.text for message in request.messages]
        return f"{request.model} {request.temperature} {request.seed} {names} {request.metadata} {prompts}"

    def prepare(request: Any) -> Any:
        return rxllm.request(request, metadata={"prepared": factor})

    engine = Engine(Fake(describe), model="m", params={"temperature": 0.5}, tools=[times], prepare=[prepare])
    engine = Engine(engine, system="a")
    engine = engine.with_operators(ops.map_text(str.upper))
    (answer,) = generate_many(engine, ["Hi"], client=client, seed=7, system="b").run()
    assert answer.output_text == "M 0.5 7 ['TIMES'] {'PREPARED': 2} ['A', 'B', 'HI']"


async def scripted(request: Any, call: Any) -> Any:
    yield rxllm.TextDelta(shout(request))


@pytest.mark.parametrize("adapter", [Fake(upper), scripted])
def test_a_journal_serves_a_cluster_and_one_process(client: Any, tmp_path: Path, adapter: Any) -> None:
    path, seen = tmp_path / "out", list[Progress]()
    there, here = generate_many(adapter, {"x": "a", "y": "b"}, client=client, journal=path), rxllm.generate_many
    assert [(one.output_text, one.metadata["request_id"]) for one in there] == [("A", "x"), ("B", "y")]
    more = {"z": "c", "y": "b", "x": "a"}
    assert [one.output_text for one in here(adapter, more, journal=path, on_progress=seen.append)] == ["C", "B", "A"]
    assert [one.output_text for one in generate_many(adapter, more, client=client, journal=path)] == ["C", "B", "A"]
    assert (seen[-1].journaled, len(path.read_text().splitlines())) == (2, 3)


def test_each_subscription_asks_anew_and_nothing_is_asked_before(client: Any) -> None:
    provider = Provider()
    with Loopback(provider) as server:
        many = generate_many(asked(server), ["1", "2"], client=client)
        generate_many(Fake(shout), ["a", "b"], client=client).run()
        assert not provider.asked
        assert len(list(many)) == len(list(many)) == 2
        assert provider.asked == {1: 2, 2: 2}


def test_a_connection_serves_many_requests(client: Any) -> None:
    with Loopback(Provider()) as server:
        assert (
            len(list(generate_many(asked(server), [str(n * 30) for n in range(200)], client=client, concurrency=4)))
            == 200
        )
        assert len(server.connections) <= 20


def test_it_is_awaited_and_iterated_on_a_running_loop(client: Any) -> None:
    async def main() -> None:
        async with distributed.Client(client.scheduler.address, asynchronous=True, set_as_default=False) as own:
            for mine in (client, own):
                many = generate_many(Fake(shout), ["a", "b"], client=mine)
                assert [response.output_text for response in await many] == ["A", "B"]
                assert [response.output_text async for response in many] == ["A", "B"]

    asyncio.run(main())


def test_run_returns_them_in_the_requests_order(client: Any) -> None:
    texts = [str(number) for number in range(40)]
    many = generate_many(Fake(shout), texts, client=client, ordered=False)
    assert [response.output_text for response in many.run()] == texts


def test_threads_serve_as_workers(threads: Any) -> None:
    many = generate_many(Fake(shout), ["a", "b", "c"], client=threads)
    assert [response.output_text for response in many] == ["A", "B", "C"]


def test_it_waits_its_turn_behind_other_work_of_a_worker(client: Any, tmp_path: Path) -> None:
    is_over = (tmp_path / "over").exists
    busy = [client.submit(wait_until, is_over, workers=[address], pure=False) for address in client.nthreads()]
    answers: list[Response[Any]] = []
    generate_many(Fake(shout), ["a"], client=client).subscribe(answers.append)
    wait_until(lambda: len(client.run_on_scheduler(lanes_to_come)) == 2)
    assert not answers
    (tmp_path / "over").touch()
    assert wait_until(lambda: answers)[0].output_text == "A"
    assert any(future.done() for future in busy)


def lanes_to_come(dask_scheduler: Any) -> list[str]:
    return [key for key in dask_scheduler.tasks if str(key).startswith("rxllm-")]


def test_a_worker_that_retires_hands_its_requests_on(threads: Any) -> None:
    has_retired = threading.Event()
    provider = Provider(lambda number: number > 0 and not has_retired.is_set())
    with Loopback(provider) as server:
        many = generate_many(asked(server), [str(n * 30) for n in range(12)], client=threads, concurrency=2)
        with rxllm.to_iter(many) as responses:
            next(responses)
            wait_until(lambda: provider.begun == 5)  # the first, and two that are held on each worker
            threads.retire_workers([min(threads.nthreads())])
            has_retired.set()
            assert all(response.error is None for response in responses)
    assert Counter(provider.asked.values()) == {1: 10, 2: 2}


# Workers that die


def test_each_of_2000_requests_is_answered_once_though_workers_are_killed() -> None:
    count, concurrency, limit = 2_000, 16, 20
    provider = Provider()
    kills = {400, 1_100}
    with Loopback(provider) as server, cluster_of(3) as client:  # one survives, whatever becomes of the others
        victims = pids(client)
        engine = asked(server, operators=[ops.rate_limited(concurrent=limit)])
        questions = [str(number) for number in range(count)]
        responses: list[Response[Any]] = []
        for response in generate_many(engine, questions, client=client, concurrency=concurrency):
            responses.append(response)
            if len(responses) in kills:
                os.kill(victims.pop(), signal.SIGKILL)
    for number, response in enumerate(responses):
        if is_cut(number):
            assert (response.output_text, response.error.reason) == (f"{number} ", "truncated")
        else:
            assert (response.output_text, response.error) == (f"{number} is a number", None)
    assert len(responses) == count
    once = {number: 2 if refusal(number) else 1 for number in range(count)}
    again = {number: asked - once[number] for number, asked in provider.asked.items() if asked != once[number]}
    assert all(more in (1, 2) for more in again.values()), again
    assert len(again) <= len(kills) * concurrency  # only what a worker that died was asked
    assert provider.most <= limit


def test_a_request_that_kills_its_workers_fails_and_the_others_do_not() -> None:
    def deadly(request: Any) -> str:
        if request.messages[-1].text == "13":
            os.kill(os.getpid(), signal.SIGKILL)
        return request.messages[-1].text

    with cluster_of(4) as client:
        many = list(generate_many(Fake(deadly), ["1", "13", "2"], client=client, concurrency=1))
    assert [response.output_text for response in many] == ["1", "", "2"]
    assert isinstance(many[1].error, AdapterError)
    assert "3 workers have died while running this request" in str(many[1].error)


# Whoever leaves


def test_dispose_closes_the_connections_of_all_workers(client: Any) -> None:
    with Loopback(lambda request: Reply(endless(every=1.0))) as server:
        many = generate_many(asked(server), [str(number) for number in range(50)], client=client, concurrency=8)
        subscription = many.subscribe()
        wait_until(lambda: len(server.requests) == 16)
        with stopped(pids(client)):
            subscription.dispose()  # and that waits for nobody
            assert server.open_count == 16
        wait_until(lambda: server.open_count == 0)
        assert {connection.closed_by for connection in server.connections} == {"client"}
        assert len(server.requests) == 16


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def test_taking_a_few_stops_the_others(client: Any) -> None:
    with Loopback(Provider()) as server:
        questions = [str(number * 30) for number in range(500)]
        assert len(list(generate_many(asked(server), questions, client=client, concurrency=2).take(5))) == 5
        wait_until(lambda: server.open_count == 0)
        assert len(server.requests) < 100


def test_a_slow_reader_is_not_run_over(client: Any) -> None:
    """While it does not read, as many requests are sent as may run at a time, and no more."""
    provider, seen = Provider(), list[Progress]()
    with Loopback(provider) as server:
        questions = [str(number * 30) for number in range(1_000)]
        options: dict[str, Any] = {"client": client, "concurrency": 4, "on_progress": seen.append}
        with rxllm.to_iter(generate_many(asked(server), questions, **options), maxsize=4) as many:
            next(many)
            wait_until(lambda: provider.begun == seen[-1].done + 4 * _WORKERS)
            assert provider.begun < len(questions)
        wait_until(lambda: server.open_count == 0)


_PROGRAM = """
import sys
from distributed import Client
from rxllm import Engine, OpenAIChat
from rxllm.cluster import generate_many

if __name__ == "__main__":
    client = Client(sys.argv[1], set_as_default=False)
    engine = Engine(OpenAIChat(base_url=sys.argv[2]), model="m")
    print(list(generate_many(engine, [str(n) for n in range(50)], client=client, concurrency=4)))
"""


def test_a_client_that_dies_leaves_no_worker_asking(client: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    with Loopback(lambda request: Reply(endless(every=1.0))) as server:
        command = [sys.executable, str(tmp_path / "program.py"), client.scheduler.address, server.url]
        program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: server.open_count == 8)
        finally:
            program.kill()
        program.wait(SECONDS)
        wait_until(lambda: server.open_count == 0)
        assert {connection.closed_by for connection in server.connections} == {"client"}
        assert len(server.requests) == 8


_LEAVING = """
import asyncio
import sys

import rxllm
from distributed import Client


def answer(request):
    return "Hi" if request.messages[-1].text == "0" else [("delay", 30.0), "late"]


def asked(client):
    return rxllm.cluster.generate_many(rxllm.Fake(answer), [str(n) for n in range(20)], client=client)


async def a_block(client):
    async with rxllm.to_async_iter(asked(client)) as responses:
        async for response in responses:
            break


async def a_loop(client):
    async for response in asked(client):
        break


async def a_subscription(client):
    has_begun = asyncio.Event()
    subscription = asked(client).subscribe(lambda response: has_begun.set())
    await has_begun.wait()
    subscription.dispose()


async def a_cancelled_task(client):
    has_begun = asyncio.Event()

    async def read():
        async for response in asked(client):
            has_begun.set()

    task = asyncio.create_task(read())
    await has_begun.wait()
    task.cancel()


async def a_task_that_runs(client):
    asyncio.create_task(a_block(client))
    for _ in range(50):
        await asyncio.sleep(0)  # it is connecting


async def several(client):
    await asyncio.gather(a_cancelled_task(client), *map(a_loop, [client] * 3), *map(a_block, [client] * 3))


if __name__ == "__main__":
    way, address = globals()[sys.argv[1]], sys.argv[2:]
    if address:
        with Client(*address, set_as_default=False) as client:
            asyncio.run(way(client))
            asyncio.run(way(client))
    else:
        asyncio.run(way(None))
"""


@pytest.mark.parametrize(
    "way", ["a_block", "a_loop", "a_subscription", "a_cancelled_task", "a_task_that_runs", "several"]
)
def test_the_end_of_asyncio_run_is_silent_after_leaving(client: Any, tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(_LEAVING)
    ran = python("-W", "error", str(tmp_path / "program.py"), way, client.scheduler.address)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_end_of_asyncio_run_is_silent_after_leaving_workers_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_LEAVING)
    ran = python("-W", "error", str(tmp_path / "program.py"), "a_loop")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_workers_of_its_own_end_with_it() -> None:
    resource_tracker.ensure_running()  # the first workers would start it, and it stays
    before = set(_children())
    pids = {response.output_text for response in generate_many(Fake(_pid), ["a", "b", "c", "d"])}
    assert pids
    assert str(os.getpid()) not in pids
    wait_until(lambda: set(_children()) <= before)


def test_workers_of_its_own_end_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words, logger = io.StringIO(), logging.getLogger("distributed")
    caplog.set_level(logging.INFO, "distributed")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(words)])
    open_calls, left_open = Counter[Any](), list[int]()
    broadcast, close = distributed.Scheduler.broadcast, distributed.LocalCluster.close

    async def counted(scheduler: Any, *args: Any, **options: Any) -> Any:
        open_calls[scheduler] += 1
        try:
            return await broadcast(scheduler, *args, **options)
        finally:
            open_calls[scheduler] -= 1

    def noted(cluster: Any, *args: Any, **options: Any) -> Any:
        left_open.append(open_calls[cluster.scheduler])
        return close(cluster, *args, **options)

    monkeypatch.setattr(_lanes, "_GRACE", PATIENCE)
    monkeypatch.setattr(distributed.Scheduler, "broadcast", counted)
    monkeypatch.setattr(distributed.LocalCluster, "close", noted)
    for count in (2, 10, 2):
        with rxllm.to_iter(generate_many(Fake([("delay", 0.02), "Hi"]), ["a"] * count)) as responses:
            assert len(list(itertools.islice(responses, 3))) == min(count, 3)  # the second run closes during the third
    wait_until(lambda: len(left_open) == 3 and not logger.handlers[0].filters)
    assert left_open == [0, 0, 0]
    assert words.getvalue() == ""


@pytest.mark.parametrize("started", [0, 1])
def test_workers_of_its_own_end_with_a_dispose_while_they_start(started: int) -> None:
    resource_tracker.ensure_running()
    before = set(_children())
    subscription = generate_many(Fake("Hi"), ["a", "b"]).subscribe()
    wait_until(lambda: len({*_children()} - before), started.__le__)
    subscription.dispose()
    rxllm.generate(Fake([("delay", 0.0), "Hi"]), "Hi").run()  # whatever was to be started by now has been
    wait_until(lambda: not _own_clusters() and set(_children()) <= before)


def test_a_dispose_while_it_connects_leaves_no_connection(client: Any) -> None:
    for has_come_far in (
        lambda: True,
        lambda: len(client.run_on_scheduler(clients)) > 1,
        lambda: client.run_on_scheduler(lanes_to_come),
        lambda: any(client.run(lanes).values()),
    ):
        subscription = generate_many(Fake([("delay", 60.0), "Hi"]), ["a", "b"], client=client).subscribe()
        wait_until(has_come_far)
        subscription.dispose()
        wait_until(lambda: client.run_on_scheduler(clients) == [client.id])


def clients(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.clients if name.startswith("Client")]


def _pid(request: Any) -> str:
    return str(os.getpid())


def _own_clusters() -> list[Any]:
    """The clusters of runs without a client that are not closed."""
    clusters = [*distributed.LocalCluster._instances]
    return [cluster for cluster in clusters if cluster.status.name != "closed" and "tests-" not in cluster.name]


def _children() -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = status.read_text().rpartition(")")
        except OSError:
            continue
        if rest.split()[1] == str(os.getpid()) and rest.split()[0] != "Z":
            yield int(status.parent.name)


# What the workers share


def test_one_budget_holds_for_all_workers(client: Any) -> None:
    provider, shared = Provider(), Budget(tokens=100 * (PROMPT + ANSWER))
    with Loopback(provider) as server:
        engine = asked(server, operators=[ops.budget(shared)])
        questions = [str(number * 30) for number in range(300)]
        many = list(generate_many(engine, questions, client=client, max_tokens=ANSWER, ordered=False))
    answered = [response for response in many if response.error is None]
    assert {response.error.reason for response in many if response.error is not None} == {"budget_exceeded"}
    assert shared.spent.calls == len(answered) == provider.begun
    assert shared.spent.tokens == (PROMPT + ANSWER) * len(answered) <= 100 * (PROMPT + ANSWER)
    assert len(answered) > 80
    assert shared.spent.reserved == 0


def test_one_spending_limit_holds_for_all_workers(client: Any) -> None:
    provider = Provider()
    models.put(ModelInfo("openai:m", input_price=1.0, output_price=1.0))
    try:
        with Loopback(provider) as server:
            questions = [str(number * 30) for number in range(300)]
            limits: dict[str, Any] = {"usd": 100.5 * (PROMPT + ANSWER) / 1e6, "max_tokens": ANSWER}
            many = list(generate_many(asked(server), questions, client=client, ordered=False, **limits))
    finally:
        models.clear()
    answered = [response for response in many if response.error is None]
    assert {response.error.reason for response in many if response.error is not None} == {"budget_exceeded"}
    assert 98 <= len(answered) == provider.begun <= 100
    assert sum(response.usage.total_cost or 0 for response in answered) <= limits["usd"]


def test_one_rate_limit_holds_for_all_workers(client: Any) -> None:
    provider = Provider(lambda number: provider.most < 5)
    with Loopback(provider) as server:
        engine = asked(server, operators=[ops.rate_limited(concurrent=5)])
        assert len(list(generate_many(engine, [str(n * 30) for n in range(100)], client=client))) == 100
    assert provider.most == 5


class Permits:
    """A limiter that cannot be pickled, and counts the calls that it lets start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.granted = self.settled = 0

    async def acquire(self, tokens: int) -> None:
        self.granted += 1

    def settle(self, permit: None, tokens: int) -> None:
        self.settled += 1

    def hold_back(self, seconds: float) -> None:
        pass


def test_each_call_of_all_workers_has_a_permit_of_the_limiter_here(client: Any) -> None:
    provider, limiter = Provider(), Permits()
    with Loopback(provider) as server:
        engine = asked(server, operators=[ops.rate_limited(limiter)])
        assert len(list(generate_many(engine, [str(n * 30) for n in range(20)], client=client))) == 20
    assert provider.begun == limiter.granted == limiter.settled == 20


# What is refused


def test_keys_do_not_travel(client: Any) -> None:
    client.run(set_key, "")
    secrets: dict[str, Any] = {"api_key": "sk-canary", "headers": {"x-api-key": "sk-canary"}}
    for options in ({name: value} for name, value in secrets.items()):
        with pytest.raises(ValidationError, match="not sent to the workers; set the provider's variable") as caught:
            generate_many(OpenAIChat(), ["Hi"], client=client, model="m", **options)
        assert "canary" not in str(caught.value)
    for name, value in secrets.items():
        engine = Engine(OpenAIChat(base_url="http://127.0.0.1:1", **{name: value}), model="m")
        remedy = "instead of passing a key, set OPENAI_API_KEY in the workers' environment"
        with pytest.raises(ValidationError, match=f"{name} of the adapter OpenAIChat .*; {remedy}") as caught:
            generate_many(engine, ["Hi"], client=client)
        assert "canary" not in str(caught.value)


def test_a_worker_takes_its_key_from_its_environment(client: Any) -> None:
    with Loopback(Provider()) as server:
        # An adapter that was pickled has left its key behind already.
        adapter = pickle.loads(pickle.dumps(OpenAIChat(base_url=server.url, api_key="sk-canary")))
        client.run(set_key, "")
        with pytest.raises(EngineError, match="in the process that uses the adapter, set OPENAI_API_KEY in the env"):
            generate_many(adapter, ["1"], client=client, model="m").run()
        assert not server.requests
        client.run(set_key, "sk-there")
        try:
            (response,) = generate_many(adapter, ["1"], client=client, model="m").run()
            assert response.error is None
        finally:
            client.run(set_key, "")
        assert server.requests[0].headers["authorization"] == "Bearer sk-there"


def test_wrong_arguments_raise_at_the_call(client: Any) -> None:
    lock = __import__("threading").Lock()
    with distributed.Client(client.scheduler.address, set_as_default=False) as closed:
        pass
    for arguments, options, error, message in [
        ((Fake("Hi"), "Hi"), {}, ValidationError, "must be a list"),
        ((Fake("Hi"), ["Hi"]), {"concurrency": 0}, ValidationError, "concurrency"),
        ((Fake("Hi"), ["Hi"]), {"temprature": 0}, EngineError, "did you mean 'temperature'"),
        (
            (Fake("Hi"), ["Hi"]),
            {"client": "tcp://here"},
            ValidationError,
            "client must be an open distributed.Client, or None",
        ),
        ((Fake("Hi"), ["Hi"]), {"client": closed}, ValidationError, "client must be an open distributed.Client"),
        (
            (Engine(Fake(lambda request: str(lock))), ["Hi"]),
            {},
            EngineError,
            "cannot be sent to the workers: adapter of the engine cannot be pickled: .*lock",
        ),
        (
            (Engine(Fake("Hi"), operators=[ops.tap(lambda event: lock)]), ["Hi"]),
            {},
            EngineError,
            r"cannot be sent to the workers: operators\[0\] cannot be pickled",
        ),
    ]:
        with pytest.raises(error, match=message):
            generate_many(*arguments, **{"client": client} | options)


def test_a_request_that_cannot_travel_fails_alone(client: Any) -> None:
    lock = __import__("threading").Lock()
    poor = rxllm.request("Hi", tools=[tool(name="hold", handler=lambda arguments: lock)])
    many = list(generate_many(Fake("Hello"), ["Hi", poor], client=client))
    assert many[0].output_text == "Hello"
    assert "the handler of the tool 'hold' cannot be pickled" in str(many[1].error)


class OddError(Exception):
    def __init__(self, code: int, text: str) -> None:  # which pickle calls with the one argument of `super`
        super().__init__(f"{code} {text}")


def _fail_oddly(request: Any) -> Any:
    if request.messages[-1].text == "odd":
        raise OddError(7, "no")
    return "Hi"


def test_a_response_that_cannot_be_read_here_fails_alone(client: Any) -> None:
    odd, other = list(generate_many(Fake(_fail_oddly), ["odd", "a"], client=client))
    assert isinstance(odd.error, StreamError)
    assert "this process cannot read the worker's response: TypeError" in str(odd.error)
    assert other.output_text == "Hi"


def test_an_engine_that_a_worker_cannot_read_is_an_error(client: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "only_here.py").write_text("def shout(request):\n    return 'HI'\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = __import__("only_here")
    with pytest.raises(EngineError, match="No module named 'only_here'; install the same packages on the worker"):
        generate_many(Fake(only_here.shout), ["Hi"], client=client).run()


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import rxllm\nrxllm.cluster.generate_many(rxllm.Fake('Hi'), ['Hi']).run()\n")
    ran = python(str(tmp_path / "program.py"))
    assert ran.stderr.count("Traceback") == 1
    assert (
        ran.stderr.strip()
        .splitlines()[-1]
        .endswith(
            "EngineError: the workers on this machine cannot start: Nanny failed to start worker process; put the "
            'call below `if __name__ == "__main__":` in a file whose name ends in .py, or pass a client'
        )
    )


def test_without_dask_it_says_what_to_install() -> None:
    code = "import rxllm\nrxllm.cluster.generate_many(rxllm.Fake('Hi'), ['Hi'])"
    assert "pip install 'rxllm[cluster]'" in python_without(["distributed"], code).stderr
