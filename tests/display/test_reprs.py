"""What a notebook shows of values: HTML in the hand of the live card, safe and of bounded length."""

import base64
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Engine,
    Fake,
    Message,
    Response,
    Session,
    StepResult,
    StreamCollector,
    TextDelta,
    Thread,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from rxllm import operators as ops
from rxllm.testing import backtest
from rxllm.values import (
    FilePart,
    Image,
    ImageResponse,
    ImageUsage,
    ModelInfo,
    SourcePart,
    TextPart,
    ThinkingPart,
    Turn,
)
from tests.examples import examples
from tests.programs import python

PNG = b"\x89PNG\r\n\x1a\n"


@rxllm.tool
def weather(city: str, days: int = 1, unit: str | None = None) -> dict[str, object]:
    """Tell the weather.

    Args:
        city: Its name.
    """
    return {"sky": "sunny", "city": city, "days": days, "unit": unit}


pay = Tool("pay", "Pay somebody.", handler=lambda arguments: "paid", approval=True)


@dataclass
class City:
    name: str
    people: int


VOID = ("img", "br", "hr")
TAGS = "div style article section details summary pre code span b bdi a footer figure table tr td th p ul ol li em"
TAGS += " blockquote strong s h1 h2 h3 h4 h5 h6 thead tbody img br hr"


class Reader(HTMLParser):
    """Reads as a browser does, and takes the texts; refuses what is not the drawing's own."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.texts = []
        self.paths = []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS.split(), tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name != "href" or re.match("https?://|mailto:", value, re.IGNORECASE), value
            assert name != "src" or re.match("data:image/|https?://|mailto:", value, re.IGNORECASE), value
        if tag not in VOID:
            self.open.append((tag, ("dir", "auto") in attrs or tag == "bdi"))

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open[-1][0] != "style":
            assert "\u202e" not in data or any(isolated for _, isolated in self.open), data
            self.texts.append(data)
            self.paths.append([tag for tag, _ in self.open])

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def read(value):
    html = value._repr_html_()
    html.encode()
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def text(value):
    return " ".join(" ".join(read(value).texts).split())


def folded(thread):
    """The part of a thread's HTML that can be unfolded."""
    return re.search("<details class=.rxllm-folded.>.*</details>", thread._repr_html_(), re.DOTALL)[0]


# Each value


def test_a_message_is_its_role_and_its_text():
    assert text(assistant("- *one*\n- two")) == "assistant one two"
    assert "<li><em>one</em></li>" in assistant("- *one*\n- two")._repr_html_()


def test_people_are_shown_as_they_wrote():
    assert text(user("a\n*b* <c>")) == "user a *b* <c>"
    assert "a\n*b* &lt;c&gt;" in user("a\n*b* <c>")._repr_html_()


def test_a_response_has_its_parts_and_a_status_line():
    parts = (ThinkingPart("hm"), TextPart("**Hi**"), SourcePart({"url": "https://example.org", "title": "Page"}))
    usage = Usage(1000, 200, total_cost=0.0043)
    response = Response(Message("assistant", parts), "Hi", finish_reason="stop", usage=usage, model="gpt-5")
    assert text(response) == "Thinking hm Hi Page done · gpt-5 · 1,200 tokens · cost 0.0043"


def test_a_failed_response_shows_what_had_come_and_the_error():
    failed = Response(None, "Half", finish_reason="error", error=AdapterError("rate_limited", status=429))
    assert text(failed).startswith("Half the model: rate limited; wait, or send fewer requests at a time")
    assert 'data-state="failed"' in failed._repr_html_()


def test_a_parsed_answer_is_shown_before_its_text():
    answer = '{"name":"Lima","people":10}'
    typed = rxllm.generate(Fake(answer), "?", response_format=City).run()
    assert text(typed) == f"City(name='Lima', people=10) Text {answer} done"


def test_a_step_has_the_results_of_its_tools_in_their_rows():
    step = rxllm.step(Fake(["Look. ", ToolCall("c0", "weather", {"city": "Lima"})]), "?", tools=[weather]).run()
    assert text(step).startswith('Look. weather {"city":"Lima"} done { "sky": "sunny", "city"')


def test_a_chat_is_its_thread_and_a_table_of_its_steps():
    usages = [("usage", {"input_tokens": 10, "output_tokens": n}) for n in (1, 2)]
    turns = [[ToolCall("c0", "weather", {"city": "Lima"}), usages[0]], ["Sunny.", usages[1]]]
    chat = rxllm.chat(Fake(*turns), [system("Be brief."), user("Lima?")], tools=[weather]).run()
    shown = text(chat)
    assert shown.startswith('system Be brief. user Lima? assistant weather {"city":"Lima"} done { "sky"')
    table = "2 steps step finish_reason tool_calls input_tokens output_tokens 1 tool_calls weather 10 1 2 stop 10 2"
    assert shown.endswith(f"assistant Sunny. {table} done · 2 steps · 23 tokens")


def test_a_chat_that_waits_says_for_what():
    waits = rxllm.chat(Fake(ToolCall("c0", "pay", {"amount": 5})), "Pay", tools=[pay]).run()
    assert text(waits) == 'user Pay assistant pay {"amount":5} waits for approval waiting for approval · 1 step'
    question = ChatResult(Thread() + "Hi", halted_reason="ask_user", pending_question="Which *city*?")
    assert text(question) == "user Hi assistant Which city ? waiting for an answer · 0 steps"


def test_the_same_call_id_in_two_messages_has_two_results():
    call = Message("assistant", tool_calls=(ToolCall("c0", "pay"),))
    thread = Thread((call, tool_result("c0", "first"), call, tool_result("c0", "second")))
    assert text(thread) == "assistant pay {} done first assistant pay {} done second 4 messages"


def test_an_answer_without_its_call_is_shown_as_it_is():
    assert text(Thread((user("Hi"), tool_result("c9", "<b>")))) == "user Hi tool <b> 2 messages"
    assert text(tool_result("c9", {"a": 1})) == 'tool { "a": 1 }'


def test_a_session_says_what_it_waits_for_and_what_is_legal():
    call = ToolCall("c0", "pay")
    thread = Thread((user("Pay"), Message("assistant", tool_calls=(call,))))
    session = Session("s-1", thread, "awaiting_tools", (call,))
    line = "s-1 · next: resume, submit_tool_result, submit_tool_results"
    assert text(session) == f"user Pay assistant pay {{}} called waiting for tools · waits for pay · {line}"
    turn = Turn(session, ChatResult(thread, usage=Usage(1, 2)))
    assert f"waits for pay · 3 tokens · {line}" in text(turn)
    failed = Session(status="error", metadata={"error": {"type": "KeyError"}})
    assert "error: {'type': 'KeyError'}" in text(failed)


def test_pictures_are_shown_and_other_files_named_without_a_request():
    thread = Thread() + user("?", Image.from_binary(PNG, "image/png"), "https://example.org/a.png?sig=secret")
    html = thread._repr_html_()
    assert f'src="data:image/png;base64,{base64.b64encode(PNG).decode()}"' in html
    assert 'src="https' not in html
    assert "Image(url, 'https://example.org/a.png')" in text(thread)
    assert "gone.png" in text(user("Hi", Image.from_file("gone.png")))
    drawn = tool_result("c0", "")
    drawn = Message("tool", (FilePart({"mime_type": "image/png", "data": PNG}),), tool_call_id=drawn.tool_call_id)
    assert "<img" in Thread((Message("assistant", tool_calls=(ToolCall("c0", "draw"),)), drawn))._repr_html_()


def test_images_stand_side_by_side():
    pictures = (Image.from_binary(PNG, "image/png"), Image("url", "https://x/a", revised_prompt="A kestrel"))
    response = ImageResponse(pictures, model="m", usage=ImageUsage(2, input_tokens=50, total_cost=0.08))
    html = response._repr_html_()
    assert html.count("<figure>") == html.count("<img") == 2
    assert text(response) == "A kestrel m · 2 images · 50 tokens · cost 0.08"


def test_usage_is_a_table_of_what_is_reported():
    assert text(Usage(1234, 5, total_cost=0.25, extra={"audio_tokens": 7})) == (
        "usage input_tokens 1,234 output_tokens 5 total_cost 0.25 audio_tokens 7 total 1,239"
    )
    assert text(Usage()) == "usage total 0"


def test_a_tool_is_a_table_of_its_arguments():
    assert text(weather) == (
        "weather Tell the weather. argument type default description"
        " city string required Its name. days integer 1 unit string | null"
    )
    assert text(pay) == "pay Pay somebody. needs approval"
    nested = {"properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": True}}
    assert '{"type": "array", "items": {"type": "integer"}}' in text(Tool("t", schema=nested))


def test_an_engine_is_a_table_of_its_settings_without_secrets():
    engine = Engine(Fake("x"), "small", [weather, pay], {"headers": {"x-api-key": "SECRET"}}, {"api_key": "SECRET"})
    shown = "engine adapter Fake(1 turns, 0 requests) model small tools weather, pay params"
    assert text(engine) == f"{shown} {{'headers': '[key]'}} context {{'api_key': '[key]'}}"
    assert repr(Engine(Fake("x"), "small")) == "Engine(adapter=Fake(1 turns, 0 requests), model='small')"


def test_a_partial_is_what_there_is_of_it():
    answer = rxllm.stream_generate(Fake(['{"name":"Li', 'ma","people":1}']), "?", response_format=City)
    first, *_, last = answer.pipe(ops.partials(City))
    assert text(first) == '{ "name": "Li" } growing'
    assert text(last) == '{ "name": "Lima", "people": 1 } done'


def test_the_state_of_a_fold_is_drawn_as_the_card_draws_it():
    state = StreamCollector(Thread())
    for event in (TextDelta("Let me *see*"), ToolCallStarted("c0", "weather"), ToolCallDelta("c0", '{"city": "Par')):
        state = state.apply_event(event)
    assert text(state) == 'Let me see weather {"city": "Par … streaming'


def test_a_backtest_is_a_table(tmp_path):
    (tmp_path / "a_*b*|$c$<i>.jsonl").write_text("{}")
    result = backtest(tmp_path, [ops.raise_errors()])
    assert "a_*b*|$c$<i>.jsonl" in text(result)
    assert "<table" in result._repr_html_()


def test_the_responses_of_many_requests_make_a_table_with_their_prompts():
    shout = Fake(lambda request: request.messages[-1].text.upper())
    prompts = ["a", "b"]
    answers = list(rxllm.generate_many(shout, prompts))
    rows = [
        {"prompt": prompt, "answer": answer.output_text, "tokens": answer.usage.total}
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    assert rows == [{"prompt": "a", "answer": "A", "tokens": 0}, {"prompt": "b", "answer": "B", "tokens": 0}]


# Long ones


def test_a_long_thread_is_folded_and_says_how_to_see_the_rest():
    thread = Thread(tuple(user(f"number {i}") for i in range(10_000)))
    shown = text(thread)
    assert shown.startswith("user number 0 9,991 messages 9,891 more messages: thread[1:9892] user number 9892")
    assert shown.endswith("user number 9999 10,000 messages")
    assert "number 9991" in folded(thread)
    assert "number 9992" not in folded(thread)
    assert len(thread._repr_html_()) < 25_000
    assert text(thread[1:9892]).startswith("user number 1 ")
    markdown = thread._repr_markdown_()
    assert "*9,979 more messages: `thread[1:9980]`*\n\n**user**\n\nnumber 9980" in markdown
    assert len(markdown) < 1_000


def test_a_short_thread_is_open():
    assert "<details" not in Thread(tuple(user(str(i)) for i in range(9)))._repr_html_()
    assert text(Thread()) == "0 messages"


def test_a_call_and_its_results_are_not_parted():
    step = (Message("assistant", tool_calls=(ToolCall("c0", "pay"),)), tool_result("c0", "paid"))
    thread = Thread((user("Hi"), *step * 500))
    assert "tool" not in read(thread).texts
    assert text(thread).count("pay {} done paid") == 108


def test_a_long_system_prompt_is_folded():
    assert "Be brief." in folded(Thread() + system("Be brief. " * 100))


def test_a_huge_text_is_cut():
    response = Response(assistant("word " * 100_000), finish_reason="stop")
    assert "… 450,000 more characters" in text(response)
    assert len(response._repr_html_()) < 80_000


HUGE = "| a " * 50_000 + "<&" * 200_000


def huge() -> Iterator[Any]:
    yield Thread((user(HUGE), assistant(HUGE), system(HUGE)) * 1000)
    yield assistant("- - - -\n" * 100_000)
    yield Message("assistant", (TextPart("x"),) * 100_000)
    yield Message("assistant", (SourcePart({"url": f"https://{HUGE}", "title": HUGE}),))
    yield Message("assistant", HUGE, tool_calls=tuple(ToolCall(str(i), HUGE[:99]) for i in range(9999)))
    yield Thread((assistant("x"), *(tool_result(str(i), "x") for i in range(99_999))))
    yield ImageResponse((Image.from_url(f"https://x/{HUGE}"),) * 9)
    yield Usage(extra={str(i): i for i in range(9999)})
    yield Engine(params={"p": HUGE})
    yield Tool("t", HUGE, {"properties": {str(i): {"type": "integer"} for i in range(9999)}})
    yield ChatResult(Thread(), steps=(StepResult(Thread(), Response()),) * 9999, halted_reason=HUGE)
    yield Session(HUGE, pending_tool_calls=(ToolCall("a", "b"),) * 9999, status="awaiting_tools")


@pytest.mark.judges
def test_the_length_is_bounded() -> None:
    for value in huge():
        assert len(value._repr_html_()) < 3_000_000, type(value).__name__
        read(value)


# Any text

PIECES = [
    "```",
    "~~~",
    "`",
    "\n",
    "\n\n",
    "> ",
    "- ",
    "1. ",
    "|a|b|\n|-|-|\n",
    "](",
    "<script>alert(1)</script>",
    "</div>",
]
PIECES += ["</article>", "</style>", "<!--", "<img src=x onerror=alert(1)>", "<details open>", "&lt;", "\\", "'", '"']
PIECES += ["[x](javascript:alert(1))", "![i](https://evil.example/i.png)", "$5 and $6", "$$x$$", "\\(x\\)", "\u202e"]
PIECES += ["\u2066", "אבג", "\x00", "\x1b[31m", "\ud800", "\r", "word "]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), min_size=1, max_size=12).map("".join).filter(bool)


def everywhere(text):
    """One value of each kind, with `text` in each of its places, and what is to stay intact behind it."""
    call = ToolCall("c0", text, {text: text})
    parts = (ThinkingPart(text), TextPart(text), SourcePart({"title": text, "url": text}))
    parts += (FilePart({"name": text, "url": text, "mime_type": text}), FilePart({"name": text, "mime_type": text}))
    message = Message("assistant", parts, name=text, tool_calls=(call,))
    asked = user(text, Image.from_url(text), Image.from_binary(b"x", text))
    thread = Thread((system(text), asked, message, tool_result("c0", text), tool_result("?", text), assistant("END")))
    error = AdapterError("timeout", text)
    response = Response(message, text, (call,), "stop", error=error, model=text, parsed=text)
    step = StepResult(thread, response, (tool_result("c0", text),))
    chat = ChatResult(thread, response, (step, step), text, pending_question=text, error=error)
    session = Session(text, thread, "awaiting_tools", (call,), metadata={"error": text})
    state = StreamCollector(Thread()).apply_event(TextDelta(text)).apply_event(ToolCallStarted("c0", text))
    picture = ImageResponse((Image("url", text, revised_prompt=text), Image.from_binary(b"x", text)), model=text)
    answer = json.dumps({"name": text.replace("\ud800", ""), "people": 1})
    partial = rxllm.stream_generate(Fake(answer), "?").pipe(ops.partials(City)).run()
    schema = {"properties": {text: {"type": text, "description": text, "default": text}}}
    yield from (message, thread, response, step, chat, session, Turn(session, chat), state, picture, partial)
    yield from (Usage(extra={text: 1}), Tool(text, text, schema), Engine(model=text, params={text: text}))


@settings(max_examples=examples(60), deadline=None)
@given(texts)
@example("```\nunclosed")
@example("\u202edrowssap")
@example("http://a\"onload='x'")
def test_any_text_in_any_value_leaves_the_rest_intact(text):
    for value, plain in zip(everywhere(text), everywhere("plain"), strict=True):
        html, reader = value._repr_html_(), read(value)
        assert re.match(r'<div class="rxllm-output rxllm-[0-9a-f]{8} tex2jax_ignore mathjax_ignore">', html)
        assert html.count("<article") == html.count("</article>") == 1
        other = read(plain)
        assert html.count('<div class="rxllm-role">') == plain._repr_html_().count('<div class="rxllm-role">')
        ends = [path for text, path in zip(reader.texts, reader.paths, strict=True) if text == "END"]
        assert ends == [path for text, path in zip(other.texts, other.paths, strict=True) if text == "END"]
        assert len(ends) == (type(value) in (Thread, ChatResult, Session, Turn))


# Where it is drawn


def test_ipython_gets_html_with_the_text_and_the_markdown():
    formatters = pytest.importorskip("IPython.core.formatters", reason="notebooks need rxllm[notebook]")
    data, _ = formatters.DisplayFormatter().format(assistant("Hi"))
    assert set(data) == {"text/html", "text/markdown", "text/plain"}
    data, _ = formatters.DisplayFormatter().format(Image.from_binary(PNG, "image/png"))
    assert set(data) == {"image/png", "text/plain"}
    assert set(formatters.DisplayFormatter().format(ModelInfo("m"))[0]) == {"text/plain"}


def test_without_a_parser_the_text_is_shown_as_it_is(monkeypatch):
    from rxllm.display import _markdown

    _markdown._parser.cache_clear()
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    assert '<pre dir="auto">- *a*</pre>' in assistant("- *a*")._repr_html_()
    _markdown._parser.cache_clear()


def test_a_value_in_a_card_has_no_frame_of_its_own():
    html = Usage()._repr_html_()
    scope = re.search(r"rxllm-[0-9a-f]{8}", html)[0]
    assert f".{scope}.{scope} .{scope}.{scope} article{{border:0" in html


@pytest.mark.judges
def test_nothing_is_drawn_by_importing():
    code = "import rxllm, sys; print({'rxllm.display', 'markdown_it', 'html'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"
    code = "from rxllm.values import Usage; print('<table>' in Usage()._repr_html_())"
    assert python("-c", code).stdout == "True\n"
