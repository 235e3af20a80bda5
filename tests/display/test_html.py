"""The card as HTML: what a person sees of each event, at each moment."""

import json
import re
from html import unescape

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


# Ends, times, errors and JSON


@pytest.mark.parametrize(
    ("reason", "look", "words"),
    [
        ("stop", "done", "done"),
        ("length", "stopped", "cut off at the token limit"),
        ("content_filter", "stopped", "stopped by the content filter"),
        ("tool_calls", "done", "done"),
        ("other", "done", "done"),
    ],
)
def test_an_answer_ends_in_plain_words(reason, look, words):
    ended = card(TextDelta("a"), MessageCompleted(Message("assistant", "a"), reason)).finish("done", 3.0)
    assert ended.look == look
    assert f" {words} · 2.0 s · " in text(ended)
    response = rxllm.Response(Message("assistant", "a"), finish_reason=reason)
    assert f'data-state="{look}"' in response._repr_html_()
    assert f"<footer><bdi>{words}</bdi>" in response._repr_html_()


@rxllm.tool(approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


@rxllm.tool(manual=True)
def sign(document: str) -> str: ...


@rxllm.tool
def choose() -> object:
    return rxllm.ask_user("Which city?")


@rxllm.tool
def stop_here() -> object:
    return rxllm.halt("found it", "42")


@pytest.mark.parametrize(
    ("tool", "options", "look", "words"),
    [
        (pay, {}, "waiting", "waiting for approval"),
        (sign, {}, "waiting", "waiting for a tool&#x27;s result"),
        (choose, {}, "waiting", "waiting for an answer"),
        (stop_here, {}, "done", "done: found it"),
        (double, {"max_turns": 1}, "stopped", "stopped at the turn limit"),
    ],
)
def test_a_chat_ends_in_plain_words_and_waits_in_amber(tool, options, look, words):
    arguments = {"pay": {"amount": 5}, "sign": {"document": "d"}, "double": {"x": 1}}.get(tool.name, {})
    folded = Card(0.0)
    for event in rxllm.stream(Fake(ToolCall("c0", tool.name, arguments), "4"), "?", tools=[tool], **options):
        folded = folded.add(event, 1.0)
    for ended in (folded, folded.finish("done", 2.0)):
        assert ended.look == look
        assert f"{words} · 1.0 s" in text(ended)
    result = folded.result._repr_html_()
    assert f'data-state="{look}"' in result
    assert f"<footer><bdi>{words}</bdi>" in result
    if words.startswith("waiting for a tool"):
        assert 'class="rxllm-tool" data-state="needed"' in drawn(folded)
        assert 'class="rxllm-tool" data-state="needed"' in result


def test_a_running_card_counts_though_nothing_arrives_and_an_ended_one_stands_still():
    streaming = card(TextDelta("Hi"))
    assert streaming.ticks
    assert [text(streaming, now) for now in (2.0, 2.1, 65.0)] == [
        "Hi streaming · 2.0 s · 1.00 s to the first token",
        "Hi streaming · 2.1 s · 1.00 s to the first token",
        "Hi streaming · 1 min 05 s · silent for 1 min 04 s · 1.00 s to the first token",
    ]
    waiting = card(*CALL, ToolApprovalRequested("c0", "weather", {}))
    assert waiting.ticks
    assert "waiting for approval · 7.0 s" in text(waiting, 7.0)
    ended = streaming.add(MessageCompleted(Message("assistant", "Hi"), "stop"), 4.0)
    assert not ended.ticks  # its stream has ended, though the streams beside it may be running
    assert text(ended, 9.0) == text(ended.finish("done", 30.0), 40.0) == "Hi done · 4.0 s · 1.00 s to the first token"


def test_the_time_of_a_silent_tool_is_no_silence():
    running = card(*CALL, ToolExecutionStarted("c0", "weather", {}))
    assert "running weather · 30 s" in text(running, 30.0)
    assert "silent" not in text(running, 30.0)


def test_an_error_is_a_sentence_with_its_remedy_and_each_fact_stands_once():
    shown = text(card().finish("failed", 1.0, AdapterError("authentication_failed", provider="openai", status=401)))
    assert shown == "openai: authentication failed; check the API key AdapterError · HTTP 401 failed · 1.0 s"
    known = AdapterError("rate_limited", "slow down; wait 7 s", provider="openai")
    shown = text(card().finish("failed", 1.0, known))
    assert shown.startswith("slow down; wait 7 s AdapterError · rate limited · openai failed")
    assert text(card().finish("failed", 1.0, KeyError())).startswith("KeyError failed")


def test_the_lines_behind_the_sentence_of_an_error_are_folded():
    shown = drawn(card().finish("failed", 1.0, ValueError("no such model\nTraceback (most recent call last):\n  x")))
    assert '<div dir="auto">no such model</div>' in shown
    assert shown.count("Traceback") == 1
    assert shown.index("<details><summary>Details</summary>") < shown.index("Traceback")


def test_the_error_of_a_tool_that_ends_the_chat_is_shown_once():
    @rxllm.tool
    def broken() -> int:
        raise ValueError("no such city; ask for Lima")

    folded, error = Card(0.0), ToolError("handler_raised", "no such city; ask for Lima")
    for event in rxllm.stream(Fake(ToolCall("c0", "broken", {})), "?", tools=[broken], on_tool_error="halt"):
        folded = folded.add(event, 1.0)
    assert text(folded.finish("done", 1.0)).count("no such city") == 1
    ended = ToolExecutionCompleted("c0", "weather", None, error)
    failed = card(*CALL, ToolExecutionStarted("c0", "weather", {}), ended, ErrorEvent(error))
    assert text(failed).count("no such city") == 1


def block(folded, kind):
    found = re.search(f'<pre class="rxllm-{kind}" dir="auto">(.*?)</pre>', drawn(folded), re.DOTALL)
    return None if found is None else unescape(found[1])


def test_json_of_tools_is_indented_and_other_text_stays():
    def result(content):
        return block(card(*CALL, ToolResultEncoded("c0", content)), "result")

    assert result('{"sky":"clear","days":[1.50,2e3]}') == (
        '{\n  "sky": "clear",\n  "days": [\n    1.50,\n    2e3\n  ]\n}'  # numbers as the tool wrote them
    )
    for other in ("paid 5", "{not json}", "[1, 2", "5", "{'a': 1}"):
        assert result(other) == other


def test_long_arguments_are_an_indented_block_and_short_ones_stand_beside_the_name():
    arguments = '{"sql":"SELECT city FROM sales ORDER BY amount","limit":10,"unit":"EUR"}'
    long = card(ToolCallCompleted("c0", "query", {}, arguments))
    assert block(long, "arguments") == json.dumps(json.loads(arguments), indent=2)
    assert block(card(*CALL), "arguments") is None
    assert "<code><bdi>{&quot;city&quot;: &quot;Rome&quot;}</bdi></code>" in drawn(card(*CALL))


# LaTeX


LATEX = [
    "$a_1 * b_2 * c_3$",
    r"$\{x \mid x_1 \le x_2\}$",
    r"\(\Delta_1 = b_1^2 - 4 a_1 c\)",
    r"\[ \sum_{i=1}^{n} i_1 * i_2 \]",
    r"$$\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$$",
    r"$5\% \text{ of } \$3$",
]
BLOCKS = [
    "$$\nx_1\n- y_1\n+ z_1 \\\\\n# 4\n1. a < b & c\n$$",
    "\\[\nx_1 \\\\\n=\n* y_1\n\\]",
    "\\begin{align*}\na_1 &= b_1 \\\\\n- c &= d_1\n\\end{align*}",
]
AROUND = ["{}", "So\n{}\nholds *well*.", "So {} holds.", "- one\n- {}", "> {}", "**so {}**"]


@pytest.mark.parametrize(
    ("latex", "around"), [(a, b) for a in LATEX for b in AROUND] + [(a, b) for a in BLOCKS for b in AROUND[:2]]
)
def test_latex_survives_as_it_was_written(latex, around):
    shown = unescape(re.sub(r"<[^>]*>", "", drawn(card(TextDelta(around.format(latex))))))
    assert latex in shown
    assert "*well*" not in shown


def test_dollars_that_are_no_latex_leave_markdown_alone():
    shown = drawn(card(TextDelta(r"It costs $5 and *not* $6. \\(x\\) `$a$` \*")))
    assert "<em>not</em>" in shown
    assert r"\(x\) <code>$a$</code> *" in shown
    assert "rxllm-math" not in shown
    shown = drawn(card(TextDelta(r"It costs $6 ($x_1$), *so* the $n_1$th is $2 x_1$.")))
    assert re.findall('<code class="rxllm-math" dir="auto">(.*?)</code>', shown) == ["$x_1$", "$n_1$", "$2 x_1$"]


def test_an_open_formula_ends_before_an_empty_line():
    shown = drawn(card(TextDelta("$$\na_1\n- b\n\nIt *is* so.")))
    assert '<pre class="rxllm-math" dir="auto">$$\na_1\n- b</pre>' in shown
    assert "<em>is</em>" in shown
