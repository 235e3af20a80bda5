"""Run an app in a simulated world, find what it leaves behind, and report how to repeat a failure."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable
from types import FrameType
from typing import Any, NamedTuple, cast

from rxllm.http.clients import chosen_transport, prepare
from rxllm.runtime import daemon_threads, running_loop
from rxllm.testing._simulation_loop import (
    FAULTS,
    MAX_STEPS,
    RUNS,
    Faults,
    Moment,
    NumberedTask,
    StuckError,
    VirtualLoop,
)
from rxllm.testing._simulation_network import world_context
from rxllm.testing._simulation_world import PoolWatch, World, check_outside, stand_ins
from rxllm.values import AdapterError, StreamError
from rxllm.values.argument_checks import check, invalid_option, is_positive, must_be

App = Callable[[World], Awaitable[Any]]

ENDING_SECONDS = 30.0
"""Virtual time for the app's tasks to end after the app: a call may still be connecting."""
SETTLING_SECONDS = 1.0
TURN_SECONDS = 0.01
SHOWN_MOMENTS = 40


class Simulation(NamedTuple):
    """A run that went well: the `value` that the app returned, or the error of a call that it raised after a fault.

    `trace` is what happened, `duration` in seconds of virtual time, `steps` those of the app's tasks.
    """

    seed: int
    value: Any
    error: BaseException | None
    faults: tuple[Moment, ...]
    trace: tuple[Moment, ...]
    duration: float
    steps: int


class SimulationError(AssertionError):
    """A run that failed. The message has its seed, its faults, and the line that runs it again."""

    def __init__(self, message: str, seed: int, problems: list[str], trace: tuple[Moment, ...]) -> None:
        super().__init__(message)
        self.seed = seed
        self.problems = problems
        self.trace = trace


def simulate(
    app: App, seed: int = 0, *, faults: Collection[str] = FAULTS, cancel: int | None = None, limit: float = 86_400.0
) -> Simulation:
    """Run ``app(world)`` in virtual time and on a network in memory, with faults that are drawn from `seed`.

    Everything lives in it: rxllm's calls over HTTP, tools, ``asyncio.sleep`` and timeouts, the timers of Rx, and every
    asyncio library that connects without TLS. ``world.serve(script)`` is a server that answers as a `Loopback` does.

    >>> import rxllm
    >>> from rxllm.testing import simulate, simulate_many
    >>> from rxllm.testing.loopback import Reply, chat
    >>> async def app(world):
    ...     server = world.serve(Reply(chat("Two, ", "three."), before=60.0))
    ...     engine = rxllm.OpenAIChat(base_url=server.url, api_key="k")
    ...     return (await rxllm.generate(engine, "Name two primes.", model="m")).output_text
    >>> run = simulate(app, seed=1, faults=())
    >>> run.value, 60 < run.duration < 63
    ('Two, three.', True)
    >>> len(simulate_many(app, range(20)))
    20

    The same seed gives the same run in every process, step by step; `SimulationError` has the seed and the trace of a
    run that failed. Such a run is repeated without each kind of fault, so that the error has those that matter. A run
    fails if the app raises, waits for ever, or leaves behind a task, a timer, an open connection or a lost place in a
    connection pool; tasks have 30 seconds to end. An `AdapterError` or `StreamError` after a fault does not fail the
    run: it is the result's `error`. Warnings of rxllm, as of retries, are not logged.

    ============  ====================================================================================================
    ``faults``    each kind strikes in about a third of all runs
    ============  ====================================================================================================
    ``refuse``    a connection is refused
    ``cut``       the server's bytes end somewhere, with a FIN or a reset
    ``stall``     connecting, or the server's bytes, stop for a time or for ever
    ``slow``      from somewhere on, bytes arrive a few at a time
    ``429``       a request is refused: too many
    ``cancel``    the app, or its `World.cancellable` section, is cancelled at some step of some task
    ``reorder``   tasks that wake up at the same time do so in another order, or some a turn later
    ============  ====================================================================================================

    With `cancel` that happens before the step of that number; `simulate_cancels` tries all of them. `limit` is how many
    seconds of virtual time the app may take. Blocking functions, such as sync tools, run in place, and what they sleep
    delays their results. Starting a thread raises, and so does ``run()``, which would wait for its own loop. Not
    virtual are ``datetime.now()``, waits for locks of ``threading``, and the order of a set of strings. Of several
    threads that simulate, one runs at a time.

    Raises ``ValidationError("invalid_option")`` for wrong arguments.
    """
    _check(app, seed, faults, cancel, limit)
    check_outside()
    _import(chosen_transport().modules)

    def go(kinds: Collection[str]) -> Simulation:
        run = functools.partial(contextvars.copy_context().run, _Run(app, seed, kinds, cancel, limit).run)
        # A thread runs one loop at a time, so a coroutine or a notebook cell waits for another thread.
        return run() if running_loop() is None else daemon_threads().submit(run).result()

    try:
        return go(faults)
    except SimulationError as error:
        failed = _shrunk(error, [kind for kind in faults if kind in Faults(seed, faults).enabled], go)
    raise failed from failed.__cause__


def _shrunk(failed: SimulationError, kinds: list[str], go: Callable[[Collection[str]], object]) -> SimulationError:
    """Return the failure with the fewest kinds of faults that still lead to the same problem."""
    for kind in list(kinds):
        fewer = [other for other in kinds if other != kind]
        try:
            go(fewer)
        except SimulationError as error:
            if error.problems[0].partition("(")[0] == failed.problems[0].partition("(")[0]:  # the same kind of error
                kinds, failed = fewer, error
    return failed


@functools.cache
def _import(modules: tuple[str, ...]) -> None:
    # Imported first, so that the first run of a process does not differ from later ones.
    daemon_threads().submit(asyncio.run, prepare(modules)).result()


def simulate_many(app: App, seeds: Iterable[int] = range(1000), **options: Any) -> list[Simulation]:
    """Run `app` with each of `seeds` until one fails; `options` are those of `simulate`. The results have no traces."""
    check("seeds", seeds, isinstance(seeds, Iterable), "an iterable of seeds, such as range(1000)")  # pyright: ignore[reportUnnecessaryIsInstance]
    return [simulate(app, seed, **options)._replace(trace=()) for seed in seeds]


def simulate_cancels(app: App, seed: int = 0, *, faults: Collection[str] = (), **options: Any) -> list[Simulation]:
    """Run `app` with a cancel at each of its steps in turn: at every ``await`` of every task."""
    steps = simulate(app, seed, faults=faults, **options).steps
    return [simulate(app, seed, faults=faults, cancel=step, **options)._replace(trace=()) for step in range(1, steps)]


class _Run:
    def __init__(self, app: App, seed: int, faults: Collection[str], cancel: int | None, limit: float) -> None:
        drawn = Faults(seed, faults)
        drawn_cancel = drawn.cancel_at()
        self.app = app
        self.seed = seed
        enabled = tuple(kind for kind in faults if kind in drawn.enabled)
        self.options = f"faults={enabled!r}, cancel={cancel!r}, limit={limit!r}"
        self.cancel = drawn_cancel if cancel is None else cancel
        self.loop = VirtualLoop(drawn, limit)
        self.world = World(self.loop, seed, self.cancel)
        self.pools = PoolWatch()
        self.problems: list[str] = []
        self.error: BaseException | None = None
        self.value: Any = None

    def run(self) -> Simulation:
        with _without_collector(), _without_warnings(self.loop), stand_ins(self.loop, self.seed, self.pools):
            self.loop.set_exception_handler(self._on_unheard)
            try:
                self._run_app()
                self._look()
            except StuckError as error:
                self.problems.append(f"{error}{self._stacks()}")
            finally:
                self._close()
        if self.problems:
            raise SimulationError(self._message(), self.seed, self.problems, tuple(self.loop.trace)) from self.error
        return Simulation(
            seed=self.seed,
            value=self.value,
            error=self.error,
            faults=self.world.faults,
            trace=tuple(self.loop.trace),
            duration=self.loop.time(),
            steps=self.loop.steps,
        )

    def _run_app(self) -> None:
        async def run() -> None:
            self.value = await self.app(self.world)

        task: Any = self.loop.create_task(run(), name="app")
        self.loop.aim(task, self.cancel)
        try:
            self.loop.run_until_complete(task)
        except asyncio.CancelledError:
            if not any("cancel" in fault.what for fault in self.world.faults):
                self.problems.append("the app was cancelled, and not by the simulation")
        except (StuckError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._judge(error, "the app raised")
        self.loop.aim(None, None)

    def _judge(self, error: BaseException, what: str) -> None:
        """Keep the error; after a fault, the failure of a call is no problem, and any other error is."""
        if error is self.error:
            return
        self.error = self.error or error
        if not (isinstance(error, AdapterError | StreamError) and self.world.faults):
            self.problems.append(f"{what} {error!r}")

    def _on_unheard(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        error = details.get("exception") or RuntimeError(details["message"])
        self._judge(error, f"{details['message']}:")

    def _look(self) -> None:
        """Find what the app has left behind."""
        self._run_outside(self._tasks_ended())
        if self.loop.app_tasks():
            self.problems.append(f"tasks were left behind{self._stacks()}")
        self.pools.look()
        if self.pools.lost:
            what = f"a connection pool of httpcore has lost {self.pools.lost} of its places"
            self.problems.append(f"{what}: a call was cancelled, and later ones of that client wait for its connection")
        self._run_outside(self.loop.shutdown_asyncgens())
        self._run_outside(asyncio.sleep(SETTLING_SECONDS))
        for server in self.world.servers:
            if opened := server.open_connections():
                self.problems.append(f"{len(opened)} connections to port {server.port} were left open")
            self.problems += [f"the script of port {server.port} raised {error!r}" for error in server.errors]
        if not self.loop.app_tasks():
            self.problems += [f"a timer was left behind: {_shown(timer)}" for timer in self.loop.app_timers()]

    async def _tasks_ended(self) -> None:
        async with asyncio.timeout(ENDING_SECONDS):
            await asyncio.sleep(TURN_SECONDS)
            while tasks := self.loop.app_tasks():
                await asyncio.wait(tasks)
                await asyncio.sleep(TURN_SECONDS)  # a task that ends may start another

    def _run_outside(self, coro: Any) -> None:
        """Run `coro` as no part of the app."""
        with contextlib.suppress(TimeoutError):
            self.loop.run_until_complete(self.loop.create_task(coro, context=world_context()))

    def _close(self) -> None:
        self.loop.aim(None, None)
        self.loop.limits = float("inf"), self.loop.steps + MAX_STEPS
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.suppress(StuckError):
            self._run_outside(asyncio.sleep(SETTLING_SECONDS))
            self._run_outside(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _stacks(self) -> str:
        return "".join(f"\n  {task.label}\n{_stack(task)}" for task in self.loop.app_tasks())

    def _message(self) -> str:
        faults = self.world.faults
        shown = [moment for moment in self.loop.trace if moment.what != RUNS][-SHOWN_MOMENTS:]
        parts = [
            f"seed {self.seed}: " + "\n".join(self.problems),
            f"{len(faults)} faults:" + "".join(f"\n{fault}" for fault in faults),
            f"the end of the trace, which has {len(self.loop.trace)} lines:" + "".join(f"\n{line}" for line in shown),
            f"again: simulate({getattr(self.app, '__qualname__', self.app)}, seed={self.seed}, {self.options})",
        ]
        return "\n\n".join(parts)


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    # The moment of a collection depends on earlier work of the process, and it may run finalizers.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_warnings(loop: VirtualLoop) -> Generator[None]:
    # Faults are injected on purpose: a thousand runs would log thousands of retries.
    def is_logged(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or running_loop() is not loop

    log = logging.getLogger("rxllm")
    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)


def _stack(task: NumberedTask) -> str:
    """Return the stack of a suspended task, through all coroutines that it awaits."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        kind = "cr" if hasattr(awaited, "cr_frame") else "ag" if hasattr(awaited, "ag_frame") else "gi"
        if (frame := getattr(awaited, f"{kind}_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _shown(timer: Any) -> str:
    function = getattr(timer._callback, "func", timer._callback)
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    return f"{name}, due at {timer.when():.4f} s"


def _check(app: object, seed: object, faults: Any, cancel: object, limit: object) -> None:
    check("app", app, callable(app), "an async function of the world")
    check("seed", seed, type(seed) is int, "a whole number")
    is_collection = not isinstance(faults, str) and isinstance(faults, Collection)
    kinds: list[object] = list(cast(Collection[object], faults)) if is_collection else [None]
    check("faults", cast(object, faults), all(kind in FAULTS for kind in kinds), f"a collection of {', '.join(FAULTS)}")
    if cancel is not None and (type(cancel) is not int or cancel < 1):
        raise invalid_option("cancel", must_be("None, or the number of a step, 1 or more", cancel))
    check("limit", limit, is_positive(limit), "a number of seconds above 0")
