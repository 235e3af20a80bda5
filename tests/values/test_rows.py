"""Rows of results, as pandas and polars read them."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rxllm
from rxllm import (
    AdapterError,
    ChatResult,
    Engine,
    Fake,
    Response,
    StreamError,
    Thread,
    ToolCall,
    Usage,
    ValidationError,
    generate_many,
    rows,
)
from rxllm import operators as ops
from rxllm.testing import strategies

COLUMNS = ["request", "text", "finish_reason", "model", "provider", "input_tokens", "output_tokens", "total_tokens"]
COLUMNS += ["cost", "seconds", "ttft", "error_type", "error_reason", "error_message"]


class Size(enum.Enum):
    SMALL = "small"


@dataclasses.dataclass
class City:
    name: str
    people: int
    founded: date
    size: Size
    at: tuple[float, float]
    mayor: dict[str, str] | None = None


LIMA = {"name": "Lima", "people": 10, "founded": "1535-01-18", "size": "small", "at": [-12, -77]}
QUITO = {"name": "Quito", "people": 2, "founded": "1534-12-06", "size": "small", "at": [0, -78], "mayor": {"ß": "Ñ"}}


def cities(*scripts: Any, **options: Any) -> list[Response[City]]:
    fake = Fake(*scripts)
    return generate_many(fake, ["?"] * len(scripts), response_format=City, concurrency=1, retry=False, **options).run()


def polars() -> types.ModuleType:
    return pytest.importorskip("polars", reason="polars is not in the test extras, because it has 54 MB")


def test_a_row_has_plain_columns() -> None:
    error = AdapterError("rate_limited", "Slow down.", provider="openai")
    response = Response(
        output_text="Hi",
        finish_reason="stop",
        usage=Usage(3, 2, total_cost=1),
        model="m-1",
        metadata={"request_id": 7, "request_index": 0, "provider": "Fireworks", "logprobs": [1]},
    )
    assert rows([response, Response(finish_reason="error", error=error)]) == [
        dict(zip(COLUMNS, [7, "Hi", "stop", "m-1", "Fireworks", 3, 2, 5, 1.0, *[None] * 5], strict=True)),
        dict(
            zip(
                COLUMNS,
                [None, "", "error", None, "openai", *[None] * 6, "AdapterError", "rate_limited", "Slow down."],
                strict=True,
            )
        ),
    ]


def test_no_results_are_no_rows() -> None:
    import pandas

    assert rows([]) == []
    assert pandas.DataFrame(rows([])).empty


def test_a_request_is_its_id_or_its_index() -> None:
    assert [row["request"] for row in rows(generate_many(Fake("Hi"), {"x": "a", "y": "b"}))] == ["x", "y"]
    many = generate_many(Fake("Hi"), ["a", "b"], ordered=False)
    assert sorted(row["request"] for row in rows(many)) == [0, 1]
    assert [row["request"] for row in rows(generate_many(Fake("Hi"), ["a"]))] == [None]


# Parsed answers


@pytest.mark.parametrize("order", [1, -1])
def test_the_columns_do_not_depend_on_which_request_failed(order: int) -> None:
    scripts = [AdapterError("timeout"), [json.dumps(LIMA), Usage(1, 2)], [json.dumps(QUITO)], ["no JSON"]]
    table = rows(cities(*scripts[::order]))
    fields = [f"parsed.{name}" for name in ("name", "people", "founded", "size", "at", "mayor")]
    assert [list(row) for row in table] == [[*COLUMNS[:2], *fields, *COLUMNS[2:]]] * 4
    first, lima, quito, last = table[::order]
    assert [lima[name] for name in fields] == ["Lima", 10, "1535-01-18", "small", "[-12.0, -77.0]", None]
    assert quito["parsed.mayor"] == '{"ß": "Ñ"}'
    assert {first[name] for name in fields} == {last[name] for name in fields} == {None}
    assert [row["error_reason"] for row in (first, lima, quito, last)] == ["timeout", None, None, "invalid_output"]
    assert last["text"] == "no JSON"


@pytest.mark.parametrize(
    ("parsed", "cells"),
    [
        (5, {"parsed": 5}),
        (False, {"parsed": False}),
        ("Lima", {"parsed": "Lima"}),
        ([2, 3], {"parsed": "[2, 3]"}),
        ({}, {}),
        ({"text": "a", "model": [None]}, {"parsed.text": "a", "parsed.model": "[null]"}),
        ({1: {"x": 2**70}}, {"parsed.1": '{"x": 1180591620717411303424}'}),
        (complex(1, 2), {"parsed": "(1+2j)"}),
        ({"x": "\ud800"}, {"parsed.x": "?"}),
    ],
)
def test_any_parsed_value_has_plain_cells(parsed: Any, cells: dict[str, Any]) -> None:
    (row,) = rows([Response(parsed=parsed, output_text="\ud800!")])
    assert {name: cell for name, cell in row.items() if name.startswith("parsed")} == cells
    assert row["text"] == "?!"


# Steps and chats


def test_the_row_of_a_chat_has_the_usage_of_all_steps_and_why_it_halted() -> None:
    @rxllm.tool
    def double(x: int) -> int:
        return 2 * x

    fake = Fake([ToolCall("c0", "double", {"x": 2}), Usage(1, 2)], ['{"value": 4}', Usage(3, 4)])
    result = rxllm.chat(fake, "Double 2!", tools=[double], response_format=int).run()
    (row,) = rows([result])
    names = ("text", "parsed", "finish_reason", "input_tokens", "output_tokens")
    assert [row[name] for name in names] == ['{"value": 4}', 4, "completed", 4, 6]


def test_the_row_of_a_step_is_that_of_its_response() -> None:
    result = rxllm.step(Fake(["4", Usage(3, 4)]), "Four?").run()
    assert rows([replace(result)]) == rows([result.response])


def test_a_chat_without_a_response_has_a_row() -> None:
    failed = ChatResult(Thread(), halted_reason="error", error=StreamError("cancelled", "Gone."))
    (row,) = rows([failed])
    assert (row["text"], row["finish_reason"], row["error_reason"]) == ("", "error", "cancelled")


# Seconds


@pytest.mark.parametrize(
    ("timings", "seconds"),
    [
        ({"queue_time": 0.1, "total_time": 1.5}, 1.5),
        ({"total_duration": 2_500_000_000, "load_duration": 5}, 2.5),
        ({"prompt_ms": 250.0, "predicted_ms": 750, "predicted_n": 9}, 1.0),
        ({"prompt_ms": None}, None),
        ({"total_time": "long"}, None),
        ("soon", None),
        (None, None),
    ],
)
def test_seconds_are_those_that_a_provider_reports(timings: Any, seconds: float | None) -> None:
    assert rows([Response(metadata={"timings": timings})])[0]["seconds"] == seconds


# Wrong arguments


@pytest.mark.parametrize("wrong", [["Hi"], "Hi", [None], {"a": Response()}, [[Response()]]])
def test_what_is_not_a_result_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="results must be a list or other iterable of Responses"):
        rows(wrong)


# Data frames


def batch() -> list[dict[str, Any]]:
    priced = ops.cost(price=lambda usage: dataclasses.replace(usage, total_cost=usage.total * 0.5))
    scripts = [AdapterError("timeout"), [json.dumps(LIMA), Usage(1, 2)], [json.dumps(QUITO), Usage(4, 4)]]
    engine = Engine(Fake(*scripts), operators=[priced], retry=False)
    return rows(generate_many(engine, ["a", "b", "c"], response_format=City, concurrency=1))


def test_pandas_reads_the_rows() -> None:
    import pandas

    frame = pandas.DataFrame(batch())
    assert frame["cost"].sum() == 5.5
    assert frame["parsed.people"].dropna().tolist() == [10, 2]
    assert frame.loc[frame["error_reason"].notna(), "error_type"].tolist() == ["AdapterError"]
    assert [str(frame[name].dtype) for name in ("input_tokens", "cost", "parsed.people")] == ["float64"] * 3
    assert pandas.to_datetime(frame["parsed.founded"]).dt.year.dropna().tolist() == [1535, 1534]


def test_polars_reads_the_rows() -> None:
    frame = polars().DataFrame(batch())
    assert frame["cost"].sum() == 5.5
    assert [str(frame[name].dtype) for name in ("total_tokens", "cost", "parsed.name")] == [
        "Int64",
        "Float64",
        "String",
    ]


def test_polars_reads_rows_whose_first_hundred_requests_failed() -> None:
    failed = [Response(error=AdapterError("timeout"))] * 200
    table = rows([*failed, Response(output_text="Hi", usage=Usage(1, 2, total_cost=1), model="m")])
    frame = polars().DataFrame(table, infer_schema_length=None)
    assert frame["total_tokens"].sum() == 3


@given(st.lists(strategies.responses, max_size=5))
def test_rows_of_any_responses_are_plain_and_have_equal_columns(responses: list[Response]) -> None:
    import pandas

    table = rows(responses)
    assert len({tuple(row) for row in table}) <= 1
    assert {type(cell) for row in table for cell in row.values()} <= {str, int, float, bool, types.NoneType}
    assert len(pandas.DataFrame(table)) == len(responses)
