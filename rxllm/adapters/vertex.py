"""The adapter for Gemini and Claude on Vertex AI: https://docs.cloud.google.com/vertex-ai/generative-ai/docs.

Google's models are called with the body of `Gemini`, and Claude with the body of `Anthropic`. The model is in the path,
and so are project and location:

=========  ===============================================================  ========================================
setting    variables for Gemini                                             variables for Claude, read before Gemini's
=========  ===============================================================  ========================================
project    ``GOOGLE_CLOUD_PROJECT``, then the project of the credentials    ``ANTHROPIC_VERTEX_PROJECT_ID``
location   ``GOOGLE_CLOUD_LOCATION``, then ``global``                       ``CLOUD_ML_REGION``
address    ``GOOGLE_VERTEX_BASE_URL``, then the location's                  ``ANTHROPIC_VERTEX_BASE_URL``
=========  ===============================================================  ========================================
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
from rxllm.adapters.gemini import API_KEYS, model_path
from rxllm.adapters.gemini import request as gemini
from rxllm.adapters.gemini.decoder import GeminiDecoder, use_status_as_code
from rxllm.adapters.http_base import missing_model, versioned
from rxllm.http import Decoder
from rxllm.runtime import Stream
from rxllm.values import AdapterError, ApiKey, Call, EngineError, Request, TokenCount
from rxllm.values.advice import explains_options
from rxllm.values.argument_checks import invalid_option, shown

if TYPE_CHECKING:
    import httpx


__all__ = ["Vertex"]


PROVIDER = "vertex"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CLAUDE_VERSION = "vertex-2023-10-16"
"""The default ``anthropic_version``, which Vertex AI expects in the body."""

_IS_CLAUDE = re.compile(r"(?i)(.*/)?claude")


class GoogleToken:
    """Returns an access token of google-auth's credentials, and renews it shortly before it expires.

    Without credentials, the application default credentials are loaded at the first call. One object serves all calls,
    so that calls share its token.
    """

    def __init__(self, credentials: Any = None) -> None:
        self._credentials = credentials
        self._is_scoped = False
        self._lock = threading.Lock()
        self.project: str | None = getattr(credentials, "project_id", None)

    @property
    def quota_project(self) -> str | None:
        """The project that is charged for the credentials' quota, if it is not the called project."""
        return getattr(self._credentials, "quota_project_id", None)

    def __call__(self) -> str:
        try:
            auth, transport = import_module("google.auth"), import_module("google.auth.transport.requests")
        except ImportError as error:
            message = (
                "the login of vertex needs google-auth; run pip install 'rxllm[vertex]', or pass a token as api_key"
            )
            raise EngineError("missing_dependency", message, provider=PROVIDER) from error
        with self._lock:
            try:
                credentials = self._scoped(auth)
                if not credentials.valid:
                    credentials.refresh(transport.Request())
            except auth.exceptions.GoogleAuthError as error:
                raise _login_error(error) from error
            return credentials.token

    def _scoped(self, auth: Any) -> Any:
        if self._credentials is None:
            self._credentials, self.project = auth.default(scopes=[SCOPE])
        elif not self._is_scoped:
            scopes = import_module("google.auth.credentials")
            self._credentials = scopes.with_scopes_if_required(self._credentials, [SCOPE])
        self._is_scoped = True
        return self._credentials


def _login_error(error: Any) -> AdapterError | EngineError:
    name = type(error).__name__
    if name == "TransportError" or error.retryable:
        message = f"the login of vertex failed: Google cannot be reached ({name})"
        return AdapterError("network_error", message, provider=PROVIDER)
    message = (
        f"no credentials for vertex ({name}): run gcloud auth application-default login, set "
        "GOOGLE_APPLICATION_CREDENTIALS, or pass credentials=... or api_key=... to the adapter"
    )
    return EngineError("missing_key", message, provider=PROVIDER)


default_token = GoogleToken()
"""The token of the application default credentials, which all adapters share."""


class Vertex(HTTPAdapter):
    """An adapter for Gemini and Claude on Vertex AI: ``"vertex:gemini-2.5-pro"``, ``"vertex:claude-sonnet-4-5"``.

    `project` and `location` are those of your Google Cloud project; a location is a region, ``"us"``, ``"eu"`` or
    ``"global"``. If they are missing, the variables ``GOOGLE_CLOUD_PROJECT`` and ``GOOGLE_CLOUD_LOCATION`` are used,
    then the project of the credentials and ``"global"``. For Claude, ``ANTHROPIC_VERTEX_PROJECT_ID`` and
    ``CLOUD_ML_REGION`` come first.

    `credentials` are credentials of google-auth. Without them, the application default credentials are used, which
    ``gcloud auth application-default login`` creates. Both need ``rxllm[vertex]``. Instead, `api_key` can be an access
    token, or an API key. If no project is set, an API key selects Vertex AI's express mode, and is also read from
    ``GOOGLE_API_KEY``.

    ``Request.options`` works as in `Gemini` and in `Anthropic`. Claude's ``anthropic_version`` is an option too.
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
        """Return the HTTP request. Raises ``EngineError("missing_model")`` if no model is given."""
        if _is_claude(request):
            return self._post_claude("streamRawPredict", claude.messages_body, request, call)
        return self._post_gemini("streamGenerateContent?alt=sse", gemini.gemini_body, request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Return a stream that emits the server's token count."""
        if _is_claude(request):
            build = partial(self._post_claude, "rawPredict", claude.count_body)
            return counted(self, request, call, build, "input_tokens")
        body_of = partial(gemini.count_body, is_vertex=True)
        return counted(self, request, call, partial(self._post_gemini, "countTokens", body_of), "totalTokens")

    def _post_gemini(
        self, method: str, body_of: Callable[[Request], dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        if not request.model:
            raise missing_model(self.provider, self)
        path = model_path(request.model)
        path = f"publishers/google/{path}" if path.startswith("models/") else path
        quota = getattr(self._login(call), "quota_project", None)
        headers = {"x-goog-user-project": quota} if quota else {}
        return self._post_to(f"{path}:{method}", body_of(request), call, headers, is_claude=False)

    def _post_claude(
        self, method: str, body_of: Callable[..., dict[str, Any]], request: Request, call: Call
    ) -> httpx.Request:
        # Its opaque parts are Anthropic's: thinking that one of its servers has signed is valid on the others.
        body = {"anthropic_version": CLAUDE_VERSION, **body_of(request, provider="anthropic")}
        betas = body.pop("betas", None)
        headers = {"anthropic-beta": ",".join(betas)} if betas else {}
        # A request to count tokens has the model in its body, and all others have it in their path.
        name = "count-tokens" if body_of is claude.count_body else quote(str(body.pop("model", "")), safe="@")
        return self._post_to(f"publishers/anthropic/models/{name}:{method}", body, call, headers, is_claude=True)

    def _post_to(
        self, path: str, body: dict[str, Any], call: Call, headers: dict[str, str], *, is_claude: bool
    ) -> httpx.Request:
        key = self.key(call)
        headers |= self.key_headers(key) if key else {}
        project = self._setting("project", is_claude) or getattr(self._login(call), "project", None)
        location = self._setting("location", is_claude) or "global"
        base_url = self._address(location, is_claude)
        if not path.startswith("projects/") and (project or not (key or "").startswith(API_KEYS)):
            path = f"{_place(project, location)}/{path}"
        return self.post(path, body, call, headers=headers, base_url=base_url)

    def key_headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key.startswith(API_KEYS) else super().key_headers(key)

    def _address(self, location: str, is_claude: bool) -> str:
        url = self.base_url
        if url == self.default_base_url:
            url = (is_claude and keys.from_environment("ANTHROPIC_VERTEX_BASE_URL")) or host_of(location)
        base, mark, query = url.partition("?")
        return versioned(base, "v1" if is_claude else "v1beta1") + mark + query

    def _setting(self, name: str, is_claude: bool) -> str | None:
        variables = _VARIABLES[name][0 if is_claude else 1 :]
        return getattr(self, name) or next(filter(None, map(keys.from_environment, variables)), None)

    def _find_key(self, call: Call) -> ApiKey | None:
        if {name.lower() for name in (*self.headers, *call.headers)} & {"authorization", "x-goog-api-key"}:
            return None
        # An API key from the environment is for express mode, which has no project.
        if keys.source(self.provider) in ("environment", "dotenv") and self._setting("project", is_claude=True):
            return call.api_key or self._api_key or default_token
        return super()._find_key(call) or default_token

    def _login(self, call: Call) -> Any:
        """Return the source of the key that was found for `call`, such as a `GoogleToken`."""
        return self._find_key(replace(call, api_key=None))

    def decoder(self, request: Request, *, raw: bool = False) -> Decoder:
        if _is_claude(request):
            return MessagesDecoder(messages=request.messages, raw=raw)
        return GeminiDecoder(messages=request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        # Google answers for Claude too, for example if a token has expired.
        return use_status_as_code(use_type_as_code(http_error(self.provider, status, headers, body)))


_VARIABLES = {
    "project": ("ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"),
    "location": ("CLOUD_ML_REGION", "GOOGLE_CLOUD_LOCATION"),
}
"""The variables for each setting. The first is for Claude only."""


def _is_claude(request: Request) -> bool:
    return _IS_CLAUDE.match(request.model or "") is not None


def host_of(location: str) -> str:
    """Return the address of Vertex AI's server for `location`.

    >>> host_of("global"), host_of("eu"), host_of("europe-west1")  # doctest: +NORMALIZE_WHITESPACE
    ('https://aiplatform.googleapis.com', 'https://aiplatform.eu.rep.googleapis.com',
     'https://europe-west1-aiplatform.googleapis.com')
    """
    if not re.fullmatch(r"[a-z0-9-]+", location):
        raise invalid_option("location", f"must be a location such as 'global' or 'us-central1', not {shown(location)}")
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if location in ("us", "eu"):
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _place(project: str | None, location: str) -> str:
    if not project:
        fault = "must be your Google Cloud project: set GOOGLE_CLOUD_PROJECT, or pass project='...'"
        raise invalid_option("project", fault)
    return f"projects/{quote(project, safe=':')}/locations/{quote(location, safe='')}"
