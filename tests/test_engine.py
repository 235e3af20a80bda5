from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from typing import Any

import httpx
import pytest
import reactivex

import rxllm
from rxllm import (
    AdapterError,
    Anthropic,
    Engine,
    EngineError,
    Fake,
    Gemini,
    Local,
    Ollama,
    OpenAIChat,
    OpenAIResponses,
    RetryPolicy,
    Tool,
    ToolCall,
    aclose,
    generate,
    tool,
)
from rxllm import operators as ops
from rxllm.adapters import aiohttp_client
from rxllm.adapters.local.server import Server
from rxllm.engine import as_engine, merge_tools
from rxllm.images import GeminiImages, OpenAIImages
from rxllm.testing.loopback import Loopback, Reply, chat


def test_an_engine_begins_with_nothing() -> None:
    engine = Engine()
    assert (engine.adapter, engine.model, engine.tools, engine.params, engine.context) == (None, None, (), {}, {})
    assert (engine.operators, engine.observers, engine.retry, engine.metadata) == ((), (), "default", {})
    assert (engine.image_adapter, engine.tool_executor, engine.tool_result_encoder) == (None, None, None)


def test_an_engine_is_frozen_and_has_no_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Engine().model = "other"  # type: ignore[misc]
    assert not any("key" in spec.name for spec in dataclasses.fields(Engine))


def test_sequences_become_tuples() -> None:
    given: Any = {"tools": [tool(name="a")], "operators": [lambda source: source], "observers": [print]}
    engine = Engine(**given)
    assert all(isinstance(getattr(engine, name), tuple) for name in given)


def test_each_with_gives_a_new_engine() -> None:
    a, b, other = tool(name="a"), tool(name="b"), tool(name="a", description="other")
    first = Engine(Fake("Hi"), model="small", tools=(a,), params={"seed": 1}, context={"x": 1})
    assert first.with_model("large").model == "large"
    assert first.with_tools(b).tools == (a, b)
    assert first.with_tools(b, other, replace=True).tools == (other, b)
    assert first.with_params(seed=2, temperature=0.0).params == {"seed": 2, "temperature": 0.0}
    assert first.with_context(y=2).context == {"x": 1, "y": 2}
    assert first.with_operators(_one, _two).with_operators(_one).operators == (_one, _two, _one)
    assert (first.model, first.tools, first.params, first.context) == ("small", (a,), {"seed": 1}, {"x": 1})
    assert (first.operators, first.with_model("large").adapter) == ((), first.adapter)


def test_a_name_that_an_engine_has_is_refused_and_replaced_only_on_request() -> None:
    engine = Engine(Fake("Hi"), tools=[tool(name="pay", approval=True, handler=print)])
    with pytest.raises(EngineError, match=r"already include pay; .*replace=True") as raised:
        engine.with_tools(tool(name="pay"))
    assert raised.value.reason == "invalid_engine"


def _pay(amount: int) -> str:
    return f"paid {amount}"


def _replaced_by_call(engine: Engine, other: Any) -> Any:
    return {"model": engine, "tools": [other]}


def _replaced_in_engine(engine: Engine, other: Any) -> Any:
    return {"model": engine.with_tools(other, replace=True)}


@pytest.mark.parametrize("place", [_replaced_by_call, _replaced_in_engine])
@pytest.mark.parametrize(
    "other", [tool(name="pay")(_pay), Tool("pay", handler=_pay), Engine(Fake("Paid.")).as_tool(name="pay")]
)
def test_a_tool_that_replaces_another_keeps_its_approval(place: Any, other: Any) -> None:
    paid: list[Any] = []
    model = Fake(ToolCall("c1", "pay", {"amount": 5, "prompt": "5"}), "Done.")
    engine = Engine(model, tools=[tool(name="pay", approval=True, handler=paid.append)])
    options = place(engine, other)
    result = rxllm.chat(options.pop("model"), "Pay.", **options).run()
    assert (result.halted_reason, [call.id for call in result.pending_tool_calls]) == ("approval", ["c1"])


def test_merged_tools_have_unique_names() -> None:
    a, b, c = (Tool(name) for name in "abc")
    again = Tool("a", "again")
    assert merge_tools([a, b], [c, again]) == (again, b, c)


def test_an_adapter_is_an_engine_and_an_engine_is_itself() -> None:
    fake, engine = Fake("Hi"), Engine(retry=RetryPolicy())
    assert as_engine(fake).adapter is fake
    assert as_engine(engine) is engine
    assert as_engine(None).adapter is None


def test_a_name_is_a_provider_and_a_model() -> None:
    engine = Engine.from_model("openai:gpt-5")
    assert (type(engine.adapter).__name__, engine.model) == ("OpenAIChat", "gpt-5")
    assert Engine.from_model("openai").model is None
    assert Engine.from_model("openai:ft:mine").model == "ft:mine"


@pytest.mark.parametrize("make", [Engine, Engine.from_model])
def test_an_engine_of_an_engine_has_its_settings_and_those_that_are_given(make: Any) -> None:
    a, b = tool(name="a"), tool(name="b")
    functions = [lambda request: request for _ in range(4)]
    options = {"tools": [a], "params": {"seed": 1}, "prepare": functions[:1], "observers": [print], "errors": "raise"}
    first = Engine(Fake("Hi"), "small", operators=[_one], **options)
    assert make(first) == first
    added = make(first, tools=[b], operators=[_two], prepare=functions[1:2], observers=[repr])
    assert (added.tools, added.operators, added.observers) == ((a, b), (_one, _two), (print, repr))
    assert added.prepare == tuple(functions[:2])
    assert (added.adapter, added.model, added.errors) == (first.adapter, "small", "raise")
    changed = make(first, model="large", params={"temperature": 0.0}, errors="events")
    assert (changed.model, changed.params, changed.errors) == ("large", {"temperature": 0.0}, "events")
    assert changed.tools == (a,)
    with pytest.raises(EngineError, match="tools already include a"):
        make(first, tools=[a])
    assert rxllm.generate(make(first), "Hello").run().output_text == "Hi"


def test_an_engine_takes_its_name_an_adapter_or_an_engine_in_one_place() -> None:
    fake = Fake("Hi")
    for engine in (Engine(fake, errors="raise"), Engine.from_model(fake, errors="raise"), Engine(Engine(fake, "m"))):
        assert engine.adapter is fake
    named = Engine("openai:gpt-5", base_url="http://localhost/v1", timeout=5.0, params={"seed": 1})
    assert (repr(named.adapter), named.model) == ("OpenAIChat('http://localhost/v1')", "gpt-5")
    assert named.params == {"seed": 1}


def test_an_unknown_provider_names_those_there_are() -> None:
    with pytest.raises(EngineError) as caught:
        Engine.from_model("nobody:m")
    assert (caught.value.reason, caught.value.provider) == ("unknown_provider", "nobody")
    assert "local" in caught.value.message
    assert "openai" in caught.value.message


def test_closing_reaches_the_adapter_where_it_has_something_to_close() -> None:
    closed: list[int] = []

    class Closing:
        async def aclose(self) -> None:
            closed.append(1)

    asyncio.run(aclose(Engine(Closing())))
    asyncio.run(aclose(Closing()))
    asyncio.run(aclose(Fake("Hi")))
    assert closed == [1, 1]


def _one(source: Any) -> Any:
    return source


def _two(source: Any) -> Any:
    return source


@tool
def double(x: int) -> int:
    """Twice as much."""
    return 2 * x


def copies(engine: Engine) -> list[Engine]:
    return [copy.copy(engine), copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))]


@pytest.mark.parametrize(
    "adapter", [OpenAIChat, OpenAIResponses, Anthropic, Gemini, Ollama, OpenAIImages, GeminiImages]
)
def test_an_adapter_pickles_without_its_clients_and_keys(adapter: Any) -> None:
    headers = {"Authorization": "Bearer sk-secret-header", "x-title": "Mine"}
    given = adapter(api_key="sk-secret-key", base_url="http://127.0.0.1:1/v1", headers=headers, timeout=3.0)
    engine = Engine(given, model="m", image_adapter=given, params={"seed": 1})
    assert b"sk-secret" not in pickle.dumps(engine)
    restored = pickle.loads(pickle.dumps(engine))
    assert (restored.adapter.base_url, restored.adapter.timeout) == ("http://127.0.0.1:1/v1", 3.0)
    assert (restored.adapter.headers, restored.params) == ({"x-title": "Mine"}, {"seed": 1})
    assert restored.adapter is restored.image_adapter
    for same in (copy.copy(engine), copy.deepcopy(engine)):
        assert (same.adapter.headers, same.params) == (headers, engine.params)
        assert same.adapter._api_key == "sk-secret-key"
    deep = copy.deepcopy(engine).adapter
    assert deep is not given
    assert deep.headers is not given.headers


def test_headers_with_keys_in_an_engines_params_are_not_pickled_either() -> None:
    headers = {"Authorization": "Bearer sk-secret-header", "x-title": "Mine"}
    engine = Engine(OpenAIChat(), params={"headers": headers, "seed": 1})
    assert b"sk-secret" not in pickle.dumps(engine)
    assert pickle.loads(pickle.dumps(engine)).params == {"headers": {"x-title": "Mine"}, "seed": 1}
    assert copy.copy(engine).params == copy.deepcopy(engine).params == engine.params == {"headers": headers, "seed": 1}


@pytest.mark.sockets
def test_an_engine_is_copied_after_calls_and_its_copies_can_be_called() -> None:
    with Loopback(lambda request: Reply(chat("Hello"))) as server:
        engine = Engine(OpenAIChat(base_url=server.url), model="m", tools=(double,))

        async def ask(asked: Engine) -> str:
            async with asyncio.timeout(30):
                return (await generate(asked, "Hi")).output_text

        async def main() -> list[str]:
            first = await ask(engine)
            return [first, *[await ask(each) for each in copies(engine)]]

        assert asyncio.run(main()) == ["Hello"] * 4
        assert [generate(each, "Hi").run().output_text for each in copies(engine)] == ["Hello"] * 3


def test_a_given_client_is_shared_by_copies_and_not_pickled() -> None:
    client = httpx.AsyncClient()
    adapter = OpenAIChat(client=client, base_url="http://127.0.0.1:1")
    for same in (copy.copy(adapter), copy.deepcopy(adapter)):
        assert same._clients.any() is client
    assert pickle.loads(pickle.dumps(adapter))._clients.any() is not client
    made = pickle.loads(pickle.dumps(OpenAIChat(client=aiohttp_client)))
    assert made._client is aiohttp_client


def test_a_local_model_is_pickled_without_its_server() -> None:
    local = Local("model.gguf", n_ctx=512)
    local._server, local.base_url = Server("http://127.0.0.1:5", knows_tools=True), "http://127.0.0.1:5/v1"
    restored = pickle.loads(pickle.dumps(local))
    assert (restored.model, restored.n_ctx, restored._server) == ("model.gguf", 512, None)
    assert restored.base_url == Local.default_base_url
    assert copy.deepcopy(local).base_url == "http://127.0.0.1:5/v1"


def test_a_decorated_tool_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert copy.deepcopy(double) is double

    @tool
    def inner(x: int) -> int:
        return x

    assert copy.deepcopy(Engine(tools=(inner,))).tools == (inner,)
    assert pickle.loads(pickle.dumps(inner))(3) == 3  # by value


BROKEN = ["2, 3, ", ("error", "provider_unavailable")]


def test_an_engine_may_raise_what_breaks_off_so_that_retry_and_catch_act_on_it() -> None:
    engine = Engine(Fake(BROKEN, BROKEN, "2, 3, 5."), errors="raise")
    assert rxllm.stream_generate(engine, "Hi").pipe(ops.to_text()).retry(3).run() == "2, 3, 5."
    engine = Engine(Fake(BROKEN, "2, 3, 5."), errors="raise")
    assert rxllm.generate(engine, "Hi").retry(2).run().output_text == "2, 3, 5."
    events = rxllm.stream_generate(Engine(Fake(BROKEN), errors="raise"), "Hi")
    caught = events.catch(lambda error, _: reactivex.of(repr(error))).run()
    assert str(caught).startswith("AdapterError('provider_unavailable")


def test_an_engine_that_raises_raises_after_its_operators() -> None:
    engine = Engine(Fake(BROKEN, "2, 3, 5."), operators=[ops.restart()], errors="raise")
    assert rxllm.generate(engine, "Hi").run().output_text == "2, 3, 5."


def test_a_broken_step_raises_and_a_later_one_keeps_the_chat() -> None:
    with pytest.raises(AdapterError, match="provider_unavailable"):
        rxllm.chat(Engine(Fake(BROKEN), errors="raise"), "Hi").run()
    add = rxllm.tool(name="add", handler=lambda arguments: 5)
    engine = Engine(Fake(ToolCall("c1", "add"), BROKEN), tools=[add], errors="raise")
    result = rxllm.chat(engine, "Hi").run()
    assert (result.halted_reason, len(result.steps)) == ("error", 1)


@pytest.mark.parametrize("errors", ["Raise", None, True])
def test_errors_is_one_of_two(errors: Any) -> None:
    with pytest.raises(EngineError, match="an engine's errors must be 'events' or 'raise', not "):
        Engine(Fake("Hi"), errors=errors)
