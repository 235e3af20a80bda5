"""`backtest` runs a pipeline over recorded streams in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable, Disposable
from reactivex.scheduler import CurrentThreadScheduler, VirtualTimeScheduler

from rxllm import operators as ops
from rxllm.adapters import Fake
from rxllm.engine import as_engine
from rxllm.events import ErrorEvent, Event, TextDelta
from rxllm.runtime import EngineCall, Stream, applying_operators, is_content, provider_name
from rxllm.runtime.stream_arguments import check_operators, check_source
from rxllm.serializer import from_json
from rxllm.testing._cassette import Cassette, add_costs, key_of
from rxllm.testing._recordings import Recorded, as_path, is_left, play, recordings_in
from rxllm.values import AdapterError, Call, Request, Usage, ValidationError
from rxllm.values.argument_checks import check, check_function
from rxllm.values.drawing import drawn
from rxllm.values.responses import shorten

Operator = Callable[[Observable[Any]], Observable[Any]]

Shown = tuple[float, Literal["next", "error", "completed"], Any]


@dataclass(frozen=True)
class BacktestRow:
    """The result of one recording in a `backtest`.

    Times are in seconds since the subscription.

    ==============  ====================================================================================================
    `recording`     The file's name, followed by the stream's number if the file has several streams.
    `outcome`       ``"completed"``, ``"error"``, ``"unanswered"`` if the pipeline did not end, or ``"unreadable"`` if
                    the file could not be read.
    `error`         The pipeline's error, or the reason why the file could not be read.
    `first_at`      When content first arrived.
    `ended_at`      When the pipeline ended.
    `items`         The number of items that the pipeline emitted.
    `text`          The text of these items.
    `cut_at`        When the pipeline unsubscribed, if it did so before the recorded answer ended.
    `tokens`        The number of tokens reported, up to the cut if there was one.
    `cost`          The cost reported, up to the cut if there was one.
    `missing`       The answers that the pipeline needed but that were not recorded, each with the time at which it was
                    needed. Nothing is emitted in their place.
    ==============  ====================================================================================================
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
        """Run the pipeline again, and return all notifications.

        Each notification is a tuple of the time, the kind, and the item or error.
        """
        shown: list[Shown] = []
        self._again(shown)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict of plain data."""
        columns = {name: entry for name, entry in vars(self).items() if not name.startswith("_")}
        missing = "; ".join(f"{what} at {at:g} s" for at, what in self.missing)
        return {**columns, "missing": missing, "error": "" if self.error is None else repr(self.error)}


@dataclass(frozen=True, repr=False)
class Backtest:
    """The rows of a `backtest`, shown as a table."""

    rows: tuple[BacktestRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BacktestRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> BacktestRow:
        return self.rows[index]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, for example to build a ``pandas.DataFrame``."""
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
    """Run a pipeline over recorded streams in virtual time.

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

    The result has one row for each stream. `recordings` are ``.jsonl`` files that `record` or a `Cassette` has written.
    Pass a file, a folder, or a list of these. You can also pass a stream of events, such as ``from_iterable(events)``,
    which will run in virtual time too. `pipeline` is an operator or a list of operators. On recordings from a cassette,
    operators work as they do in an engine. ``progress(row)`` is called whenever a row is ready.

    Some operators, such as retry and ``hedge``, subscribe more than once. Each further subscription receives the next
    recording of the same request, if the cassette has one. Another engine, such as the one in ``fallback``, answers
    only if its adapter is a ``Fake`` or a ``Cassette(..., "replay")``. Pass ``speed=1`` to such a cassette to keep the
    recorded times. A row's `missing` lists the answers that were not recorded. Async functions fail, because there is
    no event loop in virtual time. Use sync functions, or functions that return a stream.

    Raises ``ValidationError("invalid_option")`` if `pipeline` is not made of operators. Raises ``FileNotFoundError`` if
    a path does not exist. Errors raised while the pipeline is applied are propagated.
    """
    operators = _operators(pipeline)
    if progress is not None:
        check_function("progress", progress)
    rows: list[BacktestRow] = []
    for origin in _iterate_origins(recordings):
        for row in _run_tapes(origin, operators):
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


def _iterate_origins(recordings: Any) -> Iterator[Path | Observable[Any]]:
    if isinstance(recordings, Observable):
        yield cast(Observable[Any], recordings)
    elif isinstance(recordings, Iterable) and not isinstance(recordings, str):
        for entry in cast(Iterable[Any], recordings):
            yield from _iterate_origins(entry)
    else:
        path = as_path(recordings)
        if not path.exists():
            raise FileNotFoundError(f"there are no recordings: {path} does not exist")
        yield from sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]


def _run_tapes(origin: Path | Observable[Any], operators: Sequence[Operator]) -> Iterator[BacktestRow]:
    try:
        tapes = load_tapes(origin)
    except (OSError, ValidationError) as error:
        yield BacktestRow(str(origin), "unreadable", error=error)
        return
    for index, tape in enumerate(tapes):

        def again(shown: list[Shown], index: int = index) -> None:
            Run(load_tapes(origin)[index], operators, shown).start()

        row = _run_tape(tape, operators)
        # To save memory, rows hold no events, so `notes` runs the pipeline again.
        yield row if row.outcome == "unreadable" else replace(row, _again=again)


def _run_tape(tape: Tape, operators: Sequence[Operator]) -> BacktestRow:
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


PATIENCE = 3600.0
"""The maximum number of seconds that a pipeline may keep running after its recording has ended."""


@dataclass(frozen=True)
class Tape:
    """A recording and any later recordings of the same request."""

    name: str
    takes: Sequence[Recorded | Observable[Any]]
    description: Mapping[str, Any]

    def check(self) -> float:
        """Return the recording's duration in seconds.

        Raises ``ValidationError`` if the recording is malformed.
        """
        return max([take.notes()[-1].at for take in self.takes[:1] if isinstance(take, Recorded)], default=0.0)

    @property
    def request(self) -> Request:
        data = {name: entry for name, entry in self.description.items() if name not in ("provider", "raw")}
        with suppress(ValidationError):  # a cassette stores hashes in place of bytes
            return from_json(msgspec.json.encode(data), Request, local_files=True)
        return Request(model=data.get("model"))


def load_tapes(origin: Path | Observable[Any]) -> list[Tape]:
    if isinstance(origin, Observable):
        return [Tape(type(origin).__name__, [origin], {})]
    recordings = recordings_in(origin)
    keys = [key_of(recording.request) for recording in recordings]
    tapes: list[Tape] = []
    for index, recording in enumerate(recordings):
        takes = [other for other, key in zip(recordings[index:], keys[index:], strict=True) if key == keys[index]]
        name = origin.name if len(keys) == 1 else f"{origin.name}#{index + 1}"
        tapes.append(Tape(name, takes, recording.request))
    return tapes


class Run:
    """Runs the operators over `tape` once, and appends each notification to `shown`."""

    def __init__(self, tape: Tape, operators: Sequence[Operator], shown: list[Shown] | None = None) -> None:
        self.outcome: Literal["completed", "error", "unanswered"] = "unanswered"
        self.error: Exception | None = None
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.cut_at: float | None = None
        self.items = 0
        self.text = ""
        self.usages: list[Usage] = []
        self.missing: list[tuple[float, str]] = []
        self._pieces: list[str] = []
        self._tape = tape
        self._operators = operators
        self._shown = shown
        self._takes = iter(tape.takes)
        self._scheduler = VirtualTimeScheduler(0.0)
        self._is_over = False

    def start(self) -> None:
        stream, length = self._apply_operators(), self._tape.check()
        try:
            subscription = stream.subscribe(self._next, self._fail, self._complete, scheduler=self._scheduler)
            if self.ended_at is None:
                self._scheduler.advance_to(length + PATIENCE)
        except Exception as error:  # raised by a timer that an operator started
            self._fail(error)
        else:
            self._is_over = True
            subscription.dispose()
        self.text = "".join(self._pieces)

    def _apply_operators(self) -> Observable[Any]:
        provider = self._tape.description.get("provider")
        call = EngineCall(self._tape.request, Call(), self._answer_of, provider, Usage()) if provider else None
        source: Observable[Any] = Stream(self._subscribe_again)
        with nullcontext() if call is None else applying_operators(call):
            for operator in self._operators:
                source = operator(source)
        check_source(source, "backtest")
        return source

    def _subscribe_again(
        self, observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        take = next(self._takes, None)
        if take is None:
            self._record_missing("another answer to the same request")
            return Disposable()
        source = play(take.notes(), 1.0) if isinstance(take, Recorded) else take
        source = add_costs(source, self._tape.description.get("provider"), self._tape.request.model)
        return self._subscribe_to(source, "the unrecorded part of an answer", observer)

    def _answer_of(self, engine: Any, model: str | None = None) -> Stream[Event]:
        """Return another engine's answer. If that engine cannot answer, record its answer as missing."""
        other = as_engine(engine)
        request = replace(self._tape.request, model=model or other.model or self._tape.request.model, options={})
        what = f"an answer from {provider_name(other.adapter)}" + (f":{request.model}" if request.model else "")

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            adapter = other.adapter
            if isinstance(adapter, Fake) or (isinstance(adapter, Cassette) and adapter.mode == "replay"):
                source = add_costs(adapter.stream(request, Call()), provider_name(adapter), request.model)
                return self._subscribe_to(source, what, observer)
            self._record_missing(what)
            return Disposable()

        return Stream(subscribe)

    def _subscribe_to(self, source: Observable[Any], what: str, observer: abc.ObserverBase[Any]) -> abc.DisposableBase:
        """Subscribe to `source`, and record the usage that it reports."""
        number, has_ended = len(self.usages), False
        self.usages.append(Usage())
        events = Subject[Any]()
        # If the items carry no usage, `ops.usage` fails here, which does no harm.
        at_once = CurrentThreadScheduler.singleton()
        note = partial(self.usages.__setitem__, number)
        events.pipe(ops.usage()).subscribe(note, lambda _: None, scheduler=at_once)

        def on_next(item: Any) -> None:
            events.on_next(item)
            observer.on_next(item)

        def on_error(error: Exception) -> None:
            nonlocal has_ended
            has_ended = True
            if is_left(error) or (isinstance(error, AdapterError) and error.reason == "no_scripted_response"):
                self._record_missing(what)
            else:
                observer.on_error(error)

        def on_completed() -> None:
            nonlocal has_ended
            has_ended = True
            observer.on_completed()

        def leave() -> None:
            if not has_ended and not self._is_over:
                self.cut_at = self._now()

        subscription = source.subscribe(on_next, on_error, on_completed, scheduler=self._scheduler)
        return CompositeDisposable(subscription, Disposable(leave))

    def _record_missing(self, what: str) -> None:
        self.missing.append((self._now(), what))

    def _now(self) -> float:
        return round(self._scheduler.to_seconds(self._scheduler.now), 6)

    def _next(self, item: Any) -> None:
        self.items += 1
        if self.first_at is None and is_content(item):
            self.first_at = self._now()
        match item:
            case TextDelta(delta=text) | str(text):
                self._pieces.append(text)
            case ErrorEvent(error=error):
                self.error = self.error or error
            case _ if hasattr(item, "output_text"):  # a snapshot, or the whole response
                self._pieces = [item.output_text]
            case _:
                pass
        self._record_shown("next", item)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._end("error", error)

    def _complete(self) -> None:
        self._end("completed", None)

    def _end(self, kind: Literal["error", "completed"], error: Exception | None) -> None:
        self.ended_at = self._now()
        self.outcome = "completed" if self.error is None else "error"
        self._record_shown(kind, error)
        self._scheduler.stop()

    def _record_shown(self, kind: Literal["next", "error", "completed"], item: Any) -> None:
        if self._shown is not None:
            self._shown.append((self._now(), kind, item))


_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&]")

_ROWS = 50

_WIDTH = 48

_COLUMNS = {
    "recording": "recording",
    "outcome": "outcome",
    "first_at": "first",
    "ended_at": "end",
    "items": "items",
    "cut_at": "cut",
    "tokens": "tokens",
    "cost": "cost",
    "missing": "not recorded",
    "error": "error",
    "text": "text",
}


def plain(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, _totals(rows)])


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    head, *body = [[_SPECIAL.sub(r"\\\g<0>", cell) for cell in line] for line in _cells(rows)]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", _totals(rows)])


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table's header and first rows, leaving out empty columns."""
    names = [name for name in _COLUMNS if name == "recording" or any(row[name] not in (None, "") for row in rows)]
    return [[_COLUMNS[name] for name in names], *([_cell(name, row[name]) for name in names] for row in rows[:_ROWS])]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f} s" if name.endswith("_at") else f"{value:.6g}"
    return shorten(str(value), _WIDTH)


def _totals(rows: Sequence[Mapping[str, Any]]) -> str:
    outcomes = [row["outcome"] for row in rows]
    totals = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    cut, missing = (sum(row[name] not in (None, "") for row in rows) for name in ("cut_at", "missing"))
    tokens, cost = (sum(row[name] or 0 for row in rows) for name in ("tokens", "cost"))
    totals += [f"{cut} cut"] * bool(cut) + [f"{missing} with missing answers"] * bool(missing)
    totals += [f"{tokens} tokens"] * bool(tokens) + [f"cost {cost:g}"] * bool(cost)
    more = f"{len(rows) - _ROWS} more rows; " if len(rows) > _ROWS else ""
    return f"{more}{len(rows)} recording{'s' * (len(rows) != 1)}: {', '.join(totals) or 'nothing'}"
