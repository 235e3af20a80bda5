"""A test kit for operators, adapters and tools, and for programs that use rxllm.

=================  =====================================================================================================
for operators      `assert_operator` (`OPERATOR_RULES`); `marbles`: timed streams, drawn as text
for adapters       `assert_adapter` (`ADAPTER_RULES`); `AdapterConformance`, `HTTPAdapterConformance` and
                   `ImageConformance`: test suites in which a service follows a `Script` (`PNG`, `REQUEST_ID`,
                   `refusal`), and a `Served` counts its calls; `loopback`: a real server that records who closed a
                   connection, and when; `chunkings`, `cut`: bytes in chunks
for tools          `assert_executor` (`EXECUTOR_RULES`), `assert_encoder` (`ENCODER_RULES`)
for programs       `sandbox`: replace the model that the code names; `Cassette`: record each answer once, and play it
                   for equal requests; `record`, `replay_file`: streams in files; `backtest` (`Backtest`,
                   `BacktestRow`): operators over recordings; `simulate`, `simulate_many`, `simulate_cancels`: run
                   a program in a `World` with virtual time and faults (`FAULTS`) chosen by a seed, giving a
                   `Simulation` or a `SimulationError`; ``rxllm.Fake``: a scripted model
for all            `events`: build an adapter's events; `strategies`: hypothesis strategies for any value and event
=================  =====================================================================================================

Check that an operator keeps the Rx contract, in virtual time, and leaves the events consistent:

>>> from rxllm import Fake, operators as ops, testing
>>> testing.assert_operator(lambda: ops.map_text(str.upper))

Check that an adapter keeps the adapter rules; ``HTTPAdapterConformance`` also tests its wire format over HTTP.

>>> testing.assert_adapter(Fake("Hello"))

``without={"at_once"}`` omits a rule that the subject breaks for a good reason. The docstrings of the ``assert_``
functions and of `AdapterConformance` list the rules, and when to omit one; the other docstrings have examples.

A server that follows a script; with pytest, the fixture `loopback` stops it and raises the script's errors::

    from rxllm.testing.loopback import STALL, Reply, chat_chunk

    def test_leaving_closes_the_connection(loopback):
        server = loopback(Reply([chat_chunk("Hi"), STALL]))
        adapter = rxllm.OpenAIChat(base_url=server.url, api_key="k")
        rxllm.stream_generate(adapter, "Hello", model="m").take(2).run()
        server.connections[0].wait_closed()

rxllm's pytest plugin provides the fixture. It imports nothing before it is used, and lets pytest rewrite this kit's
assertions; ``pytest -p no:rxllm`` disables it. `strategies` needs hypothesis, the test suites and the fixture need
pytest; rxllm installs neither, and the rest of the kit works without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.testing._adapter_rules import ADAPTER_RULES, assert_adapter
    from rxllm.testing._adapter_run import REQUEST_ID, Script, Served
    from rxllm.testing._adapter_suite import AdapterConformance
    from rxllm.testing._backtest import Backtest, BacktestRow, backtest
    from rxllm.testing._cassette import Cassette, sandbox
    from rxllm.testing._http_suite import PNG, HTTPAdapterConformance, ImageConformance, refusal
    from rxllm.testing._operator_rules import OPERATOR_RULES, assert_operator
    from rxllm.testing._recordings import record, replay_file
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
]

_MODULES = ("loopback", "marbles", "strategies")

if not TYPE_CHECKING:  # a type checker would accept every name
    # Each part is imported on first use, since only some need hypothesis or httpx.
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
            "_recordings": "record replay_file",
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
