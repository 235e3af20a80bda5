"""What becomes of a request before its model is asked: changed, refused, or checked while the answer comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from reactivex import of, throw

import rxllm
from rxllm import Engine, Fake, Request, ToolCall, ValidationError, alongside, system, tool, user
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, endless
from rxllm.values import EngineError

REFUSAL = ValidationError("invalid_request", "the question is not allowed")


def brief(request: Request) -> Request:
    return replace(request, messages=(system("Be brief."), *request.messages))


async def later(request: Request) -> Request:
    await asyncio.sleep(0)
    return brief(request)


def observable(request: Request) -> Any:
    return of(request, brief(request))


def refuse(request: Request) -> Request:
    raise REFUSAL


async def refuse_later(request: Request) -> Request:
    await asyncio.sleep(0)
    raise REFUSAL


def texts(request: Request) -> list[str]:
    return [message.text for message in request.messages]


@pytest.mark.parametrize("function", [brief, later, observable])
def test_a_function_may_change_the_request(function: Any) -> None:
    model = Fake("Hello")
    response = rxllm.generate(Engine(model, prepare=[function]), "Hi").run()
    assert response.output_text == "Hello"
    assert texts(model.requests[0]) == ["Be brief.", "Hi"]


@pytest.mark.parametrize("functions", [(brief, later, observable), (later, brief, brief), (observable, later, brief)])
def test_they_are_called_in_order_each_with_what_the_last_has_made(functions: Any) -> None:
    def number(request: Request) -> Request:
        return replace(request, metadata={"messages": len(request.messages)})

    model = Fake("Hello")
    rxllm.generate(Engine(model).with_prepare(*functions, number), "Hi").run()
    assert model.requests[0].metadata == {"messages": 4}


def test_it_sees_every_option_in_its_place() -> None:
    seen: list[Request] = []
    engine = Engine(Fake("Hello"), model="small", params={"temperature": 0.5}, prepare=[lambda r: seen.append(r) or r])
    rxllm.generate(engine, "Hi", max_tokens=9).run()
    assert (seen[0].model, seen[0].temperature, seen[0].max_tokens) == ("small", 0.5, 9)


def test_the_thread_and_the_results_keep_what_was_asked() -> None:
    @tool
    def look() -> str:
        return "seen"

    model = Fake(ToolCall("c1", "look"), "Done.")
    result = rxllm.chat(Engine(model, prepare=[brief]), "Hi", tools=[look]).run()
    assert [message.role for message in result.thread] == ["user", "assistant", "tool", "assistant"]
    assert [texts(request)[0] for request in model.requests] == ["Be brief.", "Be brief."]


def test_who_answers_instead_is_asked_what_was_prepared() -> None:
    other = Fake("Hello")
    engine = Engine(Fake(rxllm.AdapterError("unknown")), prepare=[brief], operators=[ops.fallback(other)], retry=False)
    rxllm.generate(engine, "Hi").run()
    assert texts(other.requests[0]) == ["Be brief.", "Hi"]


@pytest.mark.parametrize("function", [refuse, refuse_later, lambda request: throw(REFUSAL)])
@pytest.mark.parametrize("call", [rxllm.stream_generate, rxllm.generate, rxllm.step, rxllm.chat])
def test_an_error_refuses_the_request_before_anybody_is_asked(call: Any, function: Any) -> None:
    model = Fake("Hello")
    with pytest.raises(ValidationError, match="the question is not allowed"):
        call(Engine(model, prepare=[function]), "Hi").run()
    assert model.requests == []


@pytest.mark.parametrize("function", [lambda request: None, lambda request: of("Hi"), lambda request: later])
def test_what_is_no_request_is_named(function: Any) -> None:
    with pytest.raises(ValidationError, match=r"prepare\.1 must be a function that returns the Request"):
        rxllm.generate(Engine(Fake("Hello"), prepare=[brief, function]), "Hi").run()


def test_what_is_no_function_is_refused_by_the_engine() -> None:
    with pytest.raises(EngineError, match=r"prepare\[0\] must be a function, not 3"):
        Engine(Fake("Hello"), prepare=[3])  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="check must be a function, not None"):
        alongside(None)  # type: ignore[arg-type]


def test_a_prepared_request_is_checked_like_any_other() -> None:
    with pytest.raises(ValidationError):
        rxllm.generate(Engine(Fake("Hello"), prepare=[lambda request: replace(request, messages=())]), "Hi").run()


def test_a_model_that_prepares_for_another_is_a_call_of_its_own() -> None:
    def summarize(request: Request) -> Any:
        return rxllm.generate(Fake("short"), request).map(
            lambda response: replace(request, messages=(user(response.output_text),))
        )

    model = Fake("Hello")
    result = rxllm.chat(Engine(model, prepare=[summarize]), "A long story").run()
    assert texts(model.requests[0]) == ["short"]
    assert result.thread[0] == user("A long story")


# Checks that run while the model answers


async def passing(request: Request) -> None:
    await asyncio.sleep(0.01)


async def failing(request: Request) -> None:
    await asyncio.sleep(0.01)
    raise REFUSAL


def test_the_answer_is_held_back_until_the_check_has_passed() -> None:
    order: list[str] = []

    async def check(request: Request) -> None:
        await asyncio.sleep(0.05)
        order.append("checked")

    engine = Engine(Fake(["Hel", "lo"]), prepare=[alongside(check)])
    for text in rxllm.stream_generate(engine, "Hi").pipe(ops.text()):
        order.append(text)
    assert order == ["checked", "Hel", "lo"]


def test_an_answer_that_is_slower_than_the_check_comes_as_it_comes() -> None:
    engine = Engine(Fake([("delay", 0.05), "Hel", ("delay", 0.05), "lo"]), prepare=[alongside(passing)])
    assert list(rxllm.stream_generate(engine, "Hi").pipe(ops.text())) == ["Hel", "lo"]


def test_a_check_that_raises_ends_the_call_and_nothing_of_it_is_seen() -> None:
    seen: list[Any] = []
    engine = Engine(Fake(["Hello", ("delay", 30), "!"]), prepare=[alongside(failing)])
    with pytest.raises(ValidationError, match="not allowed"):
        rxllm.stream_generate(engine, "Hi").pipe(ops.tap(seen.append)).run()
    assert seen == []


def test_a_model_that_fails_waits_for_the_check_too() -> None:
    down = Fake(rxllm.AdapterError("invalid_request"))
    with pytest.raises(rxllm.AdapterError):
        rxllm.generate(Engine(down, prepare=[alongside(passing)]), "Hi").run()
    with pytest.raises(ValidationError, match="not allowed"):
        rxllm.generate(Engine(down, prepare=[alongside(failing)]), "Hi").run()


def test_it_checks_what_those_before_it_have_made() -> None:
    seen: list[list[str]] = []

    def check(request: Request) -> None:
        seen.append(texts(request))

    rxllm.generate(Engine(Fake("Hello"), prepare=[alongside(check), later, alongside(check)]), "Hi").run()
    assert seen == [["Hi"], ["Be brief.", "Hi"]]


def test_a_refused_answers_connection_is_closed() -> None:
    with Loopback(Reply(endless(every=0.01))) as server:
        model = rxllm.OpenAIChat(base_url=server.url, api_key="k")

        def when_asked(request: Request) -> None:
            server.wait_requests(1, 10.0)
            raise REFUSAL

        async def check(request: Request) -> None:
            await asyncio.to_thread(when_asked, request)

        with pytest.raises(ValidationError, match="not allowed"):
            rxllm.generate(Engine(model, model="m", prepare=[alongside(check)]), "Hi", retry=False).run()
        server.connections[0].wait_closed(10.0)
        assert server.connections[0].closed_by == "client"
