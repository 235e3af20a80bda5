"""`assert_adapter`: the rules of adapters, checked without a script."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rxllm.engine import as_engine
from rxllm.testing._adapter_rules import ADAPTER_RULES
from rxllm.testing._adapter_run import AdapterRun
from rxllm.testing._observe import SECONDS
from rxllm.testing._rule_table import BrokenRule, report


def assert_adapter(
    adapter: Any,
    request: Any = "Hi",
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    seconds: float = SECONDS,
    **options: Any,
) -> None:
    """Check that `adapter` keeps all of `ADAPTER_RULES`; this makes about ten calls with `request`.

    >>> from rxllm import Fake
    >>> assert_adapter(Fake("Hello"))

    `adapter` is whatever stands for an engine elsewhere: an adapter, an async generator function, an `Engine`, a
    model's name. `options` are those of ``stream_generate``. A call that takes longer than `seconds` breaks `answers`.
    To test how an adapter refuses, times out and cleans up takes a service that follows a script: see
    ``AdapterConformance``.

    `only` names the rules to check, `without` those to leave out, as in ``without={"sends_key"}``. What is sent is
    seen in the request that an ``HTTPAdapter`` builds; what the service lacks, an adapter refuses with an `LLMError`:

    ==========================  ==========================================  =====================================
    rule                        what is checked                             leave it out where
    ==========================  ==========================================  =====================================
    ``adapter``                 it has stream(), or is an async generator   never
    ``answers``                 the call succeeds                           never: nothing else can be checked
    ``typed_error``             an error is an LLMError                     never
    ``error_event``             an error after an event is an ErrorEvent    never
    ``says``                    it says text, thinking, a part or a call    the model may be silent
    ``understood``              its chunks are valid and mean something     it passes on what others read
    ``usage``                   no count is below zero                      usage comes as corrections
    ``lawful``                  the events keep the rules of ops.verify     never
    ``json``                    events survive JSON                         an event carries a program's object
    ``afresh``                  a second subscription is a call of its own  it plays one recording
    ``apart``                   calls at the same time share nothing        the service takes one call at a time
    ``left``                    a call that is left does not hurt the next  never
    ``subscriber``              a subscriber's exception comes back, once   never
    ``scheduler``               it can be subscribed with a scheduler       never
    ``secret``                  no key is in its repr or its events         never
    ``prompt``                  `build` returns at once                     never
    ``decoder``                 its decoder reads any bytes                 never: without one it is not checked
    ``chunks``                  its decoder reads bytes alike however cut   as `decoder`
    ``sends_system``            the system prompt is in the request         the service has none
    ``sends_user``              the user's text is in the request           never
    ``sends_assistant``         the model's earlier text is in it           the service keeps the thread itself
    ``sends_arguments``         an earlier tool call's arguments are in it  the service has no tools
    ``sends_result``            a tool's result is in the request           the service has no tools
    ``sends_tool_name``         a tool's name is in the request             the service has no tools
    ``sends_tool_description``  a tool's description is in the request      the service has no tools
    ``sends_tool_schema``       a tool's schema is in the request           the service has no tools
    ``sends_call_id``           a result names its call by the call's id    never
    ``sends_temperature``       temperature is in it, as a JSON number      the service has none
    ``sends_options``           options={...} are passed through            it takes a closed set of options
    ``sends_key``               api_key is in a header or the address       a server of your own asks for no key
    ``sends_max_tokens``        max_tokens changes the request              never: refuse what it lacks
    ``sends_stop``              so does stop                                never
    ``sends_tool_choice``       so does tool_choice                         never
    ``sends_response_format``   so does response_format                     never
    ``sends_picture``           so does a picture                           never
    ``hides_key``               api_key is not in the address               the service takes it nowhere else
    ==========================  ==========================================  =====================================

    Raises ``AssertionError``, which names every broken rule and says how, and ``ValueError`` for an unknown rule.
    """
    __tracebackhide__ = True
    names = ADAPTER_RULES.chosen(only, without)
    run = AdapterRun(replace(as_engine(adapter), retry=False), request, options, seconds)
    run.stream()  # raises for wrong options
    broken: list[BrokenRule] = []
    for rule in ADAPTER_RULES.broken(run, names, catch=Exception):
        broken.append(rule)
        if rule.name in ("adapter", "answers"):  # the others would fail for the same reason
            break
    report(broken)
