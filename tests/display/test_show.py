"""`show`, in a terminal and in a notebook's cell."""

import sys
import types

import pytest
from reactivex import empty, of
from reactivex.internal.exceptions import SequenceContainsNoElementsError

import rxllm
from rxllm import AdapterError, ChatResult, Fake, Response, StepResult, ToolCall
from rxllm.display._transcript import Transcript


def test_a_terminal_gets_the_text_as_it_comes_and_the_response_comes_back(capsys):
    response = rxllm.show(rxllm.stream_generate(Fake([("thinking", "hm"), "Hel", "lo"]), "Hi"))
    assert capsys.readouterr().out == "hm\n\nHello\n"
    assert isinstance(response, Response)
    assert response.output_text == "Hello"


def test_a_step_gives_its_step_result_and_a_chat_its_chat_result(capsys):
    assert isinstance(rxllm.show(rxllm.stream_step(Fake("Hi"), "Hello")), StepResult)
    result = rxllm.show(rxllm.stream(Fake(ToolCall("c0", "double", {"x": 2}), "4"), "Double 2", tools=[double]))
    assert isinstance(result, ChatResult)
    assert capsys.readouterr().out == "Hi\ndouble(x=2)\n\n→ 4\n\n4\n"


def test_other_items_are_shown_one_by_one_and_the_last_comes_back(capsys):
    assert rxllm.show(of(1, 2)) == 2
    assert capsys.readouterr().out == "1\n2\n"


def test_a_stream_without_items_has_no_result_as_for_run():
    with pytest.raises(SequenceContainsNoElementsError):
        rxllm.show(empty())


def test_an_error_is_raised_after_what_had_come_was_shown(capsys):
    failing = rxllm.stream_generate(Fake(["Hel", ("error", "timeout")]), "Hi").pipe(rxllm.operators.raise_errors())
    with pytest.raises(AdapterError):
        rxllm.show(failing)
    assert capsys.readouterr().out == "Hel\n"


def test_a_streamed_error_is_shown_and_kept(capsys):
    response = rxllm.show(rxllm.stream_generate(Fake(["Hel", ("error", "timeout")]), "Hi"))
    assert response.error == AdapterError("timeout", provider="fake")
    assert "AdapterError: adapter error (fake): timeout" in capsys.readouterr().out


def test_a_cell_is_one_output_drawn_anew_and_complete_in_the_end(cell):
    rxllm.show(rxllm.stream_generate(Fake(["Hel", "lo"]), "Hi"))
    assert len(cell.handles) == 1
    assert cell.handles[0].shown[-1] == "Hello"


def test_markdown_quotes_thinking_and_marks_tools():
    transcript = Transcript()
    for event in rxllm.stream(
        Fake([("thinking", "a\nb"), ToolCall("c0", "double", {"x": 2})], "4"), "?", tools=[double]
    ):
        transcript.add(event)
    assert transcript.markdown() == "> a\n> b\n\n`double(x=2)`\n\n`→ 4`\n\n4"


def test_a_call_that_waits_for_approval_says_so(capsys):
    careful = rxllm.tool(name="pay", handler=lambda arguments: "paid", approval=True)
    result = rxllm.show(rxllm.stream(Fake(ToolCall("c0", "pay", {"amount": 5})), "Pay", tools=[careful]))
    assert result.halted_reason == "approval"
    assert capsys.readouterr().out == "pay(amount=5)\n\npay waits for approval\n"


def test_what_a_tool_was_told_is_shown_as_it_is():
    message = rxllm.Message("tool", "<awaiting user response>", tool_call_id="c0")
    assert message._repr_markdown_() == "**tool**\n\n`<awaiting user response>`"


@rxllm.tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


@pytest.fixture
def cell(monkeypatch):
    """A stand-in for IPython inside a kernel, recording what a cell shows."""

    class Handle:
        def __init__(self, markdown: str) -> None:
            self.shown = [markdown]

        def update(self, markdown: str) -> None:
            self.shown.append(markdown)

    handles: list[Handle] = []

    def display(markdown: str, display_id: bool) -> Handle:
        handles.append(Handle(markdown))
        return handles[-1]

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.SimpleNamespace(Markdown=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return types.SimpleNamespace(handles=handles)
