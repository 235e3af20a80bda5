"""A terminal's window, for tests of what programs draw: it interprets the codes that move the cursor and erase."""

from __future__ import annotations

import re

_CODES = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<code>[A-Za-z])|\x1b.|(?P<char>.)", re.DOTALL)


class Window:
    """A window of `columns` by `rows`. A line break also returns to the first column."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns = columns
        self.rows = rows
        self._above: list[str] = []
        self._lines = [[" "] * columns for _ in range(rows)]
        self._x = self._y = 0

    @property
    def lines(self) -> list[str]:
        """All lines, with those that have left the window at the top, and without empty ones at the end."""
        text = "\n".join([*self._above, *("".join(line).rstrip() for line in self._lines)])
        return text.rstrip("\n").split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def visible(self) -> str:
        """What is in the window now."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    def feed(self, text: str) -> None:
        for found in _CODES.finditer(text):
            if found["char"]:
                self._type(found["char"])
            elif found["code"]:
                self._control(found["code"], found["numbers"])

    def _type(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\b":
            self._x = max(0, self._x - 1)
        elif char == "\n":
            self._break_line()
        elif char >= " ":
            if self._x == self.columns:
                self._break_line()
            self._lines[self._y][self._x] = char
            self._x += 1

    def _break_line(self) -> None:
        self._x, self._y = 0, self._y + 1
        if self._y == self.rows:
            self._above.append("".join(self._lines.pop(0)).rstrip())
            self._lines.append([" "] * self.columns)
            self._y -= 1

    def _control(self, code: str, numbers: str) -> None:
        count = int(numbers) if numbers.isdigit() else 0
        match code:
            case "A":  # up: lines that have left the window stay out of reach
                self._y = max(0, self._y - max(1, count))
            case "C":
                self._x = min(self.columns - 1, self._x + max(1, count))
            case "D":
                self._x = max(0, self._x - max(1, count))
            case "K":
                first = self._x if count == 0 else 0
                self._lines[self._y][first:] = [" "] * (self.columns - first)
            case "J":
                self._lines[self._y][self._x :] = [" "] * (self.columns - self._x)
                self._lines[self._y + 1 :] = [[" "] * self.columns for _ in range(self.rows - self._y - 1)]
            case _:  # colours, and whether the cursor is seen
                pass
