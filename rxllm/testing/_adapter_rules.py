"""The rules of an adapter: of one call, of several, of what lies under them.

A rule is a function of what is tried; it raises ``AssertionError``, whose text says how it is broken. `ADAPTER_RULES`
says what each of them is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from reactivex.scheduler import ImmediateScheduler

from rxllm.adapters import HTTPAdapter
from rxllm.collector import fold_message
from rxllm.events import EVENT_CLASSES, ErrorEvent, Event, UsageUpdated
from rxllm.runtime import Stream
from rxllm.testing._adapter_chunks import decoder, however_cut, understood
from rxllm.testing._adapter_run import Tried, keep_the_law, shape
from rxllm.testing._observe import assert_survives_json, hear_all
from rxllm.testing._rule_table import clip, expect
from rxllm.testing._sent_rules import KEY, SENT_RULES, expect_sent
from rxllm.values import EngineError, LLMError, Usage


def _adapter(tried: Tried) -> None:
    try:
        tried.bare()
    except EngineError as error:
        expect(error.reason not in ("missing_adapter", "missing_stream_adapter"), error.message)


def _answers(tried: Tried) -> None:
    told = tried.told
    # What is raised after an event, or is no LLMError, is a broken rule of its own.
    refused = isinstance(told.error, LLMError) and not told.events
    expect(not refused, f"it refused: {told.error!r}", told.error)
    last = told.events[-1] if told.events else None
    if isinstance(last, ErrorEvent):
        raise AssertionError(f"it broke off: {last!r}") from last.error


def _typed_error(tried: Tried) -> None:
    told = tried.told
    expect(told.error is None or isinstance(told.error, LLMError), f"it raised {told.error!r}", told.error)


def _error_event(tried: Tried) -> None:
    told = tried.told
    raised = f"after {len(told.events)} events it raised {told.error!r}"
    expect(told.error is None or not told.events, raised, told.error)


def _says(tried: Tried) -> None:
    events = tried.told.events
    message = fold_message(events)
    failed = tried.told.error is not None or any(isinstance(event, ErrorEvent) for event in events)
    expect(failed or bool(message.parts or message.tool_calls), f"it said no more than {clip(events)}")


def _usage(tried: Tried) -> None:
    for event in tried.told.events:
        if isinstance(event, UsageUpdated):
            negative = {name: held for name, held in _counts(event.usage).items() if held < 0}
            expect(not negative, f"it counted {negative}")


def _counts(usage: Usage) -> dict[str, float]:
    held = {spec.name: getattr(usage, spec.name) for spec in fields(usage)}
    return {name: count for name, count in {**held, **usage.extra}.items() if isinstance(count, int | float)}


def _lawful(tried: Tried) -> None:
    keep_the_law(tried.told)
    keep_the_law(tried.hear(tried.stream(include_raw_chunks=True)))


def _json(tried: Tried) -> None:
    for event in tried.told.events:
        if isinstance(event, EVENT_CLASSES):
            assert_survives_json(event)


def _afresh(tried: Tried) -> None:
    stream, alone = tried.bare(), shape(tried.told)
    for number in ("first", "second"):
        told = tried.hear(stream)
        expect(shape(told) == alone, f"the {number} said {shape(told)}, not {alone}")


def _apart(tried: Tried) -> None:
    stream, alone = tried.bare(), shape(tried.told)
    for told in hear_all([stream, stream], seconds=tried.seconds):
        expect(shape(told) == alone, f"one of two said {shape(told)}, not {alone}")


def _left(tried: Tried) -> None:
    unhurt = shape(tried.told)  # now: what is left may hurt all that come after it
    first = tried.hear(Stream.of(tried.stream().take(1)))
    expect((len(first.events), first.completed) == (1, 1), f"take(1) was told {clip(first)}")
    told = tried.hear(tried.stream())
    expect(shape(told) == unhurt, f"the next one said {shape(told)}, not {unhurt}")


def _subscriber(tried: Tried) -> None:
    failure = RuntimeError("the subscriber's own")

    def refuse(event: Event) -> None:
        raise failure

    told = tried.hear(tried.stream(), on_next=refuse)
    expect(told.errors == [failure], f"it was told of {told.errors or 'none'}")
    expect(len(told.events) == 1, f"{len(told.events) - 1} events came after it")


def _scheduler(tried: Tried) -> None:
    told = tried.hear(tried.stream(), scheduler=ImmediateScheduler.singleton())
    expect(shape(told) == shape(tried.told), f"it said {shape(told)}, not {shape(tried.told)}")


def _secret(tried: Tried) -> None:
    adapter = tried.engine.adapter
    keys = (tried.options.get("api_key"), getattr(adapter, "_api_key", None))
    for key in (key for key in keys if isinstance(key, str) and key):
        expect(key not in repr(adapter), "its repr shows it")
        expect(key not in repr(tried.told), "an event or error shows it")
    if not any(keys):  # one that nobody has, then
        expect(KEY not in repr(tried.hear(tried.stream(api_key=KEY))), "an event or error shows it")


def _sent(rule: str) -> Callable[[Tried], None]:
    def check(tried: Tried) -> None:
        if isinstance(tried.engine.adapter, HTTPAdapter):
            expect_sent(rule, [tried.built])

    return check


RULES: dict[str, Callable[[Tried], None]] = {
    "adapter": _adapter,
    "answers": _answers,
    "typed_error": _typed_error,
    "error_event": _error_event,
    "says": _says,
    "understood": understood,
    "usage": _usage,
    "lawful": _lawful,
    "json": _json,
    "afresh": _afresh,
    "apart": _apart,
    "left": _left,
    "subscriber": _subscriber,
    "scheduler": _scheduler,
    "secret": _secret,
    "decoder": decoder,
    "chunks": however_cut,
    **{rule: _sent(rule) for rule in SENT_RULES},
}
