"""The UI message stream obeys its client's rules, and its client folds what we fold.

The judge is the npm package `ai` under Node, see `judges/ui.mjs`; the rules are checked without it as well.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import from_iterable

import rxllm
from rxllm import (
    ChatCompleted,
    ErrorEvent,
    Event,
    Fake,
    MessageStarted,
    Nested,
    Stream,
    StreamError,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    Thread,
    ToolApprovalRequested,
    ToolCall,
    ToolCallCompleted,
    ToolProgress,
    Usage,
    web,
)
from rxllm import operators as ops
from rxllm.collector import event_fault
from rxllm.testing.loopback import STALL, Loopback, Reply, Request
from rxllm.web._ui_stream import Decoder, Encoder
from tests.examples import examples
from tests.laws import scripts
from tests.operators.support import NO, Dictation, refusing
from tests.web import clients
from tests.web.streams import DECODERS, of_recordings, of_script
from tests.web.ui import assert_folds_equal, pay

EVERY = 1 if os.environ.get("RXLLM_JUDGES") == "required" else 8


def client(events: list[Event]) -> list[Event]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client()))


def framed(events: list[Event]) -> list[Any]:
    return list(Stream.of(from_iterable(events)).pipe(web.for_client(), web.encode("ui")))


def again(frames: list[Any]) -> list[Event]:
    return list(Stream.of(from_iterable(frames)).pipe(web.decode("ui")))


def body(frames: list[Any]) -> str:
    return (b"".join(map(web.sse, frames)) + Encoder.END).decode()


def judged(streams: list[list[Any]], messages: list[Any] | None = None) -> list[Any]:
    """What `ai` makes of streams of frames, each of which goes on with one of `messages`."""
    both = zip(streams, messages or [None] * len(streams), strict=True)
    return [clients.run("ui", {"body": body(frames), "message": message}) for frames, message in both]


class Rules:
    """What the client requires of a stream, and what its user sees if the stream forgets it."""

    def __init__(self, known: tuple[str, ...] = ()) -> None:
        self.open: dict[tuple[str, str], str] = {}
        self.seen: set[str] = set()
        self.calls = set(known)
        self.step = False

    def check(self, frames: list[Any]) -> None:
        kinds = [frame["type"] for frame in frames]
        assert kinds[0] == "start"
        assert kinds[-1] == "finish"
        assert kinds.count("start") == kinds.count("finish") == 1
        for frame in frames:
            self.frame(frame["type"], frame)

    def frame(self, kind: str, frame: Any) -> None:
        name, _, place = kind.partition("-")
        if name in ("text", "reasoning"):
            self.block(name, place, frame)
        elif kind in ("tool-input-start", "tool-input-available", "tool-input-error"):
            self.calls.add(frame["toolCallId"])
            if kind == "tool-input-start":
                self.open["call", frame["toolCallId"]] = kind
            else:
                self.open.pop(("call", frame["toolCallId"]), None)
        elif name == "tool" and kind != "tool-approval-response":
            assert frame["toolCallId"] in self.calls
        elif kind == "start-step":
            assert not self.step
            self.step = True
        elif kind in ("finish-step", "reset-step"):
            assert self.step
            self.step = kind == "reset-step"
            self.open = {} if kind == "reset-step" else self.open
        elif kind in ("error", "abort", "finish"):
            assert not self.open
            assert kind != "finish" or not self.step

    def block(self, name: str, place: str, frame: Any) -> None:
        if place == "start":
            assert frame["id"] not in self.seen
            self.seen.add(frame["id"])
            self.open[name, frame["id"]] = name
        else:
            assert (name, frame["id"]) in self.open
            if place == "end":
                del self.open[name, frame["id"]]


@pytest.mark.parametrize("api", DECODERS)
def test_every_recorded_stream_keeps_the_rules_and_comes_back(api: str) -> None:
    for name, recorded in of_recordings(api, every=EVERY):
        events = client(recorded)
        frames = framed(events)
        Rules().check(frames)
        assert again(frames) == events, name


@pytest.mark.judges
@pytest.mark.parametrize("api", DECODERS)
def test_the_client_folds_recorded_streams_as_we_do(api: str) -> None:
    named = [(name, client(events)) for name, events in of_recordings(api, every=EVERY)]
    for (name, events), result in zip(named, judged([framed(events) for _, events in named]), strict=True):
        assert_folds_equal(result, events, name)


@settings(deadline=None, max_examples=examples(60))
@given(st.data(), scripts.scripts)
def test_a_stream_that_is_cut_off_ends_with_an_error(data: st.DataObject, script: Any) -> None:
    events = client(of_script(script))
    frames = framed(events)
    arrived = again(frames[: data.draw(st.integers(0, len(frames) - 1))])
    assert arrived[-1:] == [ErrorEvent(StreamError("truncated"))] or any(isinstance(e, ErrorEvent) for e in arrived)
    assert arrived[:-1] == events[: len(arrived) - 1]


@pytest.mark.parametrize("protocol", ["ui", "ag-ui"])
def test_a_stream_that_is_cut_off_after_a_restart_is_an_error_on_the_wire(protocol: str) -> None:
    message = rxllm.MessageStarted(rxllm.Message("assistant"))
    begun = [message, rxllm.TextDelta("Hel"), rxllm.StepRestarted("timeout", 2)]
    frames = list(Stream.of(from_iterable(begun)).pipe(web.encode(protocol)))
    assert {"error", "RUN_ERROR"} & {frame["type"] for frame in frames}


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.booleans())
def test_a_frame_that_is_wrong_is_one_typed_error(data: st.DataObject, is_ours: bool) -> None:
    frames: list[Any] = json.loads(json.dumps(framed(by_hand())))
    frames = frames if is_ours else [frame for frame in frames if frame["type"] != "data-rxllm"]
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = data.draw(st.sampled_from(frames))
        while True:
            name = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[name], dict) or not place[name] or data.draw(st.booleans()):
                break
            place = place[name]
        place[name] = data.draw(st.sampled_from([None, True, 1, -1, 1.5, "", "x", [], ["x"], {}, {"x": 1}]))
    decoder = Decoder()
    try:
        for frame in frames:
            assert [event_fault(event) for event in decoder.feed(frame) if event_fault(event)] == []
    except StreamError as error:
        assert error.reason == "malformed_event"  # noqa: PT017


@settings(deadline=None, max_examples=examples(60))
@given(scripts.scripts, st.lists(st.sampled_from([True, False, "no"]), min_size=9, max_size=9))
def test_resumed_streams_come_back(script: Any, answers: Any) -> None:
    model = scripts.fake([[ToolCall("z", "approval"), ToolCall("y", "manual"), ToolCall("x", "approval")], *script])
    halted = rxllm.chat(model, "Hi", tools=scripts.TOOLS).run()
    waiting = {call.id: answer for call, answer in zip(halted.pending_tool_calls, answers, strict=False)}
    results = {call.id: "mine" for call in halted.pending_tool_calls if call.name == "manual"}
    approvals = {id: answer for id, answer in waiting.items() if id not in results}
    resumed = rxllm.stream_resume(model, halted, approvals=approvals, results=results, tools=scripts.TOOLS, retry=False)
    events = client(list(resumed.pipe(ops.errors_as_events())))
    frames = framed(events)
    Rules(known=tuple(waiting)).check(frames)
    assert again(frames) == events


@settings(deadline=None, max_examples=examples(80))
@given(
    scripts.scripts, st.sampled_from([rxllm.stream, rxllm.stream_step, rxllm.stream_generate]), scripts.presentations
)
def test_every_stream_keeps_the_rules_of_the_client(script: Any, function: Any, options: Any) -> None:
    Rules().check(framed(of_script(script, function, **options)))


@pytest.mark.judges
def test_the_client_folds_scripts_as_we_do() -> None:
    collected: list[list[Event]] = []

    @settings(deadline=None, max_examples=examples(80), database=None)
    @given(scripts.scripts, scripts.presentations)
    def collect(script: Any, options: Any) -> None:
        collected.append(client(of_script(script, **options)))

    collect()
    for events, result in zip(collected, judged([framed(events) for events in collected]), strict=True):
        assert_folds_equal(result, events, repr(events)[:2000])


def run(model: Any, **options: Any) -> list[Event]:
    return list(rxllm.stream(model, "Hi", **options).pipe(ops.errors_as_events(), web.for_client()))


def add_twice() -> list[Event]:
    turn = [("thinking", "Hm."), "I add.", ToolCall("a", "add", {"x": 1}), ToolCall("b", "add", {"x": 2}), Usage(1, 2)]
    return run(Fake(turn, ["Done.", Usage(3, 4)]), tools=scripts.TOOLS)


def mid_stream_error() -> list[Event]:
    return run(Fake(["Hel", rxllm.AdapterError("provider_unavailable", "https://secret")]))


def begun_again() -> list[Event]:
    torn = Fake(["Hel", StreamError("truncated")], ["Hello"])
    return run(rxllm.Engine(torn, operators=[ops.restart({"base_delay": 0})]))


def stopped() -> list[Event]:
    return client(
        [
            MessageStarted(rxllm.Message("assistant")),
            TextDelta("Hel", "a"),
            TextCompleted("Hel", "a"),
            ErrorEvent(StreamError("cancelled")),
        ]
    )


def by_hand() -> list[Event]:
    """A restart within a step, an agent that waits for approval, a correction, and a signature."""
    start = MessageStarted(rxllm.Message("assistant"))
    return client(
        [
            *(start, TextDelta("void", "a"), ToolCallCompleted("v", "add", {}, "{}")),
            rxllm.StepRestarted("truncated", 1),
            *(
                start,
                ThinkingCompleted("Hm.", "signature", None, "t"),
                TextDelta("Hel", "a"),
                TextCompleted("Hello", "a"),
            ),
            *(
                rxllm.ToolCallStarted("c1", "agent"),
                ToolCallCompleted("c1", "agent", {"prompt": "x"}, '{"prompt": "x"}'),
            ),
            rxllm.MessageCompleted(rxllm.Message("assistant"), "tool_calls"),
            rxllm.ToolExecutionStarted("c1", "agent", {"prompt": "x"}),
            *(Nested(("c1",), event) for event in (start, TextDelta("in", "a"), TextCompleted("in", "a"))),
            Nested(("c1",), rxllm.MessageCompleted(rxllm.Message("assistant", "in"), "stop")),
            Nested(("c1",), ToolApprovalRequested("c2", "pay", {"amount": 5})),
            ToolProgress("c1", "agent", {"done": [0.5]}),
            rxllm.ToolExecutionCompleted("c1", "agent", {"a": 1}),
            rxllm.ToolResultEncoded("c1", '{"a": 1}'),
            rxllm.Steered(rxllm.user("Shorter.")),
            rxllm.Custom("weather", {"degrees": 20}),
            rxllm.SourceAdded({"url": "https://example.org", "title": "Example", "score": 0.5}),
            rxllm.FileAdded({"mime_type": "image/png", "data": b"png", "name": "a.png"}),
            rxllm.UsageUpdated(Usage(1, 2)),
        ]
    )


def vetoed() -> list[Event]:
    return run(Dictation(TextDelta("I save.")).write, tools=[refusing(NO)])


def halted() -> list[Event]:
    return run(Dictation().write, tools=[refusing(rxllm.halt("enough", 7))])


SCENES = [add_twice, mid_stream_error, begun_again, stopped, by_hand, vetoed, halted]


@pytest.mark.parametrize("scene", SCENES)
def test_scenes_come_back(scene: Any) -> None:
    events = scene()
    frames = framed(events)
    Rules().check(frames)
    assert again(frames) == events


@pytest.mark.judges
def test_the_client_folds_scenes_as_we_do() -> None:
    scenes = [scene() for scene in SCENES]
    for events, result in zip(scenes, judged([framed(events) for events in scenes]), strict=True):
        assert_folds_equal(result, events)


def parts_of(result: Any) -> list[Any]:
    return [{name: part[name] for name in part if name != "toolCallId"} for part in result["message"]["parts"]]


@pytest.mark.judges
def test_what_the_client_shows_of_a_scene_by_hand() -> None:
    (result,) = judged([framed(by_hand())])
    dynamic = {"type": "dynamic-tool", "input": {"prompt": "x"}}
    assert parts_of(result) == [
        {"type": "step-start"},
        {
            "type": "reasoning",
            "id": "1:t",
            "text": "Hm.",
            "state": "done",
            "providerMetadata": {"rxllm": {"signature": "signature"}},
        },
        {"type": "text", "text": "Hello", "state": "done"},
        {**dynamic, "toolName": "agent", "state": "output-available", "output": {"a": 1}},
        {
            "type": "dynamic-tool",
            "toolName": "pay",
            "state": "approval-requested",
            "input": {"amount": 5},
            "approval": {"id": web.approval_id(ToolCall("c1/c2", "pay", {"amount": 5}))},
        },
        {"type": "data-weather", "data": {"degrees": 20}},
        {
            "type": "source-url",
            "sourceId": "source-3",
            "url": "https://example.org",
            "title": "Example",
            "providerMetadata": {"rxllm": {"source": {"url": "https://example.org", "title": "Example", "score": 0.5}}},
        },
        {
            "type": "file",
            "mediaType": "image/png",
            "url": "data:image/png;base64,cG5n",
            "providerMetadata": {"rxllm": {"file": {"name": "a.png"}}},
        },
    ]
    assert result["message"]["metadata"] == {"usage": {"input_tokens": 1, "output_tokens": 2}}


@pytest.mark.judges
def test_the_client_shows_a_vetoed_call_with_the_arguments_that_its_tool_had() -> None:
    call, ended = [
        next(part for part in parts_of(result) if part["type"] == "dynamic-tool")
        for result in judged([framed(vetoed()), framed(halted())])
    ]
    own = {"type": "dynamic-tool", "toolName": "save", "input": {"path": "a"}}
    assert {name: call[name] for name in (*own, "state")} == {**own, "state": "output-error"}
    assert {name: ended[name] for name in (*own, "state", "output")} == {
        **own,
        "state": "output-available",
        "output": 7,
    }


@pytest.mark.judges
@pytest.mark.parametrize(("approved", "state"), [(True, "output-available"), (False, "output-denied")])
def test_a_resumed_chat_goes_on_in_the_message_of_the_client(approved: bool, state: str) -> None:
    model = Fake(ToolCall("c1", "pay", {"amount": 5}), "Paid.")
    halted = list(rxllm.stream(model, "Pay 5.", tools=[pay]))
    (before,) = judged([framed(halted)])
    message = before["message"]
    part = message["parts"][-1]
    result: Any = halted[-1]
    shown = {"id": web.approval_id(result.result.pending_tool_calls[0])}
    assert (part["state"], part["approval"]) == ("approval-requested", shown)
    part |= {"state": "approval-responded", "approval": {**shown, "approved": approved}}
    incoming = web.from_ui({"messages": [message]}, result.result)
    resumed = list(
        rxllm.stream_resume(
            model, incoming.thread, approvals=incoming.approvals, results=incoming.results, tools=[pay]
        ).pipe(web.for_client())
    )
    frames = framed(resumed)
    Rules(known=("c1",)).check(frames)
    assert again(frames) == resumed
    (after,) = judged([frames], [message])
    shown = [(part["type"], part.get("state")) for part in after["message"]["parts"]]
    assert shown == [("step-start", None), ("dynamic-tool", state), ("step-start", None), ("text", "done")]
    assert after["errors"] == []


@pytest.mark.judges
@pytest.mark.sockets
def test_the_chat_of_the_browser_approves_and_stops() -> None:
    """`Chat` of `ai` sends the requests, over a socket, that `from_ui` reads."""
    call, words = ToolCall("c1", "pay", {"amount": 5}), ["word "] * 40
    model = Fake(call, "Paid.", words, ["Hel", rxllm.AdapterError("provider_unavailable")])
    stored = [rxllm.ChatResult(Thread((rxllm.system("You are brief."),)))]
    stalls = iter([False, False, True, False])
    served: list[list[Event]] = []

    def serve(request: Request) -> Reply:
        incoming = web.from_ui(request.body, stored[-1])
        answers: Any = {"approvals": incoming.approvals, "results": incoming.results}
        run = rxllm.stream_resume(model, incoming.thread, **answers, tools=[pay]).pipe(ops.errors_as_events())
        events = list(run)
        stored.append(events[-1].result if isinstance(events[-1], ChatCompleted) else stored[-1])
        served.append(client(events))
        chunks = [web.sse(frame) for frame in framed(events)]
        body = [*chunks[: len(chunks) // 2], STALL] if next(stalls) else [*chunks, Encoder.END]
        return Reply(body, headers=Encoder.HEADERS)

    with (
        ThreadPoolExecutor(1) as threads,
        Loopback(lambda request: threads.submit(serve, request).result()) as server,
    ):
        seen = clients.run("ui_chat", f"{server.url}/api/chat")
    shown = [[(part["type"], part.get("state")) for part in line["message"]["parts"]] for line in seen]
    assert [line["status"] for line in seen] == ["ready", "ready", "ready", "error"]
    assert shown[0] == [("step-start", None), ("dynamic-tool", "approval-requested")]
    assert shown[1] == [
        ("step-start", None),
        ("dynamic-tool", "output-available"),
        ("step-start", None),
        ("text", "done"),
    ]
    assert shown[2] == [("step-start", None), ("text", "streaming")]
    assert shown[3] == [("step-start", None), ("text", "done")]
    assert seen[3]["error"] == "adapter error: provider_unavailable"
    assert len(served) == 4
    assert [message.role for message in stored[-1].thread[:5]] == ["system", "user", "assistant", "tool", "assistant"]
