"""Histories as people have them: lists of dicts in OpenAI's form, the SDK's messages, and the results of a chat."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rxllm
from rxllm import (
    Fake,
    Message,
    Thread,
    ToolCall,
    ValidationError,
    assistant,
    session,
    system,
    tool,
    tool_result,
    user,
)
from rxllm.values import FilePart, Image, ImagePart, ProviderPart, SourcePart, TextPart, ThinkingPart

PNG = "iVBORw0KGgo="
HISTORY: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is the weather in this city?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "cloudy"},
    {"role": "assistant", "content": "It is cloudy."},
    {"role": "user", "content": "And tomorrow?"},
]
THREAD = Thread(
    (
        system("Be brief."),
        user([TextPart("What is the weather in this city?")]),
        Message("assistant", tool_calls=(ToolCall("c0", "weather", {"city": "Lima"}, '{"city": "Lima"}'),)),
        tool_result("c0", "cloudy"),
        assistant("It is cloudy."),
        user("And tomorrow?"),
    )
)


def conversation(fake: Fake) -> Thread:
    """What the model was sent."""
    return Thread(fake.requests[0].messages)


# A history is passed as it is


@pytest.mark.parametrize(
    "function",
    [rxllm.generate, rxllm.stream_generate, rxllm.step, rxllm.stream_step, rxllm.chat, rxllm.stream, rxllm.resume],
)
def test_a_history_of_dicts_is_a_conversation(function: Callable[..., Any]) -> None:
    fake = Fake("Sunny.")
    function(fake, HISTORY).run()
    assert conversation(fake) == THREAD


def test_a_session_starts_with_a_history() -> None:
    turn = session.start(Fake("Sunny."), HISTORY).run()
    assert turn.session.thread == THREAD + assistant("Sunny.")


def test_many_histories_are_many_requests() -> None:
    shout = Fake(lambda request: request.messages[-1].text.upper())
    responses = rxllm.generate_many(shout, [HISTORY, "hello", {"role": "user", "content": "hi"}])
    assert [response.output_text for response in responses] == ["AND TOMORROW?", "HELLO", "HI"]


def test_a_request_is_made_of_a_history() -> None:
    assert rxllm.request(HISTORY, temperature=0.0).messages == THREAD.messages


def test_a_single_dict_is_a_message() -> None:
    fake = Fake("Hello")
    rxllm.generate(fake, {"role": "user", "content": "Hi"}).run()
    assert conversation(fake) == Thread() + "Hi"


def test_dicts_messages_and_responses_mix() -> None:
    question = {"role": "user", "content": "Name a prime."}
    answer = rxllm.generate(Fake("2"), [system("Be brief."), question]).run()
    fake = Fake("3")
    rxllm.generate(fake, [system("Be brief."), question, answer, user("Another?")]).run()
    assert [message.text for message in conversation(fake)] == ["Be brief.", "Name a prime.", "2", "Another?"]


@pytest.mark.judges
def test_a_conversation_that_the_openai_sdk_has_had_goes_on_here() -> None:
    chat = pytest.importorskip("openai.types.chat")
    function = {"name": "weather", "arguments": '{"city": "Lima"}'}
    fields = {"role": "assistant", "tool_calls": [{"id": "c0", "type": "function", "function": function}]}
    message = chat.ChatCompletionMessage.model_validate(fields)
    assert Thread.from_openai([*HISTORY[:2], message, *HISTORY[3:]]) == THREAD


# Appending


def test_a_text_is_appended_as_a_users_message() -> None:
    assert Thread() + "hey" == Thread((user("hey"),))


def test_whatever_is_a_message_is_appended() -> None:
    response = rxllm.generate(Fake("Hello"), "Hi").run()
    thread = Thread() + {"role": "system", "content": "Be brief."} + "Hi" + response + [user("Bye")] + Thread()
    assert [(message.role, message.text) for message in thread] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Bye"),
    ]


# Results have a thread


def test_the_result_of_a_chat_is_its_conversation() -> None:
    result = rxllm.chat(Fake("Lima"), "The capital of Peru?").run()
    fake = Fake("Quito")
    rxllm.chat(fake, result).run()
    assert conversation(fake) == result.thread
    assert [message.text for message in result.thread + "And of Ecuador?"][-1] == "And of Ecuador?"


def test_so_is_that_of_a_step_and_of_a_turn() -> None:
    step = rxllm.step(Fake("Lima"), "The capital of Peru?").run()
    turn = session.start(Fake("Lima"), "The capital of Peru?").run()
    for value in (step, turn, turn.session):
        fake = Fake("Lima, as I said.")
        rxllm.generate(fake, value).run()
        assert [message.text for message in conversation(fake)] == ["The capital of Peru?", "Lima"]


def test_a_session_goes_on_from_a_turn() -> None:
    first = session.start(Fake("Lima"), rxllm.Session(id="s1", thread=Thread() + "The capital of Peru?")).run()
    assert session.start(Fake("Yes."), first).run().session.id == "s1"


def test_a_response_alone_has_no_question() -> None:
    response = rxllm.generate(Fake("Lima"), "The capital of Peru?").run()
    with pytest.raises(ValidationError, match=r"write thread \+ response, or pass the result of rxllm.chat"):
        rxllm.generate(Fake("Quito"), response)  # type: ignore[arg-type]


# What cannot be read is refused at the call, and the place is named


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([{"role": "human", "content": "Hi"}], "messages.0.role must be one of developer, system, user, assistant"),
        ([{"content": "Hi"}], "messages.0.role must be one of .*, not None"),
        ([user("Hi"), {"role": "user"}], "messages.1.content must be text or a list of parts, not None"),
        ([{"role": "user", "content": 5}], "messages.0.content must be text or a list of parts, not 5"),
        (
            [{"role": "user", "content": "Hi", "id": 7}],
            r"messages.0 has 'id', which .*; keep other data in Message\(..., metadata=",
        ),
        ([{"role": "tool", "content": "4"}], "messages.0.tool_call_id is missing"),
        (
            [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}],
            "messages.0.function_call is OpenAI's old format for function calls, .*; write tool_calls",
        ),
        ([{"role": "function", "name": "f", "content": "4"}], "write tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f"}}]}],
            "messages.0.tool_calls.0 has 'custom', which is not supported in a tool call",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ""}}]}],
            "messages.0.tool_calls.0 must be .*function",
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "messages.0.content.0.type must be one of text, image_url, file, input_audio, refusal, not 'input_text'",
        ),
        ([{"role": "user", "content": ["Hi"]}], "messages.0.content.0 must be a part such as"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
            r"messages.0.content.0 has 'cache_control', which is .*; write TextPart\(text, {'cache': True}\)",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]}],
            "messages.0.content.0 must be a data: URI",
        ),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_data": "?"}}]}],
            "messages.0.content.0 must be base64 text, not '?'",
        ),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_data": "JVBERi0=", "filename": 5}}]}],
            "messages.0.content.0 must be a part such as .*'filename': 5",
        ),
        (["Hi"], "messages.0 must be a message, such as user"),
        ([{"role": "user", "content": "Hi"}, 3], "messages.1 must be a message, .*, not 3"),
    ],
)
def test_what_cannot_be_read_is_refused(history: Any, fault: str) -> None:
    for call in (rxllm.chat, rxllm.generate, session.start):
        with pytest.raises(ValidationError, match=fault):
            call(Fake("Hello"), history)
    with pytest.raises(ValidationError, match=fault):
        Thread.from_openai(history)


@pytest.mark.parametrize("wrong", ["hi", ["hi"], user("hi"), [{"role": "user", "content": "hi"}], None])
def test_a_thread_is_made_of_messages(wrong: Any) -> None:
    with pytest.raises(ValidationError, match=r"messages must be a tuple of Message objects, .*; write Thread\(\) \+ "):
        Thread(wrong)


@pytest.mark.parametrize("wrong", [3, None, b"hi", ["hi"], [["hi"]]])
def test_only_messages_are_appended(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="must be a message, such as user"):
        Thread() + wrong


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": [{"type": "image", "data": "A" * 1_000_000}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"href": "A" * 1_000_000}}]}],
        [{"role": "user", "content": [{"type": "file", "file": {"file_data": "?" * 1_000_000}}]}],
        [{"role": "user", "content": {"text": "line\n" * 100_000}}],
        {"role": "A" * 1_000_000},
        [{"role": "user", "content": "Hi", "A" * 1_000_000: 1}],
    ],
)
def test_an_error_shows_no_more_than_a_line_of_the_payload(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        rxllm.chat(Fake("Hello"), value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


# Both ways


def test_a_thread_is_written_in_openai_s_form() -> None:
    assert THREAD.to_openai() == [{"role": "system", "content": "Be brief."}, *HISTORY[1:]]


def test_images_files_and_audio_are_read_and_written() -> None:
    pdf, wav = base64.b64encode(b"%PDF-1.7").decode(), base64.b64encode(b"RIFF0000WAVE").decode()
    content = [
        {"type": "text", "text": "Compare them."},
        {"type": "image_url", "image_url": {"url": "https://example.com/a", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{pdf}", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
    ]
    thread = Thread.from_openai([{"role": "user", "content": content}])
    assert thread[0].parts == (
        TextPart("Compare them."),
        ImagePart(Image.from_url("https://example.com/a"), "low"),
        ImagePart(Image.from_base64(PNG, "image/png")),
        FilePart({"mime_type": "application/pdf", "data": b"%PDF-1.7", "name": "a.pdf"}),
        ProviderPart("openai", {"type": "file", "file": {"file_id": "file-1"}}),
        FilePart({"mime_type": "audio/wav", "data": b"RIFF0000WAVE"}),
    )
    assert thread.to_openai() == [{"role": "user", "content": content}]


def test_thinking_sources_and_refusals_of_other_libraries_are_kept() -> None:
    cited = {"url": "https://example.com", "title": "A", "start_index": 0, "end_index": 2}
    (message,) = Thread.from_openai(
        [
            {
                "role": "assistant",
                "content": "Hi",
                "reasoning_content": "hm",
                "refusal": "No.",
                "annotations": [{"type": "url_citation", "url_citation": cited}],
            }
        ]
    )
    assert message.parts == (
        ThinkingPart("hm"),
        TextPart("Hi"),
        TextPart("No."),
        SourcePart({"type": "url_citation", **cited}),
    )


def test_arguments_that_are_not_json_are_kept_and_marked() -> None:
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{x"}}
    thread = Thread.from_openai([{"role": "assistant", "tool_calls": [call]}])
    assert thread[0].tool_calls == (ToolCall("c0", "f", {}, "{x", {"error": "invalid_json"}),)
    assert thread.to_openai()[0]["tool_calls"] == [call]


def test_a_message_without_any_part_comes_back_as_an_empty_text() -> None:
    thread = Thread() + user([]) + Message("tool", (), tool_call_id="a")
    assert Thread.from_openai(thread.to_openai()) == Thread((user(""), Message("tool", "", tool_call_id="a")))


def test_what_a_chat_has_made_can_be_written() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    result = rxllm.chat(Fake(ToolCall("c0", "add", {"a": 1, "b": 2}), "3"), "1 + 2?", tools=[add]).run()
    written = result.thread.to_openai()
    assert [entry["role"] for entry in written] == ["user", "assistant", "tool", "assistant"]
    assert [entry["content"] for entry in written] == ["1 + 2?", None, "3", "3"]


@pytest.mark.parametrize(
    "message",
    [
        user(FilePart({"mime_type": "application/pdf", "url": "https://example.com/a.pdf"})),
        user(ProviderPart("google", {"x": 1})),
        Message("tool", (ImagePart(Image.from_url("https://example.com/a.png")),), tool_call_id="a"),
    ],
)
def test_what_openai_s_form_cannot_carry_is_not_left_out_silently(message: Message) -> None:
    with pytest.raises(ValidationError, match=r"messages.1.content.0 cannot be represented in OpenAI's form") as caught:
        (Thread() + "Hi" + message).to_openai()
    assert caught.value.reason == "not_serializable"


texts = st.text(max_size=9)


calls = st.builds(ToolCall, id=texts, name=texts, arguments=st.just({}), raw_arguments=st.just("{}"))
data = st.binary(min_size=1, max_size=9)
images = st.builds(Image.from_url, st.just("https://example.com/a.png")) | st.builds(
    Image.from_base64,
    data.map(lambda item: base64.b64encode(item).decode()),
    st.sampled_from(["image/png", "image/webp"]),
)
files = st.builds(
    lambda mime_type, data, name: FilePart({"mime_type": mime_type, "data": data, "name": name}),
    st.sampled_from(["application/pdf", "text/csv"]),
    data,
    st.text(min_size=1, max_size=9),
) | st.builds(
    lambda mime_type, data: FilePart({"mime_type": mime_type, "data": data}),
    st.sampled_from(["application/pdf", "audio/wav", "audio/mpeg"]),
    data,
)
text_parts = st.builds(TextPart, texts)
parts = text_parts | files | st.builds(ImagePart, images, st.sampled_from(["auto", "low", "high", "original"]))
names = st.none() | st.text(min_size=1, max_size=9)


def contents(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return texts | st.lists(parts, min_size=1, max_size=3).map(tuple)


messages = st.one_of(
    st.builds(Message, st.just("system"), contents(text_parts), names),
    st.builds(Message, st.just("user"), contents(parts), names),
    st.builds(Message, st.just("assistant"), texts, names, tool_calls=st.lists(calls, max_size=2).map(tuple)),
    st.builds(Message, st.just("tool"), contents(text_parts), tool_call_id=st.text(min_size=1, max_size=9)),
)


@given(st.lists(messages, max_size=4).map(tuple).map(Thread))
def test_what_the_form_can_carry_comes_back(thread: Thread) -> None:
    assert Thread.from_openai(thread.to_openai()) == thread


@pytest.mark.judges
@given(st.lists(messages, max_size=4).map(tuple).map(Thread))
def test_what_is_written_is_what_the_openai_sdk_s_types_say(thread: Thread) -> None:
    chat, pydantic = pytest.importorskip("openai.types.chat"), pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(Iterable[chat.ChatCompletionMessageParam])
    checked = [_plain(entry) for entry in adapter.validate_python(thread.to_openai())]
    assert checked == thread.to_openai()


def _plain(entry: Any) -> Any:
    """pydantic gives back an iterator for each ``Iterable``."""
    match entry:
        case dict():
            return {name: _plain(value) for name, value in entry.items()}
        case str() | None | int():
            return entry
        case _:
            return [_plain(item) for item in entry]


def test_a_stream_that_has_not_run_is_not_a_conversation() -> None:
    fake = Fake("Hello")
    with pytest.raises(ValidationError, match=r"nothing is sent until \.run\(\)"):
        Thread() + rxllm.generate(fake, "Hi")
    for call in (lambda: Thread() + rxllm.chat(fake, "Hi"), lambda: rxllm.chat(fake, rxllm.chat(fake, "Hi")).run()):
        with pytest.raises(ValidationError, match=r"has not run yet: write \.run\(\), or await it"):
            call()
    assert fake.requests == []


def test_a_result_goes_on_with_a_question() -> None:
    first = rxllm.chat(Fake("Lima"), "The capital of Peru?").run()
    second = rxllm.chat(Fake("Quito"), first + "And of Ecuador?").run()
    assert [message.text for message in second.thread] == ["The capital of Peru?", "Lima", "And of Ecuador?", "Quito"]
    with pytest.raises(ValidationError, match=r"pass its \.thread"):
        Thread() + first  # type: ignore[operator]


def test_the_types_of_a_history_and_an_attachment_can_be_named() -> None:
    def answered(history: list[rxllm.values.MessageLike], picture: rxllm.values.Attachment) -> str:
        return rxllm.generate(rxllm.Fake("A dot."), [*history, rxllm.user("What is this?", picture)]).run().output_text

    assert answered([{"role": "system", "content": "Be brief."}, rxllm.user("Hi")], b"GIF89a") == "A dot."
