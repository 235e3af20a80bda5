"""The adapter for Gemini and Claude on Vertex AI: https://docs.cloud.google.com/vertex-ai/generative-ai/docs.

The request bodies are nearly the same as in `Gemini` and `Anthropic`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rxllm import keys
from rxllm.adapters._http import HTTPAdapter, counted
from rxllm.adapters._http_errors import http_error
from rxllm.adapters.anthropic import request as claude
from rxllm.adapters.anthropic.decoder import MessagesDecoder, use_type_as_code
from rxllm.adapters.anthropic.refused_thoughts import resending
from rxllm.adapters.gemini import API_KEYS, model_path
from rxllm.adapters.gemini import request as gemini
from rxllm.adapters.gemini.decoder import GeminiDecoder, use_status_as_code
from rxllm.adapters.http_base import missing_model, versioned
from rxllm.events import Event
from rxllm.http import Decoder
from rxllm.runtime import Stream
from rxllm.values import AdapterError, ApiKey, Call, EngineError, Request, TokenCount
from rxllm.values.advice import explains_options
from rxllm.values.argument_checks import invalid_option, must_be

if TYPE_CHECKING:
    import httpx


__all__ = ["Vertex"]


PROVIDER = "vertex"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CLAUDE_VERSION = "vertex-2023-10-16"
"""The default value of ``anthropic_version`` in the body."""


class GoogleToken:
    """Returns an access token for `credentials`, which must be an object that google-auth created.

    If `credentials` is None, the application default credentials are loaded on first use.
    """

    def __init__(self, credentials: Any = None) -> None:
        self.credentials = credentials
        self.project: str | None = getattr(credentials, "project_id", None)
        self._lock = threading.Lock()

    def __call__(self) -> str:
        try:
            auth, transport = import_module("google.auth"), import_module("google.auth.transport.requests")
        except ImportError as error:
            message = "vertex needs google-auth; run pip install 'rxllm[vertex]', or pass an access token as api_key"
            raise EngineError("missing_dependency", message, provider=PROVIDER) from error
        with self._lock:
            try:
                if self.credentials is None:
                    self.credentials, self.project = auth.default(scopes=[SCOPE])
                self.credentials = auth.credentials.with_scopes_if_required(self.credentials, [SCOPE])
                if not self.credentials.valid:
                    self.credentials.refresh(transport.Request())
            except auth.exceptions.GoogleAuthError as error:
                raise _login_error(error) from error
            return self.credentials.token


def _login_error(error: Any) -> AdapterError | EngineError:
    name = type(error).__name__
    if name == "TransportError" or error.retryable:
        message = f"could not log in to vertex: Google cannot be reached ({name})"
        return AdapterError("network_error", message, provider=PROVIDER)
    message = (
        f"no credentials for vertex ({name}): run gcloud auth application-default login, set "
        "GOOGLE_APPLICATION_CREDENTIALS, or pass credentials=... or api_key=... to the adapter"
    )
    return EngineError("missing_key", message, provider=PROVIDER)


default_token = GoogleToken()


class Vertex(HTTPAdapter):
    """An adapter for Gemini and Claude on Vertex AI.

    Name the model in the form ``"vertex:gemini-2.5-pro"`` or ``"vertex:claude-sonnet-4-5"``. If you do not pass a
    `project`, it is read from ``GOOGLE_CLOUD_PROJECT`` or the credentials. The `location` is either the name of a
    region or one of ``"us"``, ``"eu"`` and ``"global"``. If you do not pass a `location`, it is read from
    ``GOOGLE_CLOUD_LOCATION``; the default is ``"global"``. For Claude, ``ANTHROPIC_VERTEX_PROJECT_ID`` and
    ``CLOUD_ML_REGION`` are read first.

    Create `credentials` with google-auth, which ``rxllm[vertex]`` installs. By default, the application default
    credentials are used. Instead of `credentials`, you can pass an access token or an API key as `api_key`. If there is
    no project, an API key selects express mode, and ``GOOGLE_API_KEY`` is read too.

    ``Request.options`` works in the same way as in `Gemini` and `Anthropic`. For Claude, you can set
    ``anthropic_version`` there.
    """

    provider = PROVIDER
    default_base_url = "https://aiplatform.googleapis.com"
    base_url_variable = "GOOGLE_VERTEX_BASE_URL"

    @explains_options("HTTPBase(...)")
    def __init__(
        self,
        *,
        project: str | None = None,
        location: str | None = None,
        credentials: Any = None,
        api_key: ApiKey | None = None,
        base_url: str | None = None,
        client: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if credentials is not None and api_key is not None:
            raise invalid_option("credentials", "cannot be combined with api_key; pass only one of them")
        key = api_key if credentials is None else GoogleToken(credentials)
        super().__init__(api_key=key, base_url=base_url, client=client, headers=headers, timeout=timeout)
        self.project = project
        self.location = location

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if the request has no model."""
        return self._post_body(request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Ask the server for the number of input tokens, and emit it."""
        field = "input_tokens" if _is_claude(request) else "totalTokens"

        def count(request: Request, call: Call) -> Stream[TokenCount]:
            return counted(self, request, call, partial(self._post_body, is_count=True), field)

        return resending(count, claude.messages_body, request, call) if _is_claude(request) else count(request, call)

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return the answer's events. If Claude's thoughts are refused, the request is sent once more, without them."""
        if not _is_claude(request):
            return super().stream(request, call)
        return resending(super().stream, claude.messages_body, request, call)

    def _post_body(self, request: Request, call: Call, *, is_count: bool = False) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        is_claude, key, login = _is_claude(request), self.key(call), self._find_key(replace(call, api_key=None))
        path, body, headers = (_claude_parts if is_claude else _gemini_parts)(request, is_count)
        headers |= self.key_headers(key) if key else {}
        quota_project = getattr(getattr(login, "credentials", None), "quota_project_id", None)
        if quota_project and not is_claude:
            headers["x-goog-user-project"] = quota_project
        project = self._setting("project", is_claude) or getattr(login, "project", None)
        location = self._setting("location", is_claude) or "global"
        if not re.fullmatch(r"[a-z0-9-]+", location):  # because the location becomes part of a host name
            raise invalid_option("location", must_be("a location such as 'global' or 'us-central1'", location))
        is_express = not project and (key or "").startswith(API_KEYS)
        if not is_express and not path.startswith("projects/"):
            path = f"{_place(project, location)}/{path}"
        return self.post(f"{self._root(location, is_claude)}/{path}", body, call, headers=headers)

    def key_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key.startswith(API_KEYS) else super().key_headers(key)

    def _root(self, location: str, is_claude: bool) -> str:
        version, base = "v1" if is_claude else "v1beta1", self.base_url.partition("?")[0]
        if base != self.default_base_url:
            return versioned(base, version).removeprefix(base)
        own = keys.from_environment("ANTHROPIC_VERTEX_BASE_URL") if is_claude else None
        return versioned(own or host_of(location), version)

    def _setting(self, name: str, is_claude: bool) -> str | None:
        variables = _VARIABLES[name][0 if is_claude else 1 :]
        return getattr(self, name) or next(filter(None, map(keys.from_environment, variables)), None)

    def _find_key(self, call: Call) -> ApiKey | None:
        if {name.lower() for name in (*self.headers, *call.headers)} & {"authorization", "x-goog-api-key"}:
            return None
        # An API key from the environment is meant for express mode, in which there is no project.
        if keys.source(self.provider) in ("environment", "dotenv") and self._setting("project", is_claude=True):
            return call.api_key or self._api_key or default_token
        return super()._find_key(call) or default_token

    def decoder(self, request: Request, *, raw: bool = False) -> Decoder:
        if _is_claude(request):
            ledger, fallbacks = claude.ledger_of(request), bool(request.options.get("fallbacks"))
            return MessagesDecoder(messages=request.messages, fallbacks=fallbacks, raw=raw, ledger=ledger)
        return GeminiDecoder(messages=request.messages, n=gemini.candidate_count(request), raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        # Google itself can also reject a request to Claude. The error then has Google's own format.
        return use_status_as_code(use_type_as_code(http_error(self.provider, status, headers, body)))


_VARIABLES = {
    "project": ("ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"),
    "location": ("CLOUD_ML_REGION", "GOOGLE_CLOUD_LOCATION"),
}
"""The environment variables for each setting. The first variable of each pair is used only for Claude models."""


def _is_claude(request: Request) -> bool:
    return re.match(r"(.*/)?claude", request.model or "") is not None


def _gemini_parts(request: Request, is_count: bool) -> tuple[str, dict[str, Any], dict[str, str]]:
    path = model_path(request.model or "")
    path = f"publishers/google/{path}" if path.startswith("models/") else path
    if is_count:
        return f"{path}:countTokens", gemini.count_body(request, is_vertex=True), {}
    return f"{path}:streamGenerateContent?alt=sse", gemini.gemini_body(request), {}


def _claude_parts(request: Request, is_count: bool) -> tuple[str, dict[str, Any], dict[str, str]]:
    # Each platform that runs Claude accepts thinking that another platform has signed:
    # https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
    body = (claude.count_body if is_count else claude.messages_body)(request)
    body = {"anthropic_version": CLAUDE_VERSION, **body}
    betas = body.pop("betas", None)
    headers = {"anthropic-beta": ",".join(betas)} if betas else {}
    if is_count:
        return "publishers/anthropic/models/count-tokens:rawPredict", body, headers
    model = quote(str(body.pop("model", "")).rpartition("/")[2], safe="@")
    return f"publishers/anthropic/models/{model}:streamRawPredict", body, headers


def host_of(location: str) -> str:
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if location in ("us", "eu"):
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _place(project: str | None, location: str) -> str:
    if not project:
        fault = "must be your Google Cloud project: set GOOGLE_CLOUD_PROJECT, or pass project='...'"
        raise invalid_option("project", fault)
    return f"projects/{quote(project, safe=':')}/locations/{location}"
