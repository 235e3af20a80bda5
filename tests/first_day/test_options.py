"""The options of a call: how to find them, and what may be written for them."""

from __future__ import annotations

import asyncio
import inspect
import json
import pydoc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rxllm
from rxllm import Engine, Fake, Request, Timeouts, ToolCall, session, tool, user
from rxllm import operators as ops
from rxllm.images import FakeImages
from rxllm.pipelines import ChatOptions, GenerateOptions, ImageOptions, StepOptions
from rxllm.pipelines.options import UNLIMITED, meanings
from rxllm.testing import World, simulate
from rxllm.values import Image
from tests.tables import assert_rows

FUNCTIONS: dict[Callable[..., Any], type[Any]] = {
    rxllm.generate: GenerateOptions,
    rxllm.stream_generate: GenerateOptions,
    rxllm.generate_many: GenerateOptions,
    rxllm.step: StepOptions,
    rxllm.stream_step: StepOptions,
    rxllm.chat: ChatOptions,
    rxllm.stream: ChatOptions,
    rxllm.resume: ChatOptions,
    rxllm.stream_resume: ChatOptions,
    session.start: ChatOptions,
    session.reply: ChatOptions,
    session.resume: ChatOptions,
    session.step: StepOptions,
    session.stream_start: ChatOptions,
    session.stream_reply: ChatOptions,
    session.stream_resume: ChatOptions,
    session.stream_step: StepOptions,
    rxllm.generate_image: ImageOptions,
    rxllm.edit_image: ImageOptions,
    rxllm.image_variations: ImageOptions,
}
CHATS = {function: options for function, options in FUNCTIONS.items() if options is not ImageOptions}
OPTIONS = list(ChatOptions.__annotations__)

every_function = pytest.mark.parametrize(
    ("function", "options"), FUNCTIONS.items(), ids=lambda value: getattr(value, "__qualname__", "")
)


def help_of(thing: Any) -> str:
    """What ``help(thing)`` prints."""
    return " ".join(pydoc.plain(pydoc.render_doc(thing)).replace("|", " ").split())


# Finding them


@every_function
def test_shift_tab_shows_every_option_as_a_keyword(function: Callable[..., Any], options: type[Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert parameters.keys() >= options.__annotations__.keys()
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in options.__annotations__)
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    assert str(parameters["request_id"]) == "request_id: 'str | None' = None"


@every_function
def test_help_says_what_every_option_means(function: Callable[..., Any], options: type[Any]) -> None:
    for shown in (help_of(function), help_of(options)):
        for name, meaning in meanings(options).items():
            assert f"{name} : " in shown
            assert " ".join(meaning.replace("|", " ").split()) in shown


@pytest.mark.parametrize("options", [ChatOptions, ImageOptions])
def test_every_option_has_a_meaning_and_a_default(options: type[Any]) -> None:
    assert_rows([(options, name) for name in options.__annotations__], check_meaning)


def check_meaning(options: type[Any], name: str) -> None:
    meaning, _, default = meanings(options)[name].partition(" Default: ")
    assert len(meaning) > 15
    assert meaning[-1] == "."
    assert default[-1:] == "."


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("temperature", "from 0 to 2"),
        ("top_p", "at most 1"),
        ("max_tokens", "in tokens"),
        ("timeout", "number of seconds"),
        ("tool_timeout", "in seconds"),
        ("max_turns", "steps"),
        ("max_concurrency", "at the same time"),
    ],
)
def test_a_number_has_a_unit(name: str, unit: str) -> None:
    assert unit in meanings(ChatOptions)[name]


def test_the_defaults_of_the_signature_are_those_of_a_call() -> None:
    shown = {name: p.default for name, p in inspect.signature(rxllm.chat).parameters.items() if name in OPTIONS}
    assert {name: default for name, default in shown.items() if default is not None} == {
        "emit_text_deltas": True,
        "emit_tool_deltas": True,
        "emit_thinking": True,
        "include_raw_chunks": False,
        "mode": "auto",
        "on_tool_error": "continue",
        "tool_timeout": 30.0,
        "max_turns": 8,
        "structured_finalize_nudge": "Now provide your final structured response.",
    }
    run_tools = inspect.signature(ops.run_tools).parameters
    for name in ("mode", "on_tool_error", "tool_timeout", "max_concurrency"):
        assert run_tools[name].default == shown[name]
    fake = Fake("Hello")
    assert rxllm.chat(fake, "Hi", **shown).run() == rxllm.chat(fake, "Hi").run()
    assert fake.requests[0] == fake.requests[1]


@pytest.mark.parametrize("use_jedi", [True, False])
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("rxllm.generate(engine, 'Hi', tem", "temperature="), ("rxllm.chat(engine, 'Hi', max_tu", "max_turns=")],
)
def test_tab_completes_an_option_in_ipython(typed: str, wanted: str, use_jedi: bool) -> None:
    completer = pytest.importorskip("IPython.core.completer")
    tab = completer.IPCompleter(namespace={"rxllm": rxllm, "engine": Fake("Hello")}, use_jedi=use_jedi)
    with warnings.catch_warnings(), completer.provisionalcompleter():
        warnings.simplefilter("ignore")
        assert wanted in [completion.text for completion in tab.completions(typed, len(typed))]


# None is an option that is not written


@pytest.mark.parametrize(("function", "options"), CHATS.items(), ids=lambda value: getattr(value, "__qualname__", ""))
def test_an_option_of_none_is_not_set(function: Callable[..., Any], options: type[Any]) -> None:
    names = [name for name in OPTIONS if name not in UNLIMITED and name in options.__annotations__]
    assert_rows([(function, name) for name in names], check_none)


def check_none(function: Callable[..., Any], name: str) -> None:
    fake = Fake("Hello")
    argument: Any = {
        rxllm.generate_many: ["Hi"],
        session.reply: rxllm.Session(),
        session.stream_reply: rxllm.Session(),
        session.resume: rxllm.Session(thread=rxllm.Thread((user("Hi"),))),
        session.stream_resume: rxllm.Session(thread=rxllm.Thread((user("Hi"),))),
        session.step: rxllm.Session(thread=rxllm.Thread((user("Hi"),))),
        session.stream_step: rxllm.Session(thread=rxllm.Thread((user("Hi"),))),
    }.get(function, "Hi")
    text = ("Hi",) if function in (session.reply, session.stream_reply) else ()
    function(fake, argument, *text, **{name: None}).run()
    assert fake.requests == [Request((user("Hi"),))]


def test_nor_is_one_of_an_image() -> None:
    fake = FakeImages(Image.from_binary(b"GIF89a", "image/gif"))
    options: dict[str, Any] = dict.fromkeys(ImageOptions.__annotations__)
    rxllm.generate_image(fake, "a kestrel", **options).run()
    assert fake.requests == [rxllm.values.image_request("a kestrel")]


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.5), ("stop", ("END",)), ("tools", [tool(name="f")]), ("options", {"k": 1})]
)
def test_none_leaves_the_engines_and_the_requests_value(name: str, value: Any) -> None:
    fake = Fake("Hello")
    options: dict[str, Any] = {name: None}
    rxllm.generate(Engine(fake).with_params(**{name: value}), "Hi", **options).run()
    rxllm.generate(fake, rxllm.request("Hi", **{name: tuple(value) if name == "tools" else value}), **options).run()
    assert fake.requests[0] == fake.requests[1]
    assert getattr(fake.requests[0], name) == (tuple(value) if name == "tools" else value)


def test_none_as_an_engines_param_is_not_set_either() -> None:
    engine = Engine(Fake("Hello")).with_params(temperature=None, metadata=None, response_format=None, on_event=None)
    assert rxllm.chat(engine, "Hi").run().output_text == "Hello"


@pytest.mark.parametrize("function", [rxllm.generate, rxllm.step, rxllm.chat, session.start])
def test_nor_is_any_param_of_an_engine(function: Callable[..., Any]) -> None:
    fake = Fake("Hello")
    params = dict.fromkeys(name for name in ChatOptions.__annotations__ if name != "api_key")
    function(Engine(fake, params=params), "Hi").run()
    assert fake.requests == [Request((user("Hi"),))]


def test_a_wrapper_passes_its_own_options_on() -> None:
    def ask(text: str, temperature: float | None = None, timeout: float | None = None, retry: Any = None) -> str:
        return rxllm.generate(fake, text, temperature=temperature, timeout=timeout, retry=retry).run().output_text

    fake = Fake("Hello")
    assert ask("Hi") == ask("Hi", temperature=0.0, timeout=30, retry=False) == "Hello"
    assert [request.temperature for request in fake.requests] == [None, 0.0]


def test_a_session_keeps_its_context_and_its_id() -> None:
    seen: list[Any] = []

    @tool
    def look(context: rxllm.ToolContext) -> str:
        seen.append((context.context, context.session_id))
        return "done"

    fake = Fake(ToolCall("c1", "look", {}), "Done.")
    begun = rxllm.Session(id="s1", context={"user": "ada"}, thread=rxllm.Thread((user("Hi"),)))
    session.start(fake, begun, tools=[look], context=None, session_id=None).run()
    assert seen == [({"user": "ada"}, "s1")]


def test_where_none_is_a_value_it_is_no_limit() -> None:
    assert {"tool_timeout", "max_concurrency", "approve_timeout"} == UNLIMITED
    for name in UNLIMITED:
        assert "None means no limit" in meanings(ChatOptions)[name]

    @tool
    async def slow() -> str:
        await asyncio.sleep(86_000)
        return "done"

    async def tells_the_model(world: World, **options: Any) -> str:
        engine = Engine(Fake(ToolCall("c1", "slow", {}), "Done."), tools=(slow,)).with_params(tool_timeout=60)
        return (await rxllm.chat(engine, "Hi", **options)).thread.messages[2].text

    assert "did not finish within 60 s" in simulate(tells_the_model, faults=()).value
    assert simulate(partial(tells_the_model, tool_timeout=None), faults=()).value == "done"


def test_an_unknown_option_is_refused_whatever_its_value() -> None:
    with pytest.raises(rxllm.EngineError, match="no option 'temprature'"):
        rxllm.generate(Fake("Hi"), "Hi", temprature=None)  # type: ignore[call-arg]


# Other ways to write them


def test_a_text_is_one_stop_word() -> None:
    fake = Fake("Hello")
    rxllm.generate(fake, "Hi", stop="END").run()
    rxllm.generate(Engine(fake).with_params(stop="END"), "Hi").run()
    rxllm.generate(fake, rxllm.request("Hi", stop="END")).run()
    rxllm.generate(fake, Request((user("Hi"),), stop="END")).run()  # type: ignore[arg-type]
    assert [request.stop for request in fake.requests] == [("END",)] * 4


def test_top_p_is_an_option_and_a_field_of_a_request() -> None:
    fake = Fake("Hello")
    rxllm.generate(fake, "Hi", top_p=0.9).run()
    rxllm.generate(fake, rxllm.request("Hi", top_p=0.9)).run()
    assert [request.top_p for request in fake.requests] == [0.9, 0.9]


@pytest.mark.parametrize("top_p", [0, 1.1, -1, "0.9", True, float("nan")])
def test_top_p_is_above_0_up_to_1(top_p: Any) -> None:
    with pytest.raises(rxllm.ValidationError, match="top_p must be a number > 0 and <= 1, not"):
        rxllm.generate(Fake("Hi"), "Hi", top_p=top_p)
    with pytest.raises(rxllm.ValidationError, match="top_p must be "):
        rxllm.generate(Fake("Hi"), rxllm.request("Hi", top_p=top_p)).run()


@pytest.mark.parametrize(
    ("adapter", "place"),
    [
        (rxllm.OpenAIChat(api_key="k"), ("top_p",)),
        (rxllm.OpenAIResponses(api_key="k"), ("top_p",)),
        (rxllm.Anthropic(api_key="k"), ("top_p",)),
        (rxllm.Gemini(api_key="k"), ("generationConfig", "topP")),
        (rxllm.Ollama(), ("options", "top_p")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_wire_sends_top_p(adapter: Any, place: tuple[str, ...]) -> None:
    def sent(request: Request) -> Any:
        body: Any = json.loads(adapter.build(request, rxllm.values.Call()).content)
        for key in place:
            body = body.get(key, {})
        return body

    assert sent(Request((user("Hi"),), model="m", top_p=0.5)) == 0.5
    assert sent(Request((user("Hi"),), model="m")) == {}


@pytest.mark.parametrize("timeout", [30, 0.5, Timeouts(first=30, idle=10, total=120), None])
def test_a_timeout_is_a_number_of_seconds_or_a_timeouts(timeout: Any) -> None:
    assert rxllm.generate(Fake("Hello"), "Hi", timeout=timeout).run().output_text == "Hello"
