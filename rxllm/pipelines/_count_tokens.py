"""count_tokens: how many tokens a request has, before it is sent."""

from __future__ import annotations

from typing import Any, Unpack

from reactivex import Observable, just

from rxllm import validate
from rxllm.engine import Engine
from rxllm.pipelines._call import Setup
from rxllm.pipelines._deferred import Deferred
from rxllm.pipelines._option_help import with_options
from rxllm.pipelines._options import GenerateOptions, request_id
from rxllm.pipelines._request import Input, as_request
from rxllm.runtime import Stream, policy, retrying
from rxllm.values import Request, TokenCount, estimated_tokens


@with_options(GenerateOptions)
def count_tokens(
    engine: Engine | str | Any, request: Input | Request, **opts: Unpack[GenerateOptions]
) -> Stream[TokenCount]:
    """Return the number of tokens that `request` has for the model, with the engine's tools and options.

    >>> from rxllm import Fake
    >>> count_tokens(Fake("2, 3, 5."), "Name three primes.").run()
    TokenCount(tokens=9, estimated=True)

    Anthropic, Gemini, OpenAI's Responses API and the local model count for themselves: one plain request, with the key,
    the retries and the errors of every other. For all others, and for compatible servers that cannot count, it is an
    estimate, and says so: four bytes of text are a token, a message has 4 more, an image or a file that is not text
    1,000, an image of ``detail="low"`` 100.

    The functions of the engine's `prepare` are not called. An adapter of your own that can count has
    ``count_tokens(request, call)``, which returns an Observable of one `TokenCount`.
    """
    setup = Setup.of(engine, GenerateOptions, opts)
    request = as_request(request)
    return setup.returned_by("count_tokens", Deferred(lambda: _count(setup, request)), TokenCount, request)


def _count(setup: Setup, request: Request) -> Observable[TokenCount]:
    request = setup.complete(request)
    validate.request(request)
    count = getattr(setup.engine.adapter, "count_tokens", None)
    if count is None:
        return just(TokenCount(estimated_tokens(request), estimated=True))
    call = setup.call(request_id(setup.options))
    rules: Any = policy(setup.options.get("retry", setup.engine.retry), setup.engine.retry)
    counts: Any = retrying(lambda: count(request, call), rules)
    return counts
