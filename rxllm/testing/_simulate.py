"""Run an app in a simulated world."""

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
"""Tasks have this many virtual seconds to finish after the app returns."""
SETTLING_SECONDS = 1.0
TURN_SECONDS = 0.01
SHOWN_MOMENTS = 40


class Simulation(NamedTuple):
    """The result of a successful run.

    `value` is the app's result. `error` is the error of the first call that failed after a fault. `duration` is in
    virtual seconds. `steps` is the number of steps taken by the app's tasks.
    """

    seed: int
    value: Any
    error: BaseException | None
    faults: tuple[Moment, ...]
    trace: tuple[Moment, ...]
    duration: float
    steps: int


class SimulationError(AssertionError):
    """Raised if a run fails. The message contains the seed, the faults, and a line of code that repeats the run."""

    def __init__(self, message: str, seed: int, problems: list[str], trace: tuple[Moment, ...]) -> None:
        super().__init__(message)
        self.seed = seed
        self.problems = problems
        self.trace = trace


def simulate(
    app: App, seed: int = 0, *, faults: Collection[str] = FAULTS, cancel: int | None = None, limit: float = 86_400.0
) -> Simulation:
    """Run ``app(world)`` in virtual time with seeded faults.

    The network is in memory. The simulation covers rxllm's HTTP calls, tools, ``asyncio.sleep``, timeouts and Rx
    timers. It also covers asyncio libraries that connect without TLS. ``world.serve(script)`` returns a server that
    answers like a `Loopback`.

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

    The same seed gives the same run in every process. A run fails if the app raises an error or waits forever. It also
    fails if the app leaves behind a task, a timer, an open connection or an occupied slot in a connection pool. After
    the app returns, its tasks have 30 virtual seconds to finish. An `AdapterError` or `StreamError` after a fault is
    not a failure. It becomes the result's `error`. A failed run is repeated with fewer kinds of fault, and the
    `SimulationError` describes the failure that needed the fewest kinds. rxllm's warnings are not logged.

    These are the kinds of `faults`. Each kind is enabled in about a third of all runs:

    ===========  =====================================================================================================
    ``refuse``   A connection is refused.
    ``cut``      The server's output stops at some point, with a FIN or a reset.
    ``stall``    A connection attempt, or the server's output, stalls for some time or forever.
    ``slow``     From some point on, the server's output arrives only a few bytes at a time.
    ``429``      A request is refused with status 429.
    ``cancel``   The app, or its `World.cancellable` section, is cancelled at some step of some task.
    ``reorder``  Tasks that wake up at the same time run in a different order, or one turn later.
    ===========  =====================================================================================================

    If `cancel` is given, the app is cancelled before the step with that number. `simulate_cancels` tries every
    step. `limit` is the maximum virtual time in seconds.

    Sync tools and other blocking functions run on the simulation's thread. If they sleep, their results are delayed.
    The app must not start a thread or call ``run()``. Doing so raises an error. The simulation does not control
    ``datetime.now()``, ``threading`` locks, or the order of a set of strings. A process runs one simulation at a time.
    Simulations on other threads wait for their turn.

    Raises ``ValidationError("invalid_option")`` for invalid arguments.
    """
    _check_arguments(app, seed, faults, cancel, limit)
    check_outside()
    _import_modules(chosen_transport().modules)

    def repeat(kinds: Collection[str]) -> Simulation:
        run = functools.partial(contextvars.copy_context().run, _Run(app, seed, kinds, cancel, limit).run)
        # A thread can run only one loop, and in a notebook one is already running.
        return run() if running_loop() is None else daemon_threads().submit(run).result()

    try:
        return repeat(faults)
    except SimulationError as error:
        failed = _drop_faults(error, [kind for kind in faults if kind in Faults(seed, faults).enabled], repeat)
    raise failed from failed.__cause__


def _drop_faults(failed: SimulationError, kinds: list[str], run: Callable[..., object]) -> SimulationError:
    """Repeat a failed run with fewer kinds of fault, and return the failure that needs the fewest kinds."""
    for kind in list(kinds):
        fewer = [other for other in kinds if other != kind]
        try:
            run(fewer)
        except SimulationError as error:
            if error.problems[0].partition("(")[0] == failed.problems[0].partition("(")[0]:  # an error of the same kind
                kinds, failed = fewer, error
    return failed


@functools.cache
def _import_modules(modules: tuple[str, ...]) -> None:
    # If these modules were imported during the first run, that run would differ from later runs.
    daemon_threads().submit(asyncio.run, prepare(modules)).result()


def simulate_many(app: App, seeds: Iterable[int] = range(1000), **options: Any) -> list[Simulation]:
    """Run `app` with each of `seeds` until a run fails.

    The results have no traces. `options` are passed to `simulate`.
    """
    check("seeds", seeds, isinstance(seeds, Iterable), "an iterable of seeds, such as range(1000)")  # pyright: ignore[reportUnnecessaryIsInstance]
    return [simulate(app, seed, **options)._replace(trace=()) for seed in seeds]


def simulate_cancels(app: App, seed: int = 0, *, faults: Collection[str] = (), **options: Any) -> list[Simulation]:
    """Run `app` many times, and cancel it at a different step each time. This covers every ``await`` in every task."""
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
            self.loop.set_exception_handler(self._on_unhandled_error)
            try:
                self._run_app()
                self._find_leftovers()
            except StuckError as error:
                self.problems.append(f"{error}{self._format_stacks()}")
            finally:
                self._close()
        if self.problems:
            raise SimulationError(self._report(), self.seed, self.problems, tuple(self.loop.trace)) from self.error
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
        self.loop.schedule_cancel(task, self.cancel)
        try:
            self.loop.run_until_complete(task)
        except asyncio.CancelledError:
            if not any("cancel" in fault.what for fault in self.world.faults):
                self.problems.append("the app was cancelled, but not by the simulation")
        except (StuckError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._record_error(error, "the app raised")
        self.loop.schedule_cancel(None, None)

    def _record_error(self, error: BaseException, what: str) -> None:
        """Record `error` as a problem, unless it was raised by a call that failed after a fault."""
        if error is self.error:
            return
        self.error = self.error or error
        if not (isinstance(error, AdapterError | StreamError) and self.world.faults):
            self.problems.append(f"{what} {error!r}")

    def _on_unhandled_error(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        error = details.get("exception") or RuntimeError(details["message"])
        self._record_error(error, f"{details['message']}:")

    def _find_leftovers(self) -> None:
        self._run_outside(self._wait_for_tasks())
        if self.loop.app_tasks():
            self.problems.append(f"tasks were left behind{self._format_stacks()}")
        self.pools.count_all()
        if self.pools.lost:
            what = f"an httpcore connection pool has lost {self.pools.lost} of its slots"
            self.problems.append(
                f"{what}: a cancelled call did not release its slot, so later calls wait for that slot"
            )
        self._run_outside(self.loop.shutdown_asyncgens())
        self._run_outside(asyncio.sleep(SETTLING_SECONDS))
        for server in self.world.servers:
            if opened := server.open_connections():
                self.problems.append(f"{len(opened)} connections to port {server.port} were left open")
            self.problems += [
                f"the script of the server on port {server.port} raised {error!r}" for error in server.errors
            ]
        if not self.loop.app_tasks():
            self.problems += [f"a timer was left behind: {_describe_timer(timer)}" for timer in self.loop.app_timers()]

    async def _wait_for_tasks(self) -> None:
        async with asyncio.timeout(ENDING_SECONDS):
            await asyncio.sleep(TURN_SECONDS)
            while tasks := self.loop.app_tasks():
                await asyncio.wait(tasks)
                await asyncio.sleep(TURN_SECONDS)  # a task may start another task as it ends

    def _run_outside(self, coro: Any) -> None:
        """Run `coro` in the simulation, but not as part of the app."""
        with contextlib.suppress(TimeoutError):
            self.loop.run_until_complete(self.loop.create_task(coro, context=world_context()))

    def _close(self) -> None:
        self.loop.schedule_cancel(None, None)
        self.loop.limits = float("inf"), self.loop.steps + MAX_STEPS
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        with contextlib.suppress(StuckError):
            self._run_outside(asyncio.sleep(SETTLING_SECONDS))
            self._run_outside(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _format_stacks(self) -> str:
        return "".join(f"\n  {task.label}\n{_format_stack(task)}" for task in self.loop.app_tasks())

    def _report(self) -> str:
        faults = self.world.faults
        shown = [moment for moment in self.loop.trace if moment.what != RUNS][-SHOWN_MOMENTS:]
        parts = [
            f"seed {self.seed}: " + "\n".join(self.problems),
            f"{len(faults)} faults:" + "".join(f"\n{fault}" for fault in faults),
            f"the trace has {len(self.loop.trace)} lines; these are the last lines that are not task steps:"
            + "".join(f"\n{line}" for line in shown),
            f"repeat it with simulate({getattr(self.app, '__qualname__', self.app)}, seed={self.seed}, {self.options})",
        ]
        return "\n\n".join(parts)


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    # The garbage collector would run finalizers at unpredictable times.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_warnings(loop: VirtualLoop) -> Generator[None]:
    # A thousand runs would log thousands of retries.
    def is_logged(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or running_loop() is not loop

    log = logging.getLogger("rxllm")
    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)


def _format_stack(task: NumberedTask) -> str:
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        kind = "cr" if hasattr(awaited, "cr_frame") else "ag" if hasattr(awaited, "ag_frame") else "gi"
        if (frame := getattr(awaited, f"{kind}_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _describe_timer(timer: Any) -> str:
    function = getattr(timer._callback, "func", timer._callback)
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    return f"{name}, due at {timer.when():.4f} s"


def _check_arguments(app: object, seed: object, faults: Any, cancel: object, limit: object) -> None:
    check("app", app, callable(app), "an async function that takes a World")
    check("seed", seed, type(seed) is int, "a whole number")
    is_collection = not isinstance(faults, str) and isinstance(faults, Collection)
    kinds: list[object] = list(cast(Collection[object], faults)) if is_collection else [None]
    check(
        "faults",
        cast(object, faults),
        all(kind in FAULTS for kind in kinds),
        f"a collection of fault kinds ({', '.join(FAULTS)})",
    )
    if cancel is not None and (type(cancel) is not int or cancel < 1):
        raise invalid_option("cancel", must_be("None, or a step number (1 or greater)", cancel))
    check("limit", limit, is_positive(limit), "a positive number of seconds")
