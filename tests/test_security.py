"""SECURITY.md: each bound is what its constant says, and has a test that meets it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

TESTS = {
    "a slice of a compressed body": "http/test_decompression.py::test_a_packed_body_says_the_same_however_it_is_cut",
    "the encodings of one body": (
        "http/test_decompression.py::test_an_encoding_that_was_not_asked_for_is_refused_before_the_body_is_read"
    ),
    "the body of an HTTP error": "bombs.py::an_error",
    "the time for the body of an HTTP error": "http/test_stream.py::test_an_error_body_that_stalls_is_given_up",
    "the body of a redirect": "bombs.py::a_redirect",
    "the answer to a token count": "bombs.py::a_token_count",
    "an answer with images": "bombs.py::an_image",
    "an image that is fetched": "bombs.py::an_image_of_a_url",
    "the name of a usage counter": "adapters/test_usage.py::test_a_counter_with_a_long_name_is_left_out_with_a_word",
    "the answer to a request that stops an answer": "bombs.py::a_stopped_answer",
    "connections in a row without a new part of an answer": (
        "adapters/openai_responses/test_background.py::test_only_a_new_part_of_the_answer_renews_the_attempts"
    ),
    "a request of a browser": "web/test_ag_ui_request.py::test_malformed_inputs_are_refused_with_their_path",
    "the values in a request of a browser": (
        "web/test_long_requests.py::test_more_values_than_a_request_may_hold_are_refused_at_once"
    ),
    "the nesting of a request of a browser": "web/test_ag_ui_request.py::test_a_deep_input_is_refused",
    "a provider's error message": (
        "adapters/test_http_errors.py::test_a_long_message_is_cut_before_its_words_are_looked_at"
    ),
    "the counters of a usage": "adapters/test_work.py::test_counters_of_too_many_names_are_an_error",
    "the parts of an item (Responses)": "adapters/test_work.py::test_an_item_of_too_many_parts_is_an_error",
    "the id of an item (Responses)": "adapters/test_work.py::test_an_item_with_a_very_long_id_is_an_error",
    "the parameters of an MCP tool that are also sent as headers": (
        "mcp/test_hostile.py::test_a_tool_with_too_many_headers_is_left_out_over_http"
    ),
    "the arguments that are read at a time": (
        "operators/test_argument_streams.py::test_other_tasks_run_while_a_long_delta_is_read"
    ),
    "the items that wait for a listening tool": (
        "operators/test_argument_streams.py::test_a_tool_that_does_not_read_holds_back_the_rest_of_a_long_delta"
    ),
    "the calls of a response whose tools listen": (
        "operators/test_argument_streams.py::test_calls_beyond_those_that_are_read_at_once_get_their_arguments_whole"
    ),
    "the calls of a response that start early in a durable run": (
        "pipelines/test_eager_journal.py::test_a_response_is_kept_for_a_bounded_number_of_early_starts"
    ),
}

_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| (?:`([\w.]+)`)? *\|$", re.MULTILINE)
ROWS = _ROW.findall(PAGE.partition("## What is bounded")[2].partition("rxllm does not judge")[0])


def test_every_bound_has_a_test() -> None:
    assert [row[0].partition(",")[0] for row in ROWS] == [*TESTS]
    for place in TESTS.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), place


@pytest.mark.parametrize(("bound", "constant"), [(bound, constant) for _, bound, constant in ROWS if constant])
def test_every_bound_is_what_its_constant_says(bound: str, constant: str) -> None:
    module, _, name = constant.rpartition(".")
    assert float(bound.split()[0].replace(",", "")) == getattr(import_module(module), name)
