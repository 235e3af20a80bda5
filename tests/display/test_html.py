"""The card as HTML: what a person sees of each event, at each moment."""

import re

import pytest

import rxllm
from rxllm import Fake, ToolCall, ToolError, Usage
from rxllm.display._card import Card
from rxllm.display._html import cards_html
from rxllm.events import (
    ErrorEvent,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    SourceAdded,
    StepRestarted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolProgress,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.values import AdapterError, Image, Message

CALL = (ToolCallStarted("c0", "weather"), ToolCallCompleted("c0", "weather", {"city": "Rome"}, '{"city": "Rome"}'))


def card(*events, begun=0.0):
    """The card after `events`, which come one second apart."""
    folded = Card(begun)
    for second, event in enumerate(events, 1):
        folded = folded.add(event, float(second))
    return folded


def drawn(folded, now=100.0):
    html = cards_html({None: folded}, now)
    return html[html.index("</style>") + 8 :]


def text(folded, now=100.0):
    return " ".join(re.sub(r"<[^>]*>", " ", drawn(folded, now)).split())


def test_a_card_waits_visibly_before_the_first_token():
    assert text(card(), now=1.52) == "waiting for the first token · 1.5 s"
    assert card().ticks


def test_text_is_markdown_and_thinking_is_folded():
    html = drawn(card(ThinkingDelta("hm"), TextDelta("It is **so**.")))
    assert '<details class="rxllm-thinking"><summary>Thinking</summary>' in html
    assert " open>" not in html
    assert "It is <strong>so</strong>." in html


def test_arguments_show_while_they_stream():
    started = ToolCallStarted("c0", "weather")
    shown = text(card(started, ToolCallDelta("c0", '{"city": "Ro')))
    assert "weather {&quot;city&quot;: &quot;Ro …" in shown


def test_a_running_tool_shows_its_time_and_its_progress_under_its_own_name():
    running = card(
        *CALL, ToolExecutionStarted("c0", "weather", {"city": "Rome"}), ToolProgress("c0", "weather", "half")
    )
    assert running.ticks
    assert "weather {&quot;city&quot;: &quot;Rome&quot;} running 4.0 s half" in text(running, now=7.0)
    assert "running weather" in text(running, now=7.0)


def test_parallel_results_are_under_their_own_calls():
    names = ("rome", "oslo")
    calls = [ToolCallCompleted(name, "weather", {"city": name}, f'{{"city": "{name}"}}') for name in names]
    starts = [ToolExecutionStarted(name, "weather", {}) for name in names]
    ends = [e for name in reversed(names) for e in (ToolExecutionCompleted(name, "weather", 1), _result(name))]
    shown = text(card(*calls, *starts, *ends))
    assert re.search(r"rome&quot;} done 4.0 s result of rome weather .*oslo&quot;} done 1.0 s result of oslo", shown)


def _result(name):
    return ToolResultEncoded(name, f"result of {name}")


def test_a_failed_tool_shows_its_error_under_its_name():
    error = ToolError("timeout", "weather took more than 30 s; pass tool_timeout=60")
    failed = card(
        *CALL, ToolExecutionStarted("c0", "weather", {}), ToolExecutionCompleted("c0", "weather", None, error)
    )
    assert "failed 1.0 s weather took more than 30 s; pass tool_timeout=60 ToolError" in text(failed)


def test_a_call_waits_for_approval_until_it_is_answered():
    waiting = card(*CALL, ToolApprovalRequested("c0", "weather", {}))
    assert "waits for approval" in text(waiting)
    assert "waits for approval" not in text(waiting.add(ToolExecutionStarted("c0", "weather", {}), 4.0), now=5.0)


def test_images_sources_and_an_honest_link():
    png = Image.from_binary(b"\x89PNG", "image/png").to_data_uri()
    shown = drawn(
        card(
            FileAdded({"mime_type": "image/png", "data": b"\x89PNG"}),
            FileAdded({"mime_type": "image/png", "url": "https://example.org/cat.png", "name": "cat"}),
            SourceAdded({"url": "https://example.org/a", "title": "A <page>"}),
            SourceAdded({"url": "javascript:alert(1)", "title": "bad"}),
        )
    )
    assert f'src="{png}"' in shown
    assert shown.count("<img") == 1  # what is elsewhere is a link, and not fetched
    assert 'href="https://example.org/cat.png"' in shown
    assert "><bdi>A &lt;page&gt;</bdi></a>" in shown
    assert "javascript" not in shown


def test_the_status_line_has_model_times_tokens_cost_and_finish():
    message = Message("assistant", metadata={"model": "m-1"})
    usage = Usage(input_tokens=10, output_tokens=90, total_cost=0.00123)
    done = card(
        MessageStarted(message), TextDelta("a"), TextDelta("b"), UsageUpdated(usage), MessageCompleted(message, "stop")
    )
    status = "done · 5.0 s · m-1 · 2.00 s to the first token · 30 tokens/s · 100 tokens · cost 0.00123"
    assert text(done.finish("done", 6.0)).endswith(status)


def test_a_stopped_card_says_so_and_keeps_what_came():
    stopped = card(TextDelta("half an ans")).finish("stopped", 2.0)
    assert text(stopped) == "half an ans stopped · 2.0 s · 1.00 s to the first token"
    assert 'data-state="stopped"' in drawn(stopped)
    assert stopped.result.output_text == "half an ans"
    assert not stopped.ticks


def test_an_error_shows_its_facts_and_its_remedy():
    error = AdapterError("rate_limited", "too many requests; wait 3 s", provider="acme", status=429, retry_after=3)
    for failed in (card(TextDelta("a"), ErrorEvent(error)).finish("done", 3.0), card().finish("failed", 1.0, error)):
        facts = "AdapterError · rate limited · acme · HTTP 429"
        assert f"too many requests; wait 3 s {facts} · retry after 3 s failed" in text(failed)


def test_a_restart_makes_what_came_before_void():
    shown = text(card(TextDelta("wrong"), StepRestarted("guard", 1), TextDelta("right")))
    assert "wrong" not in shown
    assert "started again: guard right" in shown


def test_a_value_is_shown_in_its_own_way_and_the_latest_alone():
    class Table:
        def _repr_html_(self):
            return "<table></table>"

    assert '<div class="rxllm-value"><table></table></div>' in drawn(card(1, Table()))
    assert "<pre" in drawn(card(Table(), "a <b>"))
    assert "a &lt;b&gt;" in drawn(card(Table(), "a <b>"))
    assert "<bdi>user</bdi>" in drawn(card(rxllm.user("Hi")))


def test_a_value_whose_own_html_fails_is_shown_as_its_repr():
    class Broken:
        def _repr_html_(self):
            raise ValueError("no")

        def __repr__(self):
            return "Broken(<1>)"

    assert '<pre dir="auto">Broken(&lt;1&gt;)</pre>' in drawn(card(Broken()))


def test_cards_with_labels_stand_side_by_side():
    html = cards_html({"a <1>": card(TextDelta("x")), "b": card(TextDelta("y"))}, 9.0)
    assert html.count("<article") == 2
    assert "<header><bdi>a &lt;1&gt;</bdi></header>" in html


def test_the_card_of_a_whole_chat_has_its_steps_in_order():
    folded = Card(0.0)
    chat = rxllm.stream(
        Fake([("thinking", "hm"), "I look.", ToolCall("c0", "double", {"x": 2})], "4"), "?", tools=[double]
    )
    for event in chat:
        folded = folded.add(event, 1.0)
    shown = text(folded.finish("done", 1.0))
    assert re.match(r"Thinking hm I look. double {&quot;x&quot;:\s?2} done 0.0 s 4 4 done", shown)
    assert folded.result.halted_reason == "completed"


def test_a_chat_cut_off_in_its_second_step_keeps_both():
    folded = Card(0.0)
    for event in rxllm.stream(Fake(ToolCall("c0", "double", {"x": 2}), ["fo", "ur"]), "?", tools=[double]):
        folded = folded.add(event, 1.0)
        if isinstance(event, TextDelta):
            break
    result = folded.result
    assert isinstance(result, rxllm.ChatResult)
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]
    assert result.halted_reason == "cancelled"


def test_a_question_of_a_tool_is_shown():
    @rxllm.tool
    def choose() -> object:
        return rxllm.ask_user("Which city?")

    folded = Card(0.0)
    for event in rxllm.stream(Fake(ToolCall("c0", "choose", {})), "?", tools=[choose]):
        folded = folded.add(event, 1.0)
    shown = text(folded.finish("done", 1.0))
    assert shown.count("Which city?") == 1
    assert shown.endswith("waiting for an answer · 1.0 s · 1.00 s to the first token")


def test_a_tool_of_a_resumed_chat_has_a_row():
    shown = text(card(ToolExecutionStarted("c9", "pay", {"amount": 5}), ToolExecutionCompleted("c9", "pay", "paid")))
    assert "pay {&quot;amount&quot;: 5} done 1.0 s" in shown


def test_dropping_deltas_changes_nothing():
    assert drawn(card(TextDelta("Hi"), TextCompleted("Hi")), 2.0) == drawn(card(TextCompleted("Hi")), 2.0)


@pytest.mark.parametrize("value", [None, float("nan"), b"\xff", object])
def test_any_value_can_be_drawn(value):
    assert "</article>" in drawn(card(value))


@rxllm.tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


def test_thinking_is_open_while_it_streams_and_folded_once_something_follows():
    thinking = Card(0.0).add(ThinkingDelta("hm"), 0.1)
    assert '<details class="rxllm-thinking" open>' in cards_html({None: thinking}, 0.2)
    followed = thinking.add(TextDelta("so"), 0.3)
    for card in (followed, thinking.finish("stopped", 0.4)):
        assert '<details class="rxllm-thinking"><summary>Thinking</summary>' in cards_html({None: card}, 0.5)
