"""OpenAI's own Python SDK, sync and async, against engines that are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from rxllm import (
    AdapterError,
    Engine,
    Fake,
    OpenAIChat,
    StreamError,
    TextDelta,
    ThinkingCompleted,
    ThinkingDelta,
    ToolCall,
    Usage,
    ask_user,
    halt,
    stream_generate,
    tool,
)
from rxllm import operators as ops
from rxllm.testing.loopback import DONE, Loopback, Pause, Reply, chat_chunk, chat_event, chat_finish
from rxllm.values import ThinkingPart
from tests.waiting import PATIENCE
from tests.web.served import Served

pytestmark = pytest.mark.judges

HI: Any = [{"role": "user", "content": "Hi"}]
SCRIPT = [("thinking", "Hm."), "Hel", "lo", Usage(7, 3, cached_input_tokens=4, reasoning_tokens=1)]


def client(server: Served, **options: Any) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="key", max_retries=0, **options)


@contextmanager
def asking(*engines: Any, **options: Any) -> Generator[OpenAI]:
    with Served.of(*engines, **options) as server, client(server) as sdk:
        yield sdk


def function(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


@pytest.fixture
def hello() -> Iterator[Served]:
    with Served.of(Fake(SCRIPT)) as server:
        yield server


def test_a_completion(hello: Served) -> None:
    with client(hello) as sdk:
        completion = sdk.chat.completions.create(model="m0", messages=HI, temperature=0.5, seed=1, user="u")
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
    assert choice.message.reasoning_content == "Hm."  # pyright: ignore
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (7, 3)
    assert completion.usage.prompt_tokens_details.cached_tokens == 4  # pyright: ignore
    assert completion.usage.completion_tokens_details.reasoning_tokens == 1  # pyright: ignore
    assert (completion.model, completion.object) == ("m0", "chat.completion")
    assert completion.id == f"chatcmpl-{completion._request_id}"


def test_a_stream(hello: Served) -> None:
    with client(hello) as sdk:
        stream = sdk.chat.completions.create(
            model="m0", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta.content for delta in deltas if delta.content] == ["Hel", "lo"]
    assert deltas[0].role == "assistant"
    assert chunks[-1].usage.total_tokens == 10  # pyright: ignore
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_the_async_client(hello: Served) -> None:
    async def main() -> str:
        async with AsyncOpenAI(base_url=hello.url, api_key="key") as sdk:
            stream = await sdk.chat.completions.create(model="m0", messages=HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(main()) == "Hello"


def test_many_clients_at_a_time_get_their_own_answers() -> None:
    async def main(url: str) -> list[str | None]:
        async def ask(sdk: AsyncOpenAI, i: int) -> str | None:
            messages: Any = [{"role": "user", "content": f"{i}"}]
            stream = await sdk.chat.completions.create(model="m0", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async with AsyncOpenAI(base_url=url, api_key="key") as sdk:
            return await asyncio.gather(*(ask(sdk, i) for i in range(60)))

    arrived, all_here = list[Any](), asyncio.Event()

    async def echo(request: Any, call: Any) -> Any:
        arrived.append(request)
        if len(arrived) == 60:
            all_here.set()
        await all_here.wait()
        yield TextDelta("You said ")
        yield TextDelta(request.messages[-1].text)

    with Served.of(echo) as server:
        assert asyncio.run(main(server.url)) == [f"You said {i}" for i in range(60)]


def test_what_a_client_notes_reaches_prepare_and_not_the_model() -> None:
    requests: list[Any] = []
    engine = Engine(Fake("Hi"), prepare=[lambda request: requests.append(request) or request])
    with asking(engine) as sdk:
        sdk.chat.completions.create(model="m0", messages=HI, user="u1", metadata={"team": "a"})
    assert requests[0].metadata == {"client": {"user": "u1", "metadata": {"team": "a"}}}


def test_an_image_and_a_file_reach_the_model() -> None:
    requests: list[Any] = []
    engine = Engine(Fake("Hi"), prepare=[lambda request: requests.append(request) or request])
    parts: Any = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
    ]
    with asking(engine) as sdk:
        sdk.chat.completions.create(model="m0", messages=[{"role": "user", "content": parts}])
    assert [type(part).__name__ for part in requests[0].messages[0].parts] == ["TextPart", "ImagePart", "FilePart"]


def test_the_stream_helper_of_the_sdk_folds_to_the_completion(hello: Served) -> None:
    with client(hello) as sdk, sdk.chat.completions.stream(model="m0", messages=HI) as stream:
        folded = stream.get_final_completion()
    assert folded.choices[0].message.content == "Hello"


def test_models(hello: Served) -> None:
    with client(hello) as sdk:
        assert [model.id for model in sdk.models.list()] == ["m0"]
        assert sdk.models.retrieve("m0").object == "model"
        with pytest.raises(openai.NotFoundError):
            sdk.models.retrieve("m1")


@pytest.mark.parametrize("name", ["../../etc/passwd", "m0/..", "m0%2f", "", "a" * 500, "\x00"])
def test_a_model_is_one_of_the_names(hello: Served, name: str) -> None:
    with client(hello) as sdk, pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model=name, messages=HI)
    assert caught.value.code == "model_not_found"
    assert len(str(caught.value)) < 400


class City(pydantic.BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("tools", [[], [tool(name="own", handler=lambda arguments: "1")]])
def test_typed_output(tools: Any) -> None:
    seen: list[Any] = []
    turns = [["Let me look.", ToolCall("c0", "own", {})]] if tools else []
    model = Fake(*turns, ['{"name": "Oslo", ', '"people": 700000}'])
    with asking(Engine(model, tools=tools, prepare=[lambda request: seen.append(request) or request])) as sdk:
        parsed = sdk.chat.completions.parse(model="m0", messages=HI, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Oslo", people=700_000)
    form = seen[0].response_format
    assert (form["name"], form["strict"], form["schema"]["required"]) == ("City", True, ["name", "people"])


# Tools: the engine's own run inside, the client's are the client's


@tool
def price(item: str) -> dict[str, Any]:
    """Look up a price."""
    return {"item": item, "secret_margin": 0.4}


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_own_tools_run_inside_and_are_hidden(stream: bool) -> None:
    model = Fake(["Let me see.", ToolCall("c0", "price", {"item": "tea"}), Usage(5, 2)], ["It is 3.", Usage(9, 4)])
    with asking(Engine(model, tools=[price])) as sdk:
        if stream:
            with sdk.chat.completions.stream(model="m0", messages=HI, stream_options={"include_usage": True}) as events:
                completion: Any = events.get_final_completion()
        else:
            completion = sdk.chat.completions.create(model="m0", messages=HI)
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Let me see.\n\nIt is 3.", "stop")
    assert not choice.message.tool_calls
    assert completion.usage.total_tokens == 20
    assert "secret_margin" not in completion.model_dump_json()


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_tools_go_round(stream: bool) -> None:
    requests: list[Any] = []
    model = Fake(
        [
            ThinkingDelta("Where?"),
            ThinkingCompleted("Where?", "signed"),
            "I ask.",
            ToolCall("c1", "place", {"precise": True}),
        ],
        "You are in Oslo.",
    )
    engine = Engine(model, prepare=[lambda request: requests.append(request) or request])
    with asking(engine) as sdk:
        messages: list[Any] = [*HI]
        if stream:
            with sdk.chat.completions.stream(model="m0", messages=messages, tools=[function("place")]) as events:
                choice: Any = events.get_final_completion().choices[0]
        else:
            choice = sdk.chat.completions.create(model="m0", messages=messages, tools=[function("place")]).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I ask.")
        call = choice.message.tool_calls[0]
        assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("c1", "place", {"precise": True})
        messages += [choice.message, {"role": "tool", "tool_call_id": "c1", "content": "59.9 N"}]
        after = sdk.chat.completions.create(model="m0", messages=messages, tools=[function("place")])
    assert after.choices[0].message.content == "You are in Oslo."
    user, assistant, result = requests[1].messages
    assert (user.text, result.text, result.tool_call_id) == ("Hi", "59.9 N", "c1")
    assert assistant.tool_calls[0].arguments == {"precise": True}
    assert assistant.parts[0] == ThinkingPart("Where?", "signed")  # the provider wants its signature back


def test_own_and_client_tools_in_one_step_go_on_and_run_once() -> None:
    ran: list[str] = []

    @tool
    def buy(item: str) -> str:
        ran.append(item)
        return "bought"

    requests: list[Any] = []
    model = Fake(
        ToolCall("a", "buy", {"item": "milk"}),
        [ToolCall("b", "buy", {"item": "tea"}), ToolCall("c", "place", {})],
        "Done.",
    )
    engine = Engine(model, tools=[buy], prepare=[lambda request: requests.append(request) or request])
    with asking(engine) as sdk:
        first = sdk.chat.completions.create(model="m0", messages=HI, tools=[function("place")]).choices[0]
        assert [call.id for call in first.message.tool_calls or ()] == ["c"]
        assert first.finish_reason == "tool_calls"
        messages: list[Any] = [*HI, first.message, {"role": "tool", "tool_call_id": "c", "content": "Oslo"}]
        after = sdk.chat.completions.create(model="m0", messages=messages, tools=[function("place")]).choices[0]
    assert after.message.content == "Done."
    assert ran == ["milk", "tea"]
    roles = [(message.role, message.tool_call_id) for message in requests[-1].messages]
    assert roles == [
        ("user", None), ("assistant", None), ("tool", "a"), ("assistant", None), ("tool", "b"), ("tool", "c"),
    ]  # fmt: skip


def test_rounds_of_mixed_calls_keep_every_call_of_the_engine() -> None:
    def round(i: int) -> list[Any]:
        return [ToolCall(f"own{i}", "price", {"item": f"{i}"}), ToolCall(f"c{i}", "place", {"round": i})]

    requests: list[Any] = []
    engine = Engine(
        Fake(round(1), round(2), "Done."), tools=[price], prepare=[lambda request: requests.append(request) or request]
    )
    with asking(engine) as sdk:
        messages: list[Any] = [*HI]
        for _ in range(3):
            choice = sdk.chat.completions.create(model="m0", messages=messages, tools=[function("place")]).choices[0]
            messages.append(choice.message)
            calls = choice.message.tool_calls or []
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "Oslo"} for call in calls]
    assert messages[-1].content == "Done."
    ids = [call.id for message in requests[-1].messages for call in message.tool_calls]
    assert ids == ["own1", "c1", "own2", "c2"]
    answered = [message.tool_call_id for message in requests[-1].messages if message.role == "tool"]
    assert answered == ids


def test_two_runs_with_equal_ids_are_told_apart_by_their_calls() -> None:
    requests: list[Any] = []
    model = Fake([ToolCall("c", "place", {"x": 1})], [ToolCall("c", "place", {"x": 2})], "Done.")
    with asking(Engine(model, prepare=[lambda request: requests.append(request) or request])) as sdk:
        body: Any = {"model": "m0", "messages": HI, "tools": [function("place")]}
        first = sdk.chat.completions.create(**body).choices[0].message
        sdk.chat.completions.create(**body)  # another client's
        answer = {"role": "tool", "tool_call_id": "c", "content": "Oslo"}
        sdk.chat.completions.create(**{**body, "messages": [*HI, first, answer]})
    assert requests[-1].messages[1].tool_calls[0].arguments == {"x": 1}


def test_a_run_that_is_forgotten_goes_on_with_what_the_client_sends() -> None:
    engine = Engine(Fake([ToolCall("b", "price", {"item": "tea"}), ToolCall("c", "place", {})]), tools=[price])
    other = Engine(Fake("Done."), tools=[price])
    with Served.of(engine) as server, Served.of(other) as second, client(server) as sdk, client(second) as later:
        first = sdk.chat.completions.create(model="m0", messages=HI, tools=[function("place")]).choices[0]
        messages: list[Any] = [*HI, first.message, {"role": "tool", "tool_call_id": "c", "content": "Oslo"}]
        after = later.chat.completions.create(model="m0", messages=messages, tools=[function("place")]).choices[0]
    assert after.message.content == "Done."


def test_parallel_calls_of_the_client_in_a_stream() -> None:
    model = Fake([ToolCall("a", "place", {"x": 1}), ToolCall("b", "place", {"x": 2})])
    body: Any = {"model": "m0", "messages": HI, "tools": [function("place")]}
    with asking(model) as sdk, sdk.chat.completions.stream(**body) as events:
        calls: Any = events.get_final_completion().choices[0].message.tool_calls
    assert [(call.id, json.loads(call.function.arguments)) for call in calls] == [("a", {"x": 1}), ("b", {"x": 2})]


def test_tool_choice_reaches_the_model() -> None:
    requests: list[Any] = []
    engine = Engine(Fake("Hi"), prepare=[lambda request: requests.append(request) or request])
    with asking(engine) as sdk:
        choices: list[Any] = ["auto", "none", "required", {"type": "function", "function": {"name": "place"}}]
        for choice in choices:
            sdk.chat.completions.create(model="m0", messages=HI, tools=[function("place")], tool_choice=choice)
        with pytest.raises(openai.BadRequestError):
            sdk.chat.completions.create(
                model="m0", messages=HI, tools=[function("place")],
                tool_choice={"type": "function", "function": {"name": "price"}},
            )  # fmt: skip
    assert [request.tool_choice for request in requests] == ["auto", "none", "required", "place"]


def test_a_client_cannot_replace_a_tool_of_the_engine() -> None:
    with (
        asking(Engine(Fake("Hi"), tools=[price])) as sdk,
        pytest.raises(openai.BadRequestError, match="already has a tool named 'price'"),
    ):
        sdk.chat.completions.create(model="m0", messages=HI, tools=[function("price")])


def test_a_forged_call_of_an_engines_tool_does_not_run() -> None:
    ran: list[str] = []
    buy = tool(name="buy", handler=lambda arguments: ran.append("bought"))
    call = {"id": "c1", "type": "function", "function": {"name": "buy", "arguments": "{}"}}
    forged: Any = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with asking(Engine(Fake("Hi"), tools=[buy])) as sdk:
        for messages in (forged, [*forged, *HI]):
            with pytest.raises(openai.BadRequestError) as caught:
                sdk.chat.completions.create(model="m0", messages=messages)
            assert caught.value.code == "missing_tool_results"
    assert ran == []


@pytest.mark.parametrize(
    ("result", "text", "finish"),
    [(ask_user("Which one?"), "Wait.\n\nWhich one?", "stop"), (halt("found", 42), "Wait.", "stop")],
)
def test_a_halt_ends_the_answer(result: Any, text: str, finish: str) -> None:
    own = tool(name="own", handler=lambda arguments: result)
    with asking(Engine(Fake(["Wait.", ToolCall("c", "own", {})]), tools=[own])) as sdk:
        choice = sdk.chat.completions.create(model="m0", messages=HI).choices[0]
    assert (choice.message.content, choice.finish_reason) == (text, finish)


def test_used_up_turns_are_a_length() -> None:
    engine = Engine(Fake(ToolCall("c", "price", {"item": "tea"})), tools=[price], params={"max_turns": 1})
    with asking(engine) as sdk:
        assert sdk.chat.completions.create(model="m0", messages=HI).choices[0].finish_reason == "length"


@pytest.mark.parametrize("metadata", [{}, {"hosted": True}])
def test_a_tool_that_waits_for_an_approval_is_an_error(metadata: Any) -> None:
    """So is a call that the provider runs, even if the client has a tool of that name."""
    pay = tool(name="pay", handler=lambda arguments: "paid", approval=True)
    own: Any = {"tools": [{"type": "function", "function": {"name": "pay", "parameters": {}}}]} if metadata else {}
    with (
        asking(Engine(Fake(ToolCall("c", "pay", {}, metadata=metadata)), tools=[] if metadata else [pay])) as sdk,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        sdk.chat.completions.create(model="m0", messages=HI, **own)
    assert caught.value.code == "approval_required"


# Errors are those that the SDK has classes for


@pytest.mark.parametrize(
    ("error", "cls", "status", "code"),
    [
        (AdapterError("rate_limited", "CANARY", retry_after=2.5), openai.RateLimitError, 429, "rate_limit_exceeded"),
        (AdapterError("invalid_request", "CANARY"), openai.BadRequestError, 400, "invalid_request"),
        (AdapterError("context_length_exceeded", "CANARY"), openai.BadRequestError, 400, "context_length_exceeded"),
        (AdapterError("content_filter", "CANARY"), openai.BadRequestError, 400, "content_filter"),
        (AdapterError("authentication_failed", "CANARY"), openai.InternalServerError, 500, "authentication_failed"),
        (AdapterError("timeout", "CANARY"), openai.APIStatusError, 408, "timeout"),
        (AdapterError("provider_unavailable", "CANARY"), openai.InternalServerError, 503, "service_unavailable"),
        (AdapterError("network_error", "CANARY"), openai.InternalServerError, 502, "network_error"),
        (StreamError("guard_tripped", "CANARY"), openai.BadRequestError, 400, "content_filter"),
        (StreamError("budget_exceeded", "CANARY"), openai.RateLimitError, 429, "insufficient_quota"),
        (RuntimeError("CANARY"), openai.InternalServerError, 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_answer(error: Any, cls: Any, status: int, code: str, stream: bool) -> None:
    with asking(Engine(Fake(error), retry=False)) as sdk, pytest.raises(cls) as caught:
        sdk.chat.completions.create(model="m0", messages=HI, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert "CANARY" not in caught.value.response.text
    if status == 429 and code != "insufficient_quota":
        assert caught.value.response.headers["retry-after"] == "3"
        assert caught.value.response.headers["retry-after-ms"] == "2500"


def test_an_error_in_the_middle_is_raised_by_the_stream() -> None:
    with asking(Engine(Fake(["Hel", AdapterError("rate_limited", "CANARY")]))) as sdk:
        stream = sdk.chat.completions.create(model="m0", messages=HI, stream=True)
        texts: list[Any] = []
        with pytest.raises(openai.APIError) as caught:
            texts += [chunk.choices[0].delta.content for chunk in stream]  # never assigned
    assert caught.value.code == "rate_limit_exceeded"
    assert "CANARY" not in str(caught.value.body)


def test_an_error_in_the_middle_has_a_status_without_a_stream() -> None:
    with asking(Engine(Fake(["Hel", AdapterError("rate_limited")]))) as sdk, pytest.raises(openai.RateLimitError):
        sdk.chat.completions.create(model="m0", messages=HI)


def test_the_sdk_tries_again_after_a_rate_limit() -> None:
    model = Fake(AdapterError("rate_limited", retry_after=0.01), "Hello")
    with asking(Engine(model, retry=False)) as sdk:
        completion = sdk.with_options(max_retries=1).chat.completions.create(model="m0", messages=HI)
    assert completion.choices[0].message.content == "Hello"


def test_a_wrong_key_is_refused() -> None:
    with Served.of(Fake("Hello"), key="secret-key") as server:
        for wrong in ("no", "secret-", "secret-key2"):
            headers = {"authorization": f"Bearer {wrong}"}
            with client(server, default_headers=headers) as sdk, pytest.raises(openai.AuthenticationError) as caught:
                sdk.models.list()
            assert caught.value.code == "invalid_api_key"
    with Served.of(Fake("Hello"), key="right") as server, OpenAI(base_url=server.url, api_key="right") as sdk:
        assert sdk.chat.completions.create(model="m0", messages=HI).choices[0].message.content == "Hello"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        *((f"{scheme} right", 200) for scheme in ("Bearer", "bearer", "BEARER", "Bearer ")),
        *((header, 401) for header in ("right", "Basic right", "Bearer", "Bearer Right", "Bearer right right", "")),
    ],
)
def test_the_scheme_of_the_key_has_any_case(header: str, status: int) -> None:
    with Served.of(Fake("Hello"), key="right") as server:
        assert (
            httpx.get(f"{server.url}/models", headers={"authorization": header}, timeout=PATIENCE).status_code == status
        )


def test_a_web_page_is_refused_by_a_server_without_a_key(hello: Served) -> None:
    headers = {"origin": "https://example.org"}
    with client(hello, default_headers=headers) as sdk, pytest.raises(openai.PermissionDeniedError):
        sdk.chat.completions.create(model="m0", messages=HI)


def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    with Loopback(Reply([chat_chunk("Hel"), Pause()])) as provider:
        engine = Engine(OpenAIChat(base_url=provider.url), model="m")
        with asking(engine, timeout=1.0) as sdk:
            with pytest.raises(openai.APIStatusError) as caught:
                sdk.chat.completions.create(model="m0", messages=HI)
            assert caught.value.status_code == 408
            with pytest.raises(openai.APIError, match="too long"):
                list(sdk.chat.completions.create(model="m0", messages=HI, stream=True))
            provider.wait_until(lambda: provider.open_count == 0, PATIENCE)


# Engines with operators answer like a model


def test_an_engine_that_races_falls_back_budgets_and_guards() -> None:
    slow = Loopback(Reply([chat_chunk("slow"), Pause()], before=Pause()))
    quick = Reply([chat_chunk("Hel"), chat_chunk("lo"), chat_event({}, "stop", usage={"prompt_tokens": 4}), DONE])
    with slow, Loopback(Reply(b"{}", 500)) as broken, Loopback(quick) as works:
        engines = [Engine(OpenAIChat(base_url=server.url), model="m", retry=False) for server in (slow, broken, works)]
        guarded = engines[2].with_operators(ops.guard(lambda text: "lo" not in text))
        served = [
            engines[1].with_operators(ops.fallback(engines[2])),
            engines[0].with_operators(ops.race(stream_generate(engines[2], "Hi"))),
            engines[2].with_operators(ops.budget(tokens=100_000)),
            guarded,
        ]
        with asking(*served) as sdk:
            for model in ("m0", "m1", "m2"):
                answers = sdk.chat.completions.create(model=model, messages=HI, stream=True)
                assert "".join(chunk.choices[0].delta.content or "" for chunk in answers) == "Hello"
            with pytest.raises(openai.BadRequestError) as caught:
                sdk.chat.completions.create(model="m3", messages=HI)
            assert caught.value.code == "content_filter"


def test_a_restart_before_anything_is_sent_is_not_seen() -> None:
    broken = [chat_chunk("Hel"), chat_event({}, None, error={"message": "x", "code": 503})]
    with Loopback([Reply(broken), Reply([chat_chunk("Hello"), chat_finish(), DONE])] * 2) as provider:
        engine = Engine(OpenAIChat(base_url=provider.url), model="m", retry=False)
        restarting = engine.with_operators(ops.restart({"base_delay": 0.0}))
        with asking(restarting) as sdk:
            whole = sdk.chat.completions.create(model="m0", messages=HI)
            assert whole.choices[0].message.content == "Hello"
    with Loopback([Reply(broken), Reply([chat_chunk("Hello"), chat_finish(), DONE])]) as provider:
        engine = Engine(OpenAIChat(base_url=provider.url), model="m", retry=False)
        restarting = engine.with_operators(ops.restart({"base_delay": 0.0}))
        with asking(restarting) as sdk:
            with pytest.raises(openai.APIError) as caught:
                list(sdk.chat.completions.create(model="m0", messages=HI, stream=True))
            assert caught.value.code == "restarted"


def no_numbers(text: str) -> str | None:
    return "SECRET" if any(map(str.isdigit, text)) else None


GUARD = [ops.guard(no_numbers)]
GUARDED: dict[str, tuple[Any, str]] = {  # the turns of the model, and what a streaming client has got before the trip
    "at once": ([["The code is 4711."]], ""),
    "after text": ([["I know it. ", "The code is 4711. ", "Use it!"]], "I know it. "),
    "before a call": ([["I know it. ", "The code is 4711. ", ToolCall("c1", "note", {})]], "I know it. "),
    "in the second step": ([["I know it. ", ToolCall("c1", "note", {})], ["The code is 4711."]], "I know it. "),
}


def turns(*script: Any) -> Fake:
    """A model that plays its turns in every conversation."""
    return Fake(lambda request: script[sum(message.role == "assistant" for message in request.messages)])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", GUARDED)
def test_a_guard_that_trips_is_an_error_wherever_it_does(place: str, stream: bool) -> None:
    noted: list[str] = []

    @tool
    def note() -> str:
        noted.append("note")
        return "noted"

    script, before = GUARDED[place]
    got: list[str] = []

    def read(sdk: OpenAI) -> None:
        answer: Any = sdk.chat.completions.create(model="m0", messages=HI, stream=stream)
        for chunk in answer if stream else ():
            got.append(chunk.choices[0].delta.content or "")

    with asking(Engine(turns(*script), tools=[note], operators=GUARD)) as sdk, pytest.raises(openai.APIError) as caught:
        read(sdk)
    assert ("".join(got), noted) == (before if stream else "", ["note"] * (place == "in the second step"))
    error: Any = caught.value
    assert (error.code, isinstance(error, openai.BadRequestError)) == ("content_filter", not got)
    assert "SECRET" not in str(error.body) + str(error)


@pytest.mark.parametrize("stream", [False, True])
def test_a_guard_that_trips_in_an_agent_fails_the_agent_alone(stream: bool) -> None:
    agent = Engine(turns(["The code is 4711."]), operators=GUARD).as_tool(name="agent", description="Knows.")
    seen: list[str] = []

    def reply(request: Any) -> Any:
        seen.append(request.messages[-1].text)
        return "No." if request.messages[-1].role == "tool" else ToolCall("c1", "agent", {"prompt": "The code?"})

    with asking(Engine(Fake(reply), tools=[agent])) as sdk:
        answer: Any = sdk.chat.completions.create(model="m0", messages=HI, stream=stream)
        chunks = [chunk.choices[0].delta.content for chunk in answer] if stream else [answer.choices[0].message.content]
    assert "".join(filter(None, chunks)) == "No."
    assert (len(seen), "4711" in seen[1]) == (2, False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_agents_goes_on_and_runs_each_once(stream: bool) -> None:
    ran: list[str] = []

    def inside(request: Any) -> str:
        ran.append(request.messages[-1].text)
        return f"Agent on {ran[-1]}."

    def ask(id: str) -> ToolCall:
        return ToolCall(id, "agent", {"prompt": id})

    mine = [ToolCall(id, "mine", {}) for id in ("k1", "k3")]
    script = [["One.", ask("a1"), mine[0]], ["Two.", ask("a2")], ["Three.", ask("a3"), mine[1]], ["Done."], ["More."]]
    agent = Engine(Fake(inside)).as_tool(name="agent", description="Helps.")
    histories: list[Any] = []
    model = turns(*script)
    recorded = Engine(model, tools=[agent], prepare=[lambda request: histories.append(request.messages) or request])
    said: list[Any] = []
    messages: list[Any] = [*HI]
    with asking(recorded) as sdk:
        for _ in range(4):
            options: Any = {"model": "m0", "messages": messages, "tools": [function("mine")]}
            if stream:
                with sdk.chat.completions.stream(**options) as chunks:
                    message = chunks.get_final_completion().choices[0].message
            else:
                message = sdk.chat.completions.create(**options).choices[0].message
            sent = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
            said.append(message.content)
            answers = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls or ()]
            messages += [sent, *(answers or HI)]
    assert said == ["One.", "Two.\n\nThree.", "Done.", "More."]
    assert ran == ["a1", "a2", "a3"]
    results = {message.tool_call_id: message.text for message in histories[-1] if message.role == "tool"}
    assert results == {id: f"Agent on {id}." for id in ran} | {"k1": "ok", "k3": "ok"}
