"""Laws: the prefix ledger and a judge that binds thoughts agree, whatever is changed in a conversation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxllm import Message, Thread, serializer, system, user
from rxllm.adapters import Anthropic
from rxllm.adapters.anthropic.request import ledger_of
from rxllm.events import MessageCompleted
from rxllm.values import Call, PrefixReport, Request, TextPart, ThinkingPart, Tool, tool_result
from tests.adapters.anthropic.binding import (
    HIDDEN,
    MODEL,
    Block,
    frames,
    refused,
    say,
    signed,
    think,
    thoughts_in,
    turns_of,
    use,
)
from tests.examples import examples
from tests.laws.support import law

ADAPTER = Anthropic(api_key="k")
Edit = tuple[str, int]


class Conversation:
    """A conversation that grows by turns, and in which anything may be changed between them."""

    def __init__(self) -> None:
        self.thread: tuple[Message, ...] = (system("Be brief."),)
        self.tools: tuple[Tool, ...] = (Tool("add", "Adds"), Tool("sum", "Sums"))
        self.turns = 0
        self.reports: list[PrefixReport] = []

    def request(self, **options: Any) -> Request:
        return Request(self.thread, MODEL, tools=self.tools, options=options)

    def body(self, **options: Any) -> Block:
        return json.loads(ADAPTER.build(self.request(**options), Call()).content)

    def grow(self, kind: int) -> None:
        """Ask, and append the answer: the judge must accept what is sent, and the ledger what the judge accepts."""
        self.turns += 1
        self.thread += (user(f"Question {self.turns}"),)
        self.answer(kind)
        if self.thread[-1].tool_calls:
            self.thread += (tool_result(self.thread[-1].tool_calls[0].id, f"Result {self.turns}"),)
            self.answer(kind // 2)

    def answer(self, kind: int) -> None:
        sent, whole = self.body(), self.body(refused_thoughts="error")
        assert refused(sent) == []
        assert (sent == whole) == (refused(whole) == [])
        number = f"{self.turns}.{len(self.thread)}"
        thoughts: list[Block] = [think(f"Thought {number}.{index}") for index in range(kind % 4)]
        if kind % 5 == 1:
            thoughts.insert(1, HIDDEN)
        blocks = [block for thought in thoughts for block in (thought, say("So."))][: len(thoughts) * 2 - kind % 2]
        blocks += [use(f"c{self.turns}")] if kind > 7 else [say(f"Answer {number}")]
        decoder = ADAPTER.decoder(self.request())
        events = [*decoder.feed(frames(signed(sent, blocks))), *decoder.close()]
        assert isinstance(events[-1], MessageCompleted)
        self.thread += (events[-1].message,)
        self.reports.append(events[-1].metadata.get("prefix", PrefixReport()))
        assert len(self.reports[-1].left_out) == len(thoughts_in(whole)) - len(thoughts_in(sent))

    def change(self, kind: str, number: int) -> None:
        place = 1 + number % max(1, len(self.thread) - 1)
        message = self.thread[place] if place < len(self.thread) else self.thread[0]
        match kind:
            case "system":
                self.thread = (system(f"Be {('brief', 'long')[number % 2]}."), *self.thread[1:])
            case "add tool":
                self.tools += (Tool(f"tool{len(self.tools)}"),)
            case "drop tool":
                self.tools = self.tools[:-1]
            case "describe":
                self.tools = tuple(replace(tool, description=f"{number % 2}") for tool in self.tools)
            case "reverse":
                self.tools = self.tools[::-1]
            case "edit" if message.role == "user":
                self.put(place, replace(message, content=f"Edited {number % 3}"))
            case "say" if message.role == "assistant":
                parts = (replace(part, text="Other.") if isinstance(part, TextPart) else part for part in message.parts)
                self.put(place, replace(message, content=tuple(parts)))
            case "forget" if message.role == "assistant":
                thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
                gone = thoughts[number % len(thoughts)] if thoughts else None
                self.put(place, replace(message, content=tuple(part for part in message.parts if part is not gone)))
            case "trim":
                starts = [index for index, message in enumerate(self.thread) if message.role == "user"]
                self.thread = (self.thread[0], *self.thread[starts[number % len(starts)] if starts else 1 :])
            case "mark":
                self.put(place, replace(message, metadata={**message.metadata, "cache": True}))
            case "keep":
                self.thread = serializer.from_json(serializer.to_json(Thread(self.thread)), Thread).messages
            case "lose digests":
                self.put(place, replace(message, metadata={}))
            case _:
                pass

    def put(self, place: int, message: Message) -> None:
        if 0 < place < len(self.thread):
            self.thread = (*self.thread[:place], message, *self.thread[place + 1 :])


HARMLESS = ("reverse", "mark", "keep")
CHANGES = (*HARMLESS, "system", "add tool", "drop tool", "describe", "edit", "say", "forget", "trim")


def edits(*kinds: str, at_most: int = 8) -> st.SearchStrategy[list[Edit]]:
    grow = st.tuples(st.just("grow"), st.integers(0, 15))
    return st.lists(grow | st.tuples(st.sampled_from(kinds), st.integers(0, 20)), min_size=2, max_size=at_most)


def played(script: list[Edit]) -> Conversation:
    conversation = Conversation()
    for kind, number in script:
        if kind == "grow":
            conversation.grow(number)
        else:
            conversation.change(kind, number)
    conversation.grow(1)
    return conversation


def check_edits(script: list[Edit]) -> None:
    played(script)


@settings(law, max_examples=examples(40))
@given(edits(*CHANGES))
def test_what_is_sent_is_accepted_and_what_is_accepted_is_sent(script: list[Edit]) -> None:
    """Law: the judge accepts the sent copy, and nothing is left out of a request that it accepts whole."""
    check_edits(script)


@pytest.mark.judges
@settings(law, max_examples=examples(1000))
@given(edits(*CHANGES, at_most=14))
def test_on_a_thousand_edits(script: list[Edit]) -> None:
    """Law: the same, on many more conversations."""
    check_edits(script)


@settings(law, max_examples=examples(20))
@given(edits(*HARMLESS))
def test_a_conversation_that_only_grows_loses_no_thought(script: list[Edit]) -> None:
    """Law: growth, JSON, cache marks and the order of the tools change nothing."""
    assert set(map(repr, played(script).reports)) == {"PrefixReport()"}


GROWN: list[Edit] = [("grow", 1 + 4), ("grow", 2), ("grow", 1 + 4)]
"""Three turns with one, two and one thought. The messages after the system prompt have the indexes 1 to 6."""

SENT: dict[str, tuple[list[Edit], list[str], str | None]] = {
    "nothing changed": ([], ["1.2.0", "2.4.0", "2.4.1", "3.6.0"], None),
    "an old system prompt again": ([("system", 1), ("system", 0)], ["1.2.0", "2.4.0", "2.4.1", "3.6.0"], None),
    "another system prompt": ([("system", 1)], [], "system"),
    "the tools described": ([("describe", 1)], [], "tools: add"),
    "one tool more": ([("add tool", 0)], [], "tools: tool2"),
    "the second question": ([("edit", 2)], ["1.2.0"], "message 2"),
    "the first answer": ([("say", 1)], ["1.2.0"], "message 1"),
    "without the oldest thought": ([("forget", 1)], ["2.4.0", "2.4.1", "3.6.0"], None),
    "without one between": ([("forget", 3)], ["1.2.0", "2.4.0"], None),
    "a change and a turn": ([("system", 1), ("grow", 5)], ["4.8.0"], None),
    "two changes": ([("edit", 4), ("grow", 5), ("edit", 6), ("grow", 5)], ["1.2.0", "2.4.0", "2.4.1", "5.10.0"], None),
    "trimmed": ([("trim", 1)], [], "message 0"),
}


@pytest.mark.parametrize("name", SENT)
def test_one_change_costs_the_thoughts_after_it(name: str) -> None:
    conversation = Conversation()
    script, expected, change = SENT[name]
    for kind, number in [*GROWN, *script]:
        conversation.grow(number) if kind == "grow" else conversation.change(kind, number)
    conversation.thread += (user("And now?"),)
    body = conversation.body()
    assert [block["thinking"].removeprefix("Thought ") for block in thoughts_in(body)] == expected
    ledger = ledger_of(conversation.request())
    assert ledger is not None
    assert (ledger.report.first_change, refused(body)) == (change, [])


def test_a_report_names_the_first_change_of_each_thought() -> None:
    conversation = played([("grow", 5), ("grow", 5), ("system", 1), ("grow", 5), ("edit", 4), ("grow", 5)])
    assert [report.first_change for report in conversation.reports] == [None, None, "system", "message 4", None]
    assert conversation.reports[-1] == PrefixReport(
        None, {"messages.1.content.0": "system", "messages.3.content.0": "system", "messages.5.content.0": "message 4"}
    )


def test_an_answer_that_goes_on_after_a_pause_keeps_its_thoughts() -> None:
    conversation = Conversation()
    conversation.thread += (user("Search."),)
    for kind in (5, 5):
        conversation.answer(kind)
    conversation.thread += (user("Thanks."),)
    body = conversation.body()
    assert (len(body["messages"]), len(thoughts_in(body)), refused(body)) == (3, 2, [])


@pytest.mark.parametrize(
    "note",
    [None, "x", {}, {"turns": []}, {"turns": [0, 1]}, {"turns": [-1], "system": "s", "tools": "t", "before": ""}],
)
def test_digests_that_cannot_be_read_are_none(note: Any) -> None:
    conversation = played([("grow", 5)])
    conversation.put(2, replace(conversation.thread[2], metadata={"anthropic_prefix": note}))
    assert len(thoughts_in(conversation.body())) == 3


def test_an_answer_remembers_only_what_is_new() -> None:
    answers = [message for message in played([("grow", 5)] * 4).thread if message.role == "assistant"]
    notes = [answer.metadata["anthropic_prefix"] for answer in answers]
    assert [len(note["turns"]) for note in notes] == [2, 3, 3, 3, 3]
    assert ["names" in note for note in notes] == [True, False, False, False, False]


def test_other_models_get_every_thought_and_remember_nothing() -> None:
    request = replace(played([("grow", 5)]).request(), model="claude-opus-5")
    assert ledger_of(request) is None
    changed = replace(request, messages=(system("Be long."), *request.messages[1:]))
    assert len(thoughts_in(json.loads(ADAPTER.build(changed, Call()).content))) == 3


def test_a_thought_that_the_server_dropped_is_not_the_one_before_the_next() -> None:
    conversation = played([("grow", 5), ("system", 1), ("grow", 5), ("grow", 5)])
    ledger = ledger_of(conversation.request())
    assert ledger is not None
    blocks = [(path, block) for _, said in turns_of(ledger.body) for path, block in said]
    sent = ["messages.{}.content.{}".format(*path) for path, block in blocks if "thinking" in block["type"]]
    after = [ledger.entry([], dropped)["after"] for dropped in ([], sent[-1:], sent)]
    assert [len(name) for name in after] == [16, 16, 0]
    assert after[0] != after[1]
