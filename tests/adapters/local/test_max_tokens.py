"""The default local model, which may repeat itself for ever, has a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rxllm
from rxllm import Local, Request, user
from rxllm.values import Call


def sent(adapter: Local, **options: Any) -> Any:
    return json.loads(adapter.build(Request((user("Hi"),), **options), Call()).content).get("max_tokens")


def test_only_the_default_weights_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RXLLM_LOCAL_MODEL", raising=False)
    assert (sent(Local()), sent(Local(), max_tokens=9), sent(Local(), max_tokens=2000)) == (200, 9, 2000)
    assert sent(Local("mine.gguf")) is None
    monkeypatch.setenv("RXLLM_LOCAL_MODEL", "/mine.gguf")
    assert sent(Local()) is None


@pytest.mark.judges
@pytest.mark.timeout(120)
def test_an_answer_that_would_never_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RXLLM_LOCAL_MODEL", raising=False)
    pytest.importorskip("xllamacpp")
    response = rxllm.generate("local", "Name three primes", temperature=0.0).run()
    assert (response.usage.output_tokens or 0) <= 200
    assert response.finish_reason in ("length", "stop")
