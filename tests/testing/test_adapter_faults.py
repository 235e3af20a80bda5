"""The kit finds what is wrong: one adapter, executor or encoder broken on purpose for each rule, caught by its name."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import reactivex
from reactivex import Observable, from_iterable
from reactivex import operators as rx
from reactivex.disposable import CompositeDisposable, Disposable

from rxllm import Engine, Fake, OpenAIChat, chunks, from_async_iter
from rxllm.events import (
    Custom,
    ErrorEvent,
    Event,
    FileAdded,
    MessageCompleted,
    MessageStarted,
    Nested,
    RawChunk,
    Steered,
    TextCompleted,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCallCompleted,
    UsageUpdated,
)
from rxllm.runtime import Stream
from rxllm.testing import (
    ADAPTER_RULES,
    ENCODER_RULES,
    EXECUTOR_RULES,
    PNG,
    AdapterConformance,
    HTTPAdapterConformance,
    ImageConformance,
    Script,
    Served,
    assert_adapter,
    assert_encoder,
    assert_executor,
)
from rxllm.testing._adapter_run import TEXTS
from rxllm.testing._rules import LINES as LINES_OF_A_SCREEN
from rxllm.values import (
    AdapterError,
    Call,
    EngineError,
    Halt,
    ImageAdapterError,
    ImageResponse,
    Message,
    ProviderPart,
    Request,
    StreamError,
    ToolCall,
    Usage,
    user,
)
from tests.testing.test_adapter_conformance import TestFake as FakeSuite
from tests.testing.wires import OpenAIChatWire
from tests.waiting import turns, until, wait_until

START = MessageStarted(Message("assistant"))
END = MessageCompleted(Message("assistant"), "stop")
SOON = 0.3

Spoil = Callable[[Any, Request, Call], Observable[Event]]


class Spoilt:
    """An adapter that does something else with the events of a sound one."""

    def __init__(self, sound: Any, spoil: Spoil) -> None:
        self.sound = sound
        self.spoil = spoil
        self.calls = 0
        self.leaked = CompositeDisposable()

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        self.calls += 1
        return self.spoil(self, request, call)


# The suite, on a Fake that is spoilt


class Suite(FakeSuite):
    __test__ = False

    def __init__(self, spoil: Spoil) -> None:
        self.spoil = spoil
        self.seconds = SOON if spoil is never_left else 10.0

    @contextmanager
    def serving(self, script: Script) -> Iterator[Served]:
        with super().serving(script) as served:
            spoilt = Spoilt(served.adapter, self.spoil)
            try:
                yield replace(served, adapter=spoilt)
            finally:
                spoilt.leaked.dispose()  # else the interpreter's exit waits for them


def mapped(change: Callable[[Event], Event]) -> Spoil:
    return lambda self, request, call: self.sound.stream(request, call).map(change)


def raised(change: Callable[[Any], Exception]) -> Spoil:
    def spoil(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
        return self.sound.stream(request, call).pipe(rx.catch(lambda error, _: reactivex.throw(change(error))))

    return spoil


def instead(change: Callable[[Any], Any]) -> Spoil:
    """Another error event."""
    return mapped(lambda event: ErrorEvent(change(event.error)) if isinstance(event, ErrorEvent) else event)


def without(*kinds: type[Any]) -> Spoil:
    return lambda self, request, call: self.sound.stream(request, call).filter(
        lambda event: not isinstance(event, kinds)
    )


def as_if_ended(event: Event) -> Event:
    return MessageCompleted(event.message, "stop") if isinstance(event, MessageCompleted) else event


def shouted(event: Event) -> Event:
    match event:
        case TextDelta():
            return TextDelta(event.delta.upper())
        case TextCompleted():
            return TextCompleted(event.text.upper())
        case MessageCompleted():
            return MessageCompleted(Message("assistant", event.message.text.upper()), "stop")
        case _:
            return event


def refusing(kind: type[Exception], when: Callable[[Call], bool]) -> Spoil:
    def spoil(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
        if when(call):
            raise kind("no")
        return self.sound.stream(request, call)

    return spoil


def first_an_event(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return self.sound.stream(request, call).start_with(START)


def in_one_piece(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    def joined(events: list[Event]) -> Observable[Event]:
        text = "".join(event.delta for event in events if isinstance(event, TextDelta))
        rest = [event for event in events if not isinstance(event, TextDelta)]
        return from_iterable([rest[0], TextDelta(text), *rest[1:]])

    return self.sound.stream(request, call).pipe(rx.to_list(), rx.flat_map(joined))


def forgetful(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return self.sound.stream(request, call).filter(lambda event: not isinstance(event, TextDelta | TextCompleted))


def as_if_well(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    message = Message("assistant", "".join(TEXTS))
    return self.sound.stream(request, call).map(
        lambda event: MessageCompleted(message, "stop") if isinstance(event, ErrorEvent) else event
    )


def never_left(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        self.leaked.add(self.sound.stream(request, call).subscribe(observer, scheduler=scheduler))
        return Disposable()

    return Observable(subscribe)


def left_twice(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    self.sound.weight = 2
    return self.sound.stream(request, call)


def hasty(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return from_iterable(list(self.sound.stream(request, call)))


def once_only(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    left = [self.sound.stream(request, call)]
    return reactivex.defer(lambda _: left.pop() if left else reactivex.empty())


def fickle(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    events = self.sound.stream(request, call)
    return events.map(shouted) if self.calls % 2 else events


def without_arguments(event: Event) -> Event:
    match event:
        case ToolCallCompleted():
            return ToolCallCompleted(event.id, event.name, {}, event.raw_arguments, {"error": "invalid_json"})
        case _:
            return event


def with_its_own_ids(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return self.sound.stream(replace(request, messages=request.messages[:1]), call)


def raw_first(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    events = self.sound.stream(request, call)
    return events.start_with(RawChunk("frame", 1)) if call.raw else events


def beyond_json(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return self.sound.stream(request, call).flat_map(with_an_object)


def without_scheduler(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        assert scheduler is None, "no scheduler was expected"
        return self.sound.stream(request, call).subscribe(observer)

    return Observable(subscribe)


def bare_again(error: Any) -> AdapterError:
    return AdapterError(error.reason)


def unlawful(self: Spoilt, request: Request, call: Call) -> Observable[Event]:
    return self.sound.stream(request, call).filter(lambda event: not isinstance(event, TextCompleted))


PLANTED: dict[str, tuple[Spoil, tuple[Any, ...]]] = {
    "test_an_answer": (mapped(shouted), ()),
    "test_an_answer_that_is_refused_has_its_reason": (raised(lambda _: AdapterError("unknown")), ("rate_limited",)),
    "test_a_rate_limit_says_how_long_to_wait": (raised(bare_again), ()),
    "test_a_refusal_keeps_the_providers_request_id": (raised(bare_again), ()),
    "test_usage_arrives": (without(UsageUpdated), ()),
    "test_a_finish_reason_arrives": (mapped(as_if_ended), ("length",)),
    "test_thinking_comes_in_its_pieces": (without(ThinkingDelta, ThinkingCompleted), ()),
    "test_a_timeout_is_accepted": (refusing(ValueError, lambda call: call.timeout is not None), ()),
    "test_a_stream_that_cannot_begin_says_nothing_but_its_error": (first_an_event, ("invalid_request",)),
    "test_text_comes_in_its_pieces": (in_one_piece, ()),
    "test_an_error_inside_the_stream_keeps_what_came": (forgetful, ()),
    "test_a_cancelled_stream_keeps_what_came": (instead(lambda _: StreamError("unknown")), ()),
    "test_silence_inside_the_stream_is_a_timeout": (instead(lambda _: AdapterError("timeout")), ()),
    "test_a_stream_without_its_end_is_truncated": (as_if_well, ()),
    "test_a_stream_that_is_left_after_two_events_is_cleaned_up_once": (left_twice, ()),
    "test_nothing_happens_before_subscribe": (hasty, ()),
    "test_each_subscription_is_a_call_of_its_own": (once_only, ()),
    "test_an_answer_is_the_fold_of_its_stream": (fickle, ()),
    "test_calls_are_whole": (mapped(without_arguments), ()),
    "test_the_ids_of_calls_are_unique_in_the_thread": (with_its_own_ids, ()),
    "test_a_call_that_is_left_before_its_first_byte_is_cleaned_up": (never_left, ()),
    "test_a_call_can_be_left_from_inside_on_next": (never_left, ()),
}


PLANTED_RULES: dict[str, Spoil] = {
    "lawful": raw_first,
    "json": beyond_json,
    "afresh": once_only,
    "scheduler": without_scheduler,
}


def cases_of(suite: type) -> set[str]:
    return {name for name in dir(suite) if name.startswith("test_")}


def test_every_case_of_the_suite_has_its_fault() -> None:
    assert set(PLANTED) == cases_of(AdapterConformance) - {"test_it_keeps_the_rule"}


@pytest.mark.parametrize(("case", "fault"), PLANTED.items(), ids=PLANTED)
def test_a_planted_fault_is_found(case: str, fault: Any) -> None:
    spoil, arguments = fault
    getattr(Suite(lambda self, request, call: self.sound.stream(request, call)), case)(*arguments)
    with pytest.raises(AssertionError):
        getattr(Suite(spoil), case)(*arguments)


@pytest.mark.parametrize(("rule", "spoil"), PLANTED_RULES.items(), ids=PLANTED_RULES)
def test_the_suite_finds_a_broken_rule_of_every_adapter(rule: str, spoil: Spoil) -> None:
    Suite(lambda self, request, call: self.sound.stream(request, call)).test_it_keeps_the_rule(rule)
    with pytest.raises(AssertionError, match=f"^{rule}: {re.escape(ADAPTER_RULES[rule])}, but "):
        Suite(spoil).test_it_keeps_the_rule(rule)


def test_an_unlawful_stream_is_found_by_many() -> None:
    with pytest.raises(AssertionError, match="block_closed"):
        Suite(unlawful).test_text_comes_in_its_pieces()


# The suite over HTTP, on an adapter of OpenAI's wire that is broken


class ByRead(OpenAIChat):
    """It takes each read for a whole frame."""

    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        inner = super().decoder(request, raw=raw)

        class Decoder:
            def feed(self, data: bytes) -> list[Event]:
                return inner.feed(data if data.endswith(b"\n\n") else b"")

            def close(self) -> list[Event]:
                return inner.close()

        return Decoder()


class Embellished(OpenAIChat):
    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return (
            super()
            .stream(request, call)
            .flat_map(lambda event: from_iterable([event, Custom("mine")] if isinstance(event, TextDelta) else [event]))
        )


class Confident(OpenAIChat):
    """It takes any end for a good one."""

    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        inner = super().decoder(request, raw=raw)

        class Decoder:
            def feed(self, data: bytes) -> list[Event]:
                return inner.feed(data)

            def close(self) -> list[Event]:
                return [END if isinstance(event, ErrorEvent) else event for event in inner.close()]

        return Decoder()


class Impatient(OpenAIChat):
    def build(self, request: Request, call: Call) -> Any:
        return super().build(request, replace(call, timeout=None))


class Talkative(OpenAIChat):
    def _secrets(self, *about: Any) -> list[str]:
        return []


class Open(OpenAIChat):
    def __repr__(self) -> str:
        return f"Open({self._api_key})"


class Silent(OpenAIChat):
    """It does not tell that the loop has ended the call."""

    def stream(self, request: Request, call: Call) -> Stream[Event]:
        return Stream.of(super().stream(request, call).pipe(rx.catch(lambda error, _: reactivex.empty())))


BROKEN_WIRES: dict[str, type[OpenAIChat]] = {
    "test_a_cancelled_stream_keeps_what_came": Silent,
    "test_the_same_bytes_give_the_same_events_however_they_are_cut": ByRead,
    "test_the_network_gives_what_the_decoder_gives": Embellished,
    "test_half_a_stream_is_truncated": Confident,
    "test_build_sends_nothing_and_passes_the_timeout_on": Impatient,
    "test_no_error_shows_the_key": Talkative,
    "test_no_adapter_shows_its_key": Open,
}


def test_every_case_over_http_has_its_fault() -> None:
    more = cases_of(OpenAIChatWire) - cases_of(AdapterConformance)
    planted = {"test_a_malformed_frame_of_its_own_raises_nothing", "test_what_the_provider_signs_goes_back_to_it"}
    assert set(BROKEN_WIRES) == (more - planted) | {"test_a_cancelled_stream_keeps_what_came"}


@pytest.mark.sockets
@pytest.mark.parametrize(("case", "broken"), BROKEN_WIRES.items(), ids=BROKEN_WIRES)
def test_a_broken_wire_is_found(case: str, broken: Any) -> None:
    class Suite(OpenAIChatWire):
        def adapter(self, url: str, **connection: Any) -> Any:
            return broken(base_url=url, **connection)

    with pytest.raises(AssertionError):
        getattr(Suite(), case)()


# What is sent, by adapters of OpenAI's wire that lose something of what they are asked


def forgets(fields: Callable[[Request], dict[str, Any]]) -> Any:
    return lambda request, call: (replace(request, **fields(request)), call)


def without_message(role: str) -> Any:
    return forgets(lambda request: {"messages": tuple(message for message in request.messages if message.role != role)})


def messages_with(**fields: Any) -> Any:
    def change(message: Message) -> Message:
        return replace(message, **fields) if message.tool_calls else message

    return forgets(lambda request: {"messages": tuple(map(change, request.messages))})


def tools_with(**fields: Any) -> Any:
    return forgets(lambda request: {"tools": tuple(replace(tool, **fields) for tool in request.tools)})


def in_the_body(request: Request, call: Call) -> Any:
    return replace(request, options={**request.options, "api_key": call.api_key}), call


LOST: dict[str, Any] = {
    "sends_system": without_message("system"),
    "sends_user": forgets(
        lambda request: {
            "messages": tuple(message for message in request.messages if "canary_user" not in message.text)
        }
    ),
    "sends_assistant": messages_with(content=""),
    "sends_arguments": messages_with(tool_calls=(ToolCall("canary_call_id", "f"),)),
    "sends_result": forgets(
        lambda request: {
            "messages": tuple(
                replace(message, content="") if message.role == "tool" else message for message in request.messages
            )
        }
    ),
    "sends_tool_name": tools_with(name="f"),
    "sends_tool_description": tools_with(description=""),
    "sends_tool_schema": tools_with(schema={"type": "object"}),
    "sends_call_id": forgets(
        lambda request: {"messages": tuple(replace(message, tool_call_id=None) for message in request.messages)}
    ),
    "sends_temperature": forgets(lambda request: {"options": {**request.options, "temperature": "0.125"}}),
    "sends_options": forgets(lambda request: {"options": {}}),
    "sends_key": lambda request, call: (request, replace(call, api_key="another")),
    "sends_max_tokens": forgets(lambda request: {"max_tokens": None}),
    "sends_stop": forgets(lambda request: {"stop": ()}),
    "sends_tool_choice": forgets(lambda request: {"tool_choice": None}),
    "sends_response_format": forgets(lambda request: {"response_format": None}),
    "sends_picture": forgets(
        lambda request: {"messages": tuple(replace(message, content=message.text) for message in request.messages)}
    ),
}


class Careless(OpenAIChat):
    """It says Hello where it has no server."""

    def __init__(self, lose: Any, **connection: Any) -> None:
        super().__init__(**connection)
        self._lose = lose

    def build(self, request: Request, call: Call) -> Any:
        return super().build(*self._lose(request, call))

    def stream(self, request: Request, call: Call) -> Any:
        return super().stream(request, call) if "127.0.0.1" in self.base_url else Fake("Hello").stream(request, call)


class Telltale(Careless):
    def build(self, request: Request, call: Call) -> Any:
        built = super().build(request, call)
        built.url = built.url.copy_merge_params({"key": call.api_key or ""})
        return built


class Sleepy(Careless):
    def build(self, request: Request, call: Call) -> Any:
        time.sleep(0.15)
        return super().build(request, call)


def test_what_may_get_lost_has_its_fault() -> None:
    assert list(LOST) == [rule for rule in ADAPTER_RULES if rule.startswith("sends_")]


@pytest.mark.judges
@pytest.mark.parametrize(("rule", "lose"), [*LOST.items(), ("sends_key", in_the_body)])
def test_what_is_lost_on_the_way_is_found(rule: str, lose: Any) -> None:
    class Suite(OpenAIChatWire):
        def adapter(self, url: str, **connection: Any) -> Any:
            return Careless(lose, base_url=url, **connection)

    with pytest.raises(AssertionError):
        Suite().test_it_keeps_the_rule(rule)
    for other in LOST.keys() - {rule}:
        Suite().test_it_keeps_the_rule(other)


def test_a_service_lacks_what_it_rightly_lacks_by_name() -> None:
    class Suite(OpenAIChatWire):
        without: ClassVar[dict[str, str]] = {"usage": "it counts nothing"}

    with pytest.raises(pytest.skip.Exception, match="usage: it counts nothing"):
        Suite().test_usage_arrives()
    assert Suite().whole.usage is None
    names: Any = {"usage"}
    Suite.without = names
    with pytest.raises(pytest.skip.Exception, match="usage: omitted by the suite"):
        Suite().test_usage_arrives()
    Suite.without = {"tidy": "why not"}
    with pytest.raises(ValueError, match="no such rule: tidy; the rules are calls, thinking, usage, "):
        Suite().test_usage_arrives()


def test_a_failure_says_how_to_leave_its_rule_out() -> None:
    with pytest.raises(AssertionError) as caught:
        Suite(without(UsageUpdated)).test_usage_arrives()
    assert caught.value.__notes__ == [
        "Do the suite's hooks send everything in the script that the usage case needs? "
        "If the service cannot do this, omit the case: without = {'usage': 'why'}"
    ]


# The author's own mistakes


def use_all_hooks(suite: HTTPAdapterConformance) -> None:
    suite.test_an_answer()
    suite.test_an_error_inside_the_stream_keeps_what_came()
    suite.test_a_refusal_keeps_the_providers_request_id()


HOOKS = ("adapter", "said", "ended", "failed", "refused")


@pytest.mark.sockets
@pytest.mark.parametrize("hook", HOOKS)
def test_a_mistake_in_a_hook_raises_as_itself(hook: str) -> None:
    def mistaken(self: Any, *args: Any, **options: Any) -> Any:
        return len(5)  # type: ignore[arg-type]

    suite = type("Mistaken", (OpenAIChatWire,), {hook: mistaken})()
    with pytest.raises(TypeError, match="has no len") as caught:
        use_all_hooks(suite)
    assert "mistaken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.sockets
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_is_missing_is_named(hook: str) -> None:
    hooks = {name: getattr(OpenAIChatWire, name) for name in HOOKS if name != hook}
    suite = type("Mine", (HTTPAdapterConformance,), {**hooks, "body": OpenAIChatWire.body})()
    with pytest.raises(NotImplementedError, match=rf"^Mine has no {hook}\(\)"):
        use_all_hooks(suite)


def test_a_suite_without_its_service_is_told_so() -> None:
    with pytest.raises(NotImplementedError, match=r"^AdapterConformance has no serving\(\)"):
        AdapterConformance().test_an_answer()
    with pytest.raises(NotImplementedError, match=r"^ImageConformance has no serving\(\)"):
        ImageConformance().test_it_generates()


@pytest.mark.parametrize("after", [(), (TextDelta("Hel"),)], ids=["at once", "after an event"])
def test_what_an_adapter_raises_is_shown_with_its_traceback(after: Any) -> None:
    async def mistaken(request: Request, call: Call) -> AsyncIterator[Event]:
        for event in after:
            yield event
        yield TextDelta(request.nothing)  # type: ignore[attr-defined]

    class Suite(AdapterConformance):
        @contextmanager
        def serving(self, script: Script) -> Iterator[Served]:
            yield Served(mistaken, lambda: 1)

    for check in (lambda: assert_adapter(mistaken), Suite().test_an_answer, Suite().test_text_comes_in_its_pieces):
        with pytest.raises(AssertionError, match="nothing") as caught:
            check()
        assert "AttributeError" in "".join(traceback.format_exception(caught.value))
        assert "yield TextDelta(request.nothing)" in "".join(traceback.format_exception(caught.value))


# One line


async def hello(request: Request, call: Call) -> AsyncIterator[Event]:
    yield TextDelta("Hello")


def streaming(function: Any) -> Any:
    """An adapter with this ``stream``."""
    return type("Given", (), {"stream": lambda self, request, call: function(self, request, call)})()


def after_an_event(self: Any, request: Request, call: Call) -> Observable[Event]:
    return reactivex.concat(reactivex.of(START), reactivex.throw(AdapterError("unknown")))


def a_bare_exception(self: Any, request: Request, call: Call) -> Observable[Event]:
    return reactivex.throw(KeyError("choices"))


def played_once(self: Any, request: Request, call: Call) -> Observable[Event]:
    return from_iterable(iter([START, END]))


async def others_begin(caller: threading.Thread) -> None:
    """Wait until the kit has made all the calls that it makes at once, in a thread that does nothing else."""
    assert caller is not threading.main_thread()
    await until(lambda: not caller.is_alive())
    await turns()


class Shared:
    """Its second call takes the place of the first."""

    def __init__(self) -> None:
        self.live = 0

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        return from_async_iter(partial(self._events, threading.current_thread()))

    async def _events(self, caller: threading.Thread) -> AsyncIterator[Event]:
        self.live += 1
        mine = self.live
        yield START
        await others_begin(caller)
        self.live, alone = mine - 1, self.live == mine
        yield END if alone else ErrorEvent(StreamError("unknown"))


class Sulking:
    """Left once, it works no more."""

    def __init__(self) -> None:
        self.hurt = False

    def stream(self, request: Request, call: Call) -> Observable[Event]:
        return from_async_iter(partial(self._events, threading.current_thread()))

    async def _events(self, caller: threading.Thread) -> AsyncIterator[Event]:
        if self.hurt:
            raise AdapterError("unknown")
        whole = False
        try:
            yield START
            await others_begin(caller)
            yield END
            whole = True
        finally:
            self.hurt = not whole


def deaf(self: Any, request: Request, call: Call) -> Observable[Event]:
    def subscribe(observer: Any, scheduler: Any = None) -> Any:
        for event in (START, END):
            try:
                observer.on_next(event)
            except Exception:
                continue
        observer.on_completed()
        return Disposable()

    return Observable(subscribe)


class Showing(Fake):
    _api_key = "sk-0123456789abcdef"

    def __repr__(self) -> str:
        return f"Showing({self._api_key!r})"


class Brittle(Fake):
    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        class Decoder:
            def feed(self, data: bytes) -> list[Event]:
                return [] if data == b"" else json.loads(data)

            def close(self) -> list[Event]:
                return [START, ErrorEvent(StreamError("truncated"))]

        return Decoder()


class Counting(Fake):
    """Its events are as many as its reads."""

    def decoder(self, request: Request, *, raw: bool = False) -> Any:
        class Decoder:
            started = False

            def feed(self, data: bytes) -> list[Event]:
                begun, self.started = self.started, True
                return [RawChunk("read", len(data))] if begun else [START, RawChunk("read", len(data))]

            def close(self) -> list[Event]:
                return [*([] if self.started else [START]), ErrorEvent(StreamError("truncated"))]

        return Decoder()


def with_an_object(event: Event) -> Observable[Event]:
    return from_iterable([event, Custom("mine", object())] if isinstance(event, TextDelta) else [event])


def hanging(self: Any, request: Request, call: Call) -> Observable[Event]:
    return reactivex.never()


async def nothing(request: Request, call: Call) -> AsyncIterator[Event]:
    for _ in ():
        yield TextDelta("")


def saying(*items: Any) -> Any:
    async def adapter(request: Request, call: Call) -> AsyncIterator[Any]:
        for item in items:
            yield item

    return adapter


def broken_adapters() -> dict[str, Any]:
    """An adapter for each rule that breaks it; made afresh, because some remember what happened to them."""
    return {
        "adapter": object(),
        "answers": Fake(AdapterError("authentication_failed")),
        "typed_error": streaming(a_bare_exception),
        "error_event": streaming(after_an_event),
        "says": nothing,
        "understood": saying(chunks.text("Hi"), chunks.meta({"tool_call_arguments": "{}"})),
        "usage": saying(TextDelta("Hi"), UsageUpdated(Usage(3, -2))),
        "lawful": Spoilt(Fake("Hello"), unlawful),
        "json": Spoilt(Fake("Hello"), lambda self, *arguments: self.sound.stream(*arguments).flat_map(with_an_object)),
        "afresh": streaming(played_once),
        "apart": Shared(),
        "left": Sulking(),
        "subscriber": streaming(deaf),
        "scheduler": Spoilt(Fake("Hello"), without_scheduler),
        "secret": Showing("Hello"),
        "prompt": Engine(Sleepy(in_the_body), model="m"),
        "decoder": Brittle("Hello"),
        "chunks": Counting("Hello"),
        **{rule: Careless(lose) for rule, lose in LOST.items()},
        "hides_key": Engine(Telltale(in_the_body), model="m"),
    }


def test_an_adapter_emits_what_a_chat_emits_only_against_the_rules() -> None:
    for event in (Nested(("c1",), TextDelta("Hi")), Steered(user("No!"))):
        with pytest.raises(AssertionError, match=rf"lawful: .*{type(event).__name__}.*, which only a chat may emit"):
            assert_adapter(saying(TextDelta("Hi"), event), only=["lawful"])


@pytest.mark.parametrize("rule", ["afresh", "apart", "left", "scheduler"])
def test_words_that_only_the_first_call_gets_are_missed_by_the_next(rule: str) -> None:
    words = iter(["Hel", "lo", "!"])

    async def exhausted(request: Request, call: Call) -> AsyncIterator[Event]:
        for word in words:
            yield TextDelta(word)

    with pytest.raises(AssertionError, match=rf"^{rule}: "):
        assert_adapter(exhausted, only=[rule])


def test_calls_may_say_different_words() -> None:
    words = iter(["Hello", "Good morning", *["Hi"] * 99])

    async def varied(request: Request, call: Call) -> AsyncIterator[Event]:
        for word in next(words).split():
            yield TextDelta(word)

    assert_adapter(varied)


def test_a_key_that_is_said_is_found_also_where_the_author_gives_none() -> None:
    async def telling(request: Request, call: Call) -> AsyncIterator[Event]:
        yield TextDelta(f"your key is {call.api_key}")

    with pytest.raises(AssertionError, match=r"secret: .*an event or error exposes the key"):
        assert_adapter(telling, only=["secret"])


def test_every_rule_has_its_fault() -> None:
    assert list(broken_adapters()) == list(ADAPTER_RULES)


@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_a_broken_adapter_is_told_the_rule(rule: str) -> None:
    with pytest.raises(AssertionError, match=f"(?m)^{rule}: {re.escape(ADAPTER_RULES[rule])}, but "):
        assert_adapter(broken_adapters()[rule], seconds=5.0)


@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_the_other_rules_can_be_left_out(rule: str) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_adapter(broken_adapters()[rule], only=[rule], seconds=5.0)
    assert len([line for line in str(caught.value).splitlines() if not line.startswith(" ")]) == 1


@pytest.mark.judges
@pytest.mark.parametrize("rule", ADAPTER_RULES)
def test_a_failing_adapter_fits_on_a_screen(rule: str) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_adapter(broken_adapters()[rule], seconds=5.0)
    lines = str(caught.value).splitlines()
    assert len(lines) <= max(LINES_OF_A_SCREEN, len(ADAPTER_RULES) + 1)
    assert max(map(len, lines)) <= 300


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (chunks.StreamChunk("content", 3), "text must be a string"),  # type: ignore[arg-type]
        (chunks.StreamChunk("txt", "Hi"), "type must be content, thinking, tool_call, meta or content_part, not 'txt'"),
        (chunks.StreamChunk("tool_call", name=""), "name must be a non-empty string"),
        (chunks.meta({"tool_call_args": {"index": 7, "fragment": "{}"}}), "no tool call started for RawChunk"),
        (chunks.meta({"tool_call_args": {"index": 0, "fragment": {"a": 1}}}), "RawChunk"),
        (chunks.meta({"tool_call_arguments": "{}"}), "RawChunk"),
        (chunks.meta({"usage": "lots"}), "RawChunk"),
    ],
    ids=str,
)
def test_a_chunk_that_means_nothing_is_found(chunk: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=rf"^understood: .*{re.escape(why)}"):
        assert_adapter(saying(chunks.text("Hi"), chunk), only=["understood"])


def test_chunks_that_mean_something() -> None:
    assert_adapter(
        saying(
            chunks.thinking("hm", {"signature": "c2ln"}),
            chunks.thinking("shown only", {"stream_only?": True}),
            chunks.text("I will."),
            chunks.tool_call("add", metadata={"id": "c1", "start": True}),
            chunks.meta({"tool_call_args": {"index": 0, "fragment": '{"a": 1}'}}),
            chunks.content_part(ProviderPart("mine", {"a": 1})),
            chunks.meta({"keepalive?": True, "provider_event": "ping"}),
            chunks.meta({"provider_event": {"type": "mine"}}),
            chunks.meta({"finish_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 2}}),
        )
    )


@pytest.mark.parametrize(
    "usage",
    [
        UsageUpdated(Usage(total_tokens=-1)),
        UsageUpdated(Usage(1, 1, total_cost=-0.5)),
        chunks.meta({"usage": {"input_tokens": -1}}),
        chunks.meta({"usage": {"image_tokens": -1}}),
    ],
    ids=repr,
)
def test_a_negative_count_is_found(usage: Any) -> None:
    with pytest.raises(AssertionError, match=r"^usage: .*-"):
        assert_adapter(saying(chunks.text("Hi") if isinstance(usage, chunks.StreamChunk) else TextDelta("Hi"), usage))


@pytest.mark.parametrize("event", [ThinkingDelta("hm"), FileAdded({"url": "https://example.com/a"})])
def test_it_may_say_something_else_than_text(event: Event) -> None:
    assert_adapter(saying(event))


def test_an_error_is_something_said() -> None:
    for adapter in (Fake(AdapterError("unknown")), Fake(script=[("thinking", ""), AdapterError("unknown")])):
        assert_adapter(adapter, only=["says"])


def test_more_that_is_no_adapter() -> None:
    no_observable = streaming(lambda self, request, call: [START, END])
    for wrong in (None, Fake, no_observable):
        with pytest.raises(AssertionError, match=r"^adapter: "):
            assert_adapter(Engine(wrong))


def test_one_that_hangs_is_broken_in_time() -> None:
    with pytest.raises(AssertionError, match=r"^answers: .*, but ends: the stream has not ended after 0.3 s"):
        assert_adapter(streaming(hanging), seconds=SOON)


def test_one_that_breaks_off_is_not_checked() -> None:
    with pytest.raises(AssertionError, match=r"answers: .* ended with"):
        assert_adapter(Fake(script=["Hel", AdapterError("rate_limited")]))


def test_one_that_raises_at_once_is_told_so_and_wrong_options_are_the_callers_fault() -> None:
    def raising(self: Any, request: Request, call: Call) -> Any:
        raise KeyError("choices")

    with pytest.raises(AssertionError, match=r"(?m)^typed_error: .*KeyError"):
        assert_adapter(streaming(raising), without=["adapter"])
    with pytest.raises(EngineError, match="no option 'heat'"):
        assert_adapter(Fake("Hello"), heat=2)


def test_a_rule_that_is_none() -> None:
    for check in (
        lambda: assert_adapter(Fake("Hi"), without=["tidy"]),
        lambda: assert_executor(run, without=["tidy"]),
        lambda: assert_encoder(json.dumps, without=["tidy"]),
    ):
        with pytest.raises(ValueError, match="no such rule: tidy"):
            check()


# Executors and encoders


def run(tool: Any, arguments: Any, context: Any) -> Any:
    return tool.bind(arguments, context)()


def forgetting_the_result(tool: Any, arguments: Any, context: Any) -> Any:
    run(tool, arguments, context)


def without_context(tool: Any, arguments: Any, context: Any) -> Any:
    return run(tool, arguments, replace(context, context={"user": "nobody"}))


def swallowing(tool: Any, arguments: Any, context: Any) -> Any:
    try:
        return run(tool, arguments, context)
    except ValueError:
        return "all is well"


def going_on(tool: Any, arguments: Any, context: Any) -> Any:
    result = run(tool, arguments, context)
    return result.result if isinstance(result, Halt) and result.question is None else result


def answering_itself(tool: Any, arguments: Any, context: Any) -> Any:
    result = run(tool, arguments, context)
    return "the first" if isinstance(result, Halt) and result.question is not None else result


def remembering() -> Any:
    first: list[Any] = []

    def execute(tool: Any, arguments: Any, context: Any) -> Any:
        if set(arguments) == {"x"}:
            first.append(arguments)
            arguments = first[0]
        return run(tool, arguments, context)

    return execute


def changing(tool: Any, arguments: Any, context: Any) -> Any:
    return run(tool, {name: value for name, value in arguments.items() if name != "of"}, context)


def quick(tool: Any, arguments: Any, context: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(_outcome(tool, arguments, context)), daemon=True)
    thread.start()
    wait_until(lambda: results or _hangs(thread))
    if not results:
        return "not yet"
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _hangs(thread: threading.Thread) -> bool:
    """Whether the thread waits for a `threading.Event`."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and (frame.f_globals["__name__"], frame.f_code.co_name) == ("threading", "wait")


def _outcome(tool: Any, arguments: Any, context: Any) -> Any:
    try:
        return run(tool, arguments, context)
    except Exception as error:
        return error


EXECUTORS: dict[str, Any] = {
    "result": forgetting_the_result,
    "context": without_context,
    "failure": swallowing,
    "halt": going_on,
    "question": answering_itself,
    "several": remembering(),
    "arguments": changing,
    "timeout": quick,
}


def test_every_rule_of_executors_has_its_fault() -> None:
    assert list(EXECUTORS) == list(EXECUTOR_RULES)


@pytest.mark.parametrize(("rule", "executor"), EXECUTORS.items(), ids=EXECUTORS)
def test_a_broken_executor_is_told_the_rule(rule: str, executor: Any) -> None:
    with pytest.raises(AssertionError, match=f"(?m)^{rule}: {re.escape(EXECUTOR_RULES[rule])}, but "):
        assert_executor(executor)


def test_sound_executors() -> None:
    async def later(tool: Any, arguments: Any, context: Any) -> Any:
        result = await asyncio.to_thread(run, tool, arguments, context)
        return await result if asyncio.iscoroutine(result) else result

    assert_executor(run)
    assert_executor(later)


def counting() -> Any:
    calls: list[Any] = []

    def encode(result: Any) -> str:
        calls.append(result)
        return f"{json.dumps(result)} {len(calls)}"

    return encode


def emptying(result: Any) -> str:
    text = json.dumps(result)
    if isinstance(result, dict):
        result.clear()
    return text


ENCODERS: dict[str, Any] = {
    "text": lambda result: json.dumps(result).encode(),
    "error": lambda result: "something went wrong",
    "stable": counting(),
    "pure": emptying,
}


def test_every_rule_of_encoders_has_its_fault() -> None:
    assert list(ENCODERS) == list(ENCODER_RULES)


@pytest.mark.parametrize(("rule", "encoder"), ENCODERS.items(), ids=ENCODERS)
def test_a_broken_encoder_is_told_the_rule(rule: str, encoder: Any) -> None:
    with pytest.raises(AssertionError, match=f"(?m)^{rule}: {re.escape(ENCODER_RULES[rule])}, but "):
        assert_encoder(encoder)


def test_an_encoder_that_raises_is_broken() -> None:
    with pytest.raises(AssertionError, match=r"^text: .*raised TypeError"):
        assert_encoder(lambda result: "no such city" + result)


def test_sound_encoders() -> None:
    from rxllm.tools import encode_result

    assert_encoder(encode_result)
    assert_encoder(str)


# Images


class Drawing:
    """An image adapter whose operations and answers are what a test wants."""

    def __init__(self, make: Callable[[Any, Any], Any], operations: Any = ("generate", "edit", "variation")) -> None:
        self.operations = operations
        self.make = make
        self.calls = 0

    def generate(self, request: Any, call: Any) -> Any:
        self.calls += 1
        return reactivex.defer(lambda _: self.make(request, call))


def drawn(count: int = 1, **fields: Any) -> Any:
    return lambda request, call: reactivex.of(ImageResponse(images=(PNG,) * count, metadata=request.metadata, **fields))


def _refused(**fields: Any) -> Any:
    return lambda request, call: reactivex.throw(ImageAdapterError("invalid_request", **fields))


IMAGE_FAULTS: dict[str, Any] = {
    "test_its_operations_are_legal": lambda: Drawing(drawn(), ("generate", "animate")),
    "test_an_unknown_operation_is_refused_before_any_io": lambda: Drawing(drawn()),
    "test_a_refusal_keeps_the_providers_request_id": lambda: Drawing(_refused()),
    "test_metadata_come_back": lambda: Drawing(lambda request, call: reactivex.of(ImageResponse(images=(PNG,)))),
    "test_it_generates": lambda: Drawing(drawn(2)),
    "test_it_edits": lambda: Drawing(drawn(0)),
    "test_it_varies": lambda: Drawing(drawn(), ("generate",)),
    "test_usage_counts_the_images": lambda: Drawing(drawn()),
    "test_four_are_one_to_four": lambda: Drawing(drawn(5)),
}


def test_every_case_of_images_has_its_fault() -> None:
    assert set(IMAGE_FAULTS) == cases_of(ImageConformance)


@pytest.mark.parametrize(("case", "make"), IMAGE_FAULTS.items(), ids=IMAGE_FAULTS)
def test_a_broken_image_adapter_is_found(case: str, make: Any) -> None:
    class Suite(ImageConformance):
        @contextmanager
        def serving(self, images: int | None) -> Iterator[Served]:
            adapter = make()
            yield Served(adapter, lambda: adapter.calls)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Suite(), case)()


@pytest.mark.parametrize("key", ["k", "b", "_"])
def test_a_short_key_is_not_looked_for_in_events(key: str) -> None:
    assert_adapter(Fake("Hello, block and bulk."), api_key=key)
