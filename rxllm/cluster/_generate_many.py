"""``rxllm.cluster.generate_many``: the same as ``rxllm.generate_many``, with the engine on the workers of a cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from reactivex import abc

import rxllm
from rxllm import Engine, EngineError, Event, Request, Response, Stream
from rxllm.pipelines import GenerateOptions, Input, Responses
from rxllm.values import Call, Progress
from rxllm.values.argument_checks import check, explains_call, invalid_option

if TYPE_CHECKING:
    from distributed import Client

    from rxllm.cluster._lanes import Lanes
    from rxllm.pipelines import PlainOptions

T = TypeVar("T")

_THERE: tuple[str, ...] = ("headers", "include_raw_chunks", "retry", "session_id", "timeout")
"""The options of a call that the engine on the worker follows; all others are in the request, or for the caller."""

_WORKERS = 32
"""For how many workers there are requests at once, also if fewer are there at the beginning."""

_NO_DELTAS = {"emit_text_deltas": False, "emit_tool_deltas": False, "emit_thinking": False}


@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request] | Mapping[str, Input | Request] | Mapping[int, Input | Request],
    *,
    client: Client | None = None,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    response_format: type[T],
    **opts: Unpack[PlainOptions],
) -> Responses[T]: ...
@overload
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request] | Mapping[str, Input | Request] | Mapping[int, Input | Request],
    *,
    client: Client | None = None,
    concurrency: int = 8,
    ordered: bool = True,
    journal: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **opts: Unpack[GenerateOptions],
) -> Responses[Any]: ...
@explains_call("rxllm.cluster.generate_many(engine, requests, client=client)")
def generate_many(
    engine: Engine | str | Any,
    requests: Iterable[Input | Request] | Mapping[str, Input | Request] | Mapping[int, Input | Request],
    *,
    client: Any = None,
    **opts: Any,
) -> Responses[Any]:
    """Return the responses to many requests, which the workers of `client` ask, `concurrency` at a time each.

    Arguments and results are those of ``rxllm.generate_many``. In all, as many calls run at once as `concurrency` times
    the number of workers. A `journal` is a file of this machine, and serves both functions: what one has answered is
    not asked again by the other.

    Without a `client` there is one worker process for each processor of this machine, from the subscription to its end;
    a script then needs ``if __name__ == "__main__":``.

    ::

        from distributed import Client

        engine = Engine("openai:gpt-5-mini", operators=[ops.rate_limited(per_second=50), ops.budget(shared)])
        with Client("tcp://scheduler:8786") as client:
            for response in rxllm.cluster.generate_many(engine, questions, client=client, concurrency=64):
                print(response.output_text)

    The responses come one by one. Dispose closes the connections of all workers; so does the death of this process. The
    requests of a worker that dies are asked again by others, the rest is not; one that was with three workers when they
    died fails. Workers that are added take part, up to 32, or as many as there were at the beginning.

    The engine is pickled, without clients and keys: a worker takes its key from its own environment, and does not know
    those of ``rxllm.keys.put`` and ``load_dotenv`` here. Locks, files and connections cannot travel; a function opens
    them where it runs. What a function of the engine changes there stays there. `journal` is written, and `on_progress`
    and `on_event` are called here, ``on_event`` without the deltas, when a response is complete.

    Observers run on the workers. ``rxllm.otel.traces()`` writes to the global providers there, so each worker sets them
    up: ``client.register_plugin(plugin)`` of a ``distributed.WorkerPlugin`` whose ``setup`` calls
    ``trace.set_tracer_provider``. ``traces(tracer_provider=...)`` cannot travel.

    ``ops.rate_limited`` and ``ops.budget`` of a shared `Budget` in ``engine.operators`` stay here, as the last of the
    operators, so that one limit and one budget hold for all workers. A call has its turn, and reserves, from before it
    is sent to a worker until its answer is back, whatever happens to the worker; what an answer uses over its
    reservation counts at its end and does not cut it. If the engine has no other operators, retries are made from here,
    by any worker, and the limit knows of them.

    Raises ``EngineError("missing_dependency")`` without ``distributed``, ``EngineError("invalid_engine")`` for an
    engine that cannot be pickled (through ``on_error`` if the workers cannot start or cannot read it),
    ``ValidationError("invalid_option")`` for a key in an option or in the adapter, and what ``rxllm.generate_many``
    raises.
    """
    lanes = _lanes_module()
    is_open = client is None or getattr(client, "scheduler", None) is not None
    check("client", client, is_open, "an open distributed.Client, or None")
    if client is None and getattr(current_process(), "_inheriting", False):
        raise SystemExit(f"a worker of rxllm.cluster runs this script when it starts; {lanes.GUARD}")
    many: Any = list(requests) if _are_several(requests) else requests
    rxllm.generate_many(engine, many, **opts)  # which checks everything, and asks nobody
    if opts.get("api_key") is not None:
        raise invalid_option("api_key", f"stays in this process; {_ELSEWHERE}")
    engine = engine if isinstance(engine, Engine) else Engine(engine)
    _check_has_no_key(engine.adapter)
    setup = _setup(engine, opts, lanes.packed)
    responses = rxllm.from_async_iter(partial(_responses, lanes, engine, many, client, setup, opts))

    def subscribe(
        observer: abc.ObserverBase[Response[Any]], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        return responses.subscribe(observer, scheduler=scheduler)

    return Responses(subscribe, is_ordered=opts.get("ordered", True))


def _are_several(requests: Any) -> bool:
    return isinstance(requests, Iterable) and not isinstance(requests, str | Mapping | rxllm.Thread)


_ELSEWHERE = "set the variable of the provider, such as OPENAI_API_KEY, in the environment of the workers"


def _check_has_no_key(adapter: Any) -> None:
    for argument in getattr(adapter, "secret_arguments", ()):
        variable = getattr(adapter, "key_variable", None) or rxllm.keys.variable_for(adapter.provider)
        fault = f"of the adapter {type(adapter).__name__} has a key, which stays in this process; leave it out, and set"
        raise invalid_option(argument, f"{fault} {variable} in the environment of the workers")


async def _responses(
    module: Any, engine: Engine, many: Any, client: Any, setup: bytes, opts: dict[str, Any]
) -> AsyncIterator[Response[Any]]:
    concurrency = opts.get("concurrency", 8)
    there = _followed_there(engine)
    here = {name: value for name, value in opts.items() if name not in there}
    async with module.opened_lanes(client, setup, concurrency) as lanes:
        own_engine = _asked_here(engine, lanes)
        at_once = concurrency * max(lanes.workers, _WORKERS)
        responses = rxllm.generate_many(own_engine, many, **here | {"concurrency": at_once})
        async with rxllm.to_async_iter(responses) as items:
            async for response in items:
                yield response


class _Workers:
    """The adapter of the engine here: it has the workers ask theirs."""

    def __init__(self, lanes: Lanes, adapter: Any) -> None:
        name = getattr(adapter, "__name__", None) or type(adapter).__name__
        self.provider = getattr(adapter, "provider", None) or name  # as it is here: a journal's keys have it
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
    """Whether failures are tried again from here, where a limit knows of it.

    Not if other operators are to see the outcome of all attempts: ``fallback``, say.
    """
    return bool(engine.operators) and all(map(_is_shared, engine.operators))


def _followed_there(engine: Engine) -> tuple[str, ...]:
    return tuple(name for name in _THERE if name != "retry" or not _retries_here(engine))


def _asked_here(engine: Engine, lanes: Lanes) -> Engine:
    """Return the engine that the responses are asked of here: every setting of the request, and what calls share."""
    workers = _Workers(lanes, engine.adapter)
    there, retry = _followed_there(engine), engine.retry if _retries_here(engine) else False
    params = {name: value for name, value in engine.params.items() if name not in there}
    limits = tuple(filter(_is_shared, engine.operators))  # without one, a request waits for a worker as well as a call
    operators = (*limits, lanes.place) if limits else ()
    return replace(engine, adapter=workers, params=params, operators=operators, prepare=(), observers=(), retry=retry)


def _setup(engine: Engine, opts: Mapping[str, Any], packed: Callable[[Any], bytes]) -> bytes:
    """Return the pickle of what a worker needs: the engine, whose requests are complete already, and the options."""
    headers: dict[str, str] = {**(engine.params.get("headers") or {}), **(opts.get("headers") or {})}
    names, retry = _followed_there(engine), False if _retries_here(engine) else engine.retry
    params: dict[str, Any] = {name: value for name, value in engine.params.items() if name in names}
    params["headers"] = headers
    operators = (operator for operator in engine.operators if not _is_shared(operator))
    there = replace(engine, model=None, tools=(), params=params, operators=operators, image_adapter=None, retry=retry)
    options = {name: opts[name] for name in names if name in opts and name != "headers"}
    try:
        data = packed((there, options | _NO_DELTAS))
    except Exception as error:
        raise EngineError("invalid_engine", f"the engine cannot be sent to the workers: {error}") from error
    if pickle.loads(data)[0].params["headers"] != headers:
        raise invalid_option("headers", f"has a key, which stays in this process; {_ELSEWHERE}")
    return data


def _lanes_module() -> Any:
    try:
        return import_module("rxllm.cluster._lanes")
    except ImportError as error:
        message = f"rxllm.cluster needs {error.name}: pip install 'rxllm[cluster]'"
        raise EngineError("missing_dependency", message) from error
