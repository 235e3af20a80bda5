"""HTTP over aiohttp, for ``client=aiohttp_client``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rxllm.runtime._http_clients import client_settings
from rxllm.values import EngineError

if TYPE_CHECKING:
    import httpx


def aiohttp_client() -> httpx.AsyncClient:
    """A client like those that adapters make for themselves, over aiohttp: about half of their CPU time where events
    come one by one.

    Needs ``rxllm[aiohttp]``; without it ``EngineError("missing_dependency")`` is raised.

    >>> from rxllm.adapters import OpenAIChat
    >>> OpenAIChat(client=aiohttp_client)
    OpenAIChat('https://api.openai.com/v1')
    """
    try:
        from httpx_aiohttp import HttpxAiohttpClient
    except ImportError as error:
        message = "aiohttp_client needs httpx-aiohttp: pip install 'rxllm[aiohttp]'"
        raise EngineError("missing_dependency", message) from error
    return HttpxAiohttpClient(**client_settings(max_connections=0))  # to aiohttp 0 is no limit, and None is 100
