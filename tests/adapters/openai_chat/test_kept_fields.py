"""What providers put beside the standard fields: it is read, and goes back where it stood."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rxllm import OpenAIChat
from rxllm.adapters import AzureChat
from rxllm.adapters._connect import Compatible
from rxllm.events import FileAdded, SourceAdded, TextDelta, ThinkingDelta, ToolCallStarted
from rxllm.values import Call, FilePart, Message, Request, Response, Usage, user
from tests.adapters.openai_chat.support import DONE, STOP, call, calls, chunk, said

SIGNED = {"google": {"thought_signature": "SIG"}}


def sent_back(message: Message, adapter: Any = None, **fields: Any) -> dict[str, Any]:
    """What the next request says of `message`."""
    adapter = adapter or OpenAIChat(base_url="http://venice.example/v1")
    request = Request((user("Hi"), message, user("And?")), "m", **fields)
    return msgspec.json.decode(adapter.build(request, Call()).content)["messages"][1]


@pytest.mark.parametrize("field", [{"thought_signature": "SIG"}, {"extra_content": SIGNED}], ids=str)
def test_the_signature_of_a_call_goes_back_on_the_call(field: Any) -> None:
    response = said(calls({**call(0, "c0", "f", "{}"), **field}) + chunk({}, "tool_calls") + DONE)[1]
    (sent,) = sent_back(response.message)["tool_calls"]
    assert field.items() <= sent.items()


@pytest.mark.parametrize("field", [{"thought_signature": "SIG"}, {"extra_content": SIGNED}], ids=str)
@pytest.mark.parametrize("at_the_end", [True, False])
def test_the_signature_of_a_message_goes_back_on_the_message(field: Any, at_the_end: bool) -> None:
    text = chunk({"content": "Hi"})
    response = said((text + chunk(field) if at_the_end else chunk(field) + text) + STOP + DONE)[1]
    assert response.output_text == "Hi"
    assert {"content": "Hi", **field}.items() <= sent_back(response.message).items()


def test_openai_gets_no_signature_and_no_other_provider_does() -> None:
    response = said(chunk({"content": "Hi", "thought_signature": "SIG"}) + STOP + DONE)[1]
    for adapter in (OpenAIChat(api_key="k"), Compatible("groq", api_key="k")):
        assert sent_back(response.message, adapter) == {"role": "assistant", "content": "Hi"}


def test_an_empty_custom_call_beside_a_function_is_a_call_of_the_function() -> None:
    both = {"custom": {"input": "", "name": ""}, "type": "function", **call(None, "t1", "f", '{"a": 1}')}
    (made,) = said(calls(both) + STOP + DONE)[1].tool_calls
    assert (made.name, made.arguments) == ("f", {"a": 1})


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"name": "browser.search", "type": "function"}, "browser.search"),
        ({"type": "search"}, "search"),
        ({"name": 7}, "tool"),
    ],
)
def test_a_tool_that_groq_runs_has_its_own_name(tool: Any, name: str) -> None:
    events, _ = said(chunk({"executed_tools": [{"index": 0, "arguments": "{}", **tool}]}) + STOP + DONE)
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == [name]


TOGETHER = [[{"token": "Hi", "logprob": -0.1}, {"token": "Hey", "logprob": -2.5}]]


@pytest.mark.parametrize(
    ("tops", "alternatives"),
    [(TOGETHER, TOGETHER[0]), ([{"Hi": -0.1, "Hey": -2.5}], TOGETHER[0])],
    ids=["list", "dict"],
)
def test_alternatives_in_the_older_form_are_kept(tops: Any, alternatives: Any) -> None:
    logprobs = {"tokens": ["Hi"], "token_logprobs": [-0.1], "top_logprobs": tops}
    body = chunk({"content": "Hi"})
    frame = msgspec.json.decode(body.removeprefix(b"data: "))
    frame["choices"][0]["logprobs"] = logprobs
    response = said(b"data: %b\n\n" % msgspec.json.encode(frame) + STOP + DONE)[1]
    assert response.metadata["logprobs"] == [{"token": "Hi", "logprob": -0.1, "top_logprobs": alternatives}]


@pytest.mark.parametrize("tops", [None, 7, [], [None], [7], [[7]], ["x"]])
def test_alternatives_that_cannot_be_read_leave_the_tokens(tops: Any) -> None:
    logprobs = {"tokens": ["Hi"], "token_logprobs": [-0.1], "top_logprobs": tops}
    frame = {"id": "r", "model": "m", "choices": [{"text": "Hi", "logprobs": logprobs, "finish_reason": "stop"}]}
    response = said(b"data: %b\n\n" % msgspec.json.encode(frame) + DONE)[1]
    assert response.metadata["logprobs"] == [{"token": "Hi", "logprob": -0.1}]


def test_ciphertext_is_not_shown_and_goes_back() -> None:
    detail = {"type": "reasoning.encrypted", "data": "gAAAA"}
    delta = {"reasoning_content": "\n\n__ENCRYPTED__gAAAA", "reasoning_encrypted": True, "reasoning_details": [detail]}
    events, response = said(chunk(delta) + chunk({"content": "Hi"}) + STOP + DONE)
    assert [event for event in events if isinstance(event, ThinkingDelta)] == []
    assert sent_back(response.message)["reasoning_details"] == [detail]


@pytest.mark.parametrize(
    ("counts", "output", "thoughts"), [((66, 6, 100), 34, 28), ((66, 34, 100), 34, None), ((66, 34, 90), 34, None)]
)
def test_thoughts_that_only_the_total_counts_are_output(counts: Any, output: int, thoughts: int | None) -> None:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = said(chunk({"content": "Hi"}) + STOP + chunk(usage=dict(zip(names, counts, strict=True))) + DONE)[1].usage
    assert usage == Usage(66, output, reasoning_tokens=thoughts, total_tokens=counts[2])


# Answers of audio


def audio(**fields: Any) -> bytes:
    return chunk({"audio": fields})


SPOKEN = audio(id="audio_1") + audio(transcript="My name") + audio(data="AAE=") + audio(transcript=" is Ada.")


def test_a_spoken_answer_is_text_and_a_file_at_the_end() -> None:
    events, response = said(SPOKEN + STOP + DONE)
    assert response.output_text == "My name is Ada."
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["My name", " is Ada."]
    (file,) = [event.file for event in events if isinstance(event, FileAdded)]
    assert (file["data"], file["transcript"]) == (b"\0\1", "My name is Ada.")


SOUND: dict[str, Any] = {"options": {"modalities": ["text", "audio"]}}


def test_the_next_request_names_the_sound_while_openai_keeps_it_and_the_words_afterwards() -> None:
    adapter = OpenAIChat(api_key="k")
    kept, gone = (said(SPOKEN + audio(expires_at=until) + STOP + DONE)[1].message for until in (2**40, 7))
    named = {"role": "assistant", "audio": {"id": "audio_1"}, "content": None}
    words = {"role": "assistant", "content": "My name is Ada."}
    assert sent_back(kept, adapter, **SOUND) in (named, {k: v for k, v in named.items() if v is not None})
    assert sent_back(kept, adapter) == sent_back(gone, adapter, **SOUND) == words
    assert sent_back(kept, **SOUND) == words, "only OpenAI knows the sound"


def test_an_error_leaves_what_was_spoken() -> None:
    response: Response[Any] = said(SPOKEN + b'data: {"error": {"message": "it broke"}}\n\n')[1]
    assert response.error is not None
    assert response.output_text == "My name is Ada."
    assert [part.file["data"] for part in response.message.parts if isinstance(part, FilePart)] == [b"\0\1"]


# Thoughts in the text


def at_perplexity(*deltas: str) -> Any:
    adapter = Compatible("perplexity", api_key="k")
    decoder = adapter.decoder(Request())
    body = b"".join(chunk({"content": delta}) for delta in deltas) + STOP + DONE
    return said(body, decoder)[1]


ANSWER = '<think>\nEasy {maybe}.\n</think>\n\n{"capital": "Oslo"}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_thoughts_between_tags_are_thinking_over_any_cut(size: int) -> None:
    response = at_perplexity(*(ANSWER[at : at + size] for at in range(0, len(ANSWER), size)))
    assert (response.thinking, response.output_text) == ("\nEasy {maybe}.\n", '{"capital": "Oslo"}')


@pytest.mark.parametrize("text", ["Write <think> first.", "<thinking>", "<thin", "`<think>` opens", "</think>"])
def test_a_tag_that_is_only_mentioned_is_text(text: str) -> None:
    for deltas in ([text], list(text)):
        response = at_perplexity(*deltas)
        assert (response.thinking, response.output_text) == ("", text)


@pytest.mark.parametrize(
    ("adapter", "is_thinking"),
    [
        (OpenAIChat(api_key="k"), False),
        (OpenAIChat(base_url="http://localhost:8000/v1"), True),
        (AzureChat(base_url="https://name.openai.azure.com/openai/v1", api_key="k"), True),
    ],
    ids=repr,
)
def test_only_at_openai_tags_are_text(adapter: Any, is_thinking: bool) -> None:
    response = said(chunk({"content": ANSWER}) + STOP + DONE, adapter.decoder(Request()))[1]
    assert (response.thinking != "", response.output_text == ANSWER) == (is_thinking, not is_thinking)


def test_text_that_could_become_a_tag_comes_before_a_call() -> None:
    decoder = OpenAIChat(base_url="http://localhost/v1").decoder(Request())
    events, response = said(chunk({"content": "<thi"}) + calls(call(0, "c", "f", "{}")) + STOP + DONE, decoder)
    assert response.output_text == "<thi"
    kinds = [type(event) for event in events if isinstance(event, TextDelta | ToolCallStarted | SourceAdded)]
    assert kinds == [TextDelta, ToolCallStarted]
