"""Log in to AWS as botocore does.

An API key is sent as a bearer token. Without one, each attempt of a call is signed (Signature Version 4): with the
adapter's credentials or, at the addresses of Amazon's Bedrock, with those that botocore finds in variables, files or
the machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.session import Session
from rxllm import EngineError, Request, keys
from rxllm.adapters import HTTPAdapter
from rxllm.values import Call

if TYPE_CHECKING:
    import httpx

_HOST = r"https://(vpce-[\w-]+\.)?{}(-fips)?\.[\w-]+\.(vpce\.)?(amazonaws\.com(\.cn)?|api\.aws)(:\d+)?([/?#]|$)"
"""The addresses of a service of Amazon: anybody can own others, such as those of buckets."""


class AWSAdapter(HTTPAdapter):
    """Base class for adapters that log in to AWS. REGION in `default_base_url` stands for the region.

    `region` defaults to ``AWS_REGION``, ``AWS_DEFAULT_REGION`` or the profile's region. `credentials` are an object of
    botocore or boto3, such as ``boto3.Session(profile_name="work").get_credentials()``.
    """

    key_variable = "AWS_BEARER_TOKEN_BEDROCK"
    needs_key = False  # credentials also work
    service: str
    """The service's name in signatures."""

    host: str
    """The first part of the service's host name."""

    def __init__(self, *, region: str | None = None, credentials: Any = None, **connection: Any) -> None:
        super().__init__(**connection)
        self.region = region
        self.credentials = credentials

    def key_headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    async def prepare(self, request: Request, call: Call) -> None:
        """Find the credentials, or renew them before they expire: both can send requests of their own."""
        if self._signs(call):
            await asyncio.to_thread(self._find_credentials)

    def post(self, path: str, body: Mapping[str, Any], call: Call, *, headers: Mapping[str, str]) -> httpx.Request:
        """Build the request, and sign it unless it has a key."""
        return self._signed(super().post(self._address(path), body, call, headers=headers), call)

    def get(self, path: str, call: Call, *, headers: Mapping[str, str]) -> httpx.Request:
        """Build the request, and sign it unless it has a key."""
        return self._signed(super().get(self._address(path), call, headers=headers), call)

    def _address(self, path: str) -> str:
        is_default = self.base_url == self.default_base_url
        return self.default_base_url.replace("REGION", self._find_region()) + path if is_default else path

    def _signed(self, built: httpx.Request, call: Call) -> httpx.Request:
        if self._signs(call):
            # A proxy may change the other headers.
            signed = {name: text for name, text in built.headers.items() if name == "content-type"}
            request = AWSRequest(built.method, str(built.url), data=built.read(), headers=signed)
            SigV4Auth(self._find_credentials(), self.service, self._find_region()).add_auth(request)
            built.headers.update(dict(request.headers.items()))
        return built

    def _signs(self, call: Call) -> bool:
        is_own = re.match(_HOST.format(self.host), self.base_url, re.IGNORECASE)
        is_amazon = self.base_url == self.default_base_url or is_own
        if not (self.credentials or is_amazon) or self.key(call):
            return False
        return "authorization" not in {name.lower() for name in (*self.headers, *call.headers)}

    def _find_region(self) -> str:
        variable = keys.from_environment("AWS_REGION") or keys.from_environment("AWS_DEFAULT_REGION")
        if region := self.region or variable or session().get_config_variable("region"):
            return region
        message = f"{self.provider} needs a region: set AWS_REGION, or pass region='...' to the adapter"
        raise EngineError("invalid_engine", message, provider=self.provider)

    def _find_credentials(self) -> Any:
        try:
            credentials = self.credentials or session().get_credentials()
            if credentials is not None:
                return credentials.get_frozen_credentials()
            fault = "botocore found none (try aws configure, or aws sso login)"
        except BotoCoreError as error:
            fault = f"botocore raised {type(error).__name__}: {error}"
        message = f"{self.provider} needs a key in {self.key_variable}, or AWS credentials: {fault}"
        raise EngineError("missing_key", message, provider=self.provider)


@cache
def session() -> Session:
    """Return the session that reads AWS's settings. It keeps the credentials, and renews them."""
    return Session()
