"""A provider that keeps its answers: it sends the rest of an answer over another connection, and stops answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rxllm import Engine, Event, stream_generate
from rxllm.adapters import OpenAIResponses
from rxllm.testing.loopback import STALL, Cut, Loopback, Pause, Reply, Request
from tests.adapters.openai_responses.support import (
    COMPLETED,
    CREATED,
    HI,
    HI_DONE,
    added,
    begun,
    delta,
    done,
    frame,
    function,
    message,
    response,
)
from tests.corpus import recordings

AT_ONCE = {"base_delay": 0.0, "jitter": 0.0}
"""A retry policy without waits."""

_PATH = re.compile(
    r"(/openai(/v1)?)?/responses/(?P<id>[^/?]+)(\?stream=true(&starting_after=(?P<after>\d+))?|/(?P<cancel>cancel))?([&?].*)?"
)


def frames_of(body: bytes) -> list[bytes]:
    """Return the frames of `body`, each with its blank line."""
    return [part + b"\n\n" for part in body.split(b"\n\n") if part]


def number(body: bytes, first: int = 0) -> list[bytes]:
    """Return the frames of `body` with numbers. Comments and keep-alives have none."""
    numbered: list[bytes] = []
    for part in frames_of(body):
        if b"data: {" in part and b"keepalive" not in part:
            part = part.replace(b"data: {", b'data: {"sequence_number":%d,' % first, 1)
            first += 1
        numbered.append(part)
    return numbered


def text(*pieces: str) -> bytes:
    """Return an answer with these pieces of text."""
    deltas = b"".join(delta("output_text", 0, "m1", piece) for piece in pieces)
    return CREATED + begun(0, "m1") + deltas + done(0, message("m1", "".join(pieces))) + COMPLETED


def call(id: str, name: str, arguments: str, index: int = 0) -> bytes:
    """Return the frames of a tool call."""
    item = function(f"i{index}", id, "") | {"name": name}
    pieces = [arguments[:3], arguments[3:]]
    deltas = b"".join(delta("function_call_arguments", index, f"i{index}", piece) for piece in pieces)
    return added(index, item) + deltas + done(index, item | {"arguments": arguments})


_THOUGHT = {"type": "reasoning", "id": "t", "summary": []}
_SEARCH = {"type": "web_search_call", "id": "w", "status": "in_progress"}

SCRIPTS: dict[str, bytes] = {
    "text": text("2, ", "3, ", "5."),
    "characters of several bytes": text("é", "€", "😀 ok"),
    "keep-alives": CREATED + b": ping\n\n" + HI + frame("keepalive") + b": ping\n\n" + HI_DONE + COMPLETED,
    "a thought": CREATED
    + added(0, _THOUGHT)
    + delta("reasoning_summary_text", 0, "t", "hm", summary_index=0)
    + delta("reasoning_summary_text", 0, "t", "m", summary_index=0)
    + done(0, _THOUGHT | {"summary": [{"text": "hmm"}], "encrypted_content": "x"})
    + COMPLETED,
    "two calls": CREATED + call("a", "f", '{"x":1}') + call("b", "f", '{"x":2}', 1) + COMPLETED,
    "a search": CREATED
    + added(0, _SEARCH)
    + frame("response.web_search_call.searching", output_index=0, item_id="w")
    + done(0, _SEARCH | {"status": "completed", "action": {"type": "search", "query": "primes"}})
    + begun(1, "m1")
    + delta("output_text", 1, "m1", "2")
    + done(1, message("m1", "2"))
    + COMPLETED,
    "a refusal": CREATED
    + added(0, message("m1"))
    + delta("refusal", 0, "m1", "No", content_index=0)
    + delta("refusal", 0, "m1", ".", content_index=0)
    + done(0, {"type": "message", "id": "m1", "content": [{"type": "refusal", "refusal": "No."}]})
    + COMPLETED,
    "halves of a character": CREATED
    + begun(0, "m1")
    + delta("output_text", 0, "m1", "H").replace(b'"H"', rb'"\ud83d"')
    + delta("output_text", 0, "m1", "I").replace(b'"I"', rb'"\ude00!"')
    + COMPLETED,
    "an odd frame, and the limit": CREATED
    + begun(0, "m1").replace(b'"output_index":0', b'"output_index":"0"')
    + frame("response.novel", output_index=[], x=1)
    + delta("output_text", 0, "m1", "Hi")
    + response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage={"input_tokens": 3}),
    "a failure": CREATED + HI + response("failed", error={"code": "server_error", "message": "oh"}),
}
"""Ten answers, by what is special about them."""


@cache
def recorded() -> tuple[bytes, bytes]:
    """Return the recorded answer, and the recorded rest of it after event 1."""
    name = "CanStreamBackgroundResponsesAsync"
    found = {Path(each.name).name: each.body for each in recordings("openai-responses") if name in each.name}
    first, rest = sorted(found, key=len, reverse=True)
    return (found[rest], found[first]) if first.endswith(".2.sse") else (found[first], found[rest])


class Keeper:
    """A script for a `Loopback`. Its connections to an answer are cut after the numbers of bytes in `cuts`, in turn.

    They end with the items in `ends`, in turn; the last one is repeated. The answers have the ids "r1", "r2" and so on,
    unless `renames` is False.

    `answer` is the answer's frames, or a function from the request to them. ``rest(frames, after)`` returns the frames
    that follow frame number `after`, or a reply; the default keeps to the rules. A `stop` is the reply to a request to
    stop an answer. The requests are counted in `posts`, `gets` and `stops`.
    """

    def __init__(
        self,
        answer: Sequence[bytes] | Callable[[Any], Sequence[bytes]],
        cuts: Iterable[int | None] = (),
        rest: Callable[[list[bytes], int], list[bytes] | Reply] | None = None,
        stop: Reply | None = None,
        ends: Sequence[Cut | Pause | None] = (Cut.RESET,),
        renames: bool = True,
    ) -> None:
        self._answer = answer
        self.cuts = iter(cuts)
        self._rest = rest or frames_after
        self._stop = stop or Reply.of_json({"status": "cancelled"})
        self._ends = [*ends]
        self._renames = renames
        self.kept: dict[str, list[bytes]] = {}
        self.posts: list[Any] = []
        self.gets: list[int] = []
        self.stops: list[str] = []

    def __call__(self, request: Request) -> Reply:
        if request.method == "POST" and request.path.partition("?")[0].endswith("/responses"):
            self.posts.append(request.json)
            answer = self._answer(request.json) if callable(self._answer) else self._answer
            id = f"r{len(self.posts)}" if self._renames else "r1"
            self.kept[id] = [each.replace(b'"id":"r1"', b'"id":"%b"' % id.encode()) for each in answer]
            return self._reply(self.kept[id])
        asked = _PATH.fullmatch(request.path)
        assert asked, request.path
        if asked["cancel"]:
            assert request.method == "POST"
            self.stops.append(asked["id"])
            return self._stop
        assert request.method == "GET"
        after = int(asked["after"] or -1)
        self.gets.append(after)
        rest = self._rest(self.kept.get(asked["id"]) or next(iter(self.kept.values())), after)
        return rest if isinstance(rest, Reply) else self._reply(rest)

    def _reply(self, frames: Sequence[bytes]) -> Reply:
        cut = next(self.cuts, None)
        if cut is None:
            return Reply([b"".join(frames)])
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        sent = [b"".join(frames)[:cut]] if cut else []  # an empty chunk would end the body
        return Reply([*sent, *(() if end is None else (end,))])


def number_of(part: bytes) -> int | None:
    found = re.search(rb'"sequence_number":(\d+)', part)
    return None if found is None else int(found[1])


def frames_after(frames: Sequence[bytes], after: int) -> list[bytes]:
    """Return the frames that follow frame number `after`. If it is -1, return all frames."""
    index = next((i for i, part in enumerate(frames) if number_of(part) == after), -1)
    return list(frames[index + 1 :])


def engine(server: Loopback, **options: Any) -> Engine:
    """Return an engine that asks `server` for answers that it keeps."""
    params = {"options": {"background": True}}
    return Engine(
        OpenAIResponses(base_url=server.url, api_key="k"),
        model="m",
        **{"params": params, "retry": AT_ONCE, **options},
    )


def events_of(keeper: Callable[[Request], Reply] | Reply, **options: Any) -> list[Event]:
    """Return the events of one answer."""
    with Loopback(keeper) as server:
        return stream_generate(engine(server, **options), "Hi").to_list().run()


def stalled(frames: Sequence[bytes]) -> Iterator[bytes | Pause]:
    yield b"".join(frames)
    yield STALL
