"""Programs in a simulated world: time is virtual, the network is in memory, and every fault comes from a seed."""

from __future__ import annotations

from rxllm.testing._simulation._loop import FAULTS, Moment
from rxllm.testing._simulation._simulate import (
    Simulation,
    SimulationError,
    simulate,
    simulate_cancels,
    simulate_many,
)
from rxllm.testing._simulation._world import SimulatedServer, World

__all__ = [
    "FAULTS",
    "Moment",
    "SimulatedServer",
    "Simulation",
    "SimulationError",
    "World",
    "simulate",
    "simulate_cancels",
    "simulate_many",
]
