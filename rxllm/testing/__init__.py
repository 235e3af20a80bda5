"""A test kit for operators, adapters and tools, and for programs that use rxllm.

=============  =========================================================================================================
for operators  `assert_operator` checks the `OPERATOR_RULES`. `marbles` draws timed streams as text.
for adapters   `assert_adapter` checks the `ADAPTER_RULES`. `AdapterConformance`, `HTTPAdapterConformance` and
               `ImageConformance` test your adapter against a service that follows a `Script`. `Served` pairs
               an adapter with its running service, whose answers can use `PNG`, `REQUEST_ID` and `refusal`.
               `loopback` is a real server that records who closed each connection, and when. `chunkings` and `cut`
               split bytes into chunks.
for tools      `assert_executor` checks the `EXECUTOR_RULES`, and `assert_encoder` the `ENCODER_RULES`.
for sessions   `assert_session_store` checks that a session store follows the `SESSION_STORE_RULES`.
for programs   `sandbox` replaces the models that code refers to by name. `Cassette` records each answer once, and
               plays it back when the same request is made again. `record` stores a stream in a file, `replay_file`
               plays the file back, and `timed_file` reads it for a timeline. `backtest` runs operators over recordings;
               it returns a `Backtest` with a `BacktestRow` for each recording. `simulate`, `simulate_many` and
               `simulate_cancels` run a program in a `World` with virtual time and seeded `FAULTS`. Each run returns a
               `Simulation` or raises a `SimulationError`. ``rxllm.Fake`` is a scripted model.
for all tests  `events` builds an adapter's events. `strategies` holds hypothesis strategies for all values and events.
=============  =========================================================================================================

Check that an operator follows the Rx contract, in virtual time:

>>> from rxllm import Fake, operators as ops, testing
>>> testing.assert_operator(lambda: ops.map_text(str.upper))

Check that an adapter follows the adapter rules:

>>> testing.assert_adapter(Fake("Hello"))

``HTTPAdapterConformance`` also tests an adapter's wire format over HTTP. To omit a rule, pass its name, as in
``without={"at_once"}``. The docstrings of the ``assert_`` functions and `AdapterConformance` list the rules.

The pytest fixture `loopback` starts a server that follows a script. After the test, it stops the server and raises any
error from the script::

    from rxllm.testing.loopback import STALL, Reply, chat_chunk

    def test_leaving_closes_the_connection(loopback):
        server = loopback(Reply([chat_chunk("Hi"), STALL]))
        adapter = rxllm.OpenAIChat(base_url=server.url, api_key="k")
        rxllm.stream_generate(adapter, "Hello", model="m").take(2).run()
        server.connections[0].wait_closed()

The fixture is part of rxllm's pytest plugin. To disable the plugin, run ``pytest -p no:rxllm``. `strategies` needs
hypothesis. The test suites and the fixture need pytest. rxllm installs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.testing import loopback as loopback
    from rxllm.testing import marbles as marbles
    from rxllm.testing import strategies as strategies
    from rxllm.testing._adapter_rules import ADAPTER_RULES, assert_adapter
    from rxllm.testing._adapter_run import REQUEST_ID, Script, Served
    from rxllm.testing._adapter_suite import AdapterConformance
    from rxllm.testing._backtest import Backtest, BacktestRow, backtest
    from rxllm.testing._cassette import Cassette, sandbox
    from rxllm.testing._http_suite import PNG, HTTPAdapterConformance, ImageConformance, refusal
    from rxllm.testing._operator_rules import OPERATOR_RULES, assert_operator
    from rxllm.testing._recordings import record, replay_file, timed_file
    from rxllm.testing._session_rules import SESSION_STORE_RULES, assert_session_store
    from rxllm.testing._simulate import (
        Simulation,
        SimulationError,
        simulate,
        simulate_cancels,
        simulate_many,
    )
    from rxllm.testing._simulation_loop import FAULTS
    from rxllm.testing._simulation_world import World
    from rxllm.testing._tool_rules import ENCODER_RULES, EXECUTOR_RULES, assert_encoder, assert_executor
    from rxllm.testing.event_checks import chunkings, cut, events

__all__ = [
    "ADAPTER_RULES",
    "ENCODER_RULES",
    "EXECUTOR_RULES",
    "FAULTS",
    "OPERATOR_RULES",
    "PNG",
    "REQUEST_ID",
    "SESSION_STORE_RULES",
    "AdapterConformance",
    "Backtest",
    "BacktestRow",
    "Cassette",
    "HTTPAdapterConformance",
    "ImageConformance",
    "Script",
    "Served",
    "Simulation",
    "SimulationError",
    "World",
    "assert_adapter",
    "assert_encoder",
    "assert_executor",
    "assert_operator",
    "assert_session_store",
    "backtest",
    "chunkings",
    "cut",
    "events",
    "record",
    "refusal",
    "replay_file",
    "sandbox",
    "simulate",
    "simulate_cancels",
    "simulate_many",
    "timed_file",
]

_MODULES = ("loopback", "marbles", "strategies")

# Each module is imported on first use, because some of them need hypothesis or httpx.
if not TYPE_CHECKING:  # if type checkers saw `__getattr__`, they would accept any name
    _load = lazy_exports(
        __name__,
        {
            "_adapter_rules": "ADAPTER_RULES assert_adapter",
            "_adapter_run": "REQUEST_ID Script Served",
            "_adapter_suite": "AdapterConformance",
            "_backtest": "Backtest BacktestRow backtest",
            "_cassette": "Cassette sandbox",
            "event_checks": "chunkings cut events",
            "_http_suite": "HTTPAdapterConformance ImageConformance PNG refusal",
            "_operator_rules": "OPERATOR_RULES assert_operator",
            "_recordings": "record replay_file timed_file",
            "_session_rules": "SESSION_STORE_RULES assert_session_store",
            "_simulation_loop": "FAULTS",
            "_simulate": "Simulation SimulationError simulate simulate_cancels simulate_many",
            "_simulation_world": "World",
            "_tool_rules": "ENCODER_RULES EXECUTOR_RULES assert_encoder assert_executor",
        },
    )

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            return _load(name)
        try:
            return import_module(f"rxllm.testing.{name}")
        except ModuleNotFoundError as error:  # hasattr and help expect an AttributeError
            raise AttributeError(str(error), name=name) from error


def __dir__() -> list[str]:
    return __all__
