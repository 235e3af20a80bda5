import doctest
import sys

import pytest
from rxllm import ErrorEvent, SourceAdded, StreamError, TextDelta
from rxllm.testing import OPERATOR_RULES, assert_operator, marbles

from rxllm_cohere import citations

A, B = {"text": "-3", "sources": [{"id": "a"}]}, {"text": "5", "sources": [{"id": "b"}]}
VALUES = {"t": TextDelta("Hi"), "a": SourceAdded(A), "b": SourceAdded(B), "A": A, "B": B}


def test_each_source_comes_once_and_at_once() -> None:
    marbles.check(
        citations(),
        "-t-a-t-a-b-|",
        "^----------!",
        "---A-----B-|",
        **VALUES,
    )


def test_an_error_ends_the_list_so_that_half_is_not_taken_for_all() -> None:
    error = StreamError("truncated")
    marbles.check(
        citations(),
        "-a-e-|",
        "^--!",
        "-A-X",
        **VALUES,
        e=ErrorEvent(error),
        X=error,
    )


@pytest.mark.parametrize("rule", OPERATOR_RULES)
def test_it_keeps_the_rules_of_every_operator(rule: str) -> None:
    assert_operator(citations, events=[VALUES[name] for name in "tatbt"], only=[rule])


def test_the_example_in_its_docstring() -> None:
    failures, tests = doctest.testmod(sys.modules[citations.__module__])
    assert tests > 0
    assert failures == 0
