"""Names that the modules do not have: the error says what to write, and Python adds no guess of its own."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from types import ModuleType
from typing import Any

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
        (rxllm, "cache", "; write rxllm.testing.Cassette('answers.jsonl', engine), an engine that pays"),
        (operators, "exhaust_map", "; write keep_latest(), which drops items while the consumer is busy"),
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


VALUES = [rxllm.TextDelta("Hi"), rxllm.Usage(), rxllm.user("Hi"), rxllm.Engine(rxllm.Fake("Hi"))]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["_repr_png_", "__array__", "wholly_different", "choices"])
def test_looking_for_an_attribute_of_a_value_builds_no_hint(value: object, name: str) -> None:
    calls: list[str] = []
    sys.setprofile(lambda frame, kind, _: calls.append(frame.f_code.co_name) if kind == "call" else None)
    try:
        found = hasattr(value, name)
    finally:
        sys.setprofile(None)
    assert not found
    assert [call for call in calls if call != "<lambda>"][:4] in (
        ["__getattr__", "no_field"],
        ["__getattr__", "no_field", "__init__"],
    )


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_hint_is_there_however_the_error_is_read(value: Any) -> None:
    with pytest.raises(AttributeError) as caught:
        _ = value.retr
    error = caught.value
    assert type(error) is AttributeError
    assert error.name == "retr"
    for text in (str(error), f"{error}", pickle.loads(pickle.dumps(error)).args[0], copy.copy(error).args[0]):
        assert str(text).startswith(f"{type(value).__name__!r} object has no attribute 'retr'")
    assert repr(error) == f"AttributeError({str(error)!r})"
    assert "(did you mean 'retry'?)" in str(error) or not isinstance(value, rxllm.Engine)


@pytest.mark.judges
@pytest.mark.parametrize("line", ["rxllm.operators.map", "rxllm.operators.tapp", "rxllm.image"])
def test_python_adds_no_guess_of_its_own(line: str) -> None:
    shown = subprocess.run([sys.executable, "-c", f"import rxllm; {line}"], capture_output=True, text=True, check=False)
    assert "has no attribute" in shown.stderr
    assert "Did you mean" not in shown.stderr
