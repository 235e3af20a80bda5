"""`progress_bar`: how far a batch of requests is, in one line that is redrawn."""

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
from typing import Any

from rxllm.display._card import spent
from rxllm.values import Progress
from rxllm.values.argument_checks import check_instance

WIDTH = 10
EVERY = 0.1
"""Seconds between two drawings, so that many quick answers cost little."""

EVERY_LINE = 10.0
"""Seconds between two lines in a file, where nothing is redrawn."""


def progress_bar(label: str = "") -> Callable[[Progress], None]:
    r"""Return a function for ``generate_many(..., on_progress=progress_bar())``, which draws how far it is.

    ::

        capitals:  60%|██████    | 1200/2000 [01:10<00:47, 17.1/s, 3 failed, 48,210 tokens, cost 0.52]

    In a notebook the line is an output of the cell, which is redrawn. On a terminal it is redrawn on standard error; a
    log record or a print clears it first, and the next draw puts it below. A file gets a line at most every ten
    seconds, and one at the end. It is drawn when a response is there: while a limit or a slow model holds all of them
    back, the line stands still. The rate and the seconds that are left do not count what a journal has answered.

    >>> from rxllm import Fake, generate_many
    >>> responses = list(generate_many(Fake("Hi"), ["a", "b"], on_progress=progress_bar("greetings")))
    """
    check_instance("label", label, str, "a text")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return _Bar(label, _Cell(), EVERY)
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return _Bar(label, _on_terminal, EVERY)
    return _Bar(label, _in_file, EVERY_LINE)


class _Bar:
    def __init__(self, label: str, draw: Callable[[str, bool], None], every: float) -> None:
        self._label = f"{label}: " if label else ""
        self._draw = draw
        self._every = every
        self._done = 0
        self._begin()

    def _begin(self) -> None:
        self._began_at = self._drawn_at = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.done <= self._done:  # another subscription
            self._begin()
        self._done, now, is_last = progress.done, time.monotonic(), progress.done == progress.total
        if is_last or now - self._drawn_at >= self._every:
            self._drawn_at = now
            with contextlib.suppress(OSError, ValueError):  # its output is closed, and the batch goes on without it
                self._draw(self._label + progress_line(progress, now - self._began_at), is_last)


def progress_line(progress: Progress, seconds: float) -> str:
    """Return the line that is drawn after so many seconds.

    >>> from rxllm import Usage
    >>> progress_line(Progress(3, 1, 10, Usage(20, 4), journaled=1), 4.0)
    ' 30%|███       | 3/10 [00:04<00:14, 0.5/s, 1 failed, 1 from the journal, 24 tokens]'
    """
    share = progress.done / progress.total
    rate = (progress.done - progress.journaled) / seconds if seconds > 0 else 0.0
    left = _clock((progress.total - progress.done) / rate) if rate else "?"
    counts = {"failed": progress.failed, "retried": progress.retries, "from the journal": progress.journaled}
    facts = [f"{rate:.3g}/s", *(f"{count:,} {what}" for what, count in counts.items() if count), *spent(progress.usage)]
    bar = f"{'█' * int(share * WIDTH):{WIDTH}}"
    return (
        f"{int(share * 100):3}%|{bar}| {progress.done}/{progress.total} [{_clock(seconds)}<{left}, {', '.join(facts)}]"
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


class _Cell:
    """An output of a notebook's cell, made on the thread that runs the cell."""

    def __init__(self) -> None:
        self._handle: Any = import_module("IPython.display").display(self._data(""), raw=True, display_id=True)

    def __call__(self, line: str, is_last: bool) -> None:
        self._handle.update(self._data(line), raw=True)

    def _data(self, line: str) -> dict[str, str]:
        return {"text/html": f"<pre>{escape(line)}</pre>", "text/plain": line}


class _TerminalLine:
    """The line on the terminal, which all bars share.

    After a draw, standard output, standard error and the handlers that log to them write through a `_Guard`, until one
    of them writes: that clears the line, and takes the guards away.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._guarded: list[tuple[Any, str, Any, Any]] = []  # objects, their attributes, the guards, and what was there

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
        streams = [stream for stream in (sys.stdout, sys.stderr) if _is_terminal(stream)]
        handlers = [*logging.getLogger().handlers, *logging.getLogger("rxllm").handlers]
        places = [(sys, "stdout"), (sys, "stderr"), *((handler, "stream") for handler in handlers)]
        for owner, name in places:
            stream: Any = getattr(owner, name, None)
            if any(stream is other for other in streams):
                guard = _Guard(stream, self)
                self._guarded.append((owner, name, guard, stream))
                setattr(owner, name, guard)  # not setStream: its lock may be held by a thread that waits for ours

    def _release(self) -> None:
        guarded, self._guarded = self._guarded, []
        for owner, name, guard, stream in guarded:
            if getattr(owner, name) is guard:  # and not what the program has put there since
                setattr(owner, name, stream)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


class _Guard:
    """A stream of the terminal, whose writes clear the line first."""

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
        return  # a program without a console
    encoding = sys.stderr.encoding
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("█", "#").encode(encoding, "replace").decode(encoding)
    sys.stderr.write(text)
    sys.stderr.flush()
