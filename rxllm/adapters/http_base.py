"""The base class for all HTTP adapters."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

from rxllm import keys
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.profiles import providers
from rxllm.http import CONNECT_SECONDS, WRITE_SECONDS, Clients, transport_error
from rxllm.http.decompression import ENCODINGS
from rxllm.http.secrets import address, keyless_url, public_url, secrets_in, secrets_of_url
from rxllm.values import AdapterError, ApiKey, Call, EngineError, ImageRequest, LLMError, Request, ValidationError
from rxllm.values.advice import advice, explains_options
from rxllm.values.argument_checks import invalid_option, is_positive, must_be
from rxllm.values.errors import with_origin
from rxllm.values.json_text import json_bytes, well_formed
from rxllm.values.pickles import public_headers
from rxllm.values.secret_names import is_secret_name

if TYPE_CHECKING:
    import httpx


File = tuple[str, tuple[str, bytes, str]]
"""A file to send in a form: ``(field name, (file name, bytes, MIME type))``."""

_TEXT = re.compile(r"[!-~]+([ \t]+[!-~]+)*|")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_WRITTEN_BY_TRANSPORT = ("content-length", "transfer-encoding")
_NOT_FOUND = re.compile(
    r"HTTP 40[45]|(404 )?(page |file |route |path )?not found\.?|method not allowed\.?|invalid url .*", re.IGNORECASE
)
"""Matches error messages that point to a wrong URL rather than to a missing model."""


class HTTPBase(ABC):
    """An adapter's connection to its server.

    `client` is an httpx or httpx2 ``AsyncClient``, or a function that returns one, such as ``adapters.aiohttp_client``.
    If the client uses HTTP/2 (``http2=True``), disposing of a call does not stop it on the server.

    `api_key` can be a function that returns the key; see ``rxllm.keys``. `headers` are sent with every request. A
    call's own `headers` override them. `timeout` is how many seconds the model may stay silent. Keep-alive messages do
    not reset this timeout.
    """

    provider: str
    default_base_url: str
    key_variable: str | None = None
    needs_key = True
    """Whether the provider's own server needs a key."""
    base_url_variable: str | None = None
    """The environment variable for the base URL."""
    _left_behind: tuple[str, ...] = ()
    """The names of the secret arguments that were left out of the pickle."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # If a subclass defines its own URL, the environment variable must not override it.
        if "default_base_url" in vars(cls) and "base_url_variable" not in vars(cls):
            cls.base_url_variable = None

    @explains_options("HTTPBase(...)")
    def __init__(
        self,
        *,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.base_url = _read_url(base_url) if base_url else self._environment_url() or _read_url(self.default_base_url)
        self.headers = _read_headers(headers)
        if timeout is not None and not is_positive(timeout):
            fault = must_be("a positive number of seconds", timeout)
            raise invalid_option("timeout", f"{fault}; for other limits, write {advice('arguments', 'timeout')}")
        self.timeout = timeout
        self._api_key = _check_key(api_key)
        self._client = client
        self._clients = Clients(client)

    def __getstate__(self) -> dict[str, Any]:
        # A pickle contains the settings, but neither keys nor clients.
        own = self._own_secrets()
        secret = (*self.secret_arguments, *self._left_behind)
        return {
            **self._settings(),
            "base_url": keyless_url(self.base_url),
            "headers": public_headers(self.headers),
            "_api_key": None,
            "_client": self._client if callable(self._client) else None,
            "_left_behind": tuple(name for name in ("api_key", "headers", "base_url", *own) if name in secret),
            **dict.fromkeys(own),
        }

    @property
    def secret_arguments(self) -> tuple[str, ...]:
        """The names of the arguments that contain secrets and are therefore not pickled."""
        in_headers, in_url = any(map(is_secret_name, self.headers)), keyless_url(self.base_url) != self.base_url
        secret = {"api_key": bool(self._api_key), "headers": in_headers, "base_url": in_url}
        return (*(name for name, is_secret in secret.items() if is_secret), *self._own_secrets())

    def _own_secrets(self) -> tuple[str, ...]:
        names = (name for name, value in self._settings().items() if value and is_secret_name(name))
        return tuple(name for name in names if name != "_api_key" and not hasattr(HTTPBase, name))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clients = Clients(self._client)

    def __copy__(self) -> Self:
        return self._copy_with(self._settings())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        for shared in (self._client, self._api_key):  # the copy shares the caller's objects
            memo[id(shared)] = shared
        return self._copy_with(deepcopy(self._settings(), memo))

    def _copy_with(self, settings: dict[str, Any]) -> Self:
        copied = object.__new__(type(self))
        copied.__setstate__(settings)
        return copied

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_clients"}

    @staticmethod
    def url_of_variable(text: str) -> str:
        """Return the base URL. `text` is the value of the environment variable."""
        return text

    def _environment_url(self) -> str | None:
        variable = self.base_url_variable
        text = variable and keys.from_environment(variable)
        if not variable or not text:
            return None
        try:
            url = self.url_of_variable(text)
            _ = urlsplit(url).port
        except ValueError:
            raise invalid_option(variable, f"must be a URL, not {_public_part(text)!r}") from None
        return _read_url(url, variable)

    @abstractmethod
    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> LLMError:
        """Return the error for a response whose status is 300 or higher."""

    async def aclose(self) -> None:
        """Close the connections that belong to the running loop. The adapter can still be used afterwards."""
        await self._clients.aclose()

    def key(self, call: Call) -> str | None:
        """Return the API key for `call`, or None if there is no key.

        Raises ``EngineError("missing_key")`` if requests go to the provider's own server, that server needs a key, and
        no key is found. Also raises it if the key is a function, or was left out when the adapter was pickled.
        """
        # By the time a request is built, `call` already has the key.
        key = (isinstance(call.api_key, str) and call.api_key.strip()) or self._find_key(call)
        if callable(key):
            fault = f"the api_key for {self.provider} is a function, which cannot be called here"
            message = f"{fault}; pass the key itself: Call(api_key=...)"
            raise EngineError("missing_key", message, provider=self.provider)
        if key is None and self._left_behind and not any(map(is_secret_name, call.headers)):
            raise keys.left_behind(self.provider, self._left_behind, self.key_variable)
        if key is None and self.needs_key and self.base_url == self.default_base_url:
            raise keys.missing(self.provider, self.key_variable)
        return key

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry `key`."""
        return {"authorization": f"Bearer {key}"}

    async def with_key(self, call: Call) -> Call:
        """Return `call` with the key that `build` needs. If the key is a function, it is called."""
        key = self._find_key(call)
        return call if key is None else replace(call, api_key=await keys.resolved(self.provider, key))

    def _check_model(self, model: str | None) -> None:
        """Raise ``ValidationError`` if `model` begins with a provider's name, as in ``"openai:gpt-5"``."""
        # Check only calls to the provider's own server. Other servers can have models with names such as "mistral:7b".
        prefix, colon, _ = (model or "").partition(":")
        if colon and self.needs_key and self.base_url == self.default_base_url and prefix in providers():
            fault = f"{model!r} also names a provider; pass it as the engine: generate({model!r}, ...)"
            raise invalid_option("model", fault)

    def post(self, path: str, body: Mapping[str, Any], call: Call, *, headers: Mapping[str, str]) -> httpx.Request:
        """Build a POST request with `body` as JSON.

        `path` is appended to the base URL. If `path` is itself a complete URL, the base URL is not used.
        """
        sent = {"content-type": "application/json", **headers}
        return self._build("POST", path, call, sent, content=json_bytes(body))

    def get(self, path: str, call: Call, *, headers: Mapping[str, str]) -> httpx.Request:
        """Build a GET request."""
        return self._build("GET", path, call, headers)

    def delete(self, path: str, call: Call) -> httpx.Request:
        """Build a DELETE request."""
        return self._build("DELETE", path, call, {})

    def post_form(
        self, path: str, fields: Mapping[str, Any], files: Sequence[File], call: Call, *, headers: Mapping[str, str]
    ) -> httpx.Request:
        """Build a POST request that sends a form and files."""
        data = {name: well_formed(text) if isinstance(text, str) else text for name, text in fields.items()}
        return self._build("POST", path, call, headers, data=data, files=list(files))

    def _build(self, method: str, path: str, call: Call, headers: Mapping[str, str], **content: Any) -> httpx.Request:
        silence = call.timeout or self.timeout
        timing: dict[str, Any] = {"timeout": (CONNECT_SECONDS, silence, WRITE_SECONDS, None)} if silence else {}
        layers = (call.trace_headers, headers, self.headers, call.headers)
        all_headers = {"accept-encoding": ENCODINGS}  # a client of the user's may ask for others
        all_headers |= {name.lower(): text for layer in layers for name, text in layer.items()}
        _check_headers(all_headers)
        base, _, query = self.base_url.partition("?")
        below = f"/{path.lstrip('/')}" if path else ""
        url = path if re.match("https?://", path) else base.rstrip("/") + below
        url += f"{'&' if '?' in path else '?'}{query}" if query else ""
        try:
            built = self._clients.any().build_request(method, url, headers=all_headers, **content, **timing)
        except Exception as error:
            failure = transport_error(error, self.provider, public_url(url))
            if failure is None:
                raise
            raise failure from None
        if not 0 <= (built.url.port or 0) < 1 << 16:
            message = f"{address(built)} has an invalid port; the port in the base_url must be from 1 to 65535"
            raise AdapterError("invalid_request", message, provider=self.provider)
        return built

    def _refusal(
        self, status: int, headers: Mapping[str, str], body: bytes, built: httpx.Request, model: str | None
    ) -> LLMError:
        """Return the adapter's error for a rejected request.

        If the error depends on the URL, the URL is added to the message. If it depends on the key, a rate limit or the
        provider's state, the provider and the model are added.
        """
        try:
            error = self.error(status, headers, body)
        except LLMError as raised:
            error = raised
        except Exception as raised:  # the adapter could not read the body
            error = http_error(self.provider, status, headers, b"")
            error.__cause__ = raised
        if status < 400 or status in (404, 405):
            where = address(built)
        elif error.reason in ("authentication_failed", "rate_limited", "provider_unavailable"):
            where = ", model ".join(filter(None, (self.provider, model)))
        else:
            return error
        message = f"{error.message} ({where})"
        if _NOT_FOUND.fullmatch(error.message):
            message += f"; is the base_url right? The default is {self.default_base_url}"
        located = type(error).from_fields({**error.fields(), "message": message})
        return with_origin(located, error)

    def _secrets(self, request: Request | ImageRequest, call: Call, built: httpx.Request | None) -> list[str]:
        key = self._find_key(call)
        sources = [self.headers, call.headers, dict(built.headers) if built else {}, request.options]
        urls = [self.base_url, *([str(built.url)] if built else [])]
        return [
            key if isinstance(key, str) else "",
            *secrets_in(sources),
            *(secret for url in urls for secret in secrets_of_url(url)),
        ]

    def _find_key(self, call: Call) -> ApiKey | None:
        return keys.find(self.provider, call.api_key, self._api_key, self.key_variable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({public_url(self.base_url)!r})"


def _check_key(api_key: Any) -> ApiKey | None:
    if api_key is None or isinstance(api_key, str) or callable(api_key):
        return cast("ApiKey | None", api_key)
    # The value could be a key, so the error shows only its type.
    fault = f"must be a string, a function that returns one, or None, not a value of type {type(api_key).__name__}"
    raise invalid_option("api_key", fault)


def _read_headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    kind = type(headers).__name__  # the values could be API keys
    if isinstance(headers, Mapping):
        pairs = dict(cast(Mapping[Any, Any], headers))
        if all(isinstance(text, str) for pair in pairs.items() for text in pair):
            return pairs
    raise invalid_option("headers", f"must be a mapping whose names and values are strings, not {kind}")


def versioned(url: str, version: str) -> str:
    """Append `version` to `url`, unless `url` already ends in an API version.

    >>> versioned("https://proxy.example/", "v1"), versioned("https://proxy.example/v1beta", "v1")
    ('https://proxy.example/v1', 'https://proxy.example/v1beta')
    """
    url = url.rstrip("/")
    return url if re.search(r"/v\d\w*$", url) else f"{url}/{version}"


def _read_url(base_url: str, name: str = "base_url") -> str:
    if not re.match(r"https?://[^/\s]+", base_url):
        raise invalid_option(name, f"must begin with http:// or https://, not {_public_part(base_url)!r}")
    return base_url.rstrip("/")


def _public_part(wrong_url: str) -> str:
    return public_url(wrong_url.rpartition("@")[2])


def _check_headers(headers: Mapping[str, str]) -> None:
    # Check the headers here, because the transport's own error would show the header, which may contain a key.
    unsendable = [name for name, text in headers.items() if not (_NAME.fullmatch(name) and _TEXT.fullmatch(text))]
    if unsendable:
        errors = [(("headers", name), "has characters that are not allowed in a header") for name in unsendable]
        raise ValidationError("invalid_request", errors=errors)
    for name in _WRITTEN_BY_TRANSPORT:
        if name in headers:
            fault = "is set by the HTTP client; leave it out"
            raise ValidationError("invalid_request", errors=[(("headers", name), fault)])


def missing_model(provider: str, adapter: HTTPBase | None = None) -> EngineError:
    """Return the error for a call that does not name a model."""
    remedy = f'model="...", or "{provider}:..." as the engine'
    if adapter is not None and adapter.base_url != adapter.default_base_url and type(adapter).provider == provider:
        remedy = f'model="..." in the call, or Engine({type(adapter).__name__}(...), model="...")'
    message = f"{provider} needs a model: write {remedy}"
    return EngineError("missing_model", message, provider=provider)
