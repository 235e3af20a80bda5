"""Numbers of numpy and images of Pillow are taken where Python's numbers and images are."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rxllm
from rxllm import Budget, Fake, RetryPolicy, Timeouts, ToolCall, ValidationError, serializer
from rxllm import operators as ops
from rxllm.testing.loopback import Loopback, Reply, chat
from rxllm.values import Image, ImagePart, TextPart
from tests.programs import python
from tests.runtime.support import model

numpy = pytest.importorskip("numpy")

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"


@pytest.mark.sockets
def test_numbers_of_a_call_reach_the_wire_as_json() -> None:
    options = {"options": {"top_k": numpy.int64(40)}, "seed": numpy.uint8(7)}
    with Loopback(Reply(chat("Hi"))) as server:
        rxllm.generate(model(server), "Hi", max_tokens=numpy.int64(5), temperature=numpy.float32(0.5), **options).run()
        body = server.requests[0].json
    sent = {name: body[name] for name in ("temperature", "seed", "top_k")}
    assert sent == {"temperature": 0.5, "seed": 7, "top_k": 40}
    assert 5 in (body.get("max_tokens"), body.get("max_completion_tokens"))


def test_a_request_holds_numbers_of_python() -> None:
    request = rxllm.request("Hi", max_tokens=numpy.int64(5), top_p=numpy.float64(0.5), metadata={"row": numpy.int32(3)})
    assert (type(request.max_tokens), type(request.top_p)) == (int, float)
    assert serializer.from_json(serializer.to_json(request)) == request
    rxllm.validate.request(request)


def test_limits_may_be_numbers_of_numpy() -> None:
    engine = rxllm.Engine(
        Fake(scripts=[[ToolCall("c1", "count", {})], ["Done"]]),
        operators=[ops.budget(Budget(tokens=numpy.int64(10_000)))],
        retry=RetryPolicy(max_attempts=numpy.int64(2), base_delay=numpy.float32(0.5)),
    )
    timeout: Any = Timeouts(first=numpy.int64(30), idle=numpy.float32(10))
    result = rxllm.chat(engine, "Hi", tools=[count], max_turns=numpy.int64(3), timeout=timeout).run()
    assert result.output_text == "Done"
    many = rxllm.generate_many(Fake("Hi"), ["a", "b"], concurrency=numpy.int64(2)).run()
    assert [response.output_text for response in many] == ["Hi", "Hi"]


@pytest.mark.parametrize("wrong", [numpy.int64(0), numpy.float64(1.5), numpy.bool_(True)])
def test_a_wrong_number_of_numpy_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="max_tokens must be an integer >= 1"):
        rxllm.generate(Fake("Hi"), "Hi", max_tokens=wrong)


def count() -> Any:
    """Count."""
    return {"rows": numpy.int64(3), "mean": numpy.float64(1.5), "full": numpy.bool_(True), "all": numpy.arange(3)}


def test_a_tool_may_return_numbers_of_numpy() -> None:
    fake = Fake(scripts=[[ToolCall("c1", "count", {})], ["Done"]])
    result = rxllm.chat(fake, "Hi", tools=[count]).run()
    told = json.loads(fake.requests[1].messages[-1].text)
    assert told == {"rows": 3, "mean": 1.5, "full": True, "all": [0, 1, 2]}
    assert serializer.to_json(result)


@pytest.mark.sockets
def test_numbers_of_a_schema_reach_the_wire() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": numpy.int64(9)}}}
    with Loopback(Reply(chat('{"n": 1}'))) as server:
        rxllm.generate(model(server), "Hi", response_format=rxllm.json_schema("n", schema)).run()
        sent = server.requests[0].json["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["n"]["maximum"] == 9


class Picture:
    """As Pillow's images are: what `save` writes depends on the format."""

    def __init__(self, format: str | None = None, mode: str = "RGB") -> None:
        self.format = format
        self.mode = mode

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None:
        if self.mode == "CMYK" and format == "PNG":
            raise OSError("cannot write mode CMYK as PNG")
        assert params == ({"quality": "keep"} if format == "JPEG" else {})
        fp.write({"JPEG": JPEG, "PNG": PNG}[format or ""])


@pytest.mark.parametrize(
    ("format", "data"), [(None, PNG), ("JPEG", JPEG), ("PNG", PNG), ("BMP", PNG)], ids=["new", "jpeg", "png", "bmp"]
)
def test_a_picture_of_pillow_is_an_image(format: str | None, data: bytes) -> None:
    expected = ImagePart(Image.from_binary(data, "image/jpeg" if data == JPEG else "image/png"))
    assert rxllm.user(["What is this?", Picture(format)]).content == (TextPart("What is this?"), expected)
    assert rxllm.user("What is this?", Picture(format)).parts[1] == expected


def test_a_picture_that_cannot_be_saved_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"cannot write mode CMYK as PNG\); write picture.convert\(\"RGB\"\)"):
        rxllm.user("What is this?", Picture(mode="CMYK"))


def test_an_image_of_the_real_pillow() -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.new("RGB", (2, 2), "red")
    (part,) = rxllm.user([image]).parts
    assert isinstance(part, ImagePart)
    assert part.image.to_binary().startswith(PNG)


@pytest.mark.judges
def test_neither_is_imported() -> None:
    code = "import rxllm, sys; rxllm.user('Hi'); print([name for name in ('numpy', 'PIL') if name in sys.modules])"
    assert python("-c", code).stdout.strip() == "[]"


@pytest.mark.judges
def test_display_is_there_after_import_rxllm_and_is_loaded_on_first_use() -> None:
    code = "import rxllm, sys; print('rxllm.display' in sys.modules, callable(rxllm.display.show))"
    assert python("-c", code).stdout.strip() == "False True"
