"""An asyncio event loop with virtual time and seeded faults."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import socket
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator
from itertools import groupby
from random import Random
from typing import Any, NamedTuple, NoReturn, cast

from rxllm.testing._simulation_network import connect, of_world, world_context

FAULTS = ("refuse", "cut", "stall", "slow", "429", "cancel", "reorder")
"""The kinds of fault; see `simulate`."""

ENABLED = 0.3
"""The probability that a kind of fault is enabled in a run."""
RATES = (0.1, 0.4, 0.8)
"""The possible values for the probability that an enabled fault strikes.

Each run picks one value and uses it for all faults except ``reorder``.
"""


class Moment(NamedTuple):
    """A line of the trace. `time` is in virtual seconds. `who` names a task, a connection or a server, or is ``"a
    callback"``."""

    time: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.time:10.4f} s  {self.who:<32} {self.what}"


class Fault(NamedTuple):
    """A fault in a connection. It strikes just before byte number `at`. If it is a stall, it lasts `seconds`."""

    kind: str
    at: int
    seconds: float


class Faults:
    """Decides at random which faults strike in one run."""

    def __init__(self, seed: int, kinds: Collection[str]) -> None:
        self.random = Random(seed)
        self.injected: list[Moment] = []
        # Draw a number for every kind, so that later draws do not depend on `kinds`.
        drawn = {kind: self.random.random() < ENABLED for kind in FAULTS}
        self.enabled = {kind for kind in FAULTS if drawn[kind] and kind in kinds}
        self.reorders = "reorder" in self.enabled
        self._rate = self.random.choice(RATES)

    def strikes(self, kind: str) -> bool:
        """Decide at random whether a fault of this kind strikes now."""
        return kind in self.enabled and self.random.random() < self._rate

    def cancel_at(self) -> int | None:
        """Return a random step at which to cancel the app, or None if the app should not be cancelled."""
        return int(10 ** self.random.uniform(0, 3)) if self.strikes("cancel") else None

    def on_connection(self) -> Fault | None:
        """Return a random fault for a new connection, or None if the connection should have no fault."""
        kinds = [kind for kind in ("cut", "stall", "slow") if self.strikes(kind)]
        if not kinds:
            return None
        return Fault(self.random.choice(kinds), int(10 ** self.random.uniform(0, 3.3)), self.seconds())

    def seconds(self) -> float:
        """Return a random duration for a fault, from milliseconds to forever."""
        return float("inf") if self.random.random() < 0.2 else 10 ** self.random.uniform(-3, 2.5)

    def latency(self) -> float:
        """Return a random delay in seconds, for a write or for a connection attempt."""
        return self.random.uniform(0.0002, 0.003)


MAX_STEPS = 1_000_000
"""An app that takes more steps than this is assumed to be in an endless loop."""

DELAYED = 0.1
"""The probability that the ``reorder`` fault delays a task by one turn."""

RUNS = "runs"
"""The text of the trace line that each step of a task adds."""

LACKING = (
    *("create_server", "create_unix_server", "create_unix_connection", "create_datagram_endpoint", "start_tls"),
    *("subprocess_exec", "subprocess_shell", "connect_read_pipe", "connect_write_pipe", "connect_accepted_socket"),
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_sendall", "sock_sendto", "sock_accept", "sock_sendfile"),
)
"""The event loop methods that a `VirtualLoop` does not support. They raise an error."""

TIMER_SECONDS = 1e-9
"""The number of virtual seconds that pass whenever a timer is set.

Because of this, timers with the same delay fire in the order in which they were set, but still in the same turn.
"""


class StuckError(Exception):
    """Raised when the app would wait forever or has exceeded a limit."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is the same in every process."""

    def __init__(self, coro: Any, *, loop: VirtualLoop, name: str | None, **options: Any) -> None:
        self.number = loop.next_number()
        context: contextvars.Context | None = options.get("context")
        self.of_world = of_world.get() if context is None else context.get(of_world, False)
        self.label = f"{name or getattr(coro, '__qualname__', 'task')}#{self.number}"
        super().__init__(coro, loop=loop, name=name, **options)

    def __hash__(self) -> int:
        return self.number


class NumberedFuture(asyncio.Future[Any]):
    """A future whose hash is the same in every process."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class OrderedWeakSet(weakref.WeakValueDictionary[int, Any]):
    """A weak set that keeps its insertion order, so that the loop closes async generators in that order."""

    def add(self, item: Any) -> None:
        self[id(item)] = item

    def discard(self, item: Any) -> None:
        self.pop(id(item), None)

    def __iter__(self) -> Any:
        return self.values()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next timer.

    It has no sockets or threads. The ``reorder`` fault does not break any of asyncio's guarantees. It only shuffles
    adjacent tasks, or delays them by one turn.
    """

    def __init__(self, faults: Faults, limit: float) -> None:
        super().__init__()
        self.faults = faults
        self.trace: list[Moment] = []
        self.steps = 0
        self.limits: tuple[float, int] = (limit, MAX_STEPS)
        """The maximum virtual time, and the maximum number of steps."""
        self.slept = 0.0
        """The number of seconds that the current blocking function has slept so far."""
        self.listeners: dict[int, Callable[[], Any]] = {}
        """Maps each port to its server's protocol factory."""
        self.threads: Any = None
        self._sockets: dict[socket.socket, int] = {}
        self._numbers = 0
        self._now = 0.0
        self._delayed: list[asyncio.Handle] = []  # handles that will run in the next turn
        self._target: NumberedTask | None = None
        self._cancel_at = -1
        self._clock_resolution = 1e-6
        self._asyncgens = OrderedWeakSet()
        self._selector = self  # BaseEventLoop calls self._selector.select()

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def note(self, who: str, what: str) -> None:
        self.trace.append(Moment(self._now, who, what))

    def inject(self, who: str, what: str) -> None:
        """Record a fault, and add it to the trace."""
        self.note(who, f"fault: {what}")
        self.faults.injected.append(self.trace[-1])

    def schedule_cancel(self, task: NumberedTask | None, after: int | None) -> None:
        """Cancel `task` after `after` more steps. If `after` is None, cancel nothing."""
        self._target = None if after is None else task
        self._cancel_at = self.steps + (after or 0)

    def app_tasks(self) -> list[NumberedTask]:
        """Return the app's unfinished tasks, oldest first."""
        tasks = (cast(NumberedTask, task) for task in asyncio.all_tasks(self))
        return sorted((task for task in tasks if not task.of_world), key=lambda task: task.number)

    def app_timers(self) -> list[asyncio.TimerHandle]:
        timers: list[Any] = [handle for handle in cast(Any, self)._scheduled if not handle.cancelled()]
        return [timer for timer in sorted(timers) if not timer._context.get(of_world, False)]

    # Time

    def time(self) -> float:
        return self._now + self.slept

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **options: Any) -> asyncio.TimerHandle:
        self._now += TIMER_SECONDS
        return super().call_at(when, callback, *args, **options)

    def sleep(self, seconds: float) -> None:
        """Stand in for ``time.sleep``.

        A call on the event loop advances the clock. A call in a blocking function only delays the function's result.
        """
        if asyncio.events._get_running_loop() is None:
            self.slept += seconds
        else:
            self._now += seconds

    def select(self, timeout: float | None) -> list[Any]:
        """Begin a turn of the loop, and advance the clock if no callback is ready."""
        if self._delayed:
            cast(Any, self)._ready.extend(self._delayed)
            self._delayed, timeout = [], 0
        if timeout is None:
            raise StuckError("no timer or callback can wake a task: the app waits forever")
        if timeout:
            self._now = max(self._now, cast(Any, self)._scheduled[0]._when)
        if self._now > self.limits[0] or self.steps > self.limits[1]:
            raise StuckError("the app has not ended after {:g} s of virtual time or {} steps".format(*self.limits))
        self._prepare_ready()
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _prepare_ready(self) -> None:
        ready = cast(Any, self)._ready
        if self.faults.reorders:
            self._reorder(ready)
        cancel_before: asyncio.Handle | None = None
        for handle in ready:
            if _is_app_step(handle):
                if self._target is not None and self.steps == self._cancel_at:
                    cancel_before = handle
                self.steps += 1
                self.note(cast(NumberedTask, _task_of(handle)).label, RUNS)
        if cancel_before is not None:
            ready.insert(ready.index(cancel_before), asyncio.Handle(self._cancel_target, (), self))

    def _reorder(self, ready: deque[asyncio.Handle]) -> None:
        """Shuffle adjacent tasks, and delay some by one turn."""
        random = self.faults.random
        for are_tasks, adjacent in groupby(list(ready), lambda handle: _task_of(handle) is not None):
            handles = list(adjacent)
            if are_tasks:
                random.shuffle(handles)
            ready.extend(handles)
            for _ in handles:
                ready.popleft()
        self._delayed = [handle for handle in ready if _is_app_step(handle) and random.random() < DELAYED]
        for handle in self._delayed:
            ready.remove(handle)

    def _cancel_target(self) -> None:
        target, self._target = self._target, None
        if target is not None and not target.done():
            self.inject(target.label, f"cancel at step {self._cancel_at}")
            target.cancel()

    # Tasks and threads

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, **options: Any) -> asyncio.Task[Any]:
        task = NumberedTask(coro, loop=self, name=name, **options)
        if not task.of_world:
            self.note(task.label, "is created")
            task.add_done_callback(self._note_end, context=world_context())
        return task

    def _note_end(self, task: Any) -> None:
        error = None if task.cancelled() else task._exception
        how = "is cancelled" if task.cancelled() else f"fails: {error!r:.100}" if error is not None else "ends"
        self.note(task.label, how)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.threads.submit(func, *args), loop=self)

    # The network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in (None, "", "localhost", "127.0.0.1"):
            fault = f"a simulation has no host {name!r}: connect to the url of world.serve(...)"
            raise socket.gaierror(socket.EAI_NONAME, fault)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", int(port or 0)))]

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if options.get("sock") is not None:
            port = self._sockets.pop(options["sock"])
        if options.get("ssl") or port is None:
            raise OSError(errno.EPROTONOSUPPORT, "a simulation has no TLS and no sockets: connect to a host and a port")
        if host is not None:
            await self.getaddrinfo(host, port)
        return await connect(self, protocol_factory, int(port))

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self._sockets[sock] = address[1]  # aiohttp passes the socket on to create_connection
        sock.close()


def _make_refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        fault = f"a simulation is cut off from the operating system and has no loop.{name}"
        raise NotImplementedError(
            f"{fault}: to run a server, use world.serve(...); for any other purpose, write a stand-in for the "
            "code that needs the operating system"
        )

    return refuse


for _name in LACKING:
    setattr(VirtualLoop, _name, _make_refusal(_name))


@contextlib.contextmanager
def outside_of_loop() -> Generator[None]:
    """Run the block as if no loop were running."""
    loop = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)


def _is_app_step(handle: asyncio.Handle) -> bool:
    task = _task_of(handle)
    return task is not None and not task.of_world and not handle.cancelled()


def _task_of(handle: Any) -> NumberedTask | None:
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, NumberedTask) else None
