"""What a server asks the user in the middle of a call, over the halts of the chat.

Everything that the next run of the call needs is in the halt, so it may run in another process: its options, for
people, have the ``schema`` of the answer and the ``url`` of a page to be visited; its state has the requests of the
server, the responses so far, and the state that goes back to it as it is.

In the handshake's era a server waits inside the call for its answer. The call is cancelled then, and runs again from
its beginning with the answer at hand.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from rxllm import AdapterError, Halt, ToolContext, ask_user
from rxllm.mcp._protocol import PROVIDER, Json, object_of

_ACTIONS = ("accept", "decline", "cancel")


class Questions(msgspec.Struct):
    """The `requests` of a server by their keys, the `responses` so far, and the server's `state`."""

    requests: Json = {}
    responses: Json = {}
    state: Any = None
    fault: str = ""
    is_inline: bool = False
    """Whether the server waits inside the call, so that it keeps the state itself."""
    passed: int = 0
    """How many questions of an inline server this run has passed."""

    @classmethod
    def of(cls, context: ToolContext) -> Questions:
        """Return what a call has been asked before, with the user's answer if it fits."""
        if context.reply is None:
            return cls()
        try:
            questions = msgspec.convert(context.tool_state, cls)
            key = questions._next() or ""
            response = _response(context.reply, _params(questions.requests[key]))
        except (msgspec.ValidationError, LookupError) as error:
            raise AdapterError(
                "invalid_request", "the stored question is not one of rxllm.mcp", provider=PROVIDER
            ) from error
        if response is None:
            questions.fault = f"{context.reply[:80]!r} does not fit; answer with a JSON object"
        else:
            questions.responses = {**questions.responses, key: response}
        return questions

    @classmethod
    def required(cls, result: Json) -> Questions:
        """Return what the server asks for in place of a result. Raises ``AdapterError`` for what nobody can answer."""
        found, state = result.get("inputRequests"), result.get("requestState")
        requests = object_of(found)
        if not requests and (found or state is None):
            raise AdapterError("malformed_response", "it asks for input without a question", provider=PROVIDER)
        for request in requests.values():
            if object_of(request).get("method") != "elicitation/create":
                raise AdapterError("unsupported_feature", f"it asks for {str(request)[:80]}", provider=PROVIDER)
        return cls(requests, {}, state)

    @property
    def is_open(self) -> bool:
        return self._next() is not None

    def params(self) -> Json:
        """Return what the next request of the call has besides its arguments."""
        if self.is_inline:
            return {}
        state = {} if self.state is None else {"requestState": self.state}
        return {**({"inputResponses": self.responses} if self.responses else {}), **state}

    def response_to(self, params: Json) -> Json | None:
        """Return the response to a request inside the call; None if the user must be asked first."""
        key = str(self.passed)
        self.passed += 1
        request = {"method": "elicitation/create", "params": params}
        if self.is_inline and self.requests.get(key) == request and key in self.responses:
            return self.responses[key]
        known = {key: self.responses[key] for key in map(str, range(self.passed - 1))}
        self.requests = {**{key: self.requests[key] for key in known}, key: request}
        self.responses, self.is_inline = known, True
        return None

    def ask(self) -> Halt:
        """Return the halt that asks the user the next question."""
        params = _params(self.requests[self._next() or ""])
        text = str(params.get("message", "")) or "The server asks for input."
        shown = {"schema": params.get("requestedSchema"), "url": params.get("url")}
        if isinstance(shown["url"], str):
            text = f"{text} {shown['url']}"
        stored = {"requests": self.requests, "responses": self.responses, "state": self.state}
        stored["is_inline"] = self.is_inline
        opts = {name: value for name, value in shown.items() if value is not None}
        text = f"{text} ({self.fault})" if self.fault else text
        return ask_user(text, calls_again=True, tool_state=stored, **opts)

    def _next(self) -> str | None:
        return next((key for key in self.requests if key not in self.responses), None)


def _params(request: Any) -> Json:
    return object_of(object_of(request).get("params"))


def _response(reply: str, params: Json) -> Json | None:
    """Return the user's `reply` as the answer to a question; None if it does not fit."""
    data = _object(reply)
    if data is not None and data.get("action") in _ACTIONS:
        return {name: data[name] for name in ("action", "content") if name in data}
    if params.get("mode") == "url":
        return {"action": "accept"}
    fields = object_of(object_of(params.get("requestedSchema")).get("properties"))
    if data is None and len(fields) == 1:
        [(name, field)] = fields.items()
        value = _converted(reply, object_of(field).get("type"))
        data = None if value is None else {name: value}
    elif not fields:
        data = {}
    return None if data is None else {"action": "accept", "content": data}


def _object(text: str) -> Json | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(Json, data) if isinstance(data, dict) else None


def _converted(reply: str, kind: Any) -> Any:
    text = reply.strip().lower()
    try:
        match kind:
            case "boolean":
                return {"yes": True, "true": True, "no": False, "false": False}.get(text)
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "array":
                return [part.strip() for part in reply.split(",")]
            case _:
                return reply
    except ValueError:
        return None
