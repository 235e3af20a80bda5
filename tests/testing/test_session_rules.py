"""The rules for stores of sessions: the kit finds stores that break one, and `MemorySessions` breaks none."""

from __future__ import annotations

import asyncio
import posixpath
import re
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest

from rxllm import RunError, Session, Thread, ValidationError
from rxllm.session import MemorySessions, SavedSession, SessionStore
from rxllm.testing import SESSION_STORE_RULES, assert_session_store
from rxllm.testing._session_rules import sample

Make = Callable[[], SessionStore]


def only(rule: str) -> list[str]:
    return [name for name in SESSION_STORE_RULES if name != rule]


class Fault(MemorySessions):
    """A store that is broken in one place."""


class Raising(Fault):
    async def load(self, id: str) -> SavedSession:
        if id not in self._saved:
            raise KeyError(id)
        return await super().load(id)


class Nameless(Fault):
    async def load(self, id: str) -> SavedSession:
        return await super().load(id) if id in self._saved else SavedSession(Session())


class FirstVersionIsOne(Fault):
    async def load(self, id: str) -> SavedSession:
        saved = await super().load(id)
        return SavedSession(saved.session, saved.version or 1)


class DeletingOnce(Fault):
    async def delete(self, id: str) -> None:
        if id:
            del self._saved[id]


class Keeping(Fault):
    """Keeps the objects instead of their JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Session] = {}

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        saved = await super().save(session, version)
        self.objects[str(session.id)] = session
        return saved

    async def load(self, id: str) -> SavedSession:
        saved = await super().load(id)
        return SavedSession(self.objects.get(id, saved.session), saved.version)


class Caching(Keeping):
    """Returns the object of the first load from every later one."""

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        return await MemorySessions.save(self, session, version)

    async def load(self, id: str) -> SavedSession:
        saved = await MemorySessions.load(self, id)
        return SavedSession(self.objects.setdefault(f"{id} {saved.version}", saved.session), saved.version)


class LateVersion(Fault):
    async def load(self, id: str) -> SavedSession:
        saved = await super().load(id)
        return SavedSession(saved.session, max(0, saved.version - 1))


class LastWriterWins(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        return await super().save(session, self._saved.get(str(session.id), (0, ""))[0])


class NewerIsFine(Fault):
    """Checks only that the version is not older than the stored one."""

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        return await super().save(session, min(version, self._saved.get(str(session.id), (0, ""))[0]))


class OtherError(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        try:
            return await super().save(session, version)
        except RunError:
            raise RunError("exists") from None


class WritingFirst(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        stored, _ = self._saved.get(str(session.id), (0, ""))
        if stored != version:
            await super().save(session, stored)
            self._saved[str(session.id)] = stored, self._saved[str(session.id)][1]
        return await super().save(session, version)


class CountingDown(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        self._last_version = -self._last_version - 2 if version else self._last_version
        saved = await super().save(session, version)
        self._last_version = abs(self._last_version)
        return saved


class NotDeleting(Fault):
    async def delete(self, id: str) -> None:
        pass


class CountingAgain(Fault):
    """Counts the versions of each session, and starts again after a delete."""

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        self._last_version = version
        return await super().save(session, version)


class CheckingEarly(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        stored, _ = self._saved.get(str(session.id), (0, ""))
        await asyncio.sleep(0)
        if stored == version:
            version, _ = self._saved.get(str(session.id), (0, ""))
        return await super().save(session, version)


class BusyIsAnotherError(Fault):
    """Reports the losers of a race as a database that is locked."""

    waiting = 0

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        self.waiting += 1
        try:
            await asyncio.sleep(0)
            if self.waiting > 1:
                raise OSError("database is locked")
            return await super().save(session, version)
        finally:
            self.waiting -= 1


class DeletingAll(Fault):
    async def delete(self, id: str) -> None:
        self._saved.clear()


class DeletingByPrefix(Fault):
    async def delete(self, id: str) -> None:
        for other in [other for other in self._saved if other.startswith(id)]:
            await super().delete(other)


class Refusing(Fault):
    async def save(self, session: Session, version: int = 0) -> SavedSession:
        if len(str(session.id)) < 20:
            raise ValidationError("invalid_option", "the id is too short")
        return await super().save(session, version)


class Normalizing(Fault):
    """Uses another key than the id."""

    key: Callable[[Any], Any]

    async def load(self, id: str) -> SavedSession:
        saved = await super().load(self.key(id) if isinstance(id, str) else id)
        return SavedSession(replace(saved.session, id=id), saved.version)

    async def save(self, session: Session, version: int = 0) -> SavedSession:
        id = self.key(session.id) if isinstance(session.id, str) else session.id
        return SavedSession(session, (await super().save(replace(session, id=id), version)).version)

    async def delete(self, id: str) -> None:
        await super().delete(self.key(id) if isinstance(id, str) else id)


def normalizing(key: Callable[[str], str]) -> type[Fault]:
    return type("Normalizing", (Normalizing,), {"key": staticmethod(key)})


def accepting(*methods: str) -> type[Fault]:
    """Return a store whose methods take "" for an id."""

    def accept(method: str) -> Any:
        async def call(self: Any, argument: Any, version: int = 0) -> Any:
            if argument == "" or getattr(argument, "id", None) == "":
                return SavedSession(Session(id=""))
            return await getattr(MemorySessions, method)(self, argument, *([version] if method == "save" else []))

        return call

    return type("Accepting", (Fault,), {method: accept(method) for method in methods})


class Untyped(Fault):
    async def load(self, id: str) -> SavedSession:
        return await super().load(id.removeprefix("session:"))


def forgetting(field: str) -> type[Fault]:
    """Return a store that does not keep this field."""

    class Forgetting(Fault):
        async def load(self, id: str) -> SavedSession:
            saved = await super().load(id)
            return SavedSession(replace(saved.session, **{field: getattr(Session(), field)}), saved.version)

    return Forgetting


OWN_STORE_EACH = "a new store at each call"

FAULTS: dict[str, list[Any]] = {
    "new": [Raising, Nameless, FirstVersionIsOne, DeletingOnce],
    "content": [Keeping, Caching, LateVersion, *(forgetting(field.name) for field in fields(Session))],
    "version": [LastWriterWins, NewerIsFine, OtherError, WritingFirst, CountingDown, OWN_STORE_EACH],
    "delete": [NotDeleting, CountingAgain, LastWriterWins],
    "at_once": [CheckingEarly, BusyIsAnotherError, LastWriterWins, OtherError],
    "apart": [
        DeletingAll,
        DeletingByPrefix,
        Refusing,
        normalizing(str.lower),
        normalizing(str.strip),
        normalizing(str.rstrip),
        normalizing(lambda id: id[:1000]),
        normalizing(lambda id: id.partition("\0")[0]),
        normalizing(lambda id: unicodedata.normalize("NFC", id)),
        normalizing(lambda id: id.encode("ascii", "replace").decode()),
        normalizing(posixpath.normpath),
        normalizing(lambda id: id.rpartition("/")[2] or id),
        normalizing(lambda id: re.sub(r"[^\w.]", "_", id)),
        normalizing(lambda id: id.partition(":")[0]),
        normalizing(lambda id: id.replace("%25", "%")),
        normalizing(lambda id: id.rstrip(".\\\"'; -*?")),
    ],
    "invalid": [accepting("load"), accepting("save"), accepting("delete"), Untyped],
}


def test_every_rule_has_its_faults() -> None:
    assert list(FAULTS) == list(SESSION_STORE_RULES)


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule, faults in FAULTS.items() for fault in faults])
def test_the_kit_finds_a_broken_store(rule: str, fault: Any) -> None:
    store = None if fault is OWN_STORE_EACH else fault()
    make: Make = lambda: store or MemorySessions()  # noqa: E731
    with pytest.raises(AssertionError, match=f"^{rule}: {re.escape(SESSION_STORE_RULES[rule])}, but "):
        assert_session_store(make, without=only(rule))


def test_the_report_names_the_field_and_every_broken_rule() -> None:
    store = forgetting("context")()
    with pytest.raises(AssertionError, match=r"^content: .*context was saved as .* and loaded as {}$"):
        assert_session_store(lambda: store)
    deaf = LastWriterWins()
    with pytest.raises(AssertionError) as caught:
        assert_session_store(lambda: deaf)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["version", "delete", "at_once"]


def test_a_rule_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no such rule: tidy; the rules are new, "):
        assert_session_store(MemorySessions, without=["tidy"])


def test_the_sample_has_no_default_in_any_field() -> None:
    session, empty = sample("ada"), Session()
    assert [field.name for field in fields(Session) if getattr(session, field.name) == getattr(empty, field.name)] == []


def test_the_kit_works_while_a_loop_runs() -> None:
    async def main() -> None:
        store = MemorySessions()
        assert_session_store(lambda: store)

    asyncio.run(main())


# Memory


def test_savers_in_several_threads() -> None:
    store = MemorySessions()

    def save(number: int) -> bool:
        try:
            asyncio.run(store.save(Session(id="ada", thread=Thread() + str(number))))
        except RunError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        outcomes = [*threads.map(save, range(40))]
    assert outcomes.count(True) == 1
    saved = asyncio.run(store.load("ada"))
    assert saved.session.messages[-1].text == str(outcomes.index(True))


def test_what_memory_cannot_keep_is_refused_when_it_is_saved() -> None:
    store = MemorySessions()
    for session, reason in (
        (Session(id="ada", context={"x": object()}), "not_serializable"),
        ("ada", "invalid_option"),
    ):
        with pytest.raises(ValidationError) as caught:
            asyncio.run(store.save(session))
        assert caught.value.reason == reason
    assert asyncio.run(store.load("ada")).version == 0


def test_a_conflict_says_what_to_do() -> None:
    with pytest.raises(RunError, match="the session 'ada' has changed since it was loaded; load it again") as caught:
        asyncio.run(MemorySessions().save(Session(id="ada"), 3))
    assert caught.value.reason == "conflict"
