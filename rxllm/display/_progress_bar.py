"""`progress_bar`, which shows the progress of a batch."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from threading import RLock
from typing import Any, cast

from rxllm.display._card import usage_texts
from rxllm.display._plain import ipython_shell
from rxllm.values import Progress
from rxllm.values.argument_checks import check_instance

WIDTH = 10
EVERY = 0.1
"""The minimum number of seconds between redraws."""

EVERY_LINE = 10.0
"""The minimum number of seconds between lines when the output is a file."""


def progress_bar(label: str = "") -> Callable[[Progress], None]:
    r"""Return a progress bar for ``generate_many(on_progress=...)``.

    ::

        cities:  60%|██████    | 120/200 [01:10<00:47, 1.71/s, 3 failed, 4,821 tokens, cost 0.52, p50 0.4 s, p95 1.2 s]

    In a notebook, the bar appears below the cell. In a terminal, it is drawn on standard error, below the program's
    output. If standard error is a file, a line is written at most every ten seconds, and once at the end. The bar is
    redrawn only when a response arrives. Answers from a journal do not count towards the rate or the remaining time.

    >>> from rxllm import Fake, generate_many
    >>> responses = list(generate_many(Fake("Hi"), ["a", "b"], on_progress=progress_bar("greetings")))
    """
    check_instance("label", label, str, "a string")
    if hasattr(ipython_shell(), "kernel"):
        return _Bar(label, _in_cell(), EVERY)
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return _Bar(label, _on_terminal, EVERY)
    return _Bar(label, _in_file, EVERY_LINE)


class _Bar:
    def __init__(self, label: str, draw: Callable[[str, bool], None], every: float) -> None:
        self._label = f"{label}: " if label else ""
        self._draw = draw
        self._every = every
        self._done = 0
        self._began_at = self._drawn_at = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now, is_last = time.monotonic(), progress.done == progress.total
        if progress.done <= self._done:  # a new subscription has begun
            self._began_at = self._drawn_at = now
        self._done = progress.done
        if is_last or now - self._drawn_at >= self._every:
            self._drawn_at = now
            with contextlib.suppress(OSError, ValueError):  # a closed output must not stop the batch
                self._draw(self._label + progress_line(progress, now - self._began_at), is_last)


def progress_line(progress: Progress, seconds: float) -> str:
    """Return the text of a progress bar that began `seconds` ago.

    >>> from rxllm import Usage
    >>> progress_line(Progress(3, 1, 10, Usage(20, 4), journaled=1, seconds_p50=0.4, seconds_p95=1.25), 4.0)
    ' 30%|███       | 3/10 [00:04<00:14, 0.5/s, 1 failed, 1 from the journal, 24 tokens, p50 0.4 s, p95 1.2 s]'
    """
    share = progress.done / progress.total
    rate = (progress.done - progress.journaled) / seconds if seconds > 0 else 0.0
    left = _clock((progress.total - progress.done) / rate) if rate else "?"
    counts = {"failed": progress.failed, "retried": progress.retries, "from the journal": progress.journaled}
    facts = [f"{rate:.3g}/s", *(f"{n:,} {what}" for what, n in counts.items() if n), *usage_texts(progress.usage)]
    if progress.seconds_p95 is not None:
        facts.append(f"p50 {progress.seconds_p50:.1f} s, p95 {progress.seconds_p95:.1f} s")
    bar = f"{'█' * int(share * WIDTH):{WIDTH}}"
    return (
        f"{int(share * 100):3}%|{bar}| {progress.done}/{progress.total} [{_clock(seconds)}<{left}, {', '.join(facts)}]"
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def _in_cell() -> Callable[[str, bool], None]:
    """Add an output to the notebook cell, and return a function that updates it."""

    def data(line: str) -> dict[str, str]:
        return {"text/html": f"<pre>{escape(line)}</pre>", "text/plain": line}

    handle = import_module("IPython.display").display(data(""), raw=True, display_id=True)
    return lambda line, is_last: handle.update(data(line), raw=True)


class _TerminalLine:
    """The terminal line on which all bars are drawn.

    After each draw, every standard stream in `sys` and in logging handlers is replaced with a `_Guard`. The first write
    to a guard clears the line and restores the original streams.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._guarded: list[tuple[Any, str, Any, Any]] = []  # (owner, attribute, guard, original stream)

    def __call__(self, line: str, is_last: bool) -> None:
        width = shutil.get_terminal_size().columns - 1
        with self.lock:
            self._release()
            _write(f"\r{line[:width]:{width}}" + ("\n" if is_last else ""))
            if not is_last:
                self._guard()

    def clear(self) -> None:
        if self._guarded:
            self._release()
            _write(f"\r{'':{shutil.get_terminal_size().columns - 1}}\r")

    def _guard(self) -> None:
        streams = [stream for stream in cast(Any, (sys.stdout, sys.stderr)) if stream is not None and stream.isatty()]
        handlers = [*logging.getLogger().handlers, *logging.getLogger("rxllm").handlers]
        places = [(sys, "stdout"), (sys, "stderr"), *((handler, "stream") for handler in handlers)]
        for owner, name in places:
            stream: Any = getattr(owner, name, None)
            if any(stream is other for other in streams):
                guard = _Guard(stream, self)
                self._guarded.append((owner, name, guard, stream))
                # Do not call setStream: its lock may be held by a thread that is waiting for `self.lock`.
                setattr(owner, name, guard)

    def _release(self) -> None:
        guarded, self._guarded = self._guarded, []
        for owner, name, guard, stream in guarded:
            if getattr(owner, name) is guard:  # otherwise the program has replaced the guard with another stream
                setattr(owner, name, stream)


class _Guard:
    """A wrapper around a terminal stream. It clears the progress bar before each write."""

    def __init__(self, stream: Any, line: _TerminalLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        with self._line.lock:
            self._line.clear()
            return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_on_terminal = _TerminalLine()


def _in_file(line: str, is_last: bool) -> None:
    _write(f"{line}\n")


def _write(text: str) -> None:
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        return
    encoding = sys.stderr.encoding
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("█", "#").encode(encoding, "replace").decode(encoding)
    sys.stderr.write(text)
    sys.stderr.flush()
