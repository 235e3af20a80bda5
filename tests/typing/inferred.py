"""What a type checker knows without being told. Checked by pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, assert_type

import litestar.types
import msgspec
import reactivex
import starlette.types
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam
from reactivex import Observable
from reactivex import operators as rx

import rxllm
from rxllm import (
    ChatCompleted,
    ChatResult,
    ErrorEvent,
    Event,
    Fake,
    Response,
    StepResult,
    Stream,
    StreamCollector,
    TextDelta,
    Thread,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    Usage,
    durable,
    session,
    tool,
    web,
)
from rxllm import operators as ops
from rxllm.values import FunctionTool, Halt, Labelled, Partial, TextAt


async def measure(text: str) -> int:
    return len(text)


fake = Fake("Hi")
events = rxllm.stream_generate(fake, "Hello")

# What the functions give

assert_type(events, Stream[Event])
assert_type(rxllm.generate(fake, "Hello"), Stream[Response[Any]])
assert_type(rxllm.stream_step(fake, "Hello"), Stream[Event])
assert_type(rxllm.step(fake, "Hello"), Stream[StepResult])
assert_type(rxllm.stream(fake, "Hello"), Stream[Event])
assert_type(rxllm.chat(fake, "Hello"), Stream[ChatResult])
assert_type(rxllm.generate_many(fake, ["a", rxllm.user("b"), rxllm.request("c")]).run(), list[Response[Any]])
assert_type(rxllm.count_tokens(fake, rxllm.request("Hello"), model="small"), Stream[rxllm.values.TokenCount])
rxllm.Engine(fake, prepare=[rxllm.trim_thread(tokens=9), rxllm.compact_thread(fake, at=9, keep=1, max_tokens=99)])
rxllm.generate(fake, [rxllm.user("Hi")])
rxllm.generate(fake, (rxllm.system("Be brief."), rxllm.user("Hi")))
rxllm.generate(fake, Thread())
rxllm.generate("local", rxllm.user("Hi"))

# Histories as people have them, and results, are conversations

history: list[dict[str, str]] = [{"role": "user", "content": "Hi"}]
typed_history: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


def after_the_sdk(message: ChatCompletionMessage) -> None:
    rxllm.chat(fake, [{"role": "user", "content": "Hi"}, message])
    rxllm.chat(fake, [*typed_history, message, rxllm.user("Hi")])


rxllm.generate(fake, history)
rxllm.generate(fake, typed_history)
rxllm.generate(fake, {"role": "user", "content": "Hi"})
rxllm.generate(fake, [*history, rxllm.generate(fake, "Hi").run(), rxllm.user("Hi")])
rxllm.chat(fake, rxllm.chat(fake, "Hi").run())
rxllm.chat(fake, rxllm.session.start(fake, history).run())
assert_type(rxllm.Thread() + "Hi" + rxllm.generate(fake, "Hi").run() + history + rxllm.user("Hi"), rxllm.Thread)
assert_type(rxllm.Thread.from_openai(typed_history), rxllm.Thread)

# Pictures and files

rxllm.user(
    "What is this?", "photo.png", Path("report.pdf"), b"%PDF-", rxllm.values.Image.from_url("https://example.com")
)
rxllm.user(["What is this?", Path("photo.png"), rxllm.values.TextPart("And this?")])
rxllm.user([rxllm.values.TextPart("Hi")])
parts: list[rxllm.values.TextPart] = [rxllm.values.TextPart("Hi")]
rxllm.user(parts)

# A scripted model's turn may be a list of any of its pieces' types

pieces: list[str | tuple[str, float]] = ["a", ("delay", 0.3)]


def turn(request: rxllm.Request) -> list[str | tuple[str, float]]:
    return pieces


Fake(pieces)
Fake(pieces, ["b", Usage(1)], "c")
Fake(script=pieces)
Fake(scripts=[pieces, pieces])
Fake(turn)
Fake(lambda request: pieces)

# Structured answers


@dataclass
class City:
    name: str


class Place(TypedDict):
    name: str


Held = TypeVar("Held")


class Box(msgspec.Struct, Generic[Held]):
    held: Held


assert_type(rxllm.generate(fake, "Hello", response_format=City), Stream[Response[City]])
assert_type(rxllm.generate(fake, "Hello", response_format=City, temperature=0.0).run().parsed, City)
assert_type(rxllm.generate(fake, "Hello", response_format=Place), Stream[Response[Place]])
assert_type(rxllm.generate(fake, "Hello", response_format=Box[int]), Stream[Response[Box[int]]])
assert_type(rxllm.generate(fake, "Hello", response_format=rxllm.json_schema("x", {})), Stream[Response[Any]])
assert_type(rxllm.generate(fake, "Hello", temperature=None, tools=None, stop="END", top_p=0.9), Stream[Response[Any]])
assert_type(rxllm.chat(fake, "Hello", max_turns=None, approve=None, timeout=None, mode=None), Stream[ChatResult])
assert_type(rxllm.generate(fake, "Hello", response_format=list[City]), Stream[Response[list[City]]])
assert_type(rxllm.generate(fake, "Hello", response_format=bool).run().parsed, bool)
assert_type(rxllm.generate(fake, "Hello", response_format=City).run().parsed.name, str)
assert_type([r.parsed for r in rxllm.generate_many(fake, ["a"], response_format=City)], list[City])
union: Stream[Response[City | Place]] = rxllm.generate(fake, "Hello", response_format=City | Place)
choice: Stream[Response[Literal["a", "b"]]] = rxllm.generate(fake, "Hello", response_format=Literal["a", "b"])
optional: Stream[ChatResult[City | None]] = rxllm.chat(fake, "Hello", response_format=City | None)
assert_type(rxllm.generate_many(fake, ["a"], response_format=City, concurrency=2).run(), list[Response[City]])
assert_type(events.pipe(ops.to_response(City)), Stream[Response[City]])
assert_type(events.pipe(ops.to_response(rxllm.json_schema("x", {}))), Stream[Response[Any]])
assert_type(rxllm.chat(fake, "Hello", response_format=City, max_turns=2), Stream[ChatResult[City]])
assert_type(rxllm.chat(fake, "Hello", response_format=rxllm.json_schema("x", {})), Stream[ChatResult])
assert_type(rxllm.chat(fake, "Hello", response_format=City).run().raise_for_error(), ChatResult[City])
assert_type(rxllm.step(fake, "Hello", response_format=City).run().response.parsed, City)
assert_type(rxllm.step(fake, "Hello", response_format=City).run().parsed, City | None)
assert_type(rxllm.chat(fake, "Hello", response_format=City).run().parsed, City | None)
assert_type(rxllm.resume(fake, Thread(), response_format=City, approvals={"c1": True}), Stream[ChatResult[City]])
rxllm.resume(fake, Thread(), approvals={"c1": True, "c2": "too dear", "c3": {"amount": 5}})
assert_type(rxllm.stream_resume(fake, Thread(), approvals={"c1": {"amount": 5}}), Stream[Event])
rxllm.session.resume(fake, rxllm.Session(), approvals={call.id: {"amount": 5} for call in ()})
assert_type(rxllm.stream(fake, "Hello", response_format=City), Stream[Event])
assert_type(events.pipe(ops.to_chat_result(parse=City)), Stream[ChatResult[City]])
assert_type(events.pipe(ops.to_step_result(Thread(), parse=int)), Stream[StepResult[int]])
assert_type(events.pipe(ops.to_chat_result(parse=rxllm.json_schema("x", {}))), Stream[ChatResult])

# What a Stream gives

assert_type(events.run(), Event)
assert_type(rxllm.run(events), Event)
assert_type(rxllm.chat(fake, "Hello").run().final_response, Response[Any] | None)


async def consumed() -> None:
    assert_type(await rxllm.generate(fake, "Hello"), Response[Any])
    assert_type(await events, Event)
    async for event in events:
        assert_type(event, Event)
    async with rxllm.to_async_iter(events) as items:
        async for event in items:
            assert_type(event, Event)


for each in events:
    assert_type(each, Event)
with rxllm.to_iter(events.pipe(ops.text())) as strings:
    assert_type(next(strings), str)


async def ticks() -> AsyncIterator[int]:
    yield 1


assert_type(rxllm.from_async_iter(ticks), Stream[int])
assert_type(Thread([rxllm.system("Be brief."), rxllm.user("Hi")]).messages, tuple[rxllm.Message, ...])

# What the operators give

assert_type(events.pipe(ops.text()), Stream[str])
assert_type(events.pipe(ops.thinking()), Stream[str])
assert_type(events.pipe(ops.tool_calls()), Stream[ToolCall])
assert_type(events.pipe(ops.usage()), Stream[Usage])
assert_type(events.pipe(ops.only(TextDelta)), Stream[TextDelta])
assert_type(events.pipe(ops.only(TextDelta, ErrorEvent)), Stream[TextDelta | ErrorEvent])
assert_type(events.pipe(ops.filter_deltas(text=False)), Stream[Event])
assert_type(events.pipe(ops.include_raw_chunks()), Stream[Event])
assert_type(events.pipe(ops.raise_errors()), Stream[Event])
assert_type(events.pipe(ops.errors_as_events()), Stream[Event])
assert_type(events.pipe(ops.run_tools(thread=Thread())), Stream[Event])
assert_type(events.pipe(ops.time_limits(first=30, idle=10)), Stream[Event])
assert_type(events.pipe(ops.stall_warning(5, lambda seconds, events: print(seconds + events))), Stream[Event])
assert_type(events.pipe(ops.fallback(events)), Stream[Event])
assert_type(events.pipe(ops.restart({"max_attempts": 2})), Stream[Event])
assert_type(events.pipe(ops.circuit_breaker(on_change=lambda state: print(state.upper()))), Stream[Event])
rxllm.Engine(fake, operators=(ops.fallback("anthropic:claude-sonnet-4-5", fake, rxllm.Engine(fake)),))
rxllm.generate(fake, "Hello", timeout=rxllm.Timeouts(first=30, total=120))
rxllm.generate(fake, "Hello", timeout=30)
assert_type(events.pipe(ops.scan_collect()), Stream[StreamCollector])
assert_type(events.pipe(ops.to_response()), Stream[Response[Any]])
assert_type(events.pipe(ops.to_response(int)), Stream[Response[int]])
assert_type(events.pipe(ops.to_response(lambda text: text.split())), Stream[Response[list[str]]])
assert_type(events.pipe(ops.to_response(int)).run().parsed, int)
assert_type(events.pipe(ops.to_step_result()), Stream[StepResult])
assert_type(events.pipe(ops.to_chat_result()), Stream[ChatResult])
assert_type(events.pipe(ops.to_text()), Stream[str])
assert_type(events.pipe(ops.to_text()).run(), str)
assert_type(events.pipe(ops.words()), Stream[str])
assert_type(events.pipe(ops.sentences()), Stream[str])
assert_type(events.pipe(ops.snapshots()), Stream[Response[Any]])
assert_type(events.pipe(ops.smooth(), ops.conflate(), ops.map_text(str.upper), ops.redact("[0-9]+")), Stream[Event])
assert_type(events.pipe(ops.text(), ops.conflate(), ops.keep_latest()), Stream[str])
assert_type(events.pipe(ops.text(), ops.map_async(measure, concurrency=2, ordered=False)), Stream[int])
assert_type(events.pipe(ops.gate(reactivex.of(True)), ops.text()), Stream[str])
assert_type(reactivex.of(1, 2).pipe(ops.conflate(max), ops.keep_latest()), Stream[int])
assert_type(events.pipe(ops.verify(), ops.cost(), ops.budget(tokens=100)), Stream[Event])
assert_type(events.pipe(ops.to_session(rxllm.Session())), Stream[rxllm.values.Turn])
assert_type(events.pipe(ops.parsed(City)), Stream[City])
assert_type(events.pipe(ops.parsed(list[int])), Stream[list[int]])
assert_type(events.pipe(ops.parsed(lambda text: text.split())), Stream[list[str]])
assert_type(events.pipe(ops.parsed(rxllm.json_schema("x", {}))), Stream[Any])
assert_type(events.pipe(ops.partials(City)), Stream[Partial[City]])
assert_type(events.pipe(ops.partials(City)).run().value, City | None)
assert_type(events.pipe(ops.partials(City)).run()["name"].text, str)
assert_type(events.pipe(ops.partials(City)).run().state, Literal["missing", "growing", "done"])
assert_type(events.pipe(ops.partials(list[City])), Stream[Partial[list[City]]])
assert_type(events.pipe(ops.partials(int | None)), Stream[Partial[Any]])
assert_type(events.pipe(ops.text_at("items", "*", 0)), Stream[TextAt])
assert_type(events.pipe(ops.items()), Stream[Any])
assert_type(events.pipe(ops.items(None, "cities")), Stream[Any])
assert_type(events.pipe(ops.items(City, "cities")), Stream[City])
assert_type(events.pipe(ops.items(int | None)), Stream[Any])

# Streams of streams, and streams beside each other

questions = events.pipe(ops.text())
answers = questions.map(lambda question: rxllm.generate(fake, question))
assert_type(answers, Stream[Stream[Response[Any]]])
assert_type(answers.merge(max_concurrent=3), Stream[Response[Any]])
assert_type(answers.merge(max_concurrent=3).map(lambda response: response.output_text), Stream[str])
assert_type(answers.merge_all(), Stream[Response[Any]])
assert_type(answers.concat_all(), Stream[Response[Any]])
assert_type(answers.switch_latest(), Stream[Response[Any]])
assert_type(answers.exclusive(), Stream[Response[Any]])
assert_type(questions.merge(reactivex.of(1)), Stream[str | int])
assert_type(questions.merge(reactivex.of(1), max_concurrent=2), Stream[str | int])
assert_type(rxllm.merge(questions, questions), Stream[str])
assert_type(rxllm.merge(questions, reactivex.of(1)), Stream[str | int])
assert_type(rxllm.zip(questions, reactivex.of(1)), Stream[tuple[str, int]])
assert_type(rxllm.combine_latest(questions, reactivex.of(1), events), Stream[tuple[str, int, Event]])

# Modules, as the pages write them

rxllm.testing.marbles.check(ops.keep_latest(), "-a-|", "^--!", "-a-|")
rxllm.http.use_transport("aiohttp")
assert_type(rxllm.testing.loopback.Reply([]), rxllm.testing.loopback.Reply)
print(rxllm.testing.strategies)

# Operators that leave what they are given as it is, of whatever type

assert_type(events.pipe(ops.trace(lambda seen: print(seen.kind, seen.at))), Stream[Event])
assert_type(events.pipe(ops.text(), ops.trace(print)), Stream[str])
assert_type(events.pipe(ops.text(), ops.rate_limited(concurrent=2)), Stream[str])
assert_type(rxllm.generate_many(fake, {"first": "Hi"}, journal="out.jsonl").run(), list[Response[Any]])
assert_type(rxllm.rows(rxllm.generate_many(fake, ["Hi"], usd=2.5, response_format=City)), list[dict[str, Any]])
rxllm.rows([rxllm.step(fake, "Hi").run(), rxllm.chat(fake, "Hi", response_format=City).run()])
assert_type(rxllm.generate_many(fake, events.pipe(ops.text())).run(), list[Response[Any]])
assert_type(rxllm.generate_many(fake, reactivex.of("a"), response_format=City).run(), list[Response[City]])
rxllm.cluster.generate_many(fake, ["Hi"], usd=2)
assert_type(
    rxllm.cluster.generate_many(fake, {1: "Hi"}, journal="out.jsonl", concurrency=64).run(), list[Response[Any]]
)
assert_type(rxllm.cluster.generate_many(fake, ["Hi"], response_format=City).run(), list[Response[City]])
assert_type(rxllm.mcp.tools(["npx", "server"], prefix="files_"), Stream[tuple[rxllm.Tool, ...]])
assert_type(rxllm.generate_many(fake, {1: "Hi"}, on_progress=rxllm.display.progress_bar()).run(), list[Response[Any]])
rxllm.Engine(fake, operators=(ops.rate_limited(per_second=2), ops.trace(print)))

# Several streams

assert_type(rxllm.race(events, events), Stream[Event])
assert_type(events.pipe(ops.race(events, events)), Stream[Event])
assert_type(events.pipe(ops.hedge(after=2), ops.text()), Stream[str])
rxllm.Engine(fake, operators=[ops.hedge(after=2), ops.race(events)])
assert_type(rxllm.hedge(events, after=2), Stream[Event])
assert_type(rxllm.merge_labelled({"a": events.pipe(ops.text())}), Stream[Labelled[str | ErrorEvent]])
assert_type(rxllm.merge_labelled({"a": events}), Stream[Labelled[Event]])
for labelled in rxllm.merge_labelled({"a": events.pipe(ops.text())}):
    if not isinstance(labelled.item, ErrorEvent):
        assert_type(labelled.item, str)


def after(last: Event) -> Observable[Event] | None:
    return events if isinstance(last, ChatCompleted) else None


assert_type(events.pipe(ops.continue_with(after)), Stream[Event])

# A hand-made list of operators is not known

middleware = [ops.raise_errors(), ops.include_raw_chunks()]
events.pipe(*middleware)

# tap

assert_type(events.pipe(ops.tap(lambda event: assert_type(event, Event))), Stream[Event])
assert_type(events.pipe(ops.tap(lambda event: assert_type(event.delta, str), TextDelta)), Stream[Event])
assert_type(
    events.pipe(ops.tap(lambda event: assert_type(event, TextDelta | ErrorEvent), TextDelta, ErrorEvent)),
    Stream[Event],
)
assert_type(events.pipe(ops.text(), ops.tap(lambda piece: assert_type(piece, str))), Stream[str])

# Several operators, and reactivex's own

assert_type(
    events.pipe(
        ops.tap(lambda event: print(event.delta, end="", flush=True), TextDelta),
        ops.include_raw_chunks(),
        ops.filter_deltas(tool=False),
        ops.to_response(),
    ),
    Stream[Response[Any]],
)
assert_type(events.pipe(ops.only(TextDelta)).map(lambda event: len(event.delta)), Stream[int])
assert_type(events.pipe(ops.only(TextDelta)).map(lambda event: event.delta).scan(lambda a, b: a + b, ""), Stream[str])
assert_type(reactivex.of("a").switch_map(lambda asked: rxllm.generate(fake, asked)), Observable[Response[Any]])
assert_type(reactivex.of(TextDelta("a")).pipe(ops.text()), Stream[str])
assert_type(rxllm.run(reactivex.of(1, 2)), int)

# show

assert_type(rxllm.show(events), ChatResult | StepResult | Response[Any])
assert_type(rxllm.show(rxllm.stream(fake, "Hi")).output_text, str)
assert_type(rxllm.show(rxllm.generate(fake, "Hi", response_format=City)), Response[City])
assert_type(rxllm.show(events.pipe(ops.text())), str)

# Engines take lists

middle = [ops.rate_limited(per_second=2), ops.trace(print)]
engine = rxllm.Engine(
    fake,
    tools=[Tool("look")],
    operators=[ops.redact("[0-9]+"), ops.smooth(), ops.tap(print), lambda events: events],
    prepare=[lambda request: request, rxllm.alongside(print)],
    observers=[print],
)
assert_type(engine.tools, tuple[Tool, ...])
rxllm.Engine(fake, operators=middle)
rxllm.Engine(engine, model="large", tools=[Tool("find")])
rxllm.Engine("openai:gpt-5", base_url="http://localhost/v1", timeout=5.0, params={"seed": 1})

# Messages of parts

parts = [rxllm.values.TextPart("What is this?")]
rxllm.user(parts)
rxllm.user([rxllm.values.TextPart("What is this?"), rxllm.values.ImagePart(rxllm.values.Image.from_file("photo.png"))])

# Usage

responses = list(rxllm.generate_many(fake, ["a", "b"]))
assert_type(sum((response.usage for response in responses), Usage()), Usage)
assert_type(responses[0].thinking, str)

# reactivex's methods on a Stream

texts = events.pipe(ops.text())
numbers = texts.map(len)
assert_type(numbers, Stream[int])
assert_type(texts.take(3), Stream[str])
assert_type(texts.take(3).run(), str)
assert_type(texts.filter(lambda text: text.isupper()).skip(1).first(), Stream[str])
assert_type(texts.take_while(str.isupper, inclusive=True).take_last(2).last(str.isupper), Stream[str])
assert_type(texts.distinct().distinct_until_changed(lambda text: text.lower()), Stream[str])
assert_type(texts.take_until(numbers).skip_until(numbers).element_at(2), Stream[str])
assert_type(texts.to_list(), Stream[list[str]])
assert_type(texts.to_list().run(), list[str])
assert_type(texts.buffer_with_count(3), Stream[list[str]])
assert_type(texts.buffer_with_time(0.1), Stream[list[str]])
assert_type(texts.buffer_with_time_or_count(0.1, 3), Stream[list[str]])
assert_type(texts.buffer(numbers), Stream[list[str]])
assert_type(texts.scan(lambda total, text: total + len(text), 0), Stream[int])
assert_type(texts.scan(lambda before, text: before + text), Stream[str])
assert_type(texts.reduce(lambda total, text: total + len(text), 0), Stream[int])
assert_type(texts.count(), Stream[int])
assert_type(texts.pairwise(), Stream[tuple[str, str]])
assert_type(texts.group_by(len), Stream[reactivex.GroupedObservable[int, str]])
assert_type(texts.group_by(len, str.encode), Stream[reactivex.GroupedObservable[int, bytes]])
assert_type(texts.window(numbers), Stream[Observable[str]])
assert_type(texts.window_with_count(2), Stream[Observable[str]])
assert_type(texts.window_with_time(0.1), Stream[Observable[str]])
assert_type(texts.window_with_time_or_count(0.1, 2), Stream[Observable[str]])
assert_type(texts.window_when(lambda: numbers), Stream[Observable[str]])
assert_type(texts.window_toggle(numbers, lambda _: numbers), Stream[Observable[str]])
assert_type(texts.materialize(), Stream[reactivex.Notification[str]])
assert_type(texts.timestamp().map(lambda stamp: stamp.value), Stream[str])
assert_type(texts.flat_map(lambda text: rxllm.generate(fake, text)), Stream[Response[Any]])
assert_type(texts.concat_map(lambda text: rxllm.generate(fake, text)), Stream[Response[Any]])
assert_type(texts.switch_map(lambda text: rxllm.generate(fake, text, response_format=City)), Stream[Response[City]])
assert_type(texts.merge(numbers), Stream[str | int])
assert_type(texts + texts, Stream[str])
assert_type(texts.concat(texts).start_with("a"), Stream[str])
assert_type(texts.zip(numbers), Stream[tuple[str, int]])
assert_type(texts.combine_latest(numbers), Stream[tuple[str, int]])
assert_type(texts.with_latest_from(numbers), Stream[tuple[str, int]])
assert_type(texts.catch(texts).retry(2).repeat(2).share(), Stream[str])
assert_type(texts.do_action(print).do(print).finally_action(lambda: None), Stream[str])
assert_type(texts.delay(0.1).timeout(3).debounce(0.1).sample(0.1).throttle_first(0.1), Stream[str])
assert_type(texts[:3], Stream[str])
assert_type(texts.to_set(), Stream[set[str]])
assert_type(texts.all(str.isupper).merge(texts.some(), texts.is_empty()), Stream[bool])
assert_type(numbers.min().merge(numbers.max()), Stream[int])
assert_type(texts.default_if_empty("nothing"), Stream[str])
assert_type(texts.default_if_empty(), Stream[str | None])
assert_type(texts.pipe(rx.take(3), rx.map(len)), Stream[int])

assert_type(events.filter(lambda event: isinstance(event, TextDelta)), Stream[Event])

# lift


class Lines:
    def feed(self, item: str) -> Iterable[bytes]:
        return [item.encode()]

    def close(self) -> Iterable[bytes]:
        return []


assert_type(events.pipe(ops.text(), ops.lift(Lines)), Stream[bytes])

# Tools


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool(approval=True)
async def pay(amount: float, context: ToolContext) -> str:
    return f"{amount} {context.session_id}"


assert_type(add(1), int)
assert_type(add(a=1, b=2), int)
assert_type(add.name, str)
as_tool: Tool = add
as_function: FunctionTool[..., int] = add
assert_type(tool(name="look", handler=print, manual=True, timeout=None), Tool)


@tool(timeout=5, approval=True)
def search(query: str, context: ToolContext) -> str:
    """Search with a limit of five seconds."""
    return query + context.idempotency_key


assert_type(search("milk", ToolContext(ToolCall("c1", "search"), make_key=lambda: "k1")), str)


class Shop:
    @tool
    def sell(self, what: str) -> int:
        """Sell a thing."""
        return len(what)

    def find(self, what: str) -> str:
        return what


assert_type(Shop().sell("milk"), int)
rxllm.chat(fake, "Hi", tools=[Shop().sell, Shop().find, add])
rxllm.Engine(fake).with_tools(Shop().find, add)


async def paid() -> None:
    assert_type(await pay(1.5, ToolContext(ToolCall("c1", "pay"))), str)


# Options


def policy(call: ToolCall, error: ToolError) -> str:
    return f"{call.name}: {error.reason}"


rxllm.generate(fake, "Hi", temperature=0.0, tools=[add, pay], stop=("END",), options={"top_k": 1}, on_event=print)
rxllm.chat(fake, "Hi", tools=[add], on_tool_error=policy, max_turns=3, halt_when=lambda step: step.done)
rxllm.chat(fake, "Hi", steer=reactivex.Subject[str](), steer_at="step")
rxllm.stream(fake, "Hi", steer=reactivex.Subject[rxllm.Message]())
ops.repeat_until_halt(lambda thread: rxllm.stream_step(fake, thread), steer=reactivex.of("Stop", rxllm.user("Now")))
rxllm.step(fake, "Hi", mode="manual", tool_timeout=None, approve=lambda call: call.name == "pay", retry=False)


def decide(call: ToolCall) -> bool | str | dict[str, int] | Halt | Observable[bool]:
    match call.arguments:
        case {"amount": int(amount)} if amount > 50:
            return {"amount": 50}
        case {"amount": 0}:
            return "nothing to pay"
        case {"to": "boss"}:
            return rxllm.halt("approval")
        case _:
            return reactivex.of(True)


rxllm.chat(fake, "Hi", approve=decide, approve_timeout=60)
events.pipe(ops.run_tools([pay], thread="Pay!", approve=decide, approve_timeout=None))

# The apps of web are those of every framework, and durable runs are runs of a chat endpoint.
kept_runs = durable.open_runs("runs.db", {})
chats = web.chat(fake, kept_runs.sessions, runs=kept_runs, allow=lambda request, id: request.cookies["id"] == id)
of_litestar: list[litestar.types.ASGIApp] = [web.streaming_response(events), web.openai_app({"m": fake}), chats]
of_starlette: list[starlette.types.ASGIApp] = [web.streaming_response(events), web.openai_app({"m": fake}), chats]
web.chat(fake, session.MemorySessions(), runs=web.Runs(), busy="wait")
