from __future__ import annotations

from typing import Any

import pytest

from rxllm import AdapterError, Fake, StreamError, ValidationError, generate, stream_generate
from rxllm import operators as ops
from rxllm.engine import Engine
from rxllm.events import ErrorEvent, TextDelta
from rxllm.testing.marbles import check

HERE = __file__


def test_all_passes_and_an_error_is_told_where_it_was() -> None:
    failure = ValueError("no")
    operator = ops.checkpoint("model")
    check(
        operator,
        "-a-b-X",
        "^----!",
        "-a-b-X",
        X=failure,
    )
    (note,) = failure.__notes__
    assert note.startswith(f"passed checkpoint 'model' ({HERE}:")
    assert note.endswith(") after 2 items")


def test_it_names_the_line_that_built_it() -> None:
    failure = ValueError("no")
    check(ops.checkpoint("x"), "-X", "^!", "-X", X=failure)  # this line
    line = int(failure.__notes__[0].rpartition(":")[2].partition(")")[0])
    with open(HERE) as source:
        assert source.readlines()[line - 1].endswith("# this line\n")


def test_several_are_told_in_the_order_in_which_they_are_passed() -> None:
    source = stream_generate(Fake(["Hel", StreamError("truncated")]), "Hi")
    with pytest.raises(StreamError) as caught:
        source.pipe(ops.checkpoint("first"), ops.text(), ops.checkpoint("second")).run()
    assert [note.split("'")[1] for note in caught.value.__notes__] == ["first", "second"]
    assert caught.value.__notes__[0].endswith("after 3 items")


def test_the_error_of_an_error_event_is_told_too_and_stays_equal() -> None:
    error = StreamError("truncated")
    values: dict[str, Any] = {"a": TextDelta("a"), "e": ErrorEvent(error)}
    check(ops.checkpoint("here"), "-a-e|", "^---!", "-a-e|", **values)
    assert len(error.__notes__) == 1
    assert error == StreamError("truncated")


def test_as_middleware_it_stands_between_the_model_and_the_fold() -> None:
    engine = Engine(Fake(AdapterError("timeout")), operators=[ops.checkpoint("middleware")], retry=False)
    with pytest.raises(AdapterError) as caught:
        generate(engine, "Hi").run()
    assert "'middleware'" in caught.value.__notes__[0]


@pytest.mark.parametrize("label", ["", None, 3])
def test_a_label_is_a_text(label: Any) -> None:
    with pytest.raises(ValidationError, match="label"):
        ops.checkpoint(label)
