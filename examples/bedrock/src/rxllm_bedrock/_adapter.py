"""The adapters: the Converse API, and the APIs of Bedrock Mantle that are compatible with OpenAI's and Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from rxllm import AdapterError, Request
from rxllm.adapters import Anthropic, OpenAIChat, OpenAIResponses, http_error, missing_model
from rxllm.values import Call

from rxllm_bedrock._decoder import PROVIDER, ConverseDecoder, with_name
from rxllm_bedrock._login import AWSAdapter
from rxllm_bedrock._request import converse_body

if TYPE_CHECKING:
    import httpx


class Bedrock(AWSAdapter):
    """``POST {base_url}/model/{model}/converse-stream``. A model is an id, an inference profile, or an ARN.

    ``Request.options`` is merged into the body: ``guardrailConfig``, ``additionalModelRequestFields`` and so on.
    """

    provider = PROVIDER
    service = "bedrock"
    host = "bedrock-runtime"
    default_base_url = "https://bedrock-runtime.REGION.amazonaws.com"
    base_url_variable = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the request as it will be sent. Raises ``EngineError``: ``missing_model``, ``missing_key``."""
        if not request.model:
            raise missing_model(PROVIDER, self)
        key = self.key(call)
        path = f"/model/{quote(request.model, safe='')}/converse-stream"  # an ARN has slashes
        return self.post(path, converse_body(request), call, headers=self.key_headers(key) if key else {})

    def decoder(self, request: Request, *, raw: bool = False) -> ConverseDecoder:
        return ConverseDecoder(request.messages, raw=raw)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> AdapterError:
        fields = {name.lower(): text for name, text in headers.items()}
        fields.setdefault("request-id", fields.get("x-amzn-requestid", ""))
        name = fields.get("x-amzn-errortype", "").partition(":")[0]
        return with_name(http_error(PROVIDER, status, fields, body), name)


class Mantle(AWSAdapter):
    """What the adapters for Bedrock Mantle share. Its models have names such as ``openai.gpt-oss-120b``."""

    provider = "bedrock-mantle"
    service = host = "bedrock-mantle"


class MantleChat(Mantle, OpenAIChat):
    """An ``OpenAIChat`` for most models of Bedrock Mantle."""

    default_base_url = "https://bedrock-mantle.REGION.api.aws/v1"
    base_url_variable = "AWS_BEDROCK_BASE_URL"


class MantleResponses(Mantle, OpenAIResponses):
    """An ``OpenAIResponses`` for GPT-5, which has an address of its own."""

    default_base_url = "https://bedrock-mantle.REGION.api.aws/openai/v1"
    base_url_variable = "AWS_BEDROCK_BASE_URL"


class MantleClaude(Mantle, Anthropic):
    """An ``Anthropic`` for Claude on Bedrock Mantle."""

    default_base_url = "https://bedrock-mantle.REGION.api.aws/anthropic/v1"
    base_url_variable = "ANTHROPIC_BEDROCK_MANTLE_BASE_URL"
