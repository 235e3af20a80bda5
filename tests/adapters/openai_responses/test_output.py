"""What the items of the output say, kind by kind."""

from functools import reduce
from typing import Any

import msgspec
import pytest

from rxllm.adapters._usage_and_metadata import to_usage
from rxllm.adapters.openai_responses.decoder import ResponsesDecoder
from rxllm.adapters.openai_responses.frames import USAGE
from rxllm.collector import StreamCollector
from rxllm.events import (
    Custom,
    FileAdded,
    PartAdded,
    RawChunk,
    SourceAdded,
    TextDelta,
    ThinkingCompleted,
    ToolCallCompleted,
    ToolCallStarted,
    ToolProgress,
)
from rxllm.values import ProviderPart, TextPart, ThinkingPart, Thread, ToolCallPart, Usage, user
from tests.adapters.openai_responses.support import (
    CLIENT,
    COMPLETED,
    CREATED,
    HI,
    HI_DONE,
    WHOLE,
    added,
    begun,
    decode,
    delta,
    done,
    frame,
    item,
    message,
    response,
    said,
    whole,
)


def of(kind: type, body: bytes, **options: Any) -> list[Any]:
    return [event for event in decode(CREATED + body + COMPLETED, **options) if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("type", "details", "reason", "raw"),
    [
        ("completed", None, "stop", "completed"),
        ("incomplete", {"reason": "max_output_tokens"}, "length", "max_output_tokens"),
        ("incomplete", {"reason": "content_filter"}, "content_filter", "content_filter"),
        ("incomplete", {"reason": "max_messages"}, "length", "max_messages"),
        ("incomplete", {"reason": "steered"}, "stop", "steered"),
        ("incomplete", {"reason": "novel"}, "other", "novel"),
        ("incomplete", None, "other", "incomplete"),
    ],
)
def test_finish_reasons(type: str, details: Any, reason: str, raw: str):
    folded = said(CREATED + HI + HI_DONE + response(type, incomplete_details=details))[1]
    assert (folded.finish_reason, folded.raw_finish_reason) == (reason, raw)


STEER = {"id": "st_1", "previous_response_id": "r1"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("accepted", {}),
        ("pending", {"reason": "waiting_for_required_input", "required_input": [{"type": "function_call_output"}]}),
        ("failed", {"error": {"code": "response_not_active", "message": "Too late."}}),
    ],
)
def test_events_of_steering_leave_the_message_as_it_is(kind: str, fields: Any):
    """A call that is open has no progress of it, a text no second block, and a failed steer is no failed response."""
    steered = frame(f"response.steer.{kind}", sequence_number=7, steer=STEER, **fields)
    call = item("function_call", call_id="a", name="f", arguments="{}")
    for before, after in ((HI, HI_DONE), (HI + HI_DONE + added(1, call), done(1, call)), (b"", HI + HI_DONE)):
        events, folded = said(CREATED + before + steered + after + COMPLETED)
        assert [event for event in events if type(event) is Custom] == [
            Custom(f"response.steer.{kind}", {"steer": STEER, **fields})
        ]
        assert not any(isinstance(event, ToolProgress | RawChunk) for event in events)
        assert (folded.error, folded.message) == (None, said(CREATED + before + after + COMPLETED)[1].message)


def test_a_response_that_the_server_steers_loses_nothing():
    """What rxllm cuts has no signatures; what the server ends between two items is whole."""
    thought = item("reasoning", id="rs", summary=[], encrypted_content="sealed")
    call = item("function_call", call_id="a", name="f", arguments="{}", **{"async": True})
    cut = response("incomplete", incomplete_details={"reason": "steered"})
    events = decode(CREATED + whole(thought) + whole(call) + HI + HI_DONE + cut)
    step = reduce(StreamCollector.apply_event, events, StreamCollector(Thread((user("Hi"),)))).to_step_result()
    message = step.thread.last
    assert message is not None
    assert [type(part) for part in message.parts] == [ThinkingPart, ToolCallPart, TextPart]
    assert (step.response.finish_reason, [call.id for call in message.tool_calls]) == ("tool_calls", ["a"])


def test_a_compaction_is_a_part_and_its_beginning_is_no_content():
    compacted = item("compaction", id="cmp", encrypted_content="sealed", created_by="me")
    begins = frame("response.compaction.compacting", output_index=0, item_id="cmp")
    events, folded = said(CREATED + added(0, compacted) + begins + done(0, compacted) + HI + HI_DONE + COMPLETED)
    assert [event for event in events if isinstance(event, PartAdded)] == [PartAdded(ProviderPart("openai", compacted))]
    assert not any(isinstance(event, ToolProgress | RawChunk) for event in events)
    assert (folded.output_text, folded.finish_reason) == ("Hi", "stop")


def test_a_call_that_the_limit_cut_runs_nothing():
    call = item("function_call", call_id="a", name="f", arguments='{"x')
    cut = response("incomplete", incomplete_details={"reason": "max_output_tokens"})
    folded = said(CREATED + added(0, call) + delta("function_call_arguments", 0, "i", '{"x') + done(0, call) + cut)[1]
    assert (folded.finish_reason, folded.tool_calls[0].metadata["error"]) == ("length", "invalid_json")


def test_a_refusal_is_text():
    refused = item("message", content=[{"type": "refusal", "refusal": "No."}])
    for body in (added(0, refused) + delta("refusal", 0, "i", "No."), b""):
        folded = said(CREATED + body + done(0, refused) + COMPLETED)[1]
        assert (folded.output_text, folded.finish_reason) == ("No.", "content_filter")


def test_summaries_are_blocks_and_the_last_one_is_signed():
    parts = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    thought = item("reasoning", summary=parts, encrypted_content="x")
    body = added(0, item("reasoning", summary=[]))
    body += delta("reasoning_summary_text", 0, "i", "a", summary_index=0)
    body += delta("reasoning_summary_text", 0, "i", "b", summary_index=1)
    expected = [
        ThinkingCompleted("a", None, None, "i"),
        ThinkingCompleted("b", None, {"provider": "openai", "item": thought}, "i.1"),
    ]
    assert of(ThinkingCompleted, body + done(0, thought)) == expected
    assert of(ThinkingCompleted, whole(thought)) == expected


def test_a_call_waits_for_the_thought_before_it():
    thought = item("reasoning", summary=[{"type": "summary_text", "text": "a"}], encrypted_content="x")
    call = {"type": "function_call", "id": "j", "call_id": "c", "name": "f", "arguments": "{}"}
    body = added(0, item("reasoning")) + delta("reasoning_summary_text", 0, "i", "a", summary_index=0)
    folded = said(CREATED + body + added(1, call) + done(1, call) + done(0, thought) + COMPLETED)[1]
    assert folded.message is not None
    assert folded.message.parts == (
        ThinkingPart("a", None, {"provider": "openai", "item": thought}),
        ToolCallPart("c"),
    )


def thought(id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": f"secret {id}"}


CALL = {"type": "function_call", "id": "j", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize("ends", [("i", "k"), ("k", "i")])
@pytest.mark.parametrize("finished", [True, False], ids=["each is done", "the last frame has them"])
def test_a_call_waits_for_all_the_thoughts_before_it(ends: tuple[str, str], finished: bool) -> None:
    body = added(0, {**thought("i"), "encrypted_content": None}) + added(1, {**thought("k"), "encrypted_content": None})
    body += added(2, CALL) + delta("function_call_arguments", 2, "j", "{}") + done(2, CALL)
    body += b"".join(done({"i": 0, "k": 1}[id], thought(id)) for id in ends) if finished else b""
    events, response = said(CREATED + body + response_of([thought("i"), thought("k"), CALL]))
    data = [{"provider": "openai", "item": thought(id)} for id in ("i", "k")]
    assert response.message.parts == (*(ThinkingPart("", None, each) for each in data), ToolCallPart("c"))
    assert [type(event) for event in events if isinstance(event, ToolCallStarted | ToolCallCompleted)] == [
        ToolCallStarted,
        ToolCallCompleted,
    ]


def test_text_does_not_wait_for_a_thought() -> None:
    decoder = ResponsesDecoder()
    body = added(0, thought("i")) + begun(1, "m1") + delta("output_text", 1, "m1", "Hi")
    assert TextDelta("Hi", "m1") in decoder.feed(CREATED + body)


@pytest.mark.parametrize("end", [b"", frame("error", message="it broke")], ids=["cut", "an error"])
def test_a_call_that_waits_is_not_lost_with_the_stream(end: bytes) -> None:
    body = added(0, thought("i")) + added(1, CALL) + delta("function_call_arguments", 1, "j", "{}")
    events, response = said(CREATED + body + end)
    assert response.error is not None
    assert [event.id for event in events if isinstance(event, ToolCallStarted)] == ["c"]


def response_of(items: list[dict[str, Any]]) -> bytes:
    return response("completed", output=items)


def test_the_thoughts_of_open_models_are_text():
    thought = item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "hm"}])
    body = added(0, item("reasoning")) + delta("reasoning_text", 0, "i", "hm", content_index=0) + done(0, thought)
    assert of(ThinkingCompleted, body) == [ThinkingCompleted("hm", None, {"provider": "openai", "item": thought}, "i")]


def test_a_thought_that_says_nothing_is_nothing():
    assert of(ThinkingCompleted, whole(item("reasoning", summary=[]))) == []


SEARCHED = {"type": "search", "query": "q"}
IN_CONTAINER = {"type": "container_reference"}
SERVER: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        item("web_search_call", action={"type": "search", "query": "q", "sources": []}),
        "web_search",
        {"type": "search", "query": "q"},
    ),
    (item("file_search_call", queries=["q"], results=None), "file_search", {"queries": ["q"]}),
    (item("code_interpreter_call", code="1", outputs=[]), "code_interpreter", {"code": "1"}),
    (item("image_generation_call", result="AAE=", revised_prompt="p"), "image_generation", {"prompt": "p"}),
    (item("mcp_call", name="f", arguments='{"x":1}', output="y", server_label="s"), "f", {"x": 1}),
    (item("mcp_list_tools", server_label="s", tools=[]), "mcp_list_tools", {"server_label": "s"}),
    (item("tool_search_call", arguments={"goal": "g"}, execution="server", call_id=None), "tool_search", {"goal": "g"}),
    (item("program", call_id="i", code="1", fingerprint="x"), "program", {"code": "1"}),
    (
        item("shell_call", call_id="i", action={"commands": ["ls"]}, environment={"type": "container_reference"}),
        "shell",
        {"commands": ["ls"]},
    ),
    (item("custom_tool_call", call_id="i", name="x_search", input="q"), "x_search", {"input": "q"}),
    (item("novel_call"), "novel", {}),
]


@pytest.mark.parametrize(("given", "name", "arguments"), SERVER)
def test_what_the_provider_does_by_itself(given: dict[str, Any], name: str, arguments: dict[str, Any]):
    events, folded = said(CREATED + whole(given) + COMPLETED)
    (call,) = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert (call.id, call.name, call.arguments, call.metadata) == ("i", name, arguments, {"server": True})
    assert (folded.tool_calls, folded.finish_reason) == ((), "stop")
    assert folded.message is not None
    assert ProviderPart("openai", given) in folded.message.parts


@pytest.mark.parametrize(("given", "name", "arguments"), CLIENT)
def test_what_the_client_is_asked_to_do(given: dict[str, Any], name: str, arguments: dict[str, Any]):
    folded = said(CREATED + whole(given) + COMPLETED, offered={"f"})[1]
    (call,) = folded.tool_calls
    assert (call.id, call.name, call.arguments) == ("c", name, arguments)
    assert call.metadata == {"provider": "openai", "item": given}
    assert folded.finish_reason == "tool_calls"


def test_free_text_is_streamed_as_json():
    given = item("custom_tool_call", call_id="c", name="f", input='a"\nb')
    body = added(0, {**given, "input": ""})
    body += delta("custom_tool_call_input", 0, "i", 'a"') + delta("custom_tool_call_input", 0, "i", "\nb")
    (call,) = of(ToolCallCompleted, body + done(0, given), offered={"f"})
    assert (call.arguments, call.raw_arguments) == ({"input": 'a"\nb'}, r'{"input":"a\"\nb"}')


def test_what_a_call_says_on_its_way_is_its_progress():
    given = item("web_search_call", action={"type": "search"})
    body = added(0, item("web_search_call"))
    body += frame("response.web_search_call.searching", output_index=0, item_id="i", sequence_number=3)
    assert of(ToolProgress, body + done(0, given)) == [
        ToolProgress("i", "web_search", {"type": "response.web_search_call.searching"})
    ]


def test_a_partial_image_is_progress_and_the_last_one_a_file():
    given = item("image_generation_call", result="AAE=", output_format="webp", size="1x1")
    body = added(0, item("image_generation_call"))
    body += frame(
        "response.image_generation_call.partial_image",
        output_index=0,
        item_id="i",
        partial_image_index=0,
        partial_image_b64="AA==",
    )
    (progress,) = of(ToolProgress, body)
    assert (progress.data["data"], progress.data["mime_type"]) == (b"\0", "image/png")
    assert of(FileAdded, body + done(0, given)) == [
        FileAdded({"mime_type": "image/webp", "data": b"\0\1", "id": "i", "size": "1x1"})
    ]


def test_the_output_of_a_call_is_its_progress_too():
    call = item("shell_call", call_id="c", action={}, environment={"type": "container_reference"})
    output = {"type": "shell_call_output", "id": "o", "call_id": "c", "output": []}
    body = whole(call) + added(1, output)
    body += frame("response.shell_call_output_content.delta", output_index=1, item_id="o", delta={"stdout": "x"})
    (progress,) = of(ToolProgress, body + done(1, output))
    assert (progress.id, progress.name, progress.data["delta"]) == ("c", "shell", {"stdout": "x"})
    assert PartAdded(ProviderPart("openai", output)) in of(PartAdded, body + done(1, output))


def test_citations_are_sources_once():
    cited = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": 1}
    note = frame("response.output_text.annotation.added", output_index=0, item_id="m1", annotation=cited)
    given = message("m1", "Hi")
    given["content"][0]["annotations"] = [cited, {"type": "file_citation", "file_id": "f", "index": 0}]
    found = {"type": "url", "url": "v"}
    search = {"type": "web_search_call", "id": "w", "action": {"type": "search", "sources": [found]}}
    body = added(1, search) + done(1, search)
    assert of(SourceAdded, HI + note + done(0, given) + body) == [
        SourceAdded(cited),
        SourceAdded({"type": "file_citation", "file_id": "f", "index": 0}),
        SourceAdded(found),
    ]


def test_phases_are_kept():
    given = {**message("m1", "Hi"), "phase": "commentary"}
    folded = said(CREATED + added(0, given) + done(0, given) + COMPLETED)[1]
    assert folded.message is not None
    mark = ProviderPart("openai", {"type": "message", "phase": "commentary"})
    assert folded.message.parts == (mark, TextPart("Hi"))


def test_items_and_contents_that_nobody_knows_are_shown_and_kept():
    given = item("compaction", encrypted_content="x")
    assert of(PartAdded, whole(given)) == [PartAdded(ProviderPart("openai", given))]
    odd = item("message", content=[{"type": "novel"}])
    assert of(RawChunk, whole(odd)) == [RawChunk("content", {"type": "novel"})]


def test_frames_that_nobody_knows_are_shown():
    assert of(RawChunk, frame("response.novel", x=1)) == [
        RawChunk("response.novel", {"type": "response.novel", "x": 1})
    ]
    assert of(RawChunk, b"data: [1]\n\n") == [RawChunk("chunk", [1])]
    assert of(RawChunk, b'data: {"type": 5}\n\n') == [RawChunk("chunk", {"type": 5})]


def test_raw_frames_come_before_their_events():
    names = [type(event).__name__ for event in decode(WHOLE, raw=True)]
    assert names[:6] == ["MessageStarted", "RawChunk", "RawChunk", "RawChunk", "RawChunk", "TextDelta"]
    assert names[6:] == ["RawChunk", "TextCompleted", "RawChunk", "MessageCompleted"]


def test_the_counters():
    counted = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
        "cost": 0.5,
        "num_sources_used": 1,
    }
    assert to_usage(counted, USAGE) == Usage(10, 5, 4, 2, 3, 15, total_cost=0.5, extra={"num_sources_used": 1})
    searched = {"web_search": {"num_requests": 1}}
    folded = said(CREATED + response("completed", usage={"input_tokens": 1}, tool_usage=searched))[1]
    assert folded.usage == Usage(1, tool_usage=searched)


def test_the_model_of_the_end_counts_where_the_beginning_had_none():
    body = CREATED.replace(b'"model":"m",', b"") + COMPLETED
    assert said(body)[1].model == "m"
    assert msgspec.json.decode(COMPLETED.split(b"data: ")[1])["response"]["model"] == "m"


def test_a_call_whose_end_no_frame_had_is_found_by_its_id_and_runs_once():
    """No recording: the gateway's stream that showed it is not among them; the frames are written after the API's."""
    first, second = (item("function_call", id=id, call_id=f"c{id}", name=f"f{id}", arguments="") for id in "12")
    ends = [{**first, "arguments": '{"x": 1}'}, {**second, "arguments": '{"y": 2}'}]
    body = added(0, first) + added(1, second) + done(1, ends[1]) + response("completed", output=ends)
    folded = said(CREATED + body)[1]
    calls = [(call.id, call.name, call.arguments) for call in folded.tool_calls]
    assert calls == [("c1", "f1", {"x": 1}), ("c2", "f2", {"y": 2})]


def test_items_with_ids_of_their_own_in_every_frame_are_matched_in_order():
    calls = [item("function_call", id=f"i{place}", call_id=f"c{place}", name="f", arguments="{}") for place in (0, 1)]
    again = [{**call, "id": f"other{place}", "call_id": f"new{place}"} for place, call in enumerate(calls)]
    body = whole(calls[0]) + added(1, calls[1]) + response("completed", output=again)
    assert [call.id for call in said(CREATED + body)[1].tool_calls] == ["c0", "c1"]
