"""The test kit's whole suite, over Bedrock's wire format."""

from __future__ import annotations

import pytest
from rxllm.testing import ADAPTER_RULES, assert_adapter
from rxllm.testing.loopback import Loopback, Reply
from wire import BEGIN, ConverseWire, delta, end

from rxllm_bedrock import Bedrock


class TestConformance(ConverseWire):
    __test__ = True


@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_it_keeps_the_rules_of_every_adapter(rule: str) -> None:
    with Loopback(Reply([BEGIN, delta(0, text="Hi"), *end()])) as server:
        assert_adapter(Bedrock(base_url=server.url), only=[rule], model="amazon.nova-lite-v1:0")
