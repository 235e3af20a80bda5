"""Read the rest of an answer over a new connection, after the first one has dropped.

The provider must keep the answer while the model is writing it. The call's retry policy decides whether and when to
reconnect. A connection that delivers no new part of the answer counts as an attempt, whatever else it delivers:

=================================================  ====================================================================
the connection                                     effect
=================================================  ====================================================================
drops after new parts of the answer                Start counting attempts from 1 again. Wait, then ask for the rest.
drops or fails without a new part                  The connection counts as an attempt. Wait, then ask for the rest.
reports that the answer is not complete            Wait for at least `POLL_SECONDS`, then ask for the rest. After
                                                   `MOST_POLLED_SECONDS` without a new part, each such connection
                                                   counts as an attempt.
is refused, for example after the key has changed  If the policy does not retry this failure, the stream ends with it.
is disposed                                        Ask the provider to stop generating the answer. If the answer's id
                                                   has not arrived yet, wait up to `ID_SECONDS` for it.
=================================================  ====================================================================

If the stream ends early for any other reason, the provider is also asked to stop generating the answer. But if a later
process will read the answer, the provider is not asked to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from rxllm.http.timeouts import READ_SECONDS
from rxllm.http.transport_errors import may_be_cancelled
from rxllm.runtime import Pump, policy
from rxllm.values import AdapterError, Call, LLMError, StreamError

if TYPE_CHECKING:
    import httpx

    from rxllm.http.stream import Exchange


log = logging.getLogger("rxllm")

STOP_SECONDS = 5.0
"""The number of seconds to wait for the provider to stop an answer."""


ID_SECONDS = 5.0
"""The maximum number of seconds for which a disposed call stays connected to receive the id of its answer."""

POLL_SECONDS = 1.0
MOST_POLLED_SECONDS = READ_SECONDS


class KeptAnswer(Protocol):
    """An answer that the provider keeps. Its properties change while it is being read.

    `position` is where the rest begins, and `progress` grows with every new part of the answer, but not with messages
    that only keep the connection alive. `is_running` is True until the end of the answer has been read. `can_resume` is
    True as long as the rest of the answer can be read over a new connection. `is_pending` is True if the latest
    connection has only reported that the answer is not complete yet. `place` is the URL at which another process can
    read the answer, or None if no other process can.
    """

    @property
    def id(self) -> str | None: ...

    @property
    def place(self) -> str | None: ...

    @property
    def position(self) -> object: ...

    @property
    def progress(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def can_resume(self) -> bool: ...

    @property
    def is_pending(self) -> bool: ...

    def reopen(self, id: str | None) -> None:
        """Prepare to read the whole answer with this `id`, or a new answer if `id` is None."""
        ...

    def refuse(self) -> None:
        """Record that no answer will arrive, because the provider has refused the request."""
        ...

    def drop_partial(self) -> None:
        """Discard the incomplete event that a dropped connection left behind."""
        ...

    def resume(self, call: Call) -> httpx.Request:
        """Prepare to read the rest of the answer, and return the request for it."""
        ...

    def stop(self, call: Call) -> httpx.Request:
        """Return the request that asks the provider to stop the answer."""
        ...


async def read_first(
    exchange: Exchange,
    answer: KeptAnswer,
    request: httpx.Request,
    read: Callable[[httpx.Request], Awaitable[AdapterError | None]],
    client: httpx.AsyncClient,
    pump: Pump[Any],
) -> AdapterError | None:
    """Read the answer that an earlier process left. If there is none, read the answer to `request`.

    If the earlier answer cannot be read, ask the provider to stop it, and read the answer to `request` instead.
    """
    id, rules, attempt = exchange.saved_id(), policy(exchange.retry), 1
    answer.reopen(id)
    if exchange.is_cancelled():
        raise StreamError("cancelled", "the run was cancelled", provider=exchange.provider)
    while id is not None:
        try:
            return await read(await exchange.rebuild(answer.resume))
        except LLMError as refusal:
            if pump.refused:
                raise
            failure = exchange.discreet(refusal)
        if not rules.allows(failure, attempt):
            exchange.note_loss(id, failure)
            await stop_answer(exchange, answer, client, pump, is_lost=True)
            break
        await asyncio.sleep(rules.delay(failure, attempt))
        attempt += 1
    answer.reopen(None)
    refusal: object = None
    pump.grace = 0.0 if answer.id is not None or may_be_cancelled(client) else ID_SECONDS
    try:
        failure = refusal = await read(request)
    except LLMError as error:
        refusal = error
        raise
    finally:
        pump.grace = 0.0
        if isinstance(refusal, AdapterError) and refusal.status is not None:  # the server sent an error or a web page
            answer.refuse()
    return failure


async def read_rest(
    exchange: Exchange,
    answer: KeptAnswer,
    dropped: AdapterError | None,
    read: Callable[[httpx.Request], Awaitable[AdapterError | None]],
    pump: Pump[Any],
) -> AdapterError | None:
    """Read the rest of `answer` over new connections.

    `dropped` is the error that ended the first connection, or None if it ended without an error.
    """
    rules = policy(exchange.retry)
    failure: LLMError | None = dropped
    attempt, has_resumed, since = 1, False, time.monotonic()
    while answer.can_resume and not pump.disposed:
        failure = failure or StreamError("truncated", "the connection ended early", provider=exchange.provider)
        if not rules.allows(failure, attempt):
            return _lost(exchange, answer, failure, dropped) if has_resumed else dropped
        seconds = max(rules.delay(failure, attempt), POLL_SECONDS if answer.is_pending else 0.0)
        where = (exchange.request_id, answer.position)
        log.warning("request %s: cut off after event %s; asking for the rest in %.2f s: %s", *where, seconds, failure)
        exchange.note_drop(failure)
        await asyncio.sleep(seconds)
        answer.drop_partial()
        progress, has_resumed = answer.progress, True
        try:
            failure = await read(await exchange.rebuild(answer.resume))
        except LLMError as refusal:
            if pump.refused:
                raise
            failure = exchange.discreet(refusal)
        if answer.progress != progress:
            attempt, since = 1, time.monotonic()
        elif not answer.is_pending or time.monotonic() - since > MOST_POLLED_SECONDS:
            attempt += 1
    return None if has_resumed else dropped


def _lost(exchange: Exchange, answer: KeptAnswer, failure: LLMError, dropped: AdapterError | None) -> AdapterError:
    answer.drop_partial()
    log.warning("request %s: the rest of the answer cannot be read: %s", exchange.request_id, failure)
    first = dropped.message if dropped is not None else f"{exchange.provider} ended early"
    message = f"{first}; the rest of the answer cannot be read: {failure.message}"
    reason = "timeout" if dropped is not None and dropped.reason == "timeout" else "network_error"
    error = AdapterError(reason, message, provider=exchange.provider)
    error.__cause__ = failure
    return error


async def stop_answer(
    exchange: Exchange, answer: KeptAnswer, client: httpx.AsyncClient, pump: Pump[Any], *, is_lost: bool = False
) -> None:
    """Ask the provider to stop `answer`. If it does not, log a warning.

    If `is_lost` is True, the provider may no longer have the answer, so status 404 is not a problem.
    """
    is_cancelled = False
    problem: object = "the event loop ended"
    with pump.holding():
        for _ in range(3):  # try again if the request is cancelled or its client is closed
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    client = await exchange.client() if client.is_closed else client
                    request = await exchange.rebuild(answer.stop)
                    response = await client.send(request, stream=True, follow_redirects=False)
                    await response.aclose()  # only the status matters, and the body may be huge
                has_nothing = response.status_code == 404 and (is_lost or request.method == "DELETE")
                problem = None if response.status_code < 300 or has_nothing else f"HTTP {response.status_code}"
                break
            except asyncio.CancelledError:
                is_cancelled = True
            except Exception as error:
                problem = type(error).__name__
                if not client.is_closed:
                    break
    if problem is not None:
        where = (exchange.request_id, exchange.provider, answer.id)
        log.warning("request %s: %s did not stop the answer %s, which may still cost money: %s", *where, problem)
    if is_cancelled:
        raise asyncio.CancelledError
