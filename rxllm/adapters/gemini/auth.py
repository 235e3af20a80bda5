"""The address of Google's API and its models, and the key for them."""

from __future__ import annotations

from urllib.parse import quote

from rxllm.adapters._http_base import HTTPBase, versioned

GOOGLE = "https://generativelanguage.googleapis.com/v1beta"


class GoogleKeys(HTTPBase):
    """Finds the address, and sends the key as Google's API or Vertex wants it: as a key or as a token."""

    provider = "google"
    default_base_url = GOOGLE
    base_url_variable = "GOOGLE_GEMINI_BASE_URL"

    @staticmethod
    def url_of_variable(text: str) -> str:
        """Return the base URL: the SDK's has no version, which it adds to each path."""
        return versioned(text, "v1beta")

    def _auth(self, key: str) -> dict[str, str]:
        is_token = "aiplatform.googleapis.com" in self.base_url and not key.startswith(("AIza", "AQ."))
        return {"authorization": f"Bearer {key}"} if is_token else {"x-goog-api-key": key}


def model_path(model: str) -> str:
    """Return the path of `model` under the base URL: in the collection that its name starts with, such as
    ``tunedModels/``, or else in ``models/``.

    >>> model_path("gemini-2.5-pro"), model_path("tunedModels/mine"), model_path("a/b?c")
    ('models/gemini-2.5-pro', 'tunedModels/mine', 'models/a%2Fb%3Fc')
    """
    collection, _, rest = model.partition("/")
    if not rest or collection not in _COLLECTIONS:
        return f"models/{quote(model, safe='@')}"
    return "/".join(_DOTS.get(name, quote(name, safe="@")) for name in model.split("/"))


_COLLECTIONS = {"models", "tunedModels", "endpoints", "publishers", "projects"}
_DOTS = {".": "%2E", "..": "%2E%2E"}
