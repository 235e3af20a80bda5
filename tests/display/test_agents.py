"""How a card and a terminal show agents inside tool calls, and users' corrections."""

import re

import pytest
from hypothesis import given
from reactivex import from_iterable

import rxllm
from rxllm.display._card import Card
from rxllm.display._html import cards_html
from rxllm.display._plain import plain_text
from rxllm.events import (
    AskUserRequested,
    ChatCompleted,
    ErrorEvent,
    MessageCompleted,
    MessageStarted,
    Nested,
    Steered,
    StepCompleted,
    TextCompleted,
    TextDelta,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolResultEncoded,
    UsageUpdated,
)
from rxllm.testing import strategies
from rxllm.values import (
    ChatResult,
    Message,
    Response,
    Session,
    StepResult,
    StreamError,
    Thread,
    ToolCall,
    ToolError,
    Turn,
    Usage,
    user,
)

ASK = ToolCall("c0", "research", {"prompt": "roses"}, '{"prompt":"roses"}')
START = MessageStarted(Message("assistant"))
CALLING = (
    START,
    ToolCallCompleted("c0", "research", {"prompt": "roses"}, '{"prompt":"roses"}'),
    MessageCompleted(Message("assistant", "", tool_calls=(ASK,)), "tool_calls"),
    ToolExecutionStarted("c0", "research", {"prompt": "roses"}),
)


def inside(*events, id="c0"):
    return [Nested((id, *getattr(event, "path", ())), getattr(event, "event", event)) for event in events]


def answered(text="Red ones.", error=None):
    return (ToolExecutionCompleted("c0", "research", None if error else text, error), ToolResultEncoded("c0", text))


def search(id="s0"):
    call = ToolCall(id, "search", {"q": "rose"}, '{"q":"rose"}')
    return (
        ToolCallCompleted(id, "search", {"q": "rose"}, '{"q":"rose"}'),
        MessageCompleted(Message("assistant", "", tool_calls=(call,)), "tool_calls"),
        ToolExecutionStarted(id, "search", {"q": "rose"}),
    )


def card(*events):
    """The card after `events`, which come one second apart."""
    folded = Card(0.0)
    for second, event in enumerate(events, 1):
        folded = folded.add(event, float(second))
    return folded


def drawn(folded, now=100.0):
    html = cards_html({None: folded}, now)
    return html[html.index("</style>") + 8 :]


def text(folded, now=100.0):
    return " ".join(re.sub(r"<[^>]*>", " ", drawn(folded, now)).split())


def done(text, *, reason="completed", usage=None):
    response = Response(Message("assistant", text), text, finish_reason="stop", usage=usage or Usage())
    step = StepResult(Thread(), response)
    return [StepCompleted(step), ChatCompleted(ChatResult(Thread(), response, (step,), reason))]


def test_an_agents_work_is_inside_the_row_of_its_tool():
    html = drawn(card(*CALLING, *inside(START, ThinkingDelta("hm"), TextDelta("Looking at **roses**."))))
    row = html[html.index('<div class="rxllm-tool"') :]
    assert '<div class="rxllm-agent">' in row
    assert row.index("research") < row.index("<summary>Thinking</summary>") < row.index("<strong>roses</strong>")
    assert "running" in row


def test_agents_in_agents_have_rows_inside_rows():
    deep = inside(*CALLING[:3], ToolExecutionStarted("c0", "research", {}), *inside(START, TextDelta("deep")))
    html = drawn(card(*CALLING, *deep))
    assert html.count('<div class="rxllm-agent">') == 2
    assert re.search(r'rxllm-agent">.*rxllm-tool.*rxllm-agent">.*deep', html)


def test_a_tool_of_an_agent_runs_with_its_own_time():
    running = card(*CALLING, *inside(START, *search()))
    assert running.ticks
    assert "search {&quot;q&quot;:&quot;rose&quot;} running 3.0 s" in text(running, now=11.0)


def test_agents_side_by_side_are_each_in_their_own_row():
    calls = [ToolCallCompleted(id, id, {}, "{}") for id in ("ann", "bob")]
    runs = [ToolExecutionStarted(id, id, {}) for id in ("ann", "bob")]
    said = [*inside(TextDelta("An"), id="ann"), *inside(TextDelta("Bo"), id="bob"), *inside(TextDelta("n"), id="ann")]
    assert re.search(r"ann .* Ann bob .* Bo\b", text(card(START, *calls, *runs, *said)))


def test_an_approval_inside_an_agent_is_seen_there_and_in_the_status_line():
    waiting = text(card(*CALLING, *inside(START, *search()[:2], ToolApprovalRequested("s0", "search", {}))))
    assert "search {&quot;q&quot;:&quot;rose&quot;} waits for approval" in waiting
    assert " waiting for approval · " in waiting


def test_a_chat_that_its_agent_has_halted_says_what_it_waits_for():
    asked = inside(START, *search()[:2], ToolApprovalRequested("s0", "search", {}), *done("", reason="approval"))
    shown = text(card(*CALLING, *asked).finish("done", 50.0))
    assert "research {&quot;prompt&quot;:&quot;roses&quot;} waits for approval" in shown


def test_a_question_of_an_agent_is_shown_in_its_row():
    asked = inside(START, *search(), AskUserRequested("s0", "search", "Which colour?"))
    assert "Which colour?" in text(card(*CALLING, *asked))


def test_the_tokens_of_agents_are_in_their_row_and_in_the_total():
    usage = [UsageUpdated(Usage(100, 20, total_cost=0.5)), MessageCompleted(Message("assistant", "Red ones."), "stop")]
    nested = inside(START, TextCompleted("Red ones."), *usage, *done("Red ones.", usage=Usage(100, 20, total_cost=0.5)))
    shown = text(card(START, UsageUpdated(Usage(3, 4, total_cost=0.25)), *CALLING[1:], *nested, *answered()))
    assert "120 tokens · cost 0.5" in shown
    assert shown.endswith("127 tokens · cost 0.75")


def test_a_finished_chat_its_steps_and_its_card_count_the_agents_too():
    poet = rxllm.Engine(rxllm.Fake(["Red ones.", Usage(100, 20, total_cost=0.5)])).as_tool(name="research")
    model = rxllm.Fake(scripts=[[ASK, Usage(3, 4, total_cost=0.25)], ["Red ones.", Usage(10, 2, total_cost=0.25)]])
    events = list(rxllm.stream(model, "Which roses?", tools=[poet]))
    result = events[-1].result
    assert text(card(*events)).endswith("139 tokens · cost 1")
    assert shown_of(result).endswith("139 tokens · cost 1")
    assert "tool_calls research 103 24 0.75 2 stop 10 2 0.25" in shown_of(result)
    assert shown_of(result.steps[0]).endswith("127 tokens · cost 0.75")
    turn = Turn(Session(thread=result.thread), result.steps[0])
    assert "127 tokens · cost 0.75" in shown_of(turn)


def shown_of(value):
    html = value._repr_html_()
    return " ".join(re.sub(r"<[^>]*>", " ", html[html.index("</style>") :]).split())


def test_the_answer_of_an_agent_is_shown_once():
    nested = inside(START, TextDelta("Red ones."), *done("Red ones."))
    assert text(card(*CALLING, *nested, *answered())).count("Red ones.") == 1
    assert "stopped by the budget" in text(card(*CALLING, *nested, *answered("stopped by the budget")))


def test_a_failed_agent_shows_what_it_had_said_and_one_error():
    broken = ErrorEvent(StreamError("truncated", "the stream broke off"))
    error = ToolError("handler_raised", "research failed: the stream broke off")
    shown = text(card(*CALLING, *inside(START, TextDelta("Re"), broken), *answered("failed", error)))
    assert "Re " in shown
    assert shown.count("the stream broke off") == 1
    assert "failed" in shown


def test_a_stopped_card_stops_its_agents():
    shown = text(card(*CALLING, *inside(START, *search())).finish("stopped", 20.0))
    assert "search {&quot;q&quot;:&quot;rose&quot;} stopped 12 s" in shown


def test_the_words_of_the_user_stand_between_the_steps():
    step = StepCompleted(StepResult(Thread(), Response(Message("assistant", "Roses are"), "Roses are")))
    said = (START, TextDelta("Roses are"), step, Steered(user("No, <b>tulips</b>!")), START, TextDelta("Tulips are"))
    shown = text(card(*said))
    assert re.search(r"Roses are No, &lt;b&gt;tulips&lt;/b&gt;! Tulips are", shown)
    assert "not used" not in shown


def test_words_that_came_too_late_say_so():
    step = StepCompleted(StepResult(Thread(), Response(Message("assistant", "Roses."), "Roses.")))
    assert re.search(
        r"Roses\. Wait! not used", text(card(START, TextDelta("Roses."), step, Steered(user("Wait!"), False)))
    )


@given(strategies.lawful_chats)
def test_any_chat_with_agents_can_be_drawn(events):
    for end in (None, "done", "stopped"):
        folded = card(*events)
        folded = folded.finish(end, 99.0) if end else folded
        assert "<article" in drawn(folded)
        assert isinstance(plain_text({None: folded}), str)


LOOKED = StepCompleted(
    StepResult(
        Thread(),
        Response(Message("assistant", "Let me\nlook.", tool_calls=(ToolCall("s0", "search", {"q": "rose"}),))),
        (Message("tool", "3 hits", tool_call_id="s0"),),
    )
)
LOOKING = (
    START,
    TextDelta("Let me\nlook."),
    *search(),
    ToolExecutionCompleted("s0", "search", 3),
    ToolResultEncoded("s0", "3 hits"),
    LOOKED,
)
CHAT = [
    *CALLING,
    *inside(*LOOKING, START, TextDelta("Red."), *done("Red.")),
    *answered("Red."),
    START,
    TextDelta("They are red."),
]


def test_a_pipe_gets_the_chats_own_text(capsys):
    rxllm.show(from_iterable(CHAT))
    assert capsys.readouterr().out == "They are red.\n"


def test_a_terminal_gets_the_work_of_an_agent_indented_and_under_its_name(capsys):
    screen = _plain()
    for event in [*CHAT, Steered(user("And\nwhite?")), Steered(user("Late"), used=False)]:
        screen.add(event)
    screen.finish({None: card(*CHAT)}, 0.0)
    assert capsys.readouterr().out.split("\n\n") == [
        "research(prompt='roses')",
        "  research: Let me\n  look.",
        "  research: search(q='rose')",
        "  research: → 3 hits",
        "  research: Red.",
        "→ Red.",
        "They are red.",
        "> And\n> white?",
        "> Late (not used)\n",
    ]


def _plain():
    from rxllm.display._plain import Plain

    return Plain(text_only=False)


def test_parallel_agents_on_a_terminal_are_told_apart(capsys):
    screen = _plain()
    for id, piece in [("ann", None), ("bob", None), ("ann", "A"), ("bob", "B"), ("ann", "a"), ("ann", "!")]:
        screen.add(ToolExecutionStarted(id, id, {}) if piece is None else inside(TextDelta(piece), id=id)[0])
    assert capsys.readouterr().out == "  ann: A\n\n  bob: B\n\n  ann: a!"


def test_the_text_of_a_finished_card_has_the_agents_indented():
    shown = plain_text({None: card(*CHAT)})
    assert "research(prompt='roses')\n  Let me\n  look." in shown
    assert "  search(q='rose') → 3 hits" in shown


def test_a_terminal_with_rich_draws_agents_inside_their_tools():
    rich = pytest.importorskip("rich.console")
    from rxllm.display._rich import Terminal

    console = rich.Console(width=80, record=True, force_terminal=True, color_system=None)
    with console.capture() as captured:
        screen = Terminal(console)
        screen.open({}, None)
        screen.finish({None: card(*CHAT, *done("They are red."), Steered(user("And white?")))}, 50.0)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert any(line.startswith("  Let me") for line in lines)
    assert any(line.startswith("  search") for line in lines)
    assert any("And white?" in line for line in lines)


def test_marbles_name_the_path():
    from rxllm.display._marble_lanes import mark_of

    assert mark_of(inside(*inside(TextDelta("Hi")))[0], 0.0).label == "c0/c0: Hi"
    assert mark_of(Steered(user("No!")), 0.0).label == "No!"
