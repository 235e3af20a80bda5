"""Where Google's API is, and with which key it is asked."""

from __future__ import annotations

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
