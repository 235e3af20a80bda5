"""The kit for authors of operators and adapters, and for tests of programs that use rxllm.

=================  =====================================================================================================
for operators      `assert_operator` (`OPERATOR_RULES`); `marbles`: timed streams, drawn
for adapters       `assert_adapter` (`ADAPTER_RULES`); `AdapterConformance`, `HTTPAdapterConformance` and
                   `ImageConformance`: suites of tests, in which a service follows a `Script` (`PNG`, `REQUEST_ID`,
                   `refusal`), and a `Served` counts its calls; `loopback`: a real server that notes who closed when;
                   `chunkings`, `cut`: bytes in chunks
for tools          `assert_executor` (`EXECUTOR_RULES`), `assert_encoder` (`ENCODER_RULES`)
for programs       `sandbox`: replace the model that the code names; `Cassette`: answers that are recorded once, by
                   their request; `record`, `replay_file`: streams in files; `backtest` (`Backtest`,
                   `BacktestRow`): operators over recordings; `simulate`, `simulate_many`, `simulate_cancels`: a
                   program in a `World` with virtual time and faults (`FAULTS`) from a seed, to a `Simulation` or a
                   `SimulationError`; ``rxllm.Fake``, the scripted model
for all            `events`: those that an adapter emits; `strategies`: any value and any event, for hypothesis
=================  =====================================================================================================

Check that an operator keeps the Rx contract, in virtual time, and leaves the events consistent:

>>> from rxllm import Fake, operators as ops, testing
>>> testing.assert_operator(lambda: ops.map_text(str.upper))

Check that an adapter keeps the rules of adapters; ``HTTPAdapterConformance`` also tests its wire over HTTP.

>>> testing.assert_adapter(Fake("Hello"))

A rule that is rightly broken is left out by its name, as in ``without={"at_once"}``. The docstrings of the
``assert_`` functions and of `AdapterConformance` list the rules, and when to leave one out; those of the other parts
have examples.

A server that follows a script; with pytest, the fixture `loopback` stops it and raises the errors of the script::

    from rxllm.testing.loopback import STALL, Reply, chat_chunk

    def test_leaving_closes_the_connection(loopback):
        server = loopback(Reply([chat_chunk("Hi"), STALL]))
        adapter = rxllm.OpenAIChat(base_url=server.url, api_key="k")
        rxllm.stream_generate(adapter, "Hello", model="m").take(2).run()
        server.connections[0].wait_closed()

The fixture comes with rxllm: pytest loads its plugin, which imports nothing before it is used, and lets pytest rewrite
the assertions of this kit. ``pytest -p no:rxllm`` leaves it out. `strategies` need hypothesis, the suites of tests and
the fixture need pytest; rxllm installs neither, and the rest of the kit works without them.
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
