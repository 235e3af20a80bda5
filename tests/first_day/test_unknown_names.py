"""Names that the modules do not have: the error says what to write, and Python adds no guess of its own."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import rxllm
from rxllm import adapters, operators, testing


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (rxllm, "image", "; write rxllm.user(text, path) to send a picture, or rxllm.generate_image(...) to make one"),
        (rxllm, "file", "; write rxllm.user(text, path)"),
        (rxllm, "call", "; write rxllm.generate(engine, request), or rxllm.ToolCall("),
        (rxllm, "tool_call", "; write rxllm.ToolCall("),
        (rxllm, "agenerate", "; write await rxllm.generate(engine, request)"),
        (rxllm, "completion", "; write rxllm.generate(engine, request)"),
        (rxllm, "Agent", "; write rxllm.chat(engine, request, tools=[...])"),
        (rxllm, "as_tool", "; write engine.as_tool(name=...)"),
        (rxllm, "UsageLimits", "; write rxllm.Budget(tokens=...), with operators.budget(budget)"),
        (rxllm, "Command", "; write rxllm.resume(engine, halted, approvals={...})"),
        (rxllm, "OpenAI", "; write rxllm.OpenAIChat()"),
        (rxllm, "genrate", " (did you mean 'generate'?)"),
        (rxllm, "textdelta", " (did you mean 'TextDelta'?)"),
        (rxllm, "wholly_different", ""),
        (rxllm, "_tol", ""),
        (operators, "map", "; write stream.map(...) or reactivex.operators.map(...); map is a reactivex operator"),
        (operators, "filter", "; write stream.filter(...) or reactivex"),
        (operators, "take", "; write stream.take(...) or reactivex"),
        (operators, "buffer", "; write stream.buffer(...) or reactivex"),
        (
            operators,
            "retry",
            "; write retry_before_content(...), which never repeats text, or reactivex's stream.retry(...)",
        ),
        (operators, "timeout", "; write time_limits(first=..., idle=...), or reactivex's stream.timeout(...)"),
        (operators, "print", "; write tap(print)"),
        (operators, "count", "; write stream.count(...) or reactivex"),
        (operators, "checkpoint", "; write trace(function), or reactivex's stream.do_action(on_error=...)"),
        (operators, "tally", "; write trace(function), or reactivex's stream.count()"),
        (operators, "partial_json", "; write partials(object)"),
        (operators, "merge_labelled", "; write rxllm.merge_labelled(...)"),
        (operators, "to_respose", " (did you mean 'to_response'?)"),
        (operators, "wholly_different", ""),
        (testing, "FakeModel", ""),
        (testing, "sandbx", " (did you mean 'sandbox'?)"),
        (adapters, "OpenAIChats", " (did you mean 'OpenAIChat'?)"),
    ],
)
def test_a_name_that_is_not_there_is_answered(module: ModuleType, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    beginning = f"module {module.__name__!r} has no attribute {name!r}{remedy}"
    assert str(caught.value).startswith(beginning)
    assert remedy or str(caught.value) == beginning
    assert not hasattr(module, name)


@pytest.mark.judges
@pytest.mark.parametrize("line", ["rxllm.operators.map", "rxllm.operators.tapp", "rxllm.image"])
def test_python_adds_no_guess_of_its_own(line: str) -> None:
    shown = subprocess.run([sys.executable, "-c", f"import rxllm; {line}"], capture_output=True, text=True, check=False)
    assert "has no attribute" in shown.stderr
    assert "Did you mean" not in shown.stderr
