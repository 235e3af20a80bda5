"""What all adapters that speak HTTP share: where they ask, with which key and client, and how a request is made."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

from rxllm.adapters._http_errors import http_error
from rxllm.runtime import CONNECT_SECONDS, WRITE_SECONDS, Clients, keys, transport_error
from rxllm.runtime._http_stream import address
from rxllm.runtime._redact_secrets import keyless_url, public_url, secrets_in, secrets_of_url
from rxllm.values import AdapterError, Call, EngineError, ImageRequest, LLMError, Request, ValidationError
from rxllm.values._json import json_bytes, well_formed
from rxllm.values.secrets import is_secret_name

if TYPE_CHECKING:
    import httpx

File = tuple[str, tuple[str, bytes, str]]
"""A form's field that is a file: the field's name, and the file's name, bytes and type."""


class HTTPBase(ABC):
    """Where an adapter asks, and how.

    `client` is an ``httpx.AsyncClient`` or ``httpx2.AsyncClient``, or a function that makes one, such as
    ``adapters.aiohttp_client``; with ``http2=True`` no answer can be ended at the server, only here. `headers` are sent
    with every request; `timeout` is the longest silence of the model, in seconds, whatever a server sends to keep the
    connection open.
    """

    provider: str
    default_base_url: str
    key_variable: str | None = None

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.base_url = _url(base_url or self.default_base_url)
        self.headers = dict(headers or {})
        self.timeout = timeout
        self._api_key = _key(api_key)
        self._client = client
        self._clients = Clients(client)

    def __getstate__(self) -> dict[str, Any]:
        # For pickle: the configuration. A key is looked for again where it is restored, and clients are made there.
        headers = {name: text for name, text in self.headers.items() if not is_secret_name(name)}
        factory = self._client if callable(self._client) else None
        url = keyless_url(self.base_url)
        return {**self._settings(), "base_url": url, "headers": headers, "_api_key": None, "_client": factory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clients = Clients(self._client)

    def __copy__(self) -> Self:
        return self._copied(self._settings())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self._client)] = self._client  # its owner's, and shared
        return self._copied(deepcopy(self._settings(), memo))

    def _copied(self, settings: dict[str, Any]) -> Self:
        made = object.__new__(type(self))
        made.__setstate__(settings)
        return made

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_clients"}

    @abstractmethod
    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        """What an answer with an HTTP status of 300 or more means."""

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
        return self._post(path, call, {"content-type": "application/json", **headers}, content=json_bytes(body))

    def post_form(
        self, path: str, fields: Mapping[str, Any], files: Sequence[File], call: Call, *, headers: Mapping[str, str]
    ) -> httpx.Request:
        """A POST of a form with files, ``multipart/form-data``."""
        data = {name: well_formed(text) if isinstance(text, str) else text for name, text in fields.items()}
        return self._post(path, call, headers, data=data, files=list(files))

    def _post(self, path: str, call: Call, headers: Mapping[str, str], **content: Any) -> httpx.Request:
        silence = call.timeout or self.timeout
        timing: dict[str, Any] = {"timeout": (CONNECT_SECONDS, silence, WRITE_SECONDS, None)} if silence else {}
        sent = {**headers, **self.headers}
        _refuse_unsendable(sent)
        base, _, query = self.base_url.partition("?")
        url = f"{base.rstrip('/')}/{path.lstrip('/')}" + (f"{'&' if '?' in path else '?'}{query}" if query else "")
        try:
            built = self._clients.any().build_request("POST", url, headers=sent, **content, **timing)
        except Exception as error:
            broken = transport_error(error, self.provider, public_url(url))
            if broken is None:
                raise
            raise broken from error
        if not 0 <= (built.url.port or 0) < 1 << 16:
            message = f"{address(built)} has a port that cannot be; write one from 1 to 65535 in the base_url"
            raise AdapterError("invalid_request", message, provider=self.provider)
        return built

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes, built: httpx.Request) -> LLMError:
        try:
            error = self.error(status, headers, body)
        except LLMError as raised:
            error = raised
        except Exception as raised:  # the status is known all the same
            error = http_error(self.provider, status, headers, b"")
            error.__cause__ = raised
        return _located(error, address(built)) if status < 400 or status in (404, 405) else error

    def _secrets(self, request: Request | ImageRequest, call: Call, built: httpx.Request | None) -> list[str]:
        """All that no error of `call` may say."""
        found = [self._find_key(call) or ""]
        headers = [self.headers, dict(built.headers) if built else {}, request.options]
        urls = [self.base_url, *([str(built.url)] if built else [])]
        return [*found, *secrets_in(headers), *(secret for url in urls for secret in secrets_of_url(url))]

    def _find_key(self, call: Call) -> str | None:
        return keys.find(self.provider, call.api_key, self._api_key, self.key_variable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({public_url(self.base_url)!r})"


def _key(api_key: Any) -> str | None:
    if api_key is None or isinstance(api_key, str):
        return api_key
    wrong = (("api_key",), f"is not a string: got a value of the class {type(api_key).__name__}; pass a str, or None")
    raise ValidationError("invalid_option", errors=[wrong])


def _url(given: str) -> str:
    if not re.match(r"https?://[^/\s]+", given):
        wrong = (("base_url",), f"must begin with http:// or https://, not {public_url(given)!r}")
        raise ValidationError("invalid_option", errors=[wrong])
    return given.rstrip("/")


def missing_model(provider: str) -> EngineError:
    """The error of a call that names no model."""
    message = f'{provider} must be told which model: write model="...", or "{provider}:..." for the engine'
    return EngineError("missing_model", message, provider=provider)


def _located(error: LLMError, url: str) -> LLMError:
    # Most answers that nothing is there come of a wrong base_url.
    made = type(error).from_fields({**error.fields(), "message": f"{error.message} ({url})"})
    made.__cause__ = error.__cause__
    return made


def _refuse_unsendable(headers: Mapping[str, str]) -> None:
    # The transport would say so too, and show the header: the key.
    wrong = [name for name, text in headers.items() if not _SENDABLE.fullmatch(text)]
    if wrong:
        errors = [(("headers", name), "holds characters that no header may hold") for name in wrong]
        raise ValidationError("invalid_request", errors=errors)


_SENDABLE = re.compile(r"[!-~]+([ \t]+[!-~]+)*|")
