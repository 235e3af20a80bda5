"""The adapters for OpenAI's APIs on Azure: https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle.

The model is the name of your deployment. A key is sent in the ``api-key`` header. An Entra ID token is sent as a bearer
token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from rxllm import keys
from rxllm.adapters.http_base import HTTPBase
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.adapters.openai_responses import OpenAIResponses
from rxllm.values import ApiKey, Call, EngineError
from rxllm.values.argument_checks import invalid_option

__all__ = ["AzureChat", "AzureResponses"]


PROVIDER = "azure"
ENDPOINT = "AZURE_OPENAI_ENDPOINT"
SCOPE = "https://ai.azure.com/.default"

# This lists Azure's own domains one by one, because customers' servers can also be under azure.com.
_IS_AZURE = re.compile(r"https://[\w-]+\.(openai|cognitiveservices|services\.ai)\.azure\.(com|us|cn)(:\d+)?([/?]|$)")
_IS_TOKEN = re.compile(r"eyJ[\w-]*\.[\w-]")
"""Matches the start of a JSON Web Token."""


class AzureKeys(HTTPBase):
    """Finds the base URL of an Azure resource, and its key or token."""

    provider = PROVIDER
    key_variable = None
    default_base_url = "https://RESOURCE.openai.azure.com/openai/v1"
    base_url_variable = ENDPOINT

    @staticmethod
    def url_of_variable(text: str) -> str:
        url = text.rstrip("/")
        return url if re.search(r"/openai(/|\?|$)", url) else f"{url}/openai/v1"

    def key(self, call: Call) -> str | None:
        if self.base_url == self.default_base_url:
            form = "https://NAME.openai.azure.com/openai/v1"
            fault = f"must be the address of your Azure resource: set {ENDPOINT}, or pass base_url={form!r}"
            raise invalid_option("base_url", fault)
        return super().key(call)

    def key_headers(self, key: str) -> dict[str, str]:
        return super().key_headers(key) if _IS_TOKEN.match(key) else {"api-key": key}

    def _find_key(self, call: Call) -> ApiKey | None:
        names = {name.lower() for name in (*self.headers, *call.headers)}
        if names & {"api-key", "authorization"}:
            return None
        is_own = self.base_url != self.default_base_url and _IS_AZURE.match(self.base_url)
        return super()._find_key(call) or (entra_token if is_own else None)


class AzureChat(AzureKeys, OpenAIChat):
    """An `OpenAIChat` for deployments on Azure: ``"azure:my-deployment"``.

    Pass a `base_url` such as ``https://NAME.openai.azure.com/openai/v1``, or set ``AZURE_OPENAI_ENDPOINT``. The
    variable's value can omit ``/openai/v1``. To use a dated API version, pass
    ``.../openai/deployments/NAME?api-version=2024-10-21``.

    The key is looked up in the call, then in `api_key`, then in the variables ``AZURE_OPENAI_AD_TOKEN`` and
    ``AZURE_OPENAI_API_KEY``. If ``rxllm[azure]`` is installed, the key can be a function that
    ``get_bearer_token_provider`` returns. If there is no key, a token from ``DefaultAzureCredential`` is used, but it
    is sent only to Azure's own servers.
    """

    def _is_openai(self) -> bool:
        return True  # even if the base URL is the address of a gateway


class AzureResponses(AzureKeys, OpenAIResponses):
    """An `OpenAIResponses` for deployments on Azure: ``"azure-responses:my-deployment"``.

    For the base URL and the key, see `AzureChat`. If the deployment of a reasoning model is not named after the model,
    set `reasoning_effort`, so that encrypted reasoning is requested.
    """


def entra_token() -> str:
    """Return an Entra ID token from azure-identity.

    Raises ``EngineError("missing_key")`` if azure-identity is not installed or cannot find credentials.
    """
    try:
        return _token_provider()()
    except ImportError as error:
        raise _no_login("to log in with Entra ID, run pip install 'rxllm[azure]'") from error
    except Exception as error:
        raise _no_login("azure-identity found no credentials (try az login); see the cause of this error") from error


@cache
def _token_provider() -> Callable[[], str]:
    identity: Any = import_module("azure.identity")
    return identity.get_bearer_token_provider(identity.DefaultAzureCredential(), SCOPE)


def _no_login(remedy: str) -> EngineError:
    missing = keys.missing(PROVIDER)
    return EngineError("missing_key", f"{missing.message}; {remedy}", provider=PROVIDER, metadata=missing.metadata)
