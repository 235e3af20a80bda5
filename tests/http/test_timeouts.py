"""Timeouts: limits that are numbers of seconds, and the transport's defaults."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from rxllm import Timeouts, ValidationError
from rxllm.http import CONNECT_SECONDS, NO_TIMEOUTS, READ_SECONDS, WRITE_SECONDS
from rxllm.http.clients import client_settings


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan, True, "3", [1]])
def test_a_limit_that_is_not_a_number_above_0_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Timeouts(1, wrong, wrong)
    assert caught.value.reason == "invalid_option"
    assert [path for path, _ in caught.value.errors] == [("idle",), ("total",)]


def test_a_number_is_the_longest_silence() -> None:
    assert Timeouts.of(3) == Timeouts(first=3, idle=3)
    assert Timeouts.of(None) == Timeouts() == NO_TIMEOUTS
    limits = Timeouts(total=3)
    assert Timeouts.of(limits) is limits
    with pytest.raises(ValidationError):
        Timeouts.of(-1)


def test_no_limits_are_made_once() -> None:
    assert Timeouts.of(None) is Timeouts.of(None)


@pytest.mark.parametrize(
    ("limits", "silence"),
    [(Timeouts(3, 5), 5), (Timeouts(5, 3), 5), (Timeouts(first=3), None), (Timeouts(idle=3), None), (Timeouts(), None)],
)
def test_the_transports_timeout_is_the_longer_silence_or_its_own(limits: Timeouts, silence: float | None) -> None:
    assert limits.silence == silence


def test_own_clients_have_the_default_timeouts() -> None:
    assert client_settings(None)["timeout"] == httpx.Timeout(
        connect=CONNECT_SECONDS, read=READ_SECONDS, write=WRITE_SECONDS, pool=None
    )
