"""What every adapter keeps, as far as it can be seen without a script: the model may say what it likes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rxllm.engine import as_engine
from rxllm.testing._adapter_rules import RULES
from rxllm.testing._adapter_run import Tried
from rxllm.testing._observe import SECONDS
from rxllm.testing._rule_table import chosen, on_a_screen
from rxllm.testing._sent_rules import SENT_RULES

ADAPTER_RULES: dict[str, str] = {
    "adapter": "it has stream(request, call), which gives an Observable, or is an async generator function",
    "answers": "the call succeeds, else nothing else can be seen",
    "typed_error": "an error is an LLMError",
    "error_event": "an error after the first event is an ErrorEvent",
    "says": "it says something: text, thinking, a part or a call",
    "understood": "each of its chunks is valid and means something",
    "usage": "nothing is counted below zero",
    "lawful": "the events keep the rules of operators.verify, with and without raw chunks",
    "json": "events survive JSON",
    "afresh": "a second subscription is a call of its own",
    "apart": "calls at the same time have nothing in common",
    "left": "a call that is left does not hurt the next one",
    "subscriber": "a subscriber's exception comes back, once",
    "scheduler": "it can be subscribed with a scheduler",
    "secret": "no key is in its repr or its events",
    "decoder": "its decoder bears any bytes, lawfully, and a stream without an end is truncated",
    "chunks": "its decoder gives the same events however the bytes are cut",
    **SENT_RULES,
}
"""The rules of `assert_adapter`, by name, in the order in which they are checked."""


def assert_adapter(
    adapter: Any,
    request: Any = "Hi",
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
    **options: Any,
) -> None:
    """Check that `adapter` keeps all of `ADAPTER_RULES`; it is asked `request` about ten times.

    >>> from rxllm import Fake
    >>> assert_adapter(Fake("Hello"))

    It is whatever stands for an engine elsewhere: an adapter, an async generator function, an `Engine`, a model's name.
    `options` are those of ``stream_generate``. A call that takes longer than `seconds` is broken (`answers`). How
    it refuses, times out and is cleaned up needs a service that does as it is told: see ``AdapterConformance``.

    `only` names the rules to check, `without` those to leave out, as in ``without={"sends_key"}``. What is sent is
    seen in the request that an ``HTTPAdapter`` builds:

    ==========================  ==========================================  =====================================
    rule                        what is checked                             leave it out where
    ==========================  ==========================================  =====================================
    ``adapter``                 it has stream(), or is an async generator   never
    ``answers``                 the call succeeds                           never, as nothing else can be seen
    ``typed_error``             an error is an LLMError                     never
    ``error_event``             an error after an event is an ErrorEvent    never
    ``says``                    it says text, thinking, a part or a call    the model may be silent
    ``understood``              its chunks are valid and mean something     it passes on what others read
    ``usage``                   nothing is counted below zero               usage comes as corrections
    ``lawful``                  the events keep the rules of ops.verify     never
    ``json``                    events survive JSON                         an event carries a program's object
    ``afresh``                  a second subscription is a call of its own  it plays one recording
    ``apart``                   calls at the same time share nothing        the service takes one call at a time
    ``left``                    a call that is left does not hurt the next  never
    ``subscriber``              a subscriber's exception comes back, once   never
    ``scheduler``               it can be subscribed with a scheduler       never
    ``secret``                  no key is in its repr or its events         never
    ``decoder``                 its decoder bears any bytes                 never: without one it is not checked
    ``chunks``                  its decoder reads bytes alike however cut   as `decoder`
    ``sends_system``            the system prompt is in the request         the service has none
    ``sends_user``              the user's text is in the request           never
    ``sends_assistant``         the model's earlier text is in it           the service keeps the thread itself
    ``sends_arguments``         an earlier tool call's arguments are in it  the service knows no tools
    ``sends_result``            a tool's result is in the request           the service knows no tools
    ``sends_tool_name``         a tool's name is in the request             the service knows no tools
    ``sends_tool_description``  a tool's description is in the request      the service knows no tools
    ``sends_tool_schema``       a tool's schema is in the request           the service knows no tools
    ``sends_temperature``       temperature is in it, as a JSON number      the service has none
    ``sends_options``           options={...} are passed through            it takes a closed set of options
    ``sends_key``               api_key is in a header or the address       a server of one's own asks for no key
    ==========================  ==========================================  =====================================

    Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError`` for a rule that is none.
    """
    __tracebackhide__ = True
    rules = chosen(ADAPTER_RULES, only, without)
    tried = Tried(replace(as_engine(adapter), retry=False), request, options, seconds)
    tried.stream()  # raises for wrong options
    broken: list[str] = []
    cause: BaseException | None = None
    for name, sentence in rules.items():
        try:
            RULES[name](tried)
        except Exception as error:
            of_the_kit = isinstance(error, AssertionError)
            broken.append(f"{name}: {sentence}, but {error if of_the_kit else f'it raised {error!r}'}")
            cause = cause or (error.__cause__ if of_the_kit else error)
            if name in ("adapter", "answers"):
                break
    if broken:
        raise AssertionError(on_a_screen(broken)) from cause
