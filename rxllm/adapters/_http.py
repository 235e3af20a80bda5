"""The base of the adapters that speak HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rxllm.events import Event
from rxllm.runtime import Clients, Decoder, Stream, http_stream, keys, transport_error
from rxllm.values import Call, LLMError, Request, ValidationError

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 60.0
SECRET_LENGTH = 8


class HTTPAdapter:
    """Gives ``stream`` to a class that has `build`, `decoder` and `error`.

    `client` is an ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, or a function that makes one; `headers` are sent
    with every request; `timeout` is the longest silence between two reads, in seconds.
    """

    provider: ClassVar[str]
    default_base_url: ClassVar[str]
    key_variable: ClassVar[str | None] = None

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.base_url = (base_url or self.default_base_url).rstrip("/")
        self.headers = dict(headers or {})
        self.timeout = timeout
        self._api_key = api_key
        self._clients = Clients(client)

    def build(self, request: Request, call: Call) -> httpx.Request:
        """The request as it would be sent. Nothing is sent."""
        raise NotImplementedError

    def decoder(self, request: Request, *, raw: bool = False) -> Decoder:
        """A fresh decoder of the answer to `request`; `raw` asks for ``RawChunk`` events too."""
        raise NotImplementedError

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        """What an answer with an HTTP status of 300 or more means."""
        raise NotImplementedError

    async def prepare(self, request: Request, call: Call) -> None:
        """Whatever must happen before `build`; nothing, for most."""

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """The events of the answer. Each subscription sends the request anew."""
        return http_stream(lambda: _Exchange(self, request, call))

    async def aclose(self) -> None:
        """Close the running loop's connections. The adapter can be used again."""
        await self._clients.aclose()

    def key(self, call: Call) -> str | None:
        """The API key of `call`.

        Raises ``EngineError("missing_key")`` if there is none and the provider's own server is asked; others may need
        none.
        """
        found = self._find_key(call)
        if found is None and self.base_url == self.default_base_url:
            raise keys.missing(self.provider, self.key_variable)
        return found

    def post(self, path: str, body: Mapping[str, Any], call: Call, *, headers: Mapping[str, str]) -> httpx.Request:
        """A POST of `body` as JSON to `path` under the base URL."""
        try:
            content = msgspec.json.encode(body)
        except TypeError as error:
            raise ValidationError("invalid_request", f"the request has no JSON form: {error}") from error
        silence = call.timeout or self.timeout
        timing: dict[str, Any] = {"timeout": (CONNECT_SECONDS, silence, WRITE_SECONDS, None)} if silence else {}
        sent = {"content-type": "application/json", **headers, **self.headers}
        _refuse_unsendable(sent)
        url = f"{self.base_url}/{path.lstrip('/')}"
        try:
            return self._clients.any().build_request("POST", url, content=content, headers=sent, **timing)
        except Exception as error:
            broken = transport_error(error, self.provider, url)
            if broken is None:
                raise
            raise broken from error

    def _find_key(self, call: Call) -> str | None:
        return keys.find(self.provider, call.api_key, self._api_key, self.key_variable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"


def _refuse_unsendable(headers: Mapping[str, str]) -> None:
    # The transport would say so too, and show the header: the key.
    wrong = [name for name, text in headers.items() if not _SENDABLE.fullmatch(text)]
    if wrong:
        errors = [(("headers", name), "holds characters that no header may hold") for name in wrong]
        raise ValidationError("invalid_request", errors=errors)


_SENDABLE = re.compile(r"[!-~]+([ \t]+[!-~]+)*|")


class _Exchange:
    """One call, as the HTTP source wants it told."""

    def __init__(self, adapter: HTTPAdapter, request: Request, call: Call) -> None:
        self.provider = adapter.provider
        self._adapter = adapter
        self._request = request
        self._call = call

    async def open(self) -> tuple[httpx.AsyncClient, httpx.Request]:
        await self._adapter.prepare(self._request, self._call)
        client = await self._adapter._clients.get()  # pyright: ignore[reportPrivateUsage]
        return client, self._adapter.build(self._request, self._call)

    def decoder(self) -> Decoder:
        return self._adapter.decoder(self._request, raw=self._call.raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        key = self._adapter._find_key(self._call) or ""  # pyright: ignore[reportPrivateUsage]
        if len(key) >= SECRET_LENGTH:  # some servers say which key they refuse
            body = body.replace(key.encode(), b"[key]")
        return self._adapter.error(status, headers, body)
