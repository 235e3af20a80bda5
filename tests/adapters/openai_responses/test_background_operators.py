"""Operators and agents above an answer that is re-attached: they see it as if its connection had never dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import Event, Stream, StreamCollector, chat, stream, stream_generate, tool
from rxllm import operators as ops
from rxllm.adapters import OpenAIResponses
from rxllm.adapters.openai_responses.background import BackgroundDecoder
from rxllm.testing import Simulation, World, simulate, simulate_cancels, simulate_many
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply, Request
from tests.adapters.openai_responses.keeping import AT_ONCE, Keeper, call, engine, number, text
from tests.adapters.openai_responses.support import COMPLETED, CREATED, response
from tests.examples import share
from tests.waiting import until

pytestmark = pytest.mark.sockets

USAGE = {"input_tokens": 3, "output_tokens": 5}
PRIMES = number(text("2, ", "3, ", "5. ", "7.").removesuffix(COMPLETED) + response("completed", usage=USAGE))
SIZE = len(b"".join(PRIMES))
ENDS = list(accumulate(map(len, PRIMES)))

OPERATORS: dict[str, Callable[[], Any]] = {
    "retry": lambda: ops.retry_before_content(AT_ONCE),
    "restart": lambda: ops.restart(AT_ONCE),
    "hedge": lambda: ops.hedge(after=60.0),
    "budget": lambda: ops.budget(tokens=8),
    "guard": lambda: ops.guard(lambda text: None),
    "circuit breaker": lambda: ops.circuit_breaker(),
}


def answer(keeper: Keeper, *operators: Any) -> list[Event]:
    with Loopback(keeper) as server:
        return stream_generate(engine(server, operators=operators), "Hi").to_list().run()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_see_the_whole_answer(name: str) -> None:
    whole = answer(Keeper(PRIMES), OPERATORS[name]())
    for cut in (ENDS[0], ENDS[3] + 5, ENDS[5], SIZE - 1):
        keeper = Keeper(PRIMES, [cut])
        assert answer(keeper, OPERATORS[name]()) == whole
        assert (len(keeper.posts), len(keeper.gets), keeper.stops) == (1, 1, [])


def test_a_budget_counts_an_answer_once() -> None:
    budget = rxllm.Budget(tokens=10_000)
    answer(Keeper(PRIMES, [ENDS[3], 40, 400]), ops.budget(budget))
    assert budget.spent.tokens == 8


def test_a_tripped_guard_stops_the_answer() -> None:
    with Loopback(keeper := Keeper(PRIMES, [ENDS[4], ENDS[6] - ENDS[4]], ends=[Cut.RESET, STALL])) as server:
        guarded = engine(server, operators=[ops.guard(lambda text: "prime" if "5" in text else None)])
        result = rxllm.generate(guarded, "Hi").run()
        server.wait_until(lambda: keeper.stops == ["r1"])
    assert result.error is not None
    assert result.error.reason == "guard_tripped"


@pytest.mark.parametrize("cut", [ENDS[1], ENDS[4]])
def test_restart_asks_again_if_the_rest_is_refused(cut: int) -> None:
    gone = Reply.of_json({"error": {"message": "Response not found."}}, 404)
    keeper = Keeper(PRIMES, [cut], rest=lambda frames, after: gone)
    with Loopback(keeper) as server:
        result = rxllm.generate(engine(server, operators=[ops.restart(AT_ONCE)]), "Hi").run()
    assert (result.output_text, len(keeper.posts), len(keeper.gets)) == ("2, 3, 5. 7.", 2, 1)


def test_the_loser_of_a_race_is_stopped_and_the_winner_is_re_attached() -> None:
    with (
        Loopback(winner := Keeper(PRIMES, [ENDS[5]])) as first,
        Loopback(loser := Keeper(PRIMES, [ENDS[1]], ends=[STALL])) as second,
    ):
        adapter = Watching(base_url=second.url, api_key="k")
        losing = stream_generate(adapter, "Hi", model="m", options={"background": True}, retry=AT_ONCE)
        winning = after(lambda: any(decoder.id for decoder in adapter.decoders), stream_generate(engine(first), "Hi"))
        result = rxllm.race(winning, losing).pipe(ops.to_response()).run()
        second.wait_until(lambda: loser.stops == ["r1"])
    assert result.output_text == "2, 3, 5. 7."
    assert (len(winner.posts), len(winner.gets), winner.stops) == (1, 1, [])


def after(condition: Callable[[], bool], events: Stream[Event]) -> Stream[Event]:
    """Return `events`, which are asked for once `condition` holds."""

    async def start() -> Any:
        await until(condition)
        yield None

    return rxllm.from_async_iter(start).flat_map(lambda _: events)


def test_a_hedge_stops_the_slower_answer() -> None:
    def cuts() -> Iterator[int | None]:
        yield ENDS[1]
        yield None

    keeper = Keeper(PRIMES, cuts(), ends=[STALL])

    async def hedged(world: World) -> Any:
        asked = engine(world.serve(keeper), operators=[ops.hedge(after=5.0)])
        result = await rxllm.generate(asked, "Hi")
        await until(lambda: keeper.stops == ["r1"])
        return result

    run = simulate(hedged, faults=())
    assert 5 < run.duration < 8
    assert (run.value.output_text, len(keeper.posts), keeper.gets) == ("2, 3, 5. 7.", 2, [])


# Agents, two deep


def talk(body: Any) -> list[bytes]:
    """Return an agent's answer: an agent calls the next one down and repeats its result; the last one knows it."""
    results = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    tools = [each["name"] for each in body.get("tools") or ()]
    if tools and not results:
        return number(CREATED + call("c", tools[0], '{"prompt":"Go on"}') + COMPLETED)
    return number(text("It is ", results[-1] if results else "42", "."))


def boss(server: Loopback) -> tuple[rxllm.Engine, Any]:
    inner = engine(server).as_tool(name="inner", description="Answers.")
    outer = engine(server, tools=[inner]).as_tool(name="outer", description="Answers.")
    return engine(server), outer


def conversation(keeper: Keeper) -> list[Any]:
    with Loopback(keeper) as server:
        asked, agent = boss(server)
        return stream(asked, "What is it?", tools=[agent]).to_list().run()


def folded(events: list[Any]) -> tuple[str, list[str]]:
    state = StreamCollector()
    for event in events:
        state = state.apply_event(event)
    result = state.to_chat_result()
    return result.output_text, [type(event).__name__ for event in events]


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 30).map(lambda part: ENDS[0] + part * 40), min_size=1, max_size=8))
def test_agents_two_deep_are_asked_once_each(cuts: list[int]) -> None:
    whole = Keeper(talk)
    expected = folded(conversation(whole))
    assert len(whole.posts) == 5
    keeper = Keeper(talk, cuts_of_answers(cuts))
    assert folded(conversation(keeper)) == expected
    assert (len(keeper.posts), keeper.stops) == (5, [])


def cuts_of_answers(cuts: Iterable[int]) -> Iterator[int | None]:
    """Cut every other connection, so that every rest arrives."""
    for cut in cuts:
        yield cut
        yield None


def test_a_disposed_chat_stops_the_answer_of_the_innermost_agent() -> None:
    def hang(body: Any) -> list[bytes]:
        return talk(body) if body.get("tools") else number(text("4", "2"))[:-3]

    with Loopback(keeper := Keeper(hang, [None, None, 10_000], ends=[STALL])) as server:
        asked, agent = boss(server)
        for event in stream(asked, "What is it?", tools=[agent]):
            if "TextDelta" in repr(event):
                break
        server.wait_until(lambda: keeper.stops == ["r3"])


# Simulated


def slowly(frames: list[bytes]) -> Iterator[bytes | Pause]:
    for part in frames:
        yield part
        yield Pause(0.2)


class SlowKeeper(Keeper):
    """A `Keeper` that sends its frames one by one. The simulation cuts them off."""

    def __call__(self, request: Request) -> Reply:
        reply = super().__call__(request)
        body: Any = reply.body
        return Reply(list(slowly(body))) if isinstance(body, list) else reply

    def _reply(self, frames: Any) -> Reply:
        return Reply(list(frames))


@tool
async def double(x: int) -> int:
    """Double a number."""
    await asyncio.sleep(0.1)
    return 2 * x


def chat_frames(body: Any) -> list[bytes]:
    if any(item.get("type") == "function_call_output" for item in body["input"]):
        return number(text("It is ", "42."))
    return number(CREATED + call("c", "double", '{"x":21}') + COMPLETED)


class Watching(OpenAIResponses):
    """Keeps its decoders, which know what has arrived of each answer."""

    def __init__(self, **connection: Any) -> None:
        super().__init__(**connection)
        self.decoders: list[BackgroundDecoder] = []

    def decoder(self, request: rxllm.Request, *, raw: bool = False) -> BackgroundDecoder:
        decoder = super().decoder(request, raw=raw)
        assert isinstance(decoder, BackgroundDecoder)
        self.decoders.append(decoder)
        return decoder


class Outcome(NamedTuple):
    said: str | None
    is_whole: bool
    decoders: list[BackgroundDecoder]
    keeper: Keeper


async def app(world: World) -> Outcome:
    """A chat over answers that are kept."""
    keeper = SlowKeeper(chat_frames)
    adapter = Watching(base_url=world.serve(keeper).url, api_key="k")
    retry = {"max_attempts": 50, "base_delay": 0.5, "max_delay": 4.0}
    patient = rxllm.Engine(adapter, model="m", params={"options": {"background": True}}, retry=retry)
    result = await world.cancellable(chat(patient, "Double 21!", tools=[double]))
    await asyncio.sleep(60.0)
    return Outcome(result and result.output_text, bool(result and not result.error), adapter.decoders, keeper)


def assert_stopped(run: Simulation) -> None:
    """Each answer is over, has been stopped, or was cut before the program could know its id."""
    if run.value is None:  # the app itself was cancelled, outside of its chat
        return
    _, _, decoders, keeper = run.value
    for decoder in decoders:
        assert decoder.id is None or decoder.is_over or decoder.id in keeper.stops, run.seed


def assert_asked_once(run: Simulation) -> None:
    """Each answer is whole, and nothing was asked again whose id was known."""
    said, is_whole, decoders, keeper = run.value
    assert (said, is_whole) == ("It is 42.", True), run.seed
    assert len([decoder for decoder in decoders if decoder.id is not None]) == 2, run.seed
    assert len(keeper.posts) == len(decoders), run.seed


def test_a_cancel_at_any_step_stops_the_answer() -> None:
    runs = simulate_cancels(app)
    assert len(runs) > 30
    for run in runs:
        assert_stopped(run)
    assert any(run.value and run.value.keeper.stops for run in runs)


DROPS = ("cut", "slow", "reorder")


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.judges) if part else part for part in range(1 + share(4))]
)
def test_drops_anywhere_lose_nothing(part: int) -> None:
    seeds = range(250 * part - 225, 250 * part + 25) if part else range(25)
    runs = simulate_many(app, seeds, faults=DROPS)
    for run in runs:
        assert_asked_once(run)
    assert any(run.value.keeper.gets for run in runs)


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.judges) if part else part for part in range(1 + share(4))]
)
def test_drops_and_cancels_anywhere_stop_what_nobody_reads(part: int) -> None:
    seeds = range(250 * part - 225, 250 * part + 25) if part else range(25)
    for run in simulate_many(app, seeds, faults=(*DROPS, "cancel")):
        assert_stopped(run)


@pytest.mark.judges
def test_nothing_is_left_open_after_faults_of_all_kinds() -> None:
    simulate_many(app, range(25))
