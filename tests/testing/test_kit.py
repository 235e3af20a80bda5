"""The kit as a whole: what it exports, what it says of itself, what it costs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

import pytest

import rxllm
from rxllm import testing
from rxllm.testing._adapter_suite import SCRIPT_RULES
from rxllm.testing.loopback import STALL, Loopback, Reply, chat_chunk
from tests.programs import python


def test_the_exported_names_are_all_there() -> None:
    assert len(set(testing.__all__)) == len(testing.__all__)
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    assert set(dir(testing)) == set(testing.__all__)


@pytest.mark.parametrize("name", ["loopback", "marbles", "strategies"])
def test_a_part_shows_its_own_names_and_no_imports(name: str) -> None:
    part = getattr(testing, name)
    assert dir(part) == sorted(part.__all__)
    assert all(hasattr(part, exported) for exported in part.__all__)
    assert not {"Any", "asyncio", "Observable", "st", "annotations"} & set(dir(part))


def test_its_page_names_all_that_there_is() -> None:
    assert testing.__doc__ is not None
    named = set(re.findall(r"`+(\w+)`+", testing.__doc__))
    assert {*testing.__all__, "loopback", "marbles", "strategies"} <= named


@pytest.mark.parametrize(
    ("rules", "page"),
    [
        (testing.OPERATOR_RULES, testing.assert_operator),
        (testing.ADAPTER_RULES, testing.assert_adapter),
        (SCRIPT_RULES, testing.AdapterConformance),
    ],
)
def test_every_rule_is_in_a_table(rules: Collection[str], page: Any) -> None:
    """By its name, what it checks, and when one leaves it out."""
    rows = dict(re.findall(r"(?m)^``(\w+)``  +(\S.*  +\S.*)$", inspect.getdoc(page) or ""))
    assert list(rows) == list(rules)
    assert testing.__doc__ is not None
    assert "without=" in testing.__doc__


@pytest.mark.parametrize(
    ("rules", "page"),
    [
        (testing.EXECUTOR_RULES, testing.assert_executor),
        (testing.ENCODER_RULES, testing.assert_encoder),
        (testing.SESSION_STORE_RULES, testing.assert_session_store),
    ],
)
def test_every_rule_of_a_short_list_is_named(rules: dict[str, str], page: Any) -> None:
    assert set(rules) <= set(re.findall(r"``(\w+)``", page.__doc__.partition("rules to omit")[2]))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # type: ignore[attr-defined]


@pytest.mark.judges
def test_it_is_reached_from_the_package_when_it_is_used() -> None:
    code = (
        "import sys, rxllm\n"
        "loaded = 'rxllm.testing' in sys.modules\n"
        "rxllm.testing.events('Hi')\n"
        "rxllm.testing.assert_operator(rxllm.operators.raise_errors)\n"
        "print(loaded, *(name for name in ('pytest', 'hypothesis', 'httpx') if name in sys.modules))"
    )
    ran = python("-c", code)
    assert (ran.stderr, ran.stdout.split()) == ("", ["False"])


@pytest.mark.sockets
def test_the_pages_example_of_a_server(loopback) -> None:
    server = loopback(Reply([chat_chunk("Hi"), STALL]))
    assert isinstance(server, Loopback)
    adapter = rxllm.OpenAIChat(base_url=server.url, api_key="k")
    rxllm.stream_generate(adapter, "Hello", model="m").take(2).run()
    server.connections[0].wait_closed()
    assert server.connections[0].closed_by == "client"
