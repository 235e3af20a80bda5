"""The results of steps and chats, and a function that turns results into the rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rxllm.values.argument_checks import check, shorten
from rxllm.values.base import Value, value
from rxllm.values.drawing import card_html
from rxllm.values.errors import LLMError, ValidationError
from rxllm.values.json_text import json_data
from rxllm.values.messages import Message
from rxllm.values.responses import FinishReason, Response
from rxllm.values.threads import MessageLike, Thread
from rxllm.values.times import Measured
from rxllm.values.tools import ToolCall
from rxllm.values.usage import Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    T = TypeVar("T")


@value
class StepResult(Measured, Value, Generic[T]):
    """One round trip to the model.

    `thread` includes the response and the tool results.

    `done` is True if nothing is left to send, if a tool has halted the chat or asked the user, or if tool calls are
    waiting for the caller. A loop that calls ``step`` should end when `done` is True. There is an exception: in
    ``mode="manual"``, `done` is False if there are tool calls, although they are waiting for the caller.

    `metadata` can have the keys ``mode``, ``manual_tool_calls``, ``approval_tool_calls``, ``halted_reason``,
    ``halt_tool_call_id``, ``halt_result``, ``pending_tool_call_id``, ``pending_question``, ``ask_user_opts`` and
    ``on_tool_error_exception``. `agent_usage` is the usage of the agents that the step called.
    """

    thread: Thread
    response: Response[T]
    tool_results: tuple[Message, ...] = ()
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    agent_usage: Usage = field(default_factory=Usage)

    html = card_html

    @property
    def output_text(self) -> str:
        """The text of the response."""
        return self.response.output_text

    @property
    def usage(self) -> Usage:
        """The usage of the response and of all agents that the step called."""
        return self.response.usage + self.agent_usage

    @property
    def parsed(self) -> T | None:
        """The parsed answer, or None if the step has none."""
        return self.response.parsed

    def __add__(self, other: str | MessageLike) -> Thread:
        return self.thread + other

    def __repr__(self) -> str:
        ran = f", {len(self.tool_results)} tool results" if self.tool_results else ""
        return f"StepResult({self.response!r}{ran}, done={self.done})"

    def _repr_markdown_(self) -> str:
        results = "".join(f"\n\n{message._repr_markdown_()}" for message in self.tool_results)  # pyright: ignore[reportPrivateUsage]
        return self.response._repr_markdown_() + results  # pyright: ignore[reportPrivateUsage]


@value
class ChatResult(Measured, Value, Generic[T]):
    """The result of a chat that has completed or halted.

    `halted_reason` is ``completed``, ``error``, ``max_turns``, ``halt_when``, ``ask_user``, ``tool_error``,
    ``manual_tool_calls``, ``approval``, ``budget``, ``cancelled`` or a tool's own reason. A chat is also ``completed``
    if its last answer was cut off or filtered; see `finish_reason`. `usage` is the total usage of the steps. A pending
    call inside an agent has an id such as ``"c1/c2"``.
    """

    thread: Thread
    final_response: Response[T] | None = None
    steps: tuple[StepResult[Any], ...] = ()
    halted_reason: str | None = None
    pending_question: str | None = None
    pending_tool_call_id: str | None = None
    pending_tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: LLMError | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    html = card_html

    @property
    def output_text(self) -> str:
        """The text of the final response."""
        return self.final_response.output_text if self.final_response else ""

    @property
    def parsed(self) -> T | None:
        """The parsed final answer, or None if the chat failed or halted."""
        return self.final_response.parsed if self.final_response else None

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason why the final response ended; ``length`` means that the token limit cut it off."""
        return self.final_response.finish_reason if self.final_response else None

    def raise_for_error(self) -> ChatResult[T]:
        """Return this result, or raise `error` if it is set."""
        if self.error is not None:
            raise self.error
        return self

    def __add__(self, other: str | MessageLike) -> Thread:
        return self.thread + other

    def __repr__(self) -> str:
        error = f", {self.error!r}" if self.error else ""
        return f"ChatResult({shorten(self.output_text)!r}, {self._summary}{error})"

    @property
    def _summary(self) -> str:
        reason = f" ({self.finish_reason})" if self.finish_reason in ("length", "content_filter", "other") else ""
        return f"{self.halted_reason}{reason}, {len(self.steps)} steps, {self.usage.total} tokens"

    def _repr_markdown_(self) -> str:
        error = f"\n\n**{type(self.error).__name__}**: {self.error}" if self.error else ""
        return f"{self.thread._repr_markdown_()}{error}\n\n*{self._summary}*"  # pyright: ignore[reportPrivateUsage]


def rows(results: Iterable[Response[Any] | StepResult[Any] | ChatResult[Any]]) -> list[dict[str, Any]]:
    """Return one dict for each result, ready for a pandas or polars table.

    >>> from rxllm import AdapterError, Fake, Usage, generate_many
    >>> model = Fake(AdapterError("timeout"), ['{"city": "Lima", "at": [-12, -77]}', Usage(5, 9)])
    >>> table = rows(generate_many(model, ["Chile?", "Peru?"], response_format=dict, concurrency=1, retry=False))
    >>> [(row["parsed.city"], row["parsed.at"], row["total_tokens"], row["error_reason"]) for row in table]
    [(None, None, None, 'timeout'), ('Lima', '[-12, -77]', 14, None)]

    All rows have the same columns in the same order. Unknown values are None.

    * ``request`` is the request's id in `generate_many`, or the request's index if there are no ids and
      ``ordered=False``.
    * ``text`` is the `output_text`.
    * ``parsed.city`` and the like hold the fields of a parsed object, in order of first occurrence. Lists and objects
      in them are JSON text. A parsed value that is not an object is in ``parsed``.
    * ``finish_reason`` is the `halted_reason` for a chat.
    * ``provider`` is known if the response or an error names it.
    * ``input_tokens``, ``output_tokens``, ``total_tokens`` and ``cost`` are taken from `usage`.
    * ``seconds`` and ``ttft`` are the result's `seconds` and `first_token_seconds`. If the seconds were not measured,
      they are taken from the provider's report on the last response. Ollama, llama.cpp, Groq and Cerebras send one.
    * ``error_type``, ``error_reason`` and ``error_message`` are the error's class, reason and message.

    Raises ``ValidationError("invalid_option")`` if any item is not a result.
    """
    items = list[Any](results)
    are_results = all(isinstance(item, Response | StepResult | ChatResult) for item in items)
    check("results", items, are_results, "a list or other iterable of Responses, StepResults or ChatResults")
    parsed = [_parsed_cells(item.parsed) for item in items]
    blank = {name: None for cells in parsed for name in cells}
    return [_row(item, blank | cells) for item, cells in zip(items, parsed, strict=True)]


def _row(result: Any, parsed: dict[str, Any]) -> dict[str, Any]:
    response: Response[Any] = getattr(result, "final_response", getattr(result, "response", result)) or Response()
    error = getattr(result, "error", None) or response.error
    usage, metadata = result.usage, response.metadata
    cells = {
        "request": metadata.get("request_id", metadata.get("request_index")),
        "text": result.output_text,
        **parsed,
        "finish_reason": getattr(result, "halted_reason", response.finish_reason),
        "model": response.model,
        "provider": metadata.get("provider") or getattr(error, "provider", None),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total or None,
        "cost": None if usage.total_cost is None else float(usage.total_cost),
        "seconds": _seconds(metadata.get("timings")) if result.seconds is None else result.seconds,
        "ttft": result.first_token_seconds,
        "error_type": type(error).__name__ if error else None,
        "error_reason": error.reason if error else None,
        "error_message": error.message if error else None,
    }
    return {name: _cell(value) for name, value in cells.items()}


def _parsed_cells(parsed: Any) -> dict[str, Any]:
    try:
        data = json_data(parsed)
    except ValidationError:  # a parsing function can return any object
        data = str(parsed)
    if isinstance(data, dict):
        return {f"parsed.{name}": value for name, value in cast(dict[str, Any], data).items()}
    return {} if data is None else {"parsed": data}


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        value = json.dumps(value, ensure_ascii=False)
    return value.encode(errors="replace").decode() if isinstance(value, str) else value  # no lone surrogates


def _seconds(timings: Any) -> float | None:
    match timings:
        case {"total_time": float() | int() as seconds}:  # Groq, Cerebras
            return float(seconds)
        case {"total_duration": int() as nanoseconds}:  # Ollama
            return nanoseconds / 1e9
        case {"prompt_ms": float() | int() as prompt, "predicted_ms": float() | int() as answer}:  # llama.cpp
            return (prompt + answer) / 1000
        case _:
            return None
