"""PARITY.md is true: its rows are all there, and what they name exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("PARITY.md").read_text()

ROWS = 212

DOCUMENTS = {
    "facade": """
        assistant chat edit_image generate generate_image image_request image_variations json_schema request step stream
        stream_generate stream_step system tool tool_result user
        mode max_turns halt_when on_tool_error on_event tool_timeout tool_executor tool_result_encoder
        emit_text_deltas emit_tool_deltas include_raw_chunks request_id manual
        thread response tool_results metadata final_response halted_reason steps step_completed chat_completed
        """,
    "collector": """
        new apply_event to_response to_step_result to_chat_result halt_state
        chat_result current_text current_tool_calls done error finish_reason halt last_message last_response metadata
        raw_finish_reason steps thread tool_call_order tool_results usage
        message_started text_delta text_completed tool_call_started tool_call_delta tool_call_completed
        message_completed raw_chunk tool_execution_started tool_execution_completed tool_result_encoded
        ask_user_requested tool_halt step_completed chat_completed
        """,
    "accumulator": """
        new push reduce finalize_finish_reason finalize_logprobs finalize_message finalize_reasoning_details
        finalize_text finalize_thinking finalize_tool_calls_for_response finalize_usage
        arg_fragments finish_reason logprobs reasoning_details text_content thinking_content tool_calls usage
        id name arguments index builtin? expects_arg_fragments metadata
        """,
    "planck": """
        from_req_llm text_delta thinking_delta tool_call_complete tool_call id name args done stop_reason usage error
        """,
    "051e": """
        CompletionChunk delta tool_calls is_final usage finish_reason text final_chunk
        ToolCallDelta index id name arguments_delta CompletionStream CollectingStream ToolCallBuilder collect
        content model
        """,
}
"""The names that each document gives to what it describes."""


class Row(NamedTuple):
    number: str
    document: str
    feature: str
    state: str
    where: str
    why: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"`(rxllm[\w.]*)`", self.where)

    @property
    def words(self) -> set[str]:
        """The single words of all that is quoted."""
        return set(re.findall(r"[\w?]+", " ".join(re.findall(r"`([^`]+)`", f"{self.feature} {self.where}"))))

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[\w/.]+::\w+(?:::\w+)?)`", self.why)


def rows() -> list[Row]:
    lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines())
    return [Row(*cells) for cells in lines if cells and cells[0].isdigit()]


every_row = pytest.mark.parametrize("row", rows(), ids=[row.number for row in rows()])


def test_no_row_is_missing() -> None:
    assert [int(row.number) for row in rows()] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_name_of_a_document_has_its_row(document: str) -> None:
    words = [row.words for row in rows() if row.document == document]
    assert set(DOCUMENTS[document].split()) - set().union(*words) == set()


@every_row
def test_a_row_says_enough(row: Row) -> None:
    assert row.document in (*DOCUMENTS, "system")
    assert row.feature
    match row.state:
        case "shown":
            assert row.names
            assert row.tests
        case "replaced":
            assert row.why.startswith("replaced by ")
            assert row.names
            assert row.tests
        case state:
            assert state == "not yet"
            assert row.why
            assert not row.tests


@every_row
def test_what_a_row_names_exists(row: Row) -> None:
    assert [name for name in row.names if not _exists(name)] == []


@every_row
def test_the_tests_of_a_row_exist(row: Row) -> None:
    assert [test for test in row.tests if not _is_test(*test.split("::"))] == []


def test_every_path_exists() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)(?:::\w+)*`", TABLE)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_it_finds_what_is_not_there() -> None:
    assert not _exists("rxllm.nothing")
    assert not _exists("rxllm.Response.nothing")
    assert not _exists("rxllm.pipelines.ChatOptions.nothing")
    assert not _is_test("tests/laws/test_parity.py", "test_nothing")
    assert not _is_test("tests/laws/test_nothing.py", "test_nothing")
    assert not _is_test("tests/chunks/test_accumulator.py", "TestText", "test_nothing")


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, an attribute or a field of a class."""
    first, *rest = name.split(".")
    held: Any = import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        if hasattr(held, part):
            held = getattr(held, part)
        elif isinstance(held, type):
            return part in _fields(held)
        else:
            try:
                held = import_module(path)
            except ModuleNotFoundError:
                return False
    return True


def _fields(cls: type) -> list[str]:
    return [name for each in cls.__mro__ for name in getattr(each, "__annotations__", {})]


def _is_test(path: str, *names: str) -> bool:
    return "::".join(names) in _tests(path)


@cache
def _tests(path: str) -> frozenset[str]:
    file = ROOT / path
    return frozenset(_named(ast.parse(file.read_text()).body)) if file.is_file() else frozenset()


def _named(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[:4].lower() == "test":
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _named(node.body, f"{node.name}::")
