"""The adapter rules that `assert_adapter` checks."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import fields, replace
from functools import partial
from timeit import timeit
from typing import Any

from reactivex.scheduler import ImmediateScheduler

from rxllm.adapters import HTTPAdapter
from rxllm.chunks import ChunkFeeder, StreamChunk, validate
from rxllm.engine import as_engine
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, Nested, RawChunk, Steered, UsageUpdated
from rxllm.runtime import LoopScheduler, Stream, from_async_iter
from rxllm.testing._adapter_run import (
    KEY,
    SENT_RULES,
    VARIATIONS,
    AdapterRun,
    expect_sent,
    says_something,
)
from rxllm.testing._rules import SECONDS, BrokenRule, RuleTable, clip, expect, expect_same, observe_all, report
from rxllm.testing.event_checks import chunkings, expect_json, expect_lawful
from rxllm.values import EngineError, LLMError, StreamError, Usage, ValidationError
from rxllm.values.responses import shorten

JUNK = (
    b"",
    b"\n\n",
    b"\xff\xfe\x00",
    b'data: {}\n\ndata: [1, null]\n\ndata: {"error": {"message": "no"}}\n\n',
    b"event: error\ndata: no\n\n",
    b'{"a": 1}\n[{"b": [{}]}',
    b'data: {"choices": [{"delta": {"content": 7}}]}\r\n\r\ndata: [DONE]',
)
"""Bytes that a decoder might receive from the wrong kind of server."""

SHORTEST_KEY = 8
"""The length of the shortest key that is searched for. Shorter keys could match by chance."""

PROMPT = 0.1
"""The maximum number of seconds that `build` may take."""

ADAPTER_RULES = RuleTable()
"""Maps each rule's name to its text."""


def assert_adapter(
    adapter: Any,
    request: Any = "Hi",
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
    **options: Any,
) -> None:
    """Check that `adapter` follows the `ADAPTER_RULES`.

    >>> from rxllm import Fake
    >>> assert_adapter(Fake("Hello"))

    `adapter` is an adapter, an async generator function, an `Engine`, or a model name. The check makes about ten calls
    with `request`. `options` are passed to ``stream_generate``. A call that takes longer than `seconds` breaks the
    `answers` rule. ``AdapterConformance`` also tests refusals, timeouts and clean-up, but needs a scripted service.

    `only` names the rules to check, and `without` names the rules to omit, as in ``without={"sends_key"}``. The rules
    from ``sends_system`` onwards apply only to an ``HTTPAdapter``. An adapter may refuse an unsupported setting with
    an `LLMError`.

    ==========================  ==========================================  ==========================================
    rule                        what is checked                             when to omit it
    ==========================  ==========================================  ==========================================
    ``adapter``                 it is an async generator or has stream()    never
    ``answers``                 the call succeeds                           never; the other rules depend on it
    ``typed_error``             every error is an LLMError                  never
    ``error_event``             errors after an event become ErrorEvents    never
    ``says``                    it emits text, thinking, a part or a call   if the model may stay silent
    ``understood``              its chunks are valid and recognized         if other code reads its raw chunks
    ``usage``                   no token count is negative                  if it also reports usage corrections
    ``lawful``                  ops.verify accepts its events               never
    ``json``                    events survive a round trip through JSON    if its events carry Python objects
    ``afresh``                  a second subscription makes its own call    if it replays one recording
    ``apart``                   concurrent calls share nothing              if the service takes one call at a time
    ``left``                    a disposed call does not affect the next    never
    ``subscriber``              a subscriber's error reaches on_error once  never
    ``scheduler``               subscribe() accepts a scheduler             never
    ``secret``                  its repr and events do not contain the key  never
    ``prompt``                  `build` returns at once                     never
    ``decoder``                 its decoder accepts any bytes               never; skipped if there is no decoder
    ``chunks``                  chunk boundaries do not change the events   never; skipped if there is no decoder
    ``sends_system``            the request includes the system prompt      if the service has no system prompt
    ``sends_user``              the request includes the user's text        never
    ``sends_assistant``         the model's earlier text is sent back       if the service stores the thread itself
    ``sends_arguments``         arguments of earlier calls are sent back    if the service does not support tools
    ``sends_result``            the request includes a tool's result        if the service does not support tools
    ``sends_tool_name``         the request includes a tool's name          if the service does not support tools
    ``sends_tool_description``  the request includes a tool's description   if the service does not support tools
    ``sends_tool_schema``       the request includes a tool's schema        if the service does not support tools
    ``sends_call_id``           a tool's result includes the call's id      never
    ``sends_temperature``       temperature is sent as a JSON number        if the service has no temperature setting
    ``sends_options``           options={...} are passed through            if it accepts only certain options
    ``sends_key``               api_key is in a header or the URL           if the server needs no key
    ``sends_max_tokens``        max_tokens changes the request              never; unsupported settings may be refused
    ``sends_stop``              stop changes the request                    never; unsupported settings may be refused
    ``sends_tool_choice``       tool_choice changes the request             never; unsupported settings may be refused
    ``sends_response_format``   response_format changes the request         never; unsupported settings may be refused
    ``sends_picture``           a picture changes the request               never; unsupported settings may be refused
    ``hides_key``               api_key is not in the URL                   if the service accepts it only there
    ==========================  ==========================================  ==========================================

    Raises an ``AssertionError`` that lists each broken rule with the reason. Raises ``ValueError`` for an unknown rule.
    """
    __tracebackhide__ = True
    names = ADAPTER_RULES.chosen(only, without)
    run = AdapterRun(replace(as_engine(adapter), retry=False), request, options, seconds)
    run.stream()  # raises an error if `options` are invalid
    broken: list[BrokenRule] = []
    for rule in ADAPTER_RULES.broken(run, names, catch=Exception):
        broken.append(rule)
        if rule.name in ("adapter", "answers"):  # the other rules would only fail for the same reason
            break
    report(broken)


@ADAPTER_RULES.rule(
    "adapter",
    "it is an async generator function, or it has a stream(request, call) method that is an async generator function "
    "or that returns an Observable",
)
def _adapter(run: AdapterRun) -> None:
    try:
        run.bare()
    except EngineError as error:
        expect(error.reason not in ("missing_adapter", "missing_stream_adapter"), error.message)


# Rules for one call


@ADAPTER_RULES.rule("answers", "the call succeeds (all other rules depend on this one)")
def _answers(run: AdapterRun) -> None:
    observed = run.observed
    refused = isinstance(observed.error, LLMError) and not observed.events
    expect(not refused, f"it raised {observed.error!r}", observed.error)
    last = observed.events[-1] if observed.events else None
    if isinstance(last, ErrorEvent):
        raise AssertionError(f"it ended with {last!r}") from last.error


@ADAPTER_RULES.rule("typed_error", "every error is an LLMError")
def _typed_error(run: AdapterRun) -> None:
    error = run.observed.error
    expect(error is None or isinstance(error, LLMError), f"it raised {error!r}", error)


@ADAPTER_RULES.rule(
    "error_event", "after the first event, an error is emitted as an ErrorEvent instead of being raised"
)
def _error_event(run: AdapterRun) -> None:
    events, error = run.observed.events, run.observed.error
    expect(error is None or not events, f"it raised {error!r} after {len(events)} events", error)


@ADAPTER_RULES.rule("says", "it emits text, thinking, a part or a tool call")
def _says(run: AdapterRun) -> None:
    events = run.observed.events
    failed = run.observed.error is not None or any(isinstance(event, ErrorEvent) for event in events)
    expect(failed or says_something(events), f"it emitted only {clip(events)}")


@ADAPTER_RULES.rule("understood", "its chunks are valid, and the chunk feeder recognizes them")
def _understood(run: AdapterRun) -> None:
    function = run.engine.adapter
    if not inspect.isasyncgenfunction(function):
        return
    request, call = run.received
    items = run.observe(from_async_iter(lambda: function(request, call))).events
    feeder = ChunkFeeder(request.messages)
    for chunk in (item for item in items if isinstance(item, StreamChunk)):
        try:
            validate(chunk)
        except ValidationError as error:
            raise AssertionError(f"{chunk!r} is not valid: {error}") from error
        for event in feeder.feed(chunk):
            expect(not isinstance(event, RawChunk) or _is_raw(chunk), f"{chunk!r} became only {clip(event)}")
    for event in feeder.close():
        expect(not isinstance(event, RawChunk), f"no tool call started for {event!r}")


def _is_raw(chunk: StreamChunk) -> bool:
    return "stream_only?" in chunk.metadata or (chunk.type, *chunk.metadata) == ("meta", "provider_event")


@ADAPTER_RULES.rule("usage", "no token count is negative")
def _usage(run: AdapterRun) -> None:
    for event in run.observed.events:
        if isinstance(event, UsageUpdated):
            negative = {name: count for name, count in _list_counts(event.usage).items() if count < 0}
            expect(not negative, f"it reported {negative}")


def _list_counts(usage: Usage) -> dict[str, float]:
    named = {spec.name: getattr(usage, spec.name) for spec in fields(usage)}
    return {name: count for name, count in {**named, **usage.extra}.items() if isinstance(count, int | float)}


@ADAPTER_RULES.rule("lawful", "operators.verify accepts the events, with and without raw chunks")
def _lawful(run: AdapterRun) -> None:
    for event in run.observed.events:
        expect(not isinstance(event, Nested | Steered), f"it emitted {clip(event)}, which only a chat may emit")
    expect_lawful(run.observed.events)
    expect_lawful(run.observe(run.stream(include_raw_chunks=True)).events)


@ADAPTER_RULES.rule("json", "events survive a round trip through JSON")
def _json(run: AdapterRun) -> None:
    for event in run.observed.events:
        if isinstance(event, EVENT_CLASSES):
            expect_json(event)


# Rules for several calls


@ADAPTER_RULES.rule("afresh", "a second subscription makes its own call")
def _afresh(run: AdapterRun) -> None:
    stream = run.bare()
    for number in ("first", "second"):
        run.expect_as_before(f"the {number} subscription", run.observe(stream))


@ADAPTER_RULES.rule("apart", "concurrent calls share nothing")
def _apart(run: AdapterRun) -> None:
    stream, _ = run.bare(), run.observed
    for observed in observe_all([stream, stream], seconds=run.seconds):
        run.expect_as_before("one of two concurrent calls", observed)


@ADAPTER_RULES.rule("left", "a disposed call does not affect the next one")
def _left(run: AdapterRun) -> None:
    _ = run.observed  # Make the reference call first, because a disposed call might affect it.
    first = run.observe(Stream.of(run.stream().take(1)))
    expect((len(first.events), first.completed) == (1, 1), f"take(1) received {clip(first)}")
    run.expect_as_before("the next call", run.observe(run.stream()))


@ADAPTER_RULES.rule("subscriber", "a subscriber's exception reaches its on_error once")
def _subscriber(run: AdapterRun) -> None:
    failure = RuntimeError("the subscriber's own")

    def raise_failure(event: Event) -> None:
        raise failure

    # Without a scheduler, a Stream itself would pass the exception on.
    observed = run.observe(run.stream(), on_next=raise_failure, scheduler=LoopScheduler(None))
    expect(observed.errors == [failure], f"its on_error received {observed.errors or 'nothing'}")
    expect(len(observed.events) == 1, f"{len(observed.events) - 1} events followed the exception")


@ADAPTER_RULES.rule("scheduler", "subscribe() accepts a scheduler")
def _scheduler(run: AdapterRun) -> None:
    observed = run.observe(run.stream(), scheduler=ImmediateScheduler.singleton())
    run.expect_as_before("the call with a scheduler", observed)


@ADAPTER_RULES.rule("secret", "its repr and events do not contain the key")
def _secret(run: AdapterRun) -> None:
    adapter = run.engine.adapter
    keys = (run.options.get("api_key"), getattr(adapter, "_api_key", None))
    for key in (key for key in keys if isinstance(key, str) and len(key) >= SHORTEST_KEY):
        expect(key not in repr(adapter), "its repr exposes the key")
        expect(key not in repr(run.observed), "an event or error exposes the key")
    if not any(isinstance(key, str) and len(key) >= SHORTEST_KEY for key in keys):  # use a made-up key
        expect(KEY not in repr(run.observe(run.stream(api_key=KEY))), "an event or error exposes the key")


@ADAPTER_RULES.rule("prompt", "build returns at once, because it runs on the event loop")
def _prompt(run: AdapterRun) -> None:
    adapter = run.engine.adapter
    if isinstance(adapter, HTTPAdapter):
        request, call = run.received
        call = replace(call, api_key=call.api_key or KEY)
        took = min(timeit(lambda: adapter.build(request, call), number=1) for _ in range(3))
        expect(took < PROMPT, f"it took {took:.2g} s; do slow work in an async function, not in build")


# Rules for decoders and requests


@ADAPTER_RULES.rule(
    "decoder", 'its decoder emits valid events for any bytes, and a "truncated" error if the end is missing'
)
def _decoder(run: AdapterRun) -> None:
    if not hasattr(run.engine.adapter, "decoder"):
        return
    for junk in JUNK:
        expect_lawful(run.decode([junk]))
    match run.decode([]):
        case [*_, ErrorEvent(error=StreamError(reason="truncated"))]:
            pass
        case events:
            raise AssertionError(f'when given no bytes, it emitted {clip(events)} instead of a "truncated" error')


@ADAPTER_RULES.rule("chunks", "its decoder emits the same events however the bytes are cut")
def _chunks(run: AdapterRun) -> None:
    if hasattr(run.engine.adapter, "decoder"):
        for junk in JUNK:
            expect_however_cut(run, junk)


def expect_however_cut(run: AdapterRun, data: bytes) -> None:
    whole = run.decode([data])
    for chunks in chunkings(data):
        sizes = ", ".join(str(len(chunk)) for chunk in chunks[:9])
        expect_same(f"when cut into chunks of {sizes} ... bytes, the stream", whole, run.decode(chunks))


def _check_sent(rule: str, run: AdapterRun) -> None:
    if run.sent is None:
        return
    if rule not in VARIATIONS:
        expect_sent(rule, run.sent)
        return
    try:
        before, after = (run.sends(**changes) or () for changes in VARIATIONS[rule])
    except LLMError:  # the adapter may reject an option that it cannot send
        return
    plain, varied = ([(request.path, request.body) for request in requests] for requests in (before, after))
    expect(plain != varied, f"the request is the same with and without the setting: {shorten(str(varied), 120)}")


for _name, _sentence in SENT_RULES.items():
    ADAPTER_RULES.rule(_name, _sentence)(partial(_check_sent, _name))
