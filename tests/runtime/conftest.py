"""What goes over a socket goes over both transports: modules and tests that use the fixture `transport` run twice."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["httpx", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of rxllm's own clients, here and in the programs that the test starts."""
    monkeypatch.setenv("RXLLM_TRANSPORT", request.param)
    return request.param
