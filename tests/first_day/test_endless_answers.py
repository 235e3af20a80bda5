"""A server whose answer never ends, to try what stops one."""

from __future__ import annotations

import pytest

import rxllm
from rxllm import Engine, OpenAIChat
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, endless


@pytest.mark.sockets
def test_its_words_arrive() -> None:
    with Loopback(Reply(endless())) as server:
        engine = Engine(OpenAIChat(base_url=server.url, api_key="k"), model="m")
        words = rxllm.stream_generate(engine, "Count!").pipe(ops.words()).take(3)
        assert list(words) == ["0 ", "1 ", "2 "]


def test_help_says_what_it_sends() -> None:
    assert '"0 ", "1 ", "2 "' in (endless.__doc__ or "").replace("`", "")
