"""The chats of the judge of kills. A model never says the same twice: a mark shows what has been asked again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import rxllm
from rxllm import AdapterError, Budget, Engine, Fake, Request, ToolCall, ToolContext, ToolError, Usage, tool
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply
from rxllm.values import Halt
from tests.corpus import VARIABLE
from tests.durable import crashing
from tests.durable.crashing import note, pay, stamp
from tests.durable.kill_points import add, effect
from tests.waiting import turns as loop_turns

SECRET = "SECRET"
ASK = {"ask": "Go!"}
MARK = re.compile(r"<[0-9a-f]{8}>")


class Chat(NamedTuple):
    """A factory with its input, how a halted run is answered, and what may happen."""

    build: Callable[[Any], Any]
    replies: Mapping[str, str] = {}
    approvals: Mapping[str, Any] = {}
    open: int = 1
    """How many questions to models a kill may cost."""
    is_guarded: bool = False
    is_marked: bool = True
    is_cut: bool = False
    """Whether a kill may cut a response after the last call that has started early."""


def mark() -> str:
    """Return what makes an answer differ from every other."""
    return f"<{token_hex(4)}>"


def slow(*items: Any) -> list[Any]:
    return [entry for item in items for entry in (item, ("delay", 0.002))]


def turns(name: str, *answers: Any) -> Fake:
    """Return a model that gives the n-th answer to the n-th step, with a mark for each @."""

    def model(request: Request) -> Any:
        number = sum(bool(message.tool_calls) for message in request.messages)
        add("questions", f"{name} {number}\n")
        answer = answers[min(number, len(answers) - 1)]
        answer = answer if isinstance(answer, list) else [answer]
        return slow(*(item.replace("@", mark()) if isinstance(item, str) else item for item in answer))

    return Fake(model)


def start(engine: Any, input: dict[str, Any], **options: Any) -> Any:
    """Return the events of a chat, or of a halted one that goes on."""
    if "resume" in input:
        answers = {name: input[name] for name in ("approvals", "results")}
        return rxllm.stream_resume(engine, input["resume"], **answers, **options)
    return rxllm.stream(engine, input["ask"], **options)


def passes(text: str) -> str | None:
    if SECRET in text:
        return "it is secret"
    add("passed", text)
    return None


async def passes_soon(text: str) -> str | None:
    await loop_turns()
    return passes(text)


LONG = [f"{word}{number} " for number in range(5) for word in ("once ", "upon ", "a ", "time@ ")]


def build_text(input: Any) -> Any:
    return start(Engine(turns("text", LONG)), input)


def build_response(input: Any) -> Any:
    return rxllm.stream_generate(Engine(turns("response", LONG[:8])), input["ask"])


@tool(name="note")
async def later_note(text: str) -> str:
    await loop_turns()
    return effect("note", f"note {text}")


def build_parallel(input: Any) -> Any:
    calls = [ToolCall("c0", "note", {"text": "one"}), ToolCall("c1", "stamp", {"text": "two"})]
    model = turns("parallel", ["I do@ ", "both. ", *calls], ["Both ", "are@ ", "done. "])
    return start(Engine(model, tools=[later_note, stamp]), input)


def build_approval(input: Any) -> Any:
    call = ToolCall("c0", "pay", {"amount": 500})
    other = ToolCall("c1", "note", {"text": "paid"})
    model = turns("approval", ["I pay@ ", call], ["And@ ", other], ["Paid ", "it@", "all. "])
    return start(Engine(model, tools=[pay, note]), input)


def build_trips(input: Any) -> Any:
    call = ToolCall("c0", "note", {"text": "first"})
    model = turns(
        "trips", ["I note. ", call], ["Well. ", "It@ ", "is. ", "Now ", "hear ", f"the {SECRET}. ", *LONG[:4]]
    )
    return start(Engine(model, tools=[note], operators=[ops.guard(passes_soon)]), input)


def build_passes(input: Any) -> Any:
    call = ToolCall("c0", "note", {"text": "first"})
    model = turns("passes", ["I@ note. ", call], ["Well. ", "It@ ", "is. ", "Now ", "hear ", "that. "])
    return start(Engine(model, tools=[note]), input).pipe(ops.guard(passes_soon))


def build_budget(input: Any) -> Any:
    calls = [[f"Step@ {n}. ", ToolCall(f"c{n}", "stamp", {"text": f"{n}"}), Usage(100, 20)] for n in range(9)]
    shared = Budget(tokens=600)
    engine = Engine(turns("budget", *calls), tools=[stamp], operators=[ops.budget(shared)])
    return start(engine, input, max_tokens=100)


def build_cut(input: Any) -> Any:
    model = turns("cut", ["One@. ", ToolCall("c0", "stamp", {"text": "first"})], LONG)
    return start(Engine(model, tools=[stamp], operators=[ops.budget(tokens=25)]), input)


def build_fallback(input: Any) -> Any:
    answers = [["Second@ ", ToolCall("c0", "note", {"text": "first"})], ["The ", "second@ ", "answers. "]]
    down = turns("down", AdapterError("provider_unavailable", "down"))
    engine = Engine(down, tools=[note], retry=False, operators=[ops.fallback(turns("second", *answers))])
    return start(engine, input)


def build_hedge(input: Any) -> Any:
    asked = count()
    answers = [["Late@ ", ToolCall("c0", "note", {"text": "first"})], ["The ", "answer@ ", "comes. "]]

    def model(request: Request) -> Any:
        number = sum(bool(message.tool_calls) for message in request.messages)
        add("questions", f"hedge {number}\n")
        marked = [item.replace("@", mark()) if isinstance(item, str) else item for item in answers[number]]
        # The first answer to each request is slow, and says what only it says.
        return [("delay", 0.4), "Slow. ", *marked] if next(asked) % 2 == 0 else slow(*marked)

    operators = [ops.hedge(after=0.02)]
    return start(Engine(Fake(model), tools=[note], operators=operators), input)


def build_race(input: Any) -> Any:
    last = ["I ", "am@ ", "quick. "]
    quick = turns("quick", ["Quick@ ", ToolCall("c0", "note", {"text": "quick"})], last)
    tardy = turns("tardy", [("delay", 60), "Tardy@ ", ToolCall("c0", "note", {"text": "tardy"})], last)
    return rxllm.race(*(start(model, input, tools=[note]) for model in (tardy, quick)))


def build_compacted(input: Any) -> Any:
    summaries = turns("summary", ["A ", "summary@ "])
    model = turns("compacted", ["I note. ", ToolCall("c0", "note", {"text": "first"})], ["All@ ", "done. "])
    thread = rxllm.Thread() + "I like foxes. " * 30 + rxllm.assistant("So do I. " * 20) + "And now?"
    engine = Engine(model, tools=[note], prepare=[rxllm.compact_thread(summaries, at=100, keep=1)])
    return start(engine, {"ask": thread} if "ask" in input else input)


@tool
def book(city: str, context: ToolContext) -> str | Halt:
    if context.reply is None:
        return rxllm.ask_user("Which class?", calls_again=True, tool_state={"step": 1})
    if context.tool_state["step"] == 1:
        return rxllm.ask_user("Which seat?", calls_again=True, tool_state={"step": 2, "chosen": context.reply})
    return effect("book", f"book {city} {context.tool_state['chosen']} {context.reply}")


def build_asks(input: Any) -> Any:
    calls = [ToolCall("c0", "book", {"city": "Rome"}), ToolCall("c1", "note", {"text": "beside"})]
    return start(Engine(turns("asks", ["I@ ", "ask. ", *calls], ["It is ", "booked@. "]), tools=[book, note]), input)


def early(name: str, operators: Any = (), *more: Any) -> Callable[[Any], Any]:
    """Return a chat whose tools start while the model writes. Its model never uses an id twice."""

    def build(input: Any) -> Any:
        def model(request: Request) -> Any:
            add("questions", f"{name}\n")
            called = {str(call.arguments["text"]) for message in request.messages for call in message.tool_calls}
            missing = [text for text in ("one", "two", "three") if text not in called]
            if not missing:
                return slow("All ", f"done{mark()}. ")
            calls = [ToolCall(f"c{token_hex(4)}", TOOL_OF[text], {"text": text}) for text in missing]
            return [f"I do{mark()} it. ", *(piece for call in calls for piece in (call, ("delay", 0.004))), *more]

        return start(Engine(Fake(model), tools=EARLY, operators=operators), input)

    return build


@tool(eager=True)
async def dictate(text: rxllm.Stream[str]) -> str:
    effect("dictate", f"dictate text={''.join([piece async for piece in text])}")
    raise ToolError("handler_raised", "refused")


def build_refused(input: Any) -> Any:
    """A tool that refuses what is dictated. In a durable run, the whole text has been dictated before it starts."""
    calls = [ToolCall("c0", "note", {"text": "beside"}), ToolCall("c1", "dictate", {"text": "one"})]
    return start(Engine(turns("refused", ["I@ ", *calls], ["Well@ ", "then. "]), tools=[dictate, note]), input)


TOOL_OF = {"one": "note", "two": "stamp", "three": "deep_note"}
EARLY = [
    replace(later_note, eager=True),
    replace(stamp, eager=True),
    replace(later_note, name="deep_note"),  # waits for the response
]


CHATS: dict[str, Chat] = {
    "text": Chat(build_text),
    "response": Chat(build_response),
    "parallel": Chat(build_parallel),
    "approval": Chat(build_approval, approvals={"pay": {"amount": 5}}),
    "agents": Chat(crashing.build_chat, approvals={"pay": {"amount": 5}}, open=3, is_guarded=True, is_marked=False),
    "trips": Chat(build_trips, is_guarded=True),
    "passes": Chat(build_passes, is_guarded=True),
    "budget": Chat(build_budget),
    "cut": Chat(build_cut),
    "fallback": Chat(build_fallback, open=2),
    "hedge": Chat(build_hedge, open=2),
    "race": Chat(build_race, open=2),
    "compacted": Chat(build_compacted, open=2),
    "early": Chat(early("early"), is_cut=True),
    "refused": Chat(build_refused, is_cut=True),
    "asks": Chat(build_asks, replies={"c0/question": "window"}),
}


# Recorded streams of real providers

FILES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "openai_chat": (
        rxllm.OpenAIChat,
        "openai/braintrustdata-braintrust-sdk-python__py__braintrust__wrappers__test_openai_parallel_tool_calls.2.sse",
        "azure/dl-alexandre-req_llm__azure__gpt_4_1_mini__streaming.sse",
    ),
    "openai_responses": (
        rxllm.OpenAIResponses,
        "openai-chatgpt/0xPlaygrounds-rig__chatgpt__codex_sessions__reasoning_session_two_tool_calls_streaming.sse",
        "openai-chatgpt/0xPlaygrounds-rig__chatgpt__codex_sessions__reasoning_session_two_tool_calls_streaming.1.sse",
    ),
    "anthropic": (
        rxllm.Anthropic,
        "anthropic/0xPlaygrounds-rig__anthropic__streaming_grammar__parallel_tool_use.sse",
        "anthropic/0xPlaygrounds-rig__anthropic__prompt_caching__streaming_prompt_caching_reuses_tool_cache.1.sse",
    ),
    "gemini": (
        rxllm.Gemini,
        "google/crewAIInc-crewAI__crewai__llms__TestGeminiToolCallStreaming.test_gemini_streaming_multiple_tool_calls"
        "-309d2282.sse",
        "google/crewAIInc-crewAI__crewai__llms__google__test_google_async_streaming_returns_usage_metrics.sse",
    ),
}
RESULTS = re.compile(rb'"role": ?"tool"|function_call_output|"tool_result"|functionResponse')


def named(name: str) -> rxllm.Tool:
    """Return a tool of a recording, which takes any arguments."""

    async def run(arguments: Any) -> str:
        return effect(name, line_of(name, arguments))

    return rxllm.Tool(name, "A tool.", {"type": "object", "properties": {}}, handler=run)


def line_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return what a tool leaves in the file."""
    match name:
        case "note" | "deep_note":
            return f"note {arguments['text']}"
        case "stamp":
            return f"stamp {arguments['text']}"
        case "pay":
            return "pay 5"  # the arguments of the approval
        case "book":
            return "book Rome window window"
        case _:
            return " ".join([name, *(f"{key}={value}" for key, value in sorted(arguments.items()))])


def build_recorded(api: str) -> Callable[[Any], Any]:
    def build(input: Any) -> Any:
        adapter, calls, text = FILES[api]
        bodies = [(Path(os.environ[VARIABLE]) / name).read_bytes() for name in (calls, text)]
        names = sorted({*re.findall(r'"name": *"(\w+)"', bodies[0].decode())})

        def reply(request: Any) -> Reply:
            has_results = bool(RESULTS.search(request.body))
            add("questions", f"{api} {int(has_results)}\n")
            body = bodies[has_results]
            return Reply([body[start : start + 400] for start in range(0, len(body), 400)])

        url = Loopback(reply).__enter__().url  # until the process ends
        return start(Engine(adapter(base_url=url, api_key="key"), model="m", tools=[*map(named, names)]), input)

    return build


if os.environ.get(VARIABLE):
    CHATS |= {api: Chat(build_recorded(api), is_marked=False) for api in FILES}
