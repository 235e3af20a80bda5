"""Fixtures of the tests that open examples/web_chat in a browser."""

from tests.web.web_chat import app, browser, chromium, page, provider, url

__all__ = ["app", "browser", "chromium", "page", "provider", "url"]
