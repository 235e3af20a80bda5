"""Send a second request when the first is slow."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxllm import runtime
from rxllm.events import Event
from rxllm.values.argument_checks import check, explains_call, is_positive


@explains_call("ops.hedge(after=2) in a pipe, or rxllm.hedge(stream, after)")
def hedge(after: float) -> Callable[[Observable[Event]], runtime.Stream[Event]]:
    """Subscribe a second time if the source has no content within `after` seconds; the first with content wins.

    ``stream.pipe(ops.hedge(after=2))`` is ``rxllm.hedge(stream, after=2)``. For each call of an engine:
    ``Engine(adapter, operators=[ops.hedge(after=2)])``.

    Raises ``ValidationError("invalid_option")`` if `after` is not a number above 0.
    """
    check("after", after, is_positive(after), "a number of seconds above 0")
    return lambda source: runtime.hedge(source, after)
