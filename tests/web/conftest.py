"""Fixtures of the tests that open examples/web_chat in a browser, and the end of the Node process of `clients`."""

from collections.abc import Iterator

import pytest

from tests.web import clients
from tests.web.web_chat import app, browser, chromium, page, provider, url

__all__ = ["app", "browser", "chromium", "page", "provider", "url"]


@pytest.fixture(scope="session", autouse=True)
def _end_of_node() -> Iterator[None]:
    yield
    clients.end()
