"""`backtest`: what a pipeline would have shown of recorded streams, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from reactivex import Observable

from rxllm.runtime.stream_arguments import check_operators
from rxllm.testing._backtest_run import Operator, Run, Shown, Tape, tapes_of
from rxllm.testing._backtest_table import markdown, plain
from rxllm.testing._record import as_path
from rxllm.values import Usage, ValidationError
from rxllm.values.argument_checks import check, check_function
from rxllm.values.drawing import drawn


@dataclass(frozen=True)
class BacktestRow:
    """What a pipeline would have done with one recording. Times are in seconds since it was subscribed to.

    ==============================  ====================================================================================
    `recording`                     the file, with the number of the stream if it has several
    `outcome`                       ``"completed"``; ``"error"``, with the `error`; ``"unanswered"``: it has not ended;
                                    ``"unreadable"``: the file cannot be read, with the `error`
    `first_at`, `ended_at`          when the first content was shown, and when the pipeline ended
    `items`, `text`                 how many items were shown, and their text
    `cut_at`                        when the pipeline left a recorded answer before its end
    `tokens`, `cost`                the usage that had been reported by then
    `missing`                       when the pipeline needs an answer that is not recorded, and which; no answer comes
                                    in its place, so that the rest of the row shows what follows if it stays out
    ==============================  ====================================================================================
    """

    recording: str
    outcome: Literal["completed", "error", "unanswered", "unreadable"]
    first_at: float | None = None
    ended_at: float | None = None
    items: int = 0
    text: str = ""
    cut_at: float | None = None
    tokens: int | None = None
    cost: float | None = None
    missing: tuple[tuple[float, str], ...] = ()
    error: Exception | None = None
    _again: Callable[[list[Shown]], object] = field(default=lambda shown: None, repr=False, compare=False)

    def notes(self) -> list[Shown]:
        """Return all that is shown: when, its kind, and the item or the error. For that, the pipeline runs again."""
        shown: list[Shown] = []
        self._again(shown)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data, for a table."""
        columns = {name: entry for name, entry in vars(self).items() if not name.startswith("_")}
        missing = "; ".join(f"{what} at {at:g} s" for at, what in self.missing)
        return {**columns, "missing": missing, "error": "" if self.error is None else repr(self.error)}


@dataclass(frozen=True, repr=False)
class Backtest:
    """The rows of a `backtest`; its repr is a table, in a notebook too."""

    rows: tuple[BacktestRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BacktestRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> BacktestRow:
        return self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as plain data, as ``pandas.DataFrame`` takes them."""
        return [row.to_dict() for row in self.rows]

    def __repr__(self) -> str:
        return plain(self.to_dicts())

    def _repr_markdown_(self) -> str:
        return markdown(self.to_dicts())

    _repr_html_ = drawn


def backtest(
    recordings: str | Path | Iterable[str | Path | Observable[Any]],
    pipeline: Operator | Sequence[Operator],
    *,
    progress: Callable[[BacktestRow], object] | None = None,
) -> Backtest:
    """Run a pipeline of operators over recorded streams, in virtual time, and return what it would have shown.

    >>> import tempfile
    >>> from rxllm import Fake, operators as ops, stream_generate
    >>> from rxllm.testing import record
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name, pause in {"brisk": 0.001, "slow": 0.2}.items():
    ...     answer = stream_generate(Fake(["Hel", ("delay", pause), "lo"]), "Hi")
    ...     _ = answer.pipe(record(f"{folder.name}/{name}.jsonl")).run()
    >>> result = backtest(folder.name, [ops.time_limits(idle=0.1), ops.raise_errors()])
    >>> [(row.recording, row.outcome, row.text) for row in result]
    [('brisk.jsonl', 'completed', 'Hello'), ('slow.jsonl', 'error', 'Hel')]
    >>> folder.cleanup()

    `recordings` is a folder with ``.jsonl`` files of `record` and `Cassette`, or one such file, or several of both;
    they are read one file at a time. A stream of events that lives in virtual time, such as ``from_iterable(events)``,
    may stand in the place of a file. `pipeline` is a function from an Observable to an Observable, such as an operator,
    or a list of operators; it is applied for each recording, and to those of a cassette as an engine's operators are.
    ``progress(row)`` is called as each row is done.

    A pipeline that subscribes again (retry, ``hedge``) gets the next recording of the same request, if its cassette has
    one. An engine that it asks (``fallback``) answers if its adapter is a ``Fake`` or a ``Cassette(..., "replay")``,
    whose ``speed=1`` keeps the time; no other engine is ever called. What is not recorded is in the row's `missing`.
    Async functions need a loop, and fail in virtual time: write plain ones, or such as return a stream. An error of the
    pipeline while it is applied is raised.

    Raises ``ValidationError("invalid_option")`` for a pipeline that is not made of operators, and ``FileNotFoundError``
    for a path where nothing is.
    """
    operators = _operators(pipeline)
    if progress is not None:
        check_function("progress", progress)
    rows: list[BacktestRow] = []
    for origin in _origins(recordings):
        for row in _rows(origin, operators):
            rows.append(row)
            if progress is not None:
                progress(row)
    return Backtest(tuple(rows))


def _operators(pipeline: Any) -> list[Operator]:
    if not callable(pipeline):
        check("pipeline", pipeline, isinstance(pipeline, list | tuple), "an operator, or a list of operators")
    operators: list[Any] = [pipeline] if callable(pipeline) else [*pipeline]
    check_operators(operators)
    return operators


def _origins(recordings: Any) -> Iterator[Path | Observable[Any]]:
    """Yield the files and streams, one by one."""
    if isinstance(recordings, Observable):
        yield cast(Observable[Any], recordings)
    elif isinstance(recordings, Iterable) and not isinstance(recordings, str):
        for entry in cast(Iterable[Any], recordings):
            yield from _origins(entry)
    else:
        path = as_path(recordings)
        if not path.exists():
            raise FileNotFoundError(f"there are no recordings: {path} does not exist")
        yield from sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]


def _rows(origin: Path | Observable[Any], operators: Sequence[Operator]) -> Iterator[BacktestRow]:
    try:
        tapes = tapes_of(origin)
    except (OSError, ValidationError) as error:
        yield BacktestRow(str(origin), "unreadable", error=error)
        return
    for index, tape in enumerate(tapes):

        def again(shown: list[Shown], index: int = index) -> None:
            Run(tapes_of(origin)[index], operators, shown).start()

        row = _row(tape, operators)
        # A row keeps no events, as they would be those of all files.
        yield row if row.outcome == "unreadable" else replace(row, _again=again)


def _row(tape: Tape, operators: Sequence[Operator]) -> BacktestRow:
    try:
        tape.check()
    except ValidationError as error:
        return BacktestRow(tape.name, "unreadable", error=error)
    run = Run(tape, operators)
    run.start()
    costs = [usage.total_cost for usage in run.usages if usage.total_cost is not None]
    return BacktestRow(
        tape.name,
        run.outcome,
        run.first_at,
        run.ended_at,
        run.items,
        run.text,
        run.cut_at,
        sum(usage.total for usage in run.usages) if any(usage != Usage() for usage in run.usages) else None,
        sum(costs) if costs else None,
        tuple(run.missing),
        run.error,
    )
