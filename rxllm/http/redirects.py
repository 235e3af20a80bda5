"""Follow redirects without sending keys to another host. httpx itself removes only the ``Authorization`` header."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rxllm.http.secrets import secrets_in, secrets_of_url
from rxllm.values import AdapterError

if TYPE_CHECKING:
    import httpx


BODY_BYTES = 1 << 16
"""The maximum number of bytes to read from the body of a redirect."""

_HARMLESS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
    }
)


async def followed(
    client: httpx.AsyncClient, response: httpx.Response, send: Callable[..., Awaitable[httpx.Response]]
) -> httpx.Response:
    for _ in range(client.max_redirects):
        redirect = response.next_request
        if redirect is None:
            return response
        await _finish(response)
        if not _is_same_host(response.request.url, redirect.url):
            _strip_secrets(redirect, response.request)
        # No ``auth`` is passed, because the client's ``auth`` has already added headers to the original request.
        response = await send(redirect, auth=None)
    if response.next_request is None:
        return response
    await response.aclose()
    raise AdapterError("invalid_request", f"the server redirected more than {client.max_redirects} times")


async def _finish(response: httpx.Response) -> None:
    count = 0
    try:
        async for data in response.aiter_raw():
            count += len(data)
            if count > BODY_BYTES:
                break
    finally:
        await response.aclose()


def _is_same_host(here: httpx.URL, there: httpx.URL) -> bool:
    is_downgrade = here.scheme == "https" and there.scheme != "https"
    return (here.host, here.port) == (there.host, there.port) and not is_downgrade


def _strip_secrets(redirect: httpx.Request, original: httpx.Request) -> None:
    secrets = {*secrets_of_url(str(original.url)), *secrets_in(dict(original.headers))}
    for name in [name for name in redirect.headers if name.lower() not in _HARMLESS]:
        del redirect.headers[name]
    for name, value in redirect.url.params.multi_items():
        if value in secrets:
            redirect.url = redirect.url.copy_remove_param(name)
