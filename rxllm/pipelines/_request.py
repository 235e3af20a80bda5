"""From what the caller gives to the one request that an adapter sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rxllm.engine import Engine, merge_tools
from rxllm.values import (
    EngineError,
    Message,
    Request,
    Thread,
    Tool,
    ValidationError,
    as_response_format,
    unanswered,
    user,
)
from rxllm.values.arguments import invalid_option

Input = str | Message | Sequence[Message] | Thread
"""A question, a message, messages or a thread."""

_PLAIN = ("tool_choice", "temperature", "max_tokens", "seed", "reasoning_effort", "response_format")


def as_thread(given: Any) -> Thread:
    """`given` as a thread. Raises ``ValidationError("invalid_thread")`` for anything else than `Input`."""
    match given:
        case Thread():
            return given
        case str():
            return Thread((user(given),))
        case Message():
            return Thread((given,))
        case list() | tuple() if all(isinstance(each, Message) for each in cast(Iterable[Any], given)):
            return Thread(tuple(cast(Iterable[Message], given)))
        case _:
            fault = _fault(given)
            raise ValidationError("invalid_thread", f"a conversation {fault}", errors=[((), fault)])


def _fault(given: Any) -> str:
    wanted = "must be a text, a message, a list of messages or a Thread"
    if not isinstance(given, list | tuple):
        return f"{wanted}, not {given!r}{_remedy(given)}"
    items = enumerate(cast(Iterable[Any], given))
    index, item = next((index, item) for index, item in items if not isinstance(item, Message))
    return f"{wanted}; its item {index} is {item!r}{_remedy(item)}"


def _remedy(given: Any) -> str:
    match given:
        case {"role": "user" | "system" | "assistant" as role, "content": str(text), **more} if not more:
            return f": write rxllm.{role}({text!r})"
        case _:
            return ""


def as_request(given: Any) -> Request:
    """`given` as a request."""
    return given if isinstance(given, Request) else Request(as_thread(given).messages)


def as_requests(given: Any) -> list[Request]:
    """`given` as requests. Raises ``ValidationError``, which names the one that is none."""
    if isinstance(given, str | Message | Thread | Request):
        raise invalid_option("requests", "must be several; for one there is generate")
    if not isinstance(given, Iterable):
        fault = f"must be several, as a list, not {given!r}"
        raise invalid_option("requests", fault)
    return [_numbered(index, each) for index, each in enumerate(cast(Iterable[Any], given))]


def _numbered(index: int, given: Any) -> Request:
    try:
        return as_request(given)
    except ValidationError as error:
        errors = error.under(index).under("requests").errors
        raise ValidationError(error.reason, errors=errors) from None


def request(given: Input | Request, **fields: Any) -> Request:
    """A request of these messages, with the fields of `Request` by keyword. Nothing is checked before it is sent.

    >>> request("Hi", temperature=0.0).temperature
    0.0
    """
    return replace(as_request(given), **fields)


def merged(engine: Engine, request: Request, opts: Mapping[str, Any], asked: Mapping[str, Any]) -> Request:
    """`request` with every option in its place. `asked` are the call's own options, `opts` those over the engine's."""

    def choose(name: str, held: Any) -> Any:
        return chosen(name, held, opts, asked)

    tools = merge_tools(engine.tools, engine.params.get("tools", ()))
    tools = merge_tools(merge_tools(tools, request.tools), cast(Iterable[Tool], asked.get("tools", ())))
    plain = {name: choose(name, getattr(request, name)) for name in _PLAIN}
    plain["response_format"] = as_response_format(plain["response_format"])
    model = choose("model", request.model)
    return Request(
        messages=request.messages,
        model=engine.model if model is None else model,
        tools=tools,
        stop=tuple(choose("stop", request.stop) or ()),
        structured_finalize=bool(choose("structured_finalize", request.structured_finalize or None)),
        options=_overlaid("options", engine, request.options, asked),
        metadata=_overlaid("metadata", engine, request.metadata, asked),
        **plain,
    )


def chosen(name: str, held: Any, opts: Mapping[str, Any], asked: Mapping[str, Any]) -> Any:
    """The call's own option, else what the request has `held`, else the engine's."""
    if name in asked:
        return asked[name]
    return held if held not in (None, ()) else opts.get(name)


def refuse_unanswered(thread: Thread) -> None:
    """Raises ``EngineError("missing_tool_results")`` if the thread holds calls that nobody has answered."""
    missing = unanswered(thread)
    if missing:
        names = ", ".join(f"{call.name} ({call.id})" for call in missing)
        message = f"the thread has unanswered tool calls: {names}; append rxllm.tool_result(id, content) for each"
        raise EngineError("missing_tool_results", message, metadata={"tool_call_ids": [call.id for call in missing]})


def _overlaid(name: str, engine: Engine, held: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {**engine.params.get(name, {}), **held, **asked.get(name, {})}
