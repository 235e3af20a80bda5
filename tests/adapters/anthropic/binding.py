"""A server that binds thinking to what comes before it, and refuses it as Anthropic's pages say.

It is a judge: it shares no code with the adapter. A signature holds what it was made over, so the server keeps nothing.

* A thought is compared with the system prompt, the tools and the messages before its own, and with the thought before
  it. Leaving out the oldest thoughts is allowed, and so is everything after the thought.
* Cache marks, the order of the tools, sampling and effort are not compared.
* A thought whose text or signature was altered is refused in any case. Any other one can be dropped by the server.

See https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from rxllm.testing.loopback import Loopback, Reply, Request
from tests.adapters.anthropic.support import END, begin, delta, finish, frame, stop

MODEL = "claude-opus-5-5"
BETA = "thinking-binding-controls-2026-08-01"
THOUGHTS = ("thinking", "redacted_thinking")

Block = dict[str, Any]
Path = tuple[int, int]


class Fault(NamedTuple):
    """A thought that the server refuses. It can drop the thought itself if the thought `is_bound` elsewhere."""

    path: Path
    is_bound: bool


def digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def plain(data: Any) -> Any:
    """Return `data` without cache marks."""
    if isinstance(data, dict):
        return {name: plain(value) for name, value in data.items() if name != "cache_control"}
    return [plain(value) for value in data] if isinstance(data, list) else data


def blocks_of(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def turns_of(body: Block) -> list[tuple[str, list[tuple[Path, Block]]]]:
    """Return the roles and blocks of the messages. Consecutive messages of one role are one turn."""
    turns: list[tuple[str, list[tuple[Path, Block]]]] = []
    for place, message in enumerate(body["messages"]):
        blocks = [((place, index), block) for index, block in enumerate(blocks_of(message["content"]))]
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], blocks))
    return turns


def prefix_of(body: Block, turns: Sequence[tuple[str, list[tuple[Path, Block]]]]) -> str:
    tools = sorted((plain(tool) for tool in body.get("tools", [])), key=lambda tool: str(tool.get("name")))
    said = [[role, [plain(block) for _, block in blocks if block["type"] not in THOUGHTS]] for role, blocks in turns]
    return digest([plain(blocks_of(body.get("system", ""))), tools, said])


def sealed(prefix: str, after: str, text: str) -> str:
    data = {"prefix": prefix, "after": after, "text": digest(text)}
    return b64encode(json.dumps({**data, "seal": digest([data, "key"])}).encode()).decode()


def opened(block: Block) -> dict[str, str] | None:
    """Return what the block's signature was made over, or None if the block was altered."""
    redacted = block["type"] == "redacted_thinking"
    try:
        data = json.loads(b64decode(block["data"] if redacted else block["signature"], validate=True))
        seal = data.pop("seal")
    except ValueError:
        return None
    is_whole = seal == digest([data, "key"]) and data["text"] == digest("" if redacted else block["thinking"])
    return data if is_whole else None


def name_of(block: Block) -> str:
    return digest(block.get("data") or block["signature"])


def judged(body: Block) -> tuple[list[Fault], str]:
    """Return the thoughts that are refused, and the name of the last one that is not."""
    turns, faults, last = turns_of(body), list[Fault](), ""
    for place, (_, blocks) in enumerate(turns):
        for path, block in blocks:
            if block["type"] not in THOUGHTS:
                continue
            data = opened(block)
            if data is None:
                faults.append(Fault(path, is_bound=False))
            elif data["prefix"] != prefix_of(body, turns[:place]) or (last and data["after"] != last):
                faults.append(Fault(path, is_bound=True))
            else:
                last = name_of(block)
    return faults, last


def refused(body: Block) -> list[Path]:
    return [fault.path for fault in judged(body)[0]]


def thoughts_in(body: Block) -> list[Block]:
    blocks = (block for _, said in turns_of(body) for _, block in said)
    return [block for block in blocks if block["type"] in THOUGHTS]


def signed(body: Block, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks of an answer to `body`, with signatures."""
    turns = turns_of(body)
    before = turns[:-1] if turns[-1][0] == "assistant" else turns
    prefix, after = prefix_of(body, before), judged(body)[1]
    made: list[Block] = []
    for block in blocks:
        if block["type"] in THOUGHTS:
            seal = sealed(prefix, after, block.get("thinking", ""))
            block = {**block, "data" if block["type"] == "redacted_thinking" else "signature": seal}
            after = name_of(block)
        made.append(block)
    return made


def think(text: str = "Hm.") -> Block:
    return {"type": "thinking", "thinking": text}


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def use(id: str, name: str = "add", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


HIDDEN: Block = {"type": "redacted_thinking"}


def frames(blocks: Sequence[Block], **message: Any) -> bytes:
    """Return the stream of an answer."""
    head = {"id": "m1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None}
    body = frame("message_start", message={**head, **message})
    for index, block in enumerate(blocks):
        match block["type"]:
            case "text":
                body += begin(index, type="text", text="") + delta(index, "text_delta", text=block["text"])
            case "thinking":
                body += begin(index, type="thinking", thinking="", signature="")
                body += delta(index, "thinking_delta", thinking=block["thinking"])
                body += delta(index, "signature_delta", signature=block["signature"])
            case "tool_use":
                body += begin(index, **{**block, "input": {}})
                body += delta(index, "input_json_delta", partial_json=json.dumps(block["input"]))
            case _:
                body += begin(index, **block)
        body += stop(index)
    calls = any(block["type"] == "tool_use" for block in blocks)
    usage = {"input_tokens": 3, "output_tokens": 2}
    return body + finish("tool_use" if calls else "end_turn", usage) + END


def failure(message: str) -> Reply:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "req_1"}
    return Reply.of_json(error, 400)


class BindingServer(Loopback):
    """Answers each accepted request with the next of `answers`, and repeats the last one.

    `refuses` is a list of what was refused: the first path in each request.
    """

    def __init__(self, *answers: Sequence[Block]) -> None:
        super().__init__(self._reply)
        self._answers = list(answers)
        self.accepted: list[Block] = []
        self.refuses: list[Path] = []

    @property
    def bodies(self) -> list[Block]:
        return [request.json for request in self.requests]

    def _reply(self, request: Request) -> Reply:
        body, betas = request.json, request.headers.get("anthropic-beta", "").split(",")
        thinking = body.get("thinking", {})
        binding = thinking.get("block_binding")
        if binding is not None and BETA not in betas:
            return failure("thinking.adaptive.block_binding: Extra inputs are not permitted")
        if binding is not None and thinking["type"] not in ("adaptive", "enabled"):
            return failure(f"thinking.{thinking['type']}.block_binding: Extra inputs are not permitted")
        drops = binding is not None and binding.get("prefix_mismatch_behavior") == "drop_block"
        faults, _ = judged(body)
        for fault in faults:
            if not fault.is_bound or not drops:
                return self._refuse(fault, BETA in betas)
        self.accepted.append(body)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        dropped = [
            {
                "type": "thinking_dropped",
                "path": "messages.{}.content.{}".format(*fault.path),
                "reason": "prefix_binding_mismatch",
            }
            for fault in faults
        ]
        told = {"input_transformations": dropped} if BETA in betas else {}
        return Reply(frames(signed(body, answer), **told))

    def _refuse(self, fault: Fault, knows_beta: bool) -> Reply:
        self.refuses.append(fault.path)
        message = "messages.{}.content.{}: Invalid `signature` in `thinking` block".format(*fault.path)
        if not fault.is_bound:
            return failure(message)
        remedy = 'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
        header = "" if knows_beta else f" This setting requires the header `anthropic-beta: {BETA}`."
        return failure(f"{message}. The block is bound to a different conversation. {remedy}{header}")
