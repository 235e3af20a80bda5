"""Functions that call a server's tools and pass the server's questions to the user.

A question halts the chat. The halt contains everything that is needed to call the tool again, even in another process.
In the halt's options, ``schema`` describes the answer, and ``url`` is a page for the user to visit.

A handshake-era server waits for the answer while the call is still running. rxllm cancels that call, and calls the tool
again with the answer.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rxllm import AdapterError, LLMError, ToolContext, ToolError, ValidationError, ask_user, validate
from rxllm.mcp._connection import PROVIDER, Connection, Json, malformed, object_of
from rxllm.mcp._http import Path, mirror_arguments
from rxllm.mcp._results import read_result
from rxllm.tools import encode_result
from rxllm.values import Halt

MAX_ROUNDS = 10
"""The maximum number of requests that a tool call may send without asking the user anything."""
PAUSE_SECONDS = 0.1

_ACTIONS = ("accept", "decline", "cancel")
_TRUTHS = {"yes": True, "true": True, "no": False, "false": False}

_PAGE = re.compile(r"https?://[^\s/\\][^\s\x00-\x1f\x7f]*", re.IGNORECASE)
"""Matches a URL that begins with http:// or https://. Any other URL could open a program or a file."""


async def call_tool(
    connection: Connection, name: str, headers: Mapping[Path, str], arguments: Mapping[str, Any], context: ToolContext
) -> Any:
    """Call the server's tool `name`.

    Raises ``ToolError("handler_raised")`` if the call fails.
    """
    try:
        questions, known = Questions.of(context), Questions()
        for attempt in range(MAX_ROUNDS):
            if questions.open:
                return questions.ask()
            await asyncio.sleep(PAUSE_SECONDS if attempt else 0)
            params = {"name": name, "arguments": dict(arguments), **questions.params()}
            call = _Call(context, questions)
            try:
                result = await connection.request(
                    "tools/call", params, mirror_arguments(headers, arguments), call.receive
                )
            except NeedsUserError:
                continue
            except AdapterError as error:
                if not questions.is_forgotten(error):
                    raise
                known, questions = questions, Questions()
                continue
            if result.get("resultType") != "input_required":
                return call.output(result)
            questions = Questions.required(result, known)
            known = Questions()
        raise malformed(f"the MCP server has asked {MAX_ROUNDS} times for the tool to be called again")
    except ToolError:
        raise
    except LLMError as error:
        raise _error(context, f"the MCP tool {name[:80]!r} failed: {error.message}") from error


def _error(context: ToolContext, message: str) -> ToolError:
    call = context.tool_call
    return ToolError("handler_raised", message, tool_name=call.name, tool_call_id=call.id)


class _Call:
    """One attempt at a tool call."""

    def __init__(self, context: ToolContext, questions: Questions) -> None:
        self._context, self._questions = context, questions
        self._numbers = itertools.count()

    def receive(self, message: Json) -> Json | None:
        params = object_of(message.get("params"))
        match message["method"]:
            case "notifications/progress":
                data = {name: params[name] for name in ("progress", "total", "message") if name in params}
                self._context.progress(data)
            case "elicitation/create":
                return self._questions.response_to(next(self._numbers), params)
            case _:
                pass
        return None

    def output(self, result: Json) -> Any:
        value = read_result(result, self._context.progress)
        if result.get("isError"):
            raise _error(self._context, encode_result(value) if value else "the tool failed without an explanation")
        return value


# Questions that servers ask the user


class NeedsUserError(Exception):
    """Raised to end a tool call early, because its server is waiting for the user's answer."""


class Questions(msgspec.Struct):
    """The questions that a server asks during a tool call.

    `requests` and `responses` use the same keys. If `is_inline` is True, the call stays open while the server waits for
    the responses.
    """

    requests: dict[str, Json] = {}
    responses: dict[str, Json] = {}
    state: Any = None
    is_inline: bool = False
    fault: str = ""

    @classmethod
    def of(cls, context: ToolContext) -> Questions:
        """Return the questions that an earlier run stored. If the user's reply is valid, it is added as a response."""
        if context.reply is None:
            return cls()
        try:
            questions = msgspec.convert(context.tool_state, cls)
            key = questions.open[0]
        except (msgspec.ValidationError, LookupError) as error:
            message = "the stored question was not asked by an rxllm.mcp tool"
            raise AdapterError("invalid_request", message, provider=PROVIDER) from error
        answer = _response(context.reply, questions.requests[key])
        fault = "" if answer is None else _fault(answer, questions.requests[key])
        if answer is None or fault:
            questions.fault = f" ({context.reply[:80]!r} is not valid{fault[:400]}; answer with a JSON object)"
            return questions
        return cls(questions.requests, {**questions.responses, key: answer}, questions.state, questions.is_inline)

    @classmethod
    def required(cls, result: Json, known: Questions) -> Questions:
        """Return the questions that `result` contains.

        If `result` repeats a question from `known` unchanged, the answer to that question is kept.
        """
        found, state = result.get("inputRequests"), result.get("requestState")
        requests = {key: object_of(request) for key, request in object_of(found).items()}
        if not requests and (found or state is None):
            raise malformed("the MCP server asked for input but sent no question")
        for request in requests.values():
            if request.get("method") != "elicitation/create":
                raise AdapterError(
                    "unsupported_feature", f"the MCP server asked for {str(request)[:80]}", provider=PROVIDER
                )
        params_by_key = {key: _check_page(object_of(request.get("params"))) for key, request in requests.items()}
        same = (key for key, params in params_by_key.items() if known.requests.get(key) == params)
        return cls(params_by_key, {key: known.responses[key] for key in same if key in known.responses}, state)

    def is_forgotten(self, error: AdapterError) -> bool:
        return self.state is not None and error.reason == "invalid_request" and "requestState" in error.message

    @property
    def open(self) -> list[str]:
        """The keys of the requests that have no response yet."""
        return [key for key in self.requests if key not in self.responses]

    def params(self) -> Json:
        own = {} if self.is_inline else {"inputResponses": self.responses or None, "requestState": self.state}
        return {name: value for name, value in own.items() if value is not None}

    def response_to(self, number: int, params: Json) -> Json:
        """Return the response to question `number`.

        Raises `NeedsUserError` if there is no response yet.
        """
        key, params = str(number), _check_page(params)
        if self.requests.get(key) == params and key in self.responses:
            return self.responses[key]
        earlier = [str(index) for index in range(number)]
        self.requests = {**{other: self.requests[other] for other in earlier}, key: params}
        self.responses = {other: self.responses[other] for other in earlier}
        self.is_inline = True
        raise NeedsUserError

    def ask(self) -> Halt:
        params = self.requests[self.open[0]]
        shown = {"schema": params.get("requestedSchema"), "url": params.get("url")}
        page = f" {shown['url']}" if isinstance(shown["url"], str) else ""
        text = f"{params.get('message') or 'The server requests input.'}{page}{self.fault}"
        options = {name: value for name, value in shown.items() if value is not None}
        return ask_user(text, calls_again=True, tool_state=msgspec.structs.asdict(self), **options)


def _check_page(params: Json) -> Json:
    url = params.get("url")
    is_page = isinstance(url, str) and _PAGE.fullmatch(url)
    if not is_page and (url is not None or params.get("mode") == "url"):
        address = "no address" if url is None else repr(str(url)[:80])
        rule = "the address must begin with https:// or http:// and a host, and contain no spaces or control characters"
        raise ValidationError("invalid_request", f"the MCP server sent the user to {address}; {rule}")
    return params


def _response(reply: str, params: Json) -> Json | None:
    """Use the user's `reply` to build the response to the server's question.

    Return None if the reply does not answer the question.
    """
    try:
        data: Json | None = msgspec.json.decode(reply, type=Json)
    except (ValueError, RecursionError):
        data = None
    if data is not None and data.get("action") in _ACTIONS:
        return {name: data[name] for name in ("action", "content") if name in data}
    if params.get("mode") == "url":
        return {"action": "accept"}
    fields = object_of(object_of(params.get("requestedSchema")).get("properties"))
    if data is None and len(fields) < 2:
        try:
            data = {name: _convert_reply(reply, object_of(field).get("type")) for name, field in fields.items()}
        except (ValueError, KeyError):
            return None
    return None if data is None else {"action": "accept", "content": data}


def _fault(answer: Json, params: Json) -> str:
    """Return the reason why `answer` does not fit the form, or an empty string if it fits."""
    if answer["action"] != "accept":
        return ""
    try:
        form = {"type": "object", **object_of(params.get("requestedSchema"))}
        validate.data(answer.get("content", {}), form)
    except ValidationError as error:
        faults = "; ".join(fault for _, fault in error.errors)
        return f": {faults}" if error.reason == "invalid_output" else ""  # otherwise the schema itself is wrong
    return ""


def _convert_reply(reply: str, kind: Any) -> Any:
    """Convert a reply to the type `kind`.

    Raises ``ValueError`` or ``KeyError`` if that is impossible.
    """
    match kind:
        case "boolean":
            return _TRUTHS[reply.strip().lower()]
        case "integer":
            return int(reply)
        case "number":
            return float(reply)
        case "array":
            return [part.strip() for part in reply.split(",")]
        case _:
            return reply
