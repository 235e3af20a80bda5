"""`generate_many`, which sends many requests from a cluster's workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from reactivex import abc

import rxllm
from rxllm import Engine, EngineError, Event, Request, Response, Stream
from rxllm.pipelines import GenerateOptions, Requests, Responses, readable_again
from rxllm.values import Call, Progress
from rxllm.values.argument_checks import check, explains_call, invalid_option

if TYPE_CHECKING:
    from distributed import Client

    from rxllm.cluster._lanes import Lanes
    from rxllm.pipelines import PlainOptions

T = TypeVar("T")

_WORKER_OPTIONS: tuple[str, ...] = ("headers", "include_raw_chunks", "retry", "session_id", "timeout")
"""The call options that apply on the worker."""

_WORKERS = 32
"""The number of workers that a run can grow to if it started with fewer."""

_NO_DELTAS = {"emit_text_deltas": False, "emit_tool_deltas": False, "emit_thinking": False}

_KEY_REMEDY = "set the provider's variable, such as OPENAI_API_KEY, in the workers' environment"


@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Requests,
    *,
    client: Client | None = None,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    usd: float | None = None,
    response_format: type[T],
    **opts: Unpack[PlainOptions],
) -> Responses[T]: ...
@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Requests,
    *,
    client: Client | None = None,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    usd: float | None = None,
    **opts: Unpack[GenerateOptions],
) -> Responses[Any]: ...
@explains_call("rxllm.cluster.generate_many(engine, requests, client=client)")
def generate_many(engine: Engine | str | Any, requests: Requests, *, client: Any = None, **opts: Any) -> Responses[Any]:
    """Send many requests from the workers of `client`.

    The arguments and results are the same as for ``rxllm.generate_many``. Each worker sends up to `concurrency`
    requests at a time. A `journal` is a file on this machine. The same journal also works with
    ``rxllm.generate_many``. Neither function repeats a request that the other function has already answered.

    Without a `client`, each subscription starts one worker process per CPU of this machine. A script then needs
    ``if __name__ == "__main__":``.

    ::

        from distributed import Client

        engine = Engine("openai:gpt-5-mini", operators=[ops.rate_limited(per_second=50), ops.budget(shared)])
        with Client("tcp://scheduler:8786") as client:
            for response in rxllm.cluster.generate_many(engine, questions, client=client, concurrency=64):
                print(response.output_text)

    Responses are emitted one by one. Disposing of the subscription or ending this process closes the connections of
    all workers. If a worker dies, other workers repeat its unfinished requests. A request fails once three workers have
    died while running it. Workers added later take part too, up to a total of 32, or the initial number if that is
    larger.

    The engine is pickled without its clients and keys. A worker reads its key from its own environment. Keys from
    ``rxllm.keys.put`` and ``load_dotenv`` are not sent. Your functions must create their locks, files and connections
    on the worker. If a function changes any state on a worker, the change is not sent back. This process writes the
    `journal`, and calls `on_progress` and `on_event`. When a response is complete, `on_event` receives its events,
    except for deltas.

    Observers run on the workers. ``rxllm.otel.traces()`` writes to the worker's global providers. Set them up in the
    ``setup`` of a ``distributed.WorkerPlugin``, with ``trace.set_tracer_provider``. Then call
    ``client.register_plugin(plugin)``. ``traces(tracer_provider=...)`` cannot be sent.

    ``ops.rate_limited``, and ``ops.budget`` with a shared `Budget`, run last, in this process. They therefore apply to
    all workers together. A call holds its permit and reservation until its answer arrives. Usage above the reservation
    does not stop the answer, and is counted at the end. If the engine has operators and all of them are limits of this
    kind, this process also retries failed calls. Each retry can run on any worker, and counts towards the rate limit.

    Raises the same errors as ``rxllm.generate_many``. Raises ``EngineError("missing_dependency")`` if ``distributed``
    is not installed. Raises ``EngineError("invalid_engine")`` if the engine cannot be pickled. Raises
    ``ValidationError("invalid_option")`` if an option or the adapter contains a key. If the workers cannot start or
    cannot read the engine, the stream fails with ``EngineError("invalid_engine")``.
    """
    try:
        lanes: Any = import_module("rxllm.cluster._lanes")
    except ImportError as error:
        message = f"rxllm.cluster needs {error.name}: pip install 'rxllm[cluster]'"
        raise EngineError("missing_dependency", message) from error
    is_open = client is None or getattr(client, "scheduler", None) is not None
    check("client", client, is_open, "an open distributed.Client, or None")
    if client is None and getattr(current_process(), "_inheriting", False):
        raise SystemExit(f"each worker of rxllm.cluster runs this script when it starts; {lanes.GUARD}")
    many = readable_again(requests)
    rxllm.generate_many(engine, many, **opts)  # only to check the arguments
    if opts.get("api_key") is not None:
        raise invalid_option("api_key", f"is not sent to the workers; {_KEY_REMEDY}")
    engine = engine if isinstance(engine, Engine) else Engine(engine)
    _check_has_no_key(engine.adapter)
    setup = _setup(engine, opts, lanes.pack)
    responses = rxllm.from_async_iter(partial(_responses, lanes, engine, many, client, setup, opts))

    def subscribe(
        observer: abc.ObserverBase[Response[Any]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        return responses.subscribe(observer, scheduler=scheduler)

    return Responses(subscribe, is_ordered=opts.get("ordered", True))


def _check_has_no_key(adapter: Any) -> None:
    for argument in getattr(adapter, "secret_arguments", ()):
        variable = getattr(adapter, "key_variable", None) or rxllm.keys.variable_for(adapter.provider)
        fault = f"of the adapter {type(adapter).__name__} contains a key, and keys are not sent to the workers"
        raise invalid_option(argument, f"{fault}; instead of passing a key, set {variable} in the workers' environment")


async def _responses(
    module: Any, engine: Engine, many: Any, client: Any, setup: bytes, opts: dict[str, Any]
) -> AsyncIterator[Response[Any]]:
    concurrency = opts.get("concurrency", 8)
    own_opts = {name: value for name, value in opts.items() if name not in _worker_options(engine)}
    async with module.open_lanes(client, setup, concurrency) as lanes:
        own_opts["concurrency"] = concurrency * max(lanes.workers, _WORKERS)
        responses = rxllm.generate_many(_own_engine(engine, lanes, own_opts.get("usd")), many, **own_opts)
        async with rxllm.to_async_iter(responses) as items:
            async for response in items:
                yield response


class _Workers:
    def __init__(self, lanes: Lanes, adapter: Any) -> None:
        name = getattr(adapter, "__name__", None) or type(adapter).__name__
        self.provider = getattr(adapter, "provider", None) or name  # a journal's keys contain this name
        self._lanes = lanes

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return rxllm.from_async_iter(partial(self._events, request, call.request_id))

    async def _events(self, request: Request, request_id: str) -> AsyncIterator[Event]:
        events, error = await self._lanes.run(request, request_id)
        for event in events:
            yield event
        if error is not None:
            raise error


def _is_shared(operator: Any) -> bool:
    return getattr(operator, "is_shared", False)


def _retries_here(engine: Engine) -> bool:
    """Return whether this process, rather than the worker, retries failed calls.

    This process retries if the engine's only operators are shared limits, because a shared limit must count every
    attempt. Otherwise, the worker retries. All other operators, such as ``fallback``, run on the worker and must see
    every attempt.
    """
    return bool(engine.operators) and all(map(_is_shared, engine.operators))


def _worker_options(engine: Engine) -> tuple[str, ...]:
    return tuple(name for name in _WORKER_OPTIONS if name != "retry" or not _retries_here(engine))


def _own_engine(engine: Engine, lanes: Lanes, usd: float | None) -> Engine:
    workers = _Workers(lanes, engine.adapter)
    names, retry = _worker_options(engine), engine.retry if _retries_here(engine) else False
    params = {name: value for name, value in engine.params.items() if name not in names}
    limits = tuple(filter(_is_shared, engine.operators))
    operators = (*limits, lanes.place) if limits or usd else ()  # if there are no limits, requests wait in the lanes
    on_worker: dict[str, Any] = {"prepare": (), "observers": (), "system": None}
    return replace(engine, adapter=workers, params=params, operators=operators, retry=retry, **on_worker)


def _setup(engine: Engine, opts: Mapping[str, Any], pack: Callable[[Any], bytes]) -> bytes:
    headers: dict[str, str] = {**(engine.params.get("headers") or {}), **(opts.get("headers") or {})}
    names, retry = _worker_options(engine), False if _retries_here(engine) else engine.retry
    params: dict[str, Any] = {name: value for name, value in engine.params.items() if name in names}
    params["headers"] = headers
    operators = (operator for operator in engine.operators if not _is_shared(operator))
    sent = replace(engine, model=None, tools=(), params=params, operators=operators, image_adapter=None, retry=retry)
    options = {name: opts[name] for name in names if name in opts and name != "headers"}
    try:
        data = pack((sent, options | _NO_DELTAS))
    except Exception as error:
        raise EngineError("invalid_engine", f"the engine cannot be sent to the workers: {error}") from error
    if pickle.loads(data)[0].params["headers"] != headers:
        raise invalid_option("headers", f"contains a key, and keys are not sent to the workers; {_KEY_REMEDY}")
    return data
