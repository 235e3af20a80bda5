"""`Cassette` and `sandbox`, which replace models in tests."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec
from reactivex import abc

from rxllm import models
from rxllm import operators as ops
from rxllm.adapters import Adapter, as_adapter
from rxllm.adapters.http_base import HTTPBase
from rxllm.engine import Engine, as_engine
from rxllm.events import Event, MessageCompleted
from rxllm.http.secrets import secrets_in, without
from rxllm.images import ImageAdapter
from rxllm.runtime import Stream, current_place, provider_name
from rxllm.serializer import to_json
from rxllm.testing._recordings import Recorded, Recording, as_path, check_speed, play, recording_with, recordings_in
from rxllm.testing._rules import near_the_difference
from rxllm.values import AdapterError, Call, EngineError, Request, Tool, ValidationError
from rxllm.values.advice import advice
from rxllm.values.argument_checks import check
from rxllm.values.json_text import is_encodable
from rxllm.values.secret_names import masked

log = logging.getLogger("rxllm")

A = TypeVar("A")

Mode = Literal["once", "replay", "record"]


class Cassette:
    """An adapter that records answers and plays them back.

    >>> import tempfile
    >>> from rxllm import Engine, Fake, generate
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = Fake("Two, three and five.")
    >>> for _ in range(2):
    ...     engine = Engine(Cassette(f"{folder.name}/primes.jsonl", model))
    ...     generate(engine, "Name three primes.").run().output_text
    'Two, three and five.'
    'Two, three and five.'
    >>> len(model.requests)
    1
    >>> engine = Engine(Cassette(f"{folder.name}/primes.jsonl", model, "replay"))
    >>> generate(engine, "Name four primes.").run()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    rxllm.AdapterError: ...primes.jsonl has no recording of this request; the nearest recording differs in
      messages.0.content: recorded 'Name three primes.', now 'Name four primes.'
    pass mode="once" to record what is missing
    >>> folder.cleanup()

    `engine` is an adapter, a model name, or an `Engine` that has only an adapter and a model. Pass other settings to
    the engine that uses the cassette: ``Engine(Cassette("tape.jsonl", "openai:gpt-5"), tools=[...])``.

    ==============  ====================================================================================================
    `mode`          effect
    ==============  ====================================================================================================
    ``"once"``      Plays recorded answers, and calls the model for requests that have none. Only complete answers are
                    recorded. If a call fails or is disposed early, the next call with the same request calls the
                    model again.
    ``"replay"``    Never calls the model. A request that is not recorded fails with
                    ``AdapterError("no_scripted_response")``. Its message shows how the request differs from the nearest
                    recording.
    ``"record"``    Always calls the model. The first call with a request replaces that request's recordings.
                    Later calls with the same request add recordings. Failed calls are recorded too. The recording of a
                    call that is disposed early ends with ``StreamError("cancelled")``.
    ==============  ====================================================================================================

    By default, recorded answers are played without delays. With ``speed=1``, they have their original timing, and
    ``speed=2`` is twice as fast. If a request has several recordings, they are played in rotation.

    Two requests are the same if they have the same messages, tools, model, provider and settings. Request ids, API
    keys, headers and `metadata` are ignored. So are the values of options with names like ``password``. API keys are
    never written to the file. Bytes in a request are written only as hashes.

    A recording starts with a line for the request. The lines after it have the format of the files that the function
    ``rxllm.testing.record`` writes. The lines of an answer are written together when the answer ends. Threads and
    processes can share the file, but while one process replaces recordings, no other process may write to the file. If
    the file's folder is missing, it is created. Images from ``generate_image`` are not recorded.

    Raises ``ValidationError("invalid_option")`` if `mode` is unknown. Raises ``EngineError("invalid_engine")`` if
    `engine` has settings besides an adapter and a model. Raises ``ValueError`` if `speed` is not positive, and
    ``TypeError`` if `path` is not a path.
    """

    def __init__(self, path: str | Path, engine: Any = None, mode: Mode = "once", *, speed: float = math.inf) -> None:
        self.path = as_path(path)
        if engine is None:
            remedy = advice("arguments", "Cassette")
            raise EngineError("invalid_engine", f"a Cassette needs the engine whose answers it keeps; write {remedy}")
        check("mode", mode, mode in ("once", "replay", "record"), "'once', 'replay' or 'record'")
        check_speed(speed)
        self.mode, self.speed = mode, speed
        self._engine = _require_bare(as_engine(engine))
        self._adapter: Adapter = as_adapter(self._engine.adapter)
        self.provider = provider_name(self._engine.adapter)
        self._lock = threading.RLock()
        self._tapes: dict[str, list[Recorded]] | None = None
        self._played: Counter[str] = Counter()
        self._recorded: set[str] = set()

    def __repr__(self) -> str:
        return f"Cassette({str(self.path)!r}, {self._engine.adapter!r}, {self.mode!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.path, self._engine, self.mode, self.speed)

    async def aclose(self) -> None:
        close = getattr(self._engine.adapter, "aclose", None)
        if close is not None:
            await close()

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        """Return a stream that plays a recording or calls the model. The choice is made at each subscription."""
        is_named = request.model is not None
        request = request if is_named else replace(request, model=self._engine.model)

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return self._choose_source(request, call).subscribe(observer, scheduler=scheduler)

        stream = Stream(subscribe)
        # If the request names a model, the pipeline adds the costs itself.
        return stream if is_named else add_costs(stream, self.provider, request.model)

    def _choose_source(self, request: Request, call: Call) -> Stream[Event]:
        secrets = secrets_of(self._engine.adapter, request, call)
        description = describe_request(request, self.provider, call.raw, secrets)
        key = key_of(description)
        with self._lock:
            recordings = () if self.mode == "record" else self._load().get(key, ())
            if recordings:
                recording = recordings[self._played[key] % len(recordings)]
                self._played[key] += 1
                return play(recording.notes(), self.speed)
            if self.mode == "replay":
                message = f'{self._describe_miss(description)}\npass mode="once" to record what is missing'
                raise AdapterError("no_scripted_response", message, provider=self.provider)
            if self.mode == "once" and self._tapes and log.isEnabledFor(logging.INFO):
                log.info("%s", self._describe_miss(description))

        sent: set[str] = set()  # a function may have returned the key, and the answer may repeat it

        def save(lines: str) -> None:
            self._save(key, head_line(description), without(lines, [*secrets, *sent]))

        live = Stream.of(self._adapter.stream(request, replace(call, on_secrets=sent.update)))
        return live.pipe(recording_with(lambda seconds: _Take(seconds, self.mode == "record", save)))

    def _load(self) -> dict[str, list[Recorded]]:
        if self._tapes is None:
            tapes: dict[str, list[Recorded]] = {}
            for recording in read_cassette(self.path):
                tapes.setdefault(key_of(recording.request), []).append(recording)
            self._tapes = tapes
        return self._tapes

    def _describe_miss(self, description: Mapping[str, Any]) -> str:
        recorded = [recordings[0].request for recordings in self._load().values()]
        if not recorded:
            return f"{self.path} has no recordings"
        differences = "".join(f"\n  {line}" for line in nearest_differences(recorded, description))
        return f"{self.path} has no recording of this request; the nearest recording differs in{differences}"

    def _save(self, key: str, head: str, lines: str) -> None:
        with self._lock, _writing:
            tapes = self._load()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            entry = (head + lines).encode()
            if self.mode == "record" and key not in self._recorded and tapes.pop(key, None):
                others = [other.text for other in read_cassette(self.path) if key_of(other.request) != key]
                _replace(self.path, b"\n".join([*others, entry]))
            else:
                _append(self.path, entry)
            self._recorded.add(key)
            numbered = list(enumerate(lines.encode().splitlines(keepends=True), 2))
            tapes.setdefault(key, []).append(Recorded(self.path, numbered, (1, head.encode())))


@contextmanager
def sandbox(engine: A) -> Generator[A]:
    """Inside the block, use `engine` wherever the code names a model.

    >>> from rxllm import Fake, generate
    >>> def name_primes():
    ...     return generate("openai:gpt-5", "Name three primes.").run().output_text
    >>> with sandbox(Fake("2, 3, 5.")) as fake:
    ...     name_primes()
    '2, 3, 5.'
    >>> fake.requests[0].model
    'gpt-5'

    `engine` is an `Engine`, an adapter or an image adapter. It replaces every engine that the code specifies as a
    string, such as ``"openai:gpt-5"``. If the code generates both text and images, pass an `Engine` that has both
    adapters. Requests keep the model name given in the code.

    A sandbox affects every stream created inside its block, even if the stream runs after the block. It also applies in
    tasks, ``asyncio.run`` and ``asyncio.to_thread``. Concurrent and nested sandboxes are independent. Engines created
    outside the block are not affected.
    """
    only_images = isinstance(engine, ImageAdapter) and not hasattr(engine, "stream")
    replacement = Engine(image_adapter=engine) if only_images else as_engine(engine)
    token = current_place.set(msgspec.structs.replace(current_place.get(), engine=replacement))
    try:
        yield engine
    finally:
        current_place.reset(token)


_writing = threading.Lock()


class _Take(Recording):
    """Records a live answer. When the answer ends, the recording is saved or dropped."""

    def __init__(self, seconds: Callable[[], float], keeps_all: bool, save: Callable[[str], None]) -> None:
        super().__init__(io.StringIO(), seconds)
        self._keeps_all = keeps_all
        self._save = save
        self._is_answer = False
        self._is_kept = False

    def add(self, item: Any) -> None:
        super().add(item)
        self._is_answer = isinstance(item, MessageCompleted)  # a complete answer ends with this event

    def end(self, kind: str, json: str) -> Exception | None:
        with self._lock:
            if kind == "disposed" and self._is_answer:  # unsubscribed after receiving the complete answer
                kind = "completed"
            self._is_kept = self._keeps_all or (kind == "completed" and self._is_answer)
            return super().end(kind, json)

    def _close(self, file: Any) -> None:
        if self._is_kept:
            self._save(file.getvalue())


def read_cassette(path: Path) -> list[Recorded]:
    recordings = recordings_in(path) if path.exists() else []
    if any(recording.head is None and recording.lines for recording in recordings):
        raise ValidationError(
            "invalid_request", f"{path} was written by `record` and has no requests: play it with replay_file"
        )
    return [recording for recording in recordings if recording.head is not None]


def _append(path: Path, entry: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        # The empty line also ends an entry that was cut short by a crash.
        data = b"\n" + entry if file.tell() else entry
        if file.write(data) != len(data):
            raise OSError(f"{path}: only part of the recording could be written")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(data)
    os.replace(new, path)


def _require_bare(engine: Engine) -> Engine:
    bare = Engine(engine.adapter, engine.model)
    lost = [spec.name for spec in fields(Engine) if getattr(engine, spec.name) != getattr(bare, spec.name)]
    if lost:
        message = (
            f"a Cassette needs a bare adapter and model, but this engine also has {', '.join(lost)}; write "
            "dataclasses.replace(engine, adapter=Cassette(path, engine.adapter))"
        )
        raise EngineError("invalid_engine", message)
    return bare


def _again(path: Path, engine: Engine, mode: Mode, speed: float) -> Cassette:  # pickles refer to it by name
    return Cassette(path, engine, mode, speed=speed)


_SHOWN = 5
"""The maximum number of differences to show in an error message."""


def secrets_of(adapter: Any, request: Request, call: Call) -> list[str]:
    """Return the secrets that are known before the call is made."""
    if isinstance(adapter, HTTPBase):
        return adapter._secrets(request, call, None)  # pyright: ignore[reportPrivateUsage]
    sources = {"api_key": call.api_key, "headers": call.headers, "options": request.options}
    return list(secrets_in(sources))


def describe_request(request: Request, provider: str, raw: bool, secrets: list[str]) -> dict[str, Any]:
    """Return the parts of `request` that the model sees, with bytes hashed and `secrets` masked."""
    tools = tuple(Tool(tool.name, tool.description, tool.schema, metadata=tool.metadata) for tool in request.tools)
    data: dict[str, Any] = json.loads(
        to_json(replace(request, tools=tools, options=masked(request.options), metadata={}))
    )
    data = {"provider": provider, **{name: entry for name, entry in data.items() if name not in ("$", "v")}}
    return without(_hash_bytes(data | ({"raw": True} if raw else {})), secrets)


def _hash_bytes(data: Any) -> Any:
    match data:
        case {"$": "bytes", "base64": str(text)}:
            return {"$": "bytes", "sha256": _sha256(base64.b64decode(text))}
        case {"$": "Image", "source": "base64", "data": str(text)}:
            return {**cast(dict[str, Any], data), "data": f"sha256:{_sha256(text)}"}
        case dict():
            return {name: _hash_bytes(entry) for name, entry in cast(dict[str, Any], data).items()}
        case list():
            return [_hash_bytes(entry) for entry in cast(list[Any], data)]
        case str() if data.startswith("data:") and ";base64," in data:
            kind, _, text = data.partition(";base64,")
            return f"{kind};sha256,{_sha256(text)}"
        case _:
            return data


def _sha256(content: str | bytes) -> str:
    return hashlib.sha256(content.encode(errors="replace") if isinstance(content, str) else content).hexdigest()


def add_costs(source: Any, provider: str | None, model: str | None) -> Any:
    """Add costs to the usage in `source` if the model's prices are known."""
    info = models.find(provider, model) if provider else None
    return source.pipe(ops.cost(price=models.price_of(info))) if info is not None and info.has_prices else source


def key_of(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


def head_line(description: Mapping[str, Any]) -> str:
    """Return a recording's first line. That line contains the request."""
    text = json.dumps({"request": description}, ensure_ascii=False)
    return f"{text if is_encodable(text) else json.dumps({'request': description})}\n"


def nearest_differences(recorded: list[Mapping[str, Any]], description: Mapping[str, Any]) -> list[str]:
    """Return how the request differs from the most similar recorded request."""
    text = key_of(description)

    def distance(other: Mapping[str, Any]) -> tuple[int, float]:
        likeness = SequenceMatcher(None, key_of(other), text).quick_ratio()
        return len(list(_differences("", other, description))), -likeness

    lines = list(_differences("", min(recorded, key=distance), description))
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    match old, new:
        case dict(), dict():
            before, after = cast(dict[str, Any], old), cast(dict[str, Any], new)
            pairs = [(name, before.get(name, _NOTHING), after.get(name, _NOTHING)) for name in before | after]
        case list(), list():
            both = zip_longest(cast(list[Any], old), cast(list[Any], new), fillvalue=_NOTHING)
            pairs = [(str(index), *pair) for index, pair in enumerate(both)]
        case _:
            if old != new:
                recorded, now = near_the_difference(repr(old), repr(new))
                yield f"{path}: recorded {recorded}, now {now}"
            return
    for name, old_entry, new_entry in pairs:
        yield from _differences(f"{path}.{name}" if path else name, old_entry, new_entry)
