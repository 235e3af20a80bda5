"""Where Google's API and its models are, and with which key they are asked."""

from __future__ import annotations

from urllib.parse import quote

from rxllm.adapters._http_base import HTTPBase
from rxllm.runtime import keys
from rxllm.values import Call

GOOGLE = "https://generativelanguage.googleapis.com/v1beta"

_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY")


class GoogleKeys(HTTPBase):
    """The key is `api_key`, the call's, ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``; for Vertex it may be a token."""

    provider = "google"
    key_variable = " or ".join(_VARIABLES)
    default_base_url = GOOGLE

    def _find_key(self, call: Call) -> str | None:
        # In the order of Google's own SDK.
        found = (keys.find(self.provider, call.api_key, self._api_key, variable) for variable in _VARIABLES)
        return next((key for key in found if key), None)

    def _auth(self, key: str) -> dict[str, str]:
        is_token = "aiplatform.googleapis.com" in self.base_url and not key.startswith(("AIza", "AQ."))
        return {"authorization": f"Bearer {key}"} if is_token else {"x-goog-api-key": key}


def model_path(model: str) -> str:
    """Where `model` is under the base URL: in a collection that its name says, such as ``tunedModels/``, else among the
    models.

    >>> model_path("gemini-2.5-pro"), model_path("tunedModels/mine"), model_path("a/b?c")
    ('models/gemini-2.5-pro', 'tunedModels/mine', 'models/a%2Fb%3Fc')
    """
    collection, _, rest = model.partition("/")
    if not rest or collection not in _COLLECTIONS:
        return f"models/{quote(model, safe='@')}"
    return "/".join(_DOTS.get(name, quote(name, safe="@")) for name in model.split("/"))


_COLLECTIONS = {"models", "tunedModels", "endpoints", "publishers", "projects"}
_DOTS = {".": "%2E", "..": "%2E%2E"}
