"""An iterator's side of an operator, in virtual time: for operators that look at how busy it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable, Subject

from rxllm.runtime import Gate
from rxllm.runtime.back_pressure import read_by
from rxllm.testing.virtual_time import Clock


class Consumer:
    """What an iterator is: it has a gate, and takes items when it likes."""

    def __init__(self, operator: Callable[[Observable[Any]], Observable[Any]], maxsize: int = 64) -> None:
        self.gate = Gate(maxsize)
        self.events: Subject[Any] = Subject()
        self.scheduler = Clock()
        self.ends: list[Exception | None] = []
        with read_by(self.gate, self.ends.append):
            self.subscription = self.events.pipe(operator).subscribe(
                self.gate.waiting.append, self.ends.append, lambda: self.ends.append(None), scheduler=self.scheduler
            )

    def say(self, *events: Any) -> None:
        for event in events:
            self.events.on_next(event)

    def take(self) -> Any:
        item = self.gate.take()
        self.scheduler.advance_by(1.0)  # the gate's owner asks the loop to go on
        return item

    def request(self) -> None:
        """Ask for an item, as an iterator does that finds nothing to take."""
        self.gate.request()
        self.scheduler.advance_by(1.0)

    @property
    def waiting(self) -> list[Any]:
        return list(self.gate.waiting)
