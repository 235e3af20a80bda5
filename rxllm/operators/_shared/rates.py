"""When calls may begin: their distance, their number and tokens in a minute, and how long providers hold them back."""

from __future__ import annotations

from bisect import insort
from math import inf
from operator import itemgetter

MINUTE = 60.0

SHORTEST = 1e-6
"""Times that are closer are the same, in seconds: it is the resolution of virtual time."""

Entry = list[float]
"""A time and an amount. The amount changes when it is known better."""


class RateWindow:
    """At most `limit` in any 60 seconds. An amount above the limit waits until nothing else counts."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._entries: list[Entry] = []  # by their times, of which some may be to come
        self._total = 0.0

    def earliest(self, amount: float, at: float) -> float:
        """Return when `amount` may be used: `at`, or as soon after that as there is room."""
        excess = self._total + amount - self._limit
        for time, used in self._entries:
            if time + MINUTE > at + SHORTEST:
                if excess <= 0:
                    break
                at = time + MINUTE
            excess -= used
        return at

    def add(self, amount: float, at: float, now: float) -> Entry:
        """Count `amount` as used at a time that `earliest` has returned."""
        entry = [at, amount]
        if self._limit == inf:
            return entry
        old = 0
        while old < len(self._entries) and self._entries[old][0] + MINUTE <= now + SHORTEST:
            self._total -= self._entries[old][1]
            old += 1
        del self._entries[:old]
        insort(self._entries, entry, key=itemgetter(0))
        self._total += amount
        return entry

    def correct(self, entry: Entry, amount: float, now: float) -> None:
        """Count `amount` in place of that of `entry`; what is more than it counts as used now."""
        if amount > entry[1]:
            self.add(amount - entry[1], now, now)
        elif any(entry is other for other in self._entries):
            self._total += amount - entry[1]
            entry[1] = amount


class Rates:
    """The limits of calls by time. Those who use it take turns; `now` is the time of the call in question."""

    def __init__(self, interval: float, requests: int | None, tokens: int | None) -> None:
        self._interval = interval
        self._requests = RateWindow(inf if requests is None else requests)
        self._tokens = RateWindow(inf if tokens is None else tokens)
        self._next = -inf  # the interval is over then
        self._set_for: float | None = None  # what `earliest` has returned last, if that was to come
        self._held_until = -inf

    def earliest(self, tokens: int, now: float) -> float:
        """Return when a call may begin that may use `tokens`: `now`, or later."""
        at = max(self._next, self._held_until, now)
        at = self._tokens.earliest(tokens, self._requests.earliest(1, at))
        at = now if at - now <= SHORTEST else at
        if at > now:
            self._set_for = at
        return at

    def begin(self, tokens: int, now: float) -> Entry:
        """Count a call that begins; return what counts its tokens."""
        # A call that waited for its time keeps the interval, however late the alarm rang.
        self._next = (self._next if self._set_for == self._next else now) + self._interval
        self._requests.add(1, now, now)
        return self._tokens.add(tokens, now, now)

    def settle(self, entry: Entry, tokens: int, now: float) -> None:
        """Count the tokens that the call with this entry has used in place of those that it might use."""
        self._tokens.correct(entry, tokens, now)

    def hold_back(self, seconds: float, now: float) -> None:
        """Let no call begin for so long."""
        self._held_until = max(self._held_until, now + seconds)

    def retry(self, seconds: float, now: float) -> float:
        """Count another attempt of a call, in so many seconds or later; return in how many."""
        at = self._requests.earliest(1, max(now + seconds, self._held_until))
        self._requests.add(1, at, now)
        return at - now
