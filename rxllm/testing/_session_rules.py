"""The rules for session stores, which `assert_session_store` checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import fields
from secrets import token_hex
from typing import Any, cast

from rxllm.session import SavedSession, SessionStore
from rxllm.testing._rules import SECONDS, RuleTable, clip, expect, in_time, report
from rxllm.values import Message, RunError, Session, Thread, ToolCall, ValidationError, user

SESSION_STORE_RULES = RuleTable()
"""Maps each rule's name to its text."""

IDS = (
    *("{}", "{}a", "{}A", "{} ", " {}", "{}\n", "{}.", "{}\u00e9", "{}e\u0301", "{}😀", "{}😁", "{}\0a", "{}\0b"),
    *("../{}", "./{}", "/{}", "{}/", "{}/..", "{}\\", "{}:a", "{}%", "{}%25", "{}_", "{}*", "{}?", '{}"', "{}'; --"),
    *("{}" + 10_000 * "x" + "1", "{}" + 10_000 * "x" + "2"),
)
"""Ids that a careless store might mix up or truncate."""


def assert_session_store(make: Callable[[], SessionStore], *, without: Collection[str] = ()) -> None:
    """Check that a session store follows the `SESSION_STORE_RULES`.

    >>> from rxllm.session import MemorySessions
    >>> store = MemorySessions()
    >>> assert_session_store(lambda: store)

    ``make()`` must always open the same ``rxllm.session.SessionStore``. The checks leave sessions with random ids in
    the store.

    `without` names the rules to omit. Omit ``apart`` and ``invalid`` if your program generates all ids. Never omit
    ``new``, ``content``, ``version``, ``delete`` or ``at_once``.

    Raises the same errors as ``assert_executor``.
    """
    __tracebackhide__ = True

    def call(check: Callable[[], Any]) -> None:
        in_time(lambda: asyncio.run(check()), SECONDS)

    rules = SESSION_STORE_RULES
    places = [(_Place(make), [name]) for name in rules.chosen(None, without)]
    report(broken for place in places for broken in rules.broken(*place, call=call, catch=Exception))


class _Place:
    """The store under test, and a session id that no other check uses."""

    def __init__(self, make: Callable[[], SessionStore]) -> None:
        self.make, self.store, self.id = make, make(), token_hex(8)

    def session(self, text: str) -> Session:
        return Session(id=self.id, thread=Thread() + text)

    async def loads(self, saved: SavedSession) -> None:
        loaded = await self.store.load(str(saved.session.id))
        for field in fields(Session):
            before, after = getattr(saved.session, field.name), getattr(loaded.session, field.name)
            expect(before == after, f"{field.name} was saved as {clip(before)} and loaded as {clip(after)}")
        expect(loaded.version == saved.version, f"version {saved.version} was loaded as version {loaded.version}")

    async def conflicts(self, version: int, what: str) -> None:
        try:
            saved = await self.store.save(self.session("conflict"), version)
        except RunError as error:
            expect(error.reason == "conflict", f"saving {what} raised {error!r}", error)
        else:
            raise AssertionError(f"saving {what} returned {saved.version} instead of raising RunError('conflict')")


def sample(id: str) -> Session:
    """Return a session whose fields all differ from their defaults."""
    call = ToolCall("c1", "ask", {"x": [1, 2.5, None, {"ü": "\0😀"}]})
    thread = Thread() + user("naïve ☃ \0 \u2028") + Message("assistant", "", tool_calls=(call,))
    context = {"user": "ada", "tags": ["a", {"b": True}]}
    return Session(id, thread, "awaiting_tools", (call,), "Which one?", "c1", context, {"cost": [0.1]})


@SESSION_STORE_RULES.rule("new", "an unknown id loads as an empty session with version 0, and deleting it does nothing")
async def _new(place: _Place) -> None:
    for _ in range(2):
        await place.loads(SavedSession(Session(id=place.id)))
        await place.store.delete(place.id)


@SESSION_STORE_RULES.rule("content", "every field is loaded as it was saved, even if the session's dicts change later")
async def _content(place: _Place) -> None:
    saved = await place.store.save(sample(place.id), 0)
    expect(saved.session == sample(place.id), f"save returned {saved!r}")
    await place.loads(saved)
    for session in (saved.session, (await place.store.load(place.id)).session):
        session.context["tags"].append("changed")
    await place.loads(SavedSession(sample(place.id), saved.version))


@SESSION_STORE_RULES.rule(
    "version",
    "save() accepts only the stored version number and then increases it, no matter which store object is used",
)
async def _version(place: _Place) -> None:
    await place.conflicts(1, "version 1 of a new session")
    first = await place.store.save(place.session("first"), 0)
    second = await place.make().save(place.session("second"), first.version)
    expect(0 < first.version < second.version, f"the versions were 0, {first.version} and {second.version}")
    for wrong in (0, first.version, second.version + 1):
        await place.conflicts(wrong, f"version {wrong} instead of {second.version}")
    await place.loads(second)


@SESSION_STORE_RULES.rule("delete", "a deleted session is gone, and its versions are never valid again")
async def _delete(place: _Place) -> None:
    old = await place.store.save(place.session("old"), 0)
    await place.store.delete(place.id)
    deleted = await place.store.load(place.id)
    expect(deleted.session == Session(id=place.id), f"the deleted session was loaded as {deleted.session!r}")
    await place.conflicts(old.version, "the deleted version")
    saved = await place.store.save(place.session("new"), deleted.version)
    await place.conflicts(old.version, "the deleted version, after the session was saved again,")
    await place.loads(saved)


@SESSION_STORE_RULES.rule(
    "at_once", "if several callers replace a version at once, one succeeds, and the others get a conflict"
)
async def _at_once(place: _Place) -> None:
    saves = [place.store.save(place.session(f"caller {number}"), 0) for number in range(8)]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    saved = [outcome for outcome in outcomes if isinstance(outcome, SavedSession)]
    conflicts = [outcome for outcome in outcomes if isinstance(outcome, RunError) and outcome.reason == "conflict"]
    expect((len(saved), len(conflicts)) == (1, 7), f"8 callers that saved version 0 got {outcomes}")
    await place.loads(saved[0])


@SESSION_STORE_RULES.rule(
    "apart", "a session is loaded, saved and deleted only under its own id, even if the id is unusual"
)
async def _apart(place: _Place) -> None:
    saved: dict[str, SavedSession] = {}
    for pattern in IDS:
        try:
            saved[pattern] = await place.store.save(Session(pattern.format(place.id), Thread() + pattern), 0)
        except ValidationError as error:  # a store may refuse unusual ids
            expect(pattern not in IDS[:2], f"the id {pattern.format(place.id)} was refused", error)
    changed = Session(f"{place.id}a", Thread() + "changed")
    saved["{}a"] = await place.store.save(changed, saved["{}a"].version)
    await place.store.delete(str(saved.pop("{}").session.id))
    for session in saved.values():
        await place.loads(session)


@SESSION_STORE_RULES.rule("invalid", "an id that is empty, not a string or not encodable raises a ValidationError")
async def _invalid(place: _Place) -> None:
    for id in cast("list[Any]", ["", None, 5, "\ud800"]):
        for name, argument in {"load": id, "save": Session(id=id), "delete": id}.items():
            try:
                await getattr(place.store, name)(argument)
            except ValidationError:
                continue
            raise AssertionError(f"{name} accepted the id {id!r}")
