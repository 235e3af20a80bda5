"""No provider, server or browser fills the memory: small inputs that expand, each met by a process with 300 MB."""

from __future__ import annotations

import json

import pytest

from tests.bombs import BOMBS
from tests.programs import python

pytestmark = pytest.mark.judges

OUTCOMES = {
    "an_answer": ("StreamError", "a frame has more than"),
    "an_error": ("AdapterError", ""),
    "a_redirect": ("str", "Hi"),
    "a_stopped_answer": ("list", "/cancel"),
    "an_image": ("ImageAdapterError", "bytes"),
    "an_image_of_a_url": ("ImageAdapterError", "bytes"),
    "a_token_count": ("AdapterError", "bytes"),
    "an_mcp_server": ("StreamError", "a frame has more than"),
    "names_of_counters": ("Usage", "{'input_tokens': 3}"),
    "data_urls": ("list", "invalid_request"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_met_with_300_mb(name: str) -> None:
    ran = python("-m", "tests.bombs", name)
    assert ran.returncode == 0, ran.stderr[-3000:]
    kind, text = json.loads(ran.stdout.splitlines()[-1])
    assert (kind, OUTCOMES[name][1] in text) == (OUTCOMES[name][0], True), (kind, text)
