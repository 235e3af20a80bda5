"""What each provider's counters mean: the same sums and costs on every wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reactivex import from_iterable

from rxllm import Budget, Engine, generate, models
from rxllm import operators as ops
from rxllm.adapters._usage_and_metadata import LONGEST_NAME
from rxllm.adapters.anthropic import Anthropic
from rxllm.adapters.anthropic.decoder import MessagesDecoder
from rxllm.adapters.gemini.decoder import GeminiDecoder
from rxllm.adapters.openai_chat.decoder import ChatDecoder
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.serializer import from_json, to_json
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import ModelInfo, Usage


def usage(decoder: Any, *frames: Any, price: str = "nobody:knows") -> Usage:
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(frame) for frame in frames)
    events = from_iterable(decoder.feed(body) + decoder.close())
    return events.pipe(ops.cost(price), ops.to_response()).run().usage


def chat(counted: dict[str, Any], **options: Any) -> Usage:
    said = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    return usage(ChatDecoder(), said, {"choices": [], "usage": counted}, **options)


def responses(counted: dict[str, Any], **options: Any) -> Usage:
    ended = {"id": "r", "model": "m", "status": "completed", "output": [], "usage": counted}
    return usage(ResponsesDecoder(), {"type": "response.completed", "response": ended}, **options)


def gemini(counted: dict[str, Any], **options: Any) -> Usage:
    said = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}
    return usage(GeminiDecoder(), {"candidates": [said], "usageMetadata": counted}, **options)


def anthropic(counted: dict[str, Any], **options: Any) -> Usage:
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "usage": counted}}
    return usage(MessagesDecoder(), start, {"type": "message_stop"}, **options)


def xai(prompt: int, answered: int, thoughts: int, total: int, **more: Any) -> dict[str, Any]:
    details = {"reasoning_tokens": thoughts}
    counts = {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": total}
    return {**counts, "completion_tokens_details": details, **more}


def test_thoughts_that_xai_counts_beside_the_output_belong_to_it() -> None:
    counted = chat(xai(28, 14, 226, 268), price="xai:grok-3-mini")
    assert (counted.input_tokens, counted.output_tokens, counted.reasoning_tokens) == (28, 240, 226)
    assert counted.output_cost == pytest.approx(240 * 0.5e-6)


@given(*[st.integers(0, 1000)] * 3)
def test_input_and_output_are_the_total_whichever_way_thoughts_are_counted(
    prompt: int, output: int, thoughts: int
) -> None:
    total = prompt + output + thoughts
    for counted in (xai(prompt, output, thoughts, total), xai(prompt, output + thoughts, thoughts, total)):
        summed = chat(counted)
        assert (summed.input_tokens or 0) + (summed.output_tokens or 0) == summed.total_tokens == total


def test_thoughts_are_not_counted_twice_where_nothing_says_so() -> None:
    assert chat(xai(28, 240, 226, 268)).output_tokens == 240
    untotalled = {name: value for name, value in xai(28, 14, 226, 0).items() if name != "total_tokens"}
    assert chat(untotalled).output_tokens == 14


def test_a_cost_in_ticks_is_a_cost_that_xai_states() -> None:
    ticks = {"cost_in_usd_ticks": 1_497_500}
    answers = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, **ticks}
    for counted in (chat(xai(10, 5, 0, 15, **ticks)), responses(answers)):
        assert counted.total_cost == 0.00014975
        assert "cost_in_usd_ticks" not in counted.extra
    assert chat(xai(10, 5, 0, 15, **ticks), price="xai:grok-3-mini").total_cost == 0.00014975


def test_what_gemini_s_tools_have_read_is_input() -> None:
    counts = {"promptTokenCount": 89, "toolUsePromptTokenCount": 112, "candidatesTokenCount": 30}
    counted = gemini({**counts, "thoughtsTokenCount": 91, "totalTokenCount": 322})
    assert (counted.input_tokens, counted.output_tokens, counted.total_tokens) == (201, 121, 322)
    assert counted.extra["toolUsePromptTokenCount"] == 112
    assert gemini({"toolUsePromptTokenCount": 5, "totalTokenCount": 5}).input_tokens == 5


def test_anthropic_s_searches_are_priced() -> None:
    counts = {"input_tokens": 100_000, "output_tokens": 0, "server_tool_use": {"web_search_requests": 3}}
    counted = anthropic(counts, price="anthropic:claude-sonnet-4-5")
    assert (counted.input_cost, counted.output_cost) == (0.3, 0.0)
    assert counted.total_cost == pytest.approx(0.3 + 3 * 0.01)


def iteration(kind: str, tokens: int, output: int, **more: Any) -> dict[str, Any]:
    cache = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    return {"type": kind, "input_tokens": tokens, "output_tokens": output, **cache, **more}


ADVISED = {
    "input_tokens": 4_000,
    "output_tokens": 3_000,
    "server_tool_use": {"web_search_requests": 1},
    "iterations": [
        iteration("message", 1_000, 0, cache_read_input_tokens=500),
        iteration("advisor_message", 2_000, 4_000, model="claude-opus-4-7", cache_creation_input_tokens=100),
        iteration("compaction", 60_000, 500, cache_creation={"ephemeral_1h_input_tokens": 7}),
        iteration("message", 3_000, 3_000),
    ],
}
SONNET, OPUS = "anthropic:claude-sonnet-4-6", "anthropic:claude-opus-4-7"


def test_all_requests_that_anthropic_s_server_made_count_and_each_has_its_own_price() -> None:
    """As in vercel-ai__anthropic__anthropic-advisor-20250301.1 and anthropic-compaction.1, which have one kind each."""
    counted = anthropic(ADVISED, price=SONNET)
    assert (counted.input_tokens, counted.output_tokens, counted.total_tokens) == (66_600, 7_500, 74_100)
    assert (counted.cached_input_tokens, counted.cache_write_input_tokens) == (500, 100)
    own = models.priced(SONNET, Usage(64_500, 3_500, cached_input_tokens=500, tool_usage=ADVISED["server_tool_use"]))
    other = models.priced(OPUS, Usage(2_100, 4_000, cache_write_input_tokens=100))
    assert counted.total_cost == pytest.approx(own.total_cost + other.total_cost, rel=1e-3)
    assert (counted.input_cost, counted.output_cost) == (
        pytest.approx(own.input_cost + other.input_cost, rel=1e-3),
        pytest.approx(own.output_cost + other.output_cost),
    )
    assert models.priced(SONNET, from_json(to_json(anthropic(ADVISED)), Usage)) == counted


def test_an_iteration_without_a_price_leaves_the_costs_unknown_and_two_answers_are_priced_as_one() -> None:
    unknown = {**ADVISED, "iterations": [iteration("message", 1, 1), iteration("advisor_message", 1, 1, model="x")]}
    assert anthropic(unknown, price=SONNET).total_cost is None
    twice = anthropic(ADVISED) + anthropic({"input_tokens": 1, "output_tokens": 1})
    plain = Usage(66_601, 7_501, cached_input_tokens=500, cache_write_input_tokens=100)
    assert models.priced(SONNET, twice).input_cost == pytest.approx(models.priced(SONNET, plain).input_cost, rel=1e-3)


@pytest.mark.parametrize("listed", [None, [], {}, "x", [1], [{}], [{"input_tokens": "x", "output_tokens": 1}]])
def test_iterations_that_cannot_be_read_change_no_count(listed: Any) -> None:
    counted = anthropic({"input_tokens": 3, "output_tokens": 1, "iterations": listed}, price=SONNET)
    assert (counted.input_tokens, counted.output_tokens) == (3, 1)
    assert counted.total_cost == pytest.approx((3 * 3 + 15) / 1e6)


@pytest.mark.sockets
def test_entries_of_the_catalogue_price_the_iterations_of_their_models_and_budgets_count_all() -> None:
    frames = [
        {"type": "message_start", "message": {"id": "m", "model": "small", "usage": {"input_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ADVISED},
        {"type": "message_stop"},
    ]
    spent = Budget(tokens=1_000_000)
    models.put(
        ModelInfo("anthropic:small", input_price=1.0, output_price=1.0),
        ModelInfo("anthropic:claude-opus-4-7", input_price=100.0, output_price=100.0),
    )
    try:
        with Loopback([Reply([b"data: %b\n\n" % msgspec.json.encode(frame) for frame in frames])]) as server:
            engine = Engine(Anthropic(base_url=server.url), "small", operators=[ops.budget(spent)])
            answer = generate(engine, "Hi").run()
    finally:
        models.clear()
    assert answer.usage.total_cost == pytest.approx((68_000 + 6_100 * 100) / 1e6)
    assert (spent.spent.tokens, spent.spent.usd) == (74_100, answer.usage.total_cost)


def test_a_stated_cost_of_zero_next_to_a_priced_model_is_no_statement() -> None:
    """As in openrouter/dl-alexandre-req_llm__openrouter__qwen_qwen3_coder__object_streaming: one's own key paid."""
    counts = {"prompt_tokens": 1_000, "completion_tokens": 100, "cost": 0}
    assert chat(counts, price="openai:gpt-4o-mini").total_cost == pytest.approx(0.00021)
    assert chat({**counts, "cost": 0.5}, price="openai:gpt-4o-mini").total_cost == 0.5
    assert chat(counts).total_cost == 0  # nobody knows better
    entry = ModelInfo("a:b", input_price=1.0, output_price=1.0)
    assert entry.priced(Usage(500_000, 500_000, total_cost=0.0)).total_cost == 1.0
    assert ModelInfo("a:b").priced(Usage(1, 1, total_cost=0.0)).total_cost == 0.0


def test_costs_that_stand_beside_the_usage_are_stated() -> None:
    """As in venice/0xPlaygrounds-rig__venice__raw_stream_capture_matrix__stream_raw_exposes_terminal_cost, and
    copilot/0xPlaygrounds-rig__copilot__reasoning_roundtrip__streaming; there is no recording of Vercel's gateway.
    """
    counts = {"prompt_tokens": 73, "completion_tokens": 430, "total_tokens": 503}
    said = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    last = {"choices": [], "usage": counts}
    units = {"copilot_usage": {"total_nano_aiu": 614_775_000, "token_details": []}}
    gateway = {"gateway": {"cost": "0.0045", "marketCost": "0.005", "generationId": "gen_1"}}
    delta = {"choices": [{"index": 0, "delta": {"provider_metadata": gateway}, "finish_reason": "stop"}]}
    assert usage(ChatDecoder(), said, {**last, "cost": {"usd": 0.0015, "diem": 0}}).total_cost == 0.0015
    assert usage(ChatDecoder(), {**said, "usage": counts, **units}).total_cost == pytest.approx(0.00614775)
    for frames in ([said, {**last, "provider_metadata": gateway}], [last, delta], [delta, last]):
        counted = usage(ChatDecoder(), *frames)
        assert (counted.total_cost, counted.input_tokens) == (0.0045, 73)
    ended = {"status": "completed", "output": [], "usage": {"input_tokens": 73, "output_tokens": 430}}
    counted = usage(ResponsesDecoder(), {"type": "response.completed", "response": ended, **units})
    assert (counted.total_cost, counted.input_tokens) == (pytest.approx(0.00614775), 73)


@pytest.mark.parametrize("cost", ["x", "", "nan", "1e999", None, [], {"usd": "x"}])
def test_a_cost_that_is_no_number_is_not_stated(cost: Any) -> None:
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 1},
        "cost": cost,
        "provider_metadata": {"gateway": {"cost": cost}},
    }
    assert usage(ChatDecoder(), last).total_cost is None


def test_a_cache_of_an_hour_costs_more_to_write_than_one_of_five_minutes() -> None:
    def cost(hour: int) -> Any:
        written = {"ephemeral_1h_input_tokens": hour, "ephemeral_5m_input_tokens": 100_000 - hour}
        counts = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 100_000}
        return anthropic({**counts, "cache_creation": written}, price="anthropic:claude-sonnet-4-5").total_cost

    assert (cost(0), cost(100_000)) == (0.375, 0.6)
    assert cost(50_000) == pytest.approx(0.4875)


def test_openai_s_searches_are_priced() -> None:
    ended = {"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}
    searched = {"type": "response.completed", "response": {**ended, "tool_usage": {"web_search": {"num_requests": 2}}}}
    plain, more = (
        usage(ResponsesDecoder(), frame, price="openai:gpt-5").total_cost
        for frame in ({"type": "response.completed", "response": ended}, searched)
    )
    assert plain is not None
    assert more == pytest.approx(plain + 2 * 0.01)


def test_the_tier_that_has_answered_has_its_price() -> None:
    def cost(**more: Any) -> Any:
        counts = {"input_tokens": 1000, "output_tokens": 1000, "total_tokens": 2000}
        ended = {"type": "response.completed", "response": {"status": "completed", "usage": counts, **more}}
        return usage(ResponsesDecoder(), ended, price="openai:gpt-5").total_cost

    assert cost(service_tier="flex") < cost() == cost(service_tier="default") < cost(service_tier="priority")


def test_sound_has_a_price_of_its_own() -> None:
    sound = {"prompt_tokens_details": {"audio_tokens": 100}, "completion_tokens_details": {"audio_tokens": 50}}
    counts = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    spoken, written = (chat(counted, price="openai:gpt-audio-1.5") for counted in ({**counts, **sound}, counts))
    assert spoken.input_cost is not None
    assert written.input_cost is not None
    assert spoken.input_cost > 10 * written.input_cost


def test_counts_that_leave_open_what_was_cached_are_priced_as_text() -> None:
    sound = {"prompt_tokens_details": {"audio_tokens": 60, "cached_tokens": 50}}
    counted = chat({"prompt_tokens": 100, "completion_tokens": 0, **sound}, price="openai:gpt-realtime")
    assert counted.total_cost is not None


@pytest.mark.parametrize("cost", ["0.000099", 0.000099])
def test_what_a_gateway_charges_for_an_anthropic_answer_is_its_cost(cost: Any) -> None:
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "usage": {"input_tokens": 3}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
    charged = {**end, "provider_metadata": {"gateway": {"cost": cost}}}
    counted = usage(MessagesDecoder(), start, charged, {"type": "message_stop"})
    assert (counted.total_cost, counted.input_tokens, counted.output_tokens) == (0.000099, 3, 5)


def test_an_odd_counter_replaces_no_number() -> None:
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "usage": {"input_tokens": 3}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": "x"}}
    assert usage(MessagesDecoder(), start, end, {"type": "message_stop"}).input_tokens == 3


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (chat, ("prompt_tokens", "completion_tokens")),
        (responses, ("input_tokens", "output_tokens")),
        (anthropic, ("input_tokens", "output_tokens")),
        (gemini, ("promptTokenCount", "candidatesTokenCount")),
    ],
)
def test_counts_that_are_text_are_counts(count: Any, names: tuple[str, str]) -> None:
    counted = count(dict(zip(names, ("66", "6"), strict=True)))
    assert (counted.input_tokens, counted.output_tokens) == (66, 6)
    assert count(dict(zip(names, ("x", "9" * 30), strict=True))).input_tokens is None


@pytest.mark.parametrize("read", [chat, responses, gemini, anthropic])
def test_a_counter_with_a_long_name_is_left_out_with_a_word(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    counted = {"x" * LONGEST_NAME: 1, "y" * (LONGEST_NAME + 1): 2, "z" * LONGEST_NAME: {"a": 3, "b": 4}, "w": 5}
    extra = read(counted).extra
    assert {name[0]: value for name, value in extra.items()} == {"x": 1, "w": 5}
    assert "a usage counter is left out" in caplog.text
