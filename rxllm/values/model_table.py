"""A table of the settings that models accept.

A model that is not in the table is assumed to accept every setting. An entry in ``rxllm.models`` overrides the table.

Sources, as of November 2026:

* Claude 4.7 and later: the profiles of pydantic-ai 2.68 (``profiles/anthropic.py``), most of which its authors tried
  with the live API, and Anthropic's pages "Thinking" and "Effort".
* Earlier Claude models: Anthropic's page "Extended thinking". While such a model thinks, it accepts neither sampling
  options nor a forced tool call.
* OpenAI: the profiles of pydantic-ai (``profiles/openai.py``, tried with the live API in July 2026), and the comments
  on ``ReasoningEffort`` in OpenAI's SDK 2.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

from rxllm.values.requests import Request
from rxllm.values.usage import ModelInfo

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All values of ``reasoning_effort`` in the table."""

SAMPLING = ("temperature", "top_p", "top_k")

Accepts = bool | Literal["off"]
"""Whether a model accepts a setting always, never, or only while it does not think."""


@dataclass(frozen=True)
class Takes:
    """The settings that a model accepts.

    `sampling` stands for the temperature, ``top_p`` and ``top_k``. `forced` means a ``tool_choice`` that forces a call.
    `efforts` is None if all values of ``reasoning_effort`` are accepted. `thinks` is true if the model thinks unless
    the request says otherwise.

    The other fields concern Claude's ``thinking``: its ``type`` is `off` for the effort ``"none"``. `form` is how much
    the model thinks: a budget, a level, or both. If it accepts a budget, it shows its thoughts unless the request says
    otherwise.
    """

    efforts: tuple[str, ...] | None = None
    sampling: Accepts = True
    forced: Accepts = True
    thinks: bool = False
    off: str = "disabled"
    form: Literal["budget", "both", "level"] | None = None

    def overridden(self, entry: ModelInfo | None) -> Takes:
        """Return these settings with the facts of an entry in ``rxllm.models``."""
        if entry is None:
            return self
        facts = {"efforts": entry.reasoning_efforts, "sampling": entry.sampling, "forced": entry.forced_tool_choice}
        return replace(self, **{name: fact for name, fact in facts.items() if fact is not None})

    def refused(self, request: Request) -> dict[str, str]:
        """Return a remedy for each setting of the request that the model does not accept.

        The settings are looked up in the request and its ``options``.
        """
        return dict(self._refused(request))

    def _refused(self, request: Request) -> Iterator[tuple[str, str]]:
        effort, options = request.reasoning_effort or _effort_in(request.options), request.options
        thinks = self.thinks if effort is None else effort != "none"
        match options.get("thinking"):
            case {"type": kind}:
                thinks = kind not in ("disabled", "between_tools")
            case _:
                pass
        while_off = "; with reasoning_effort='none', it would be accepted"
        if self.sampling is False or (self.sampling == "off" and thinks):
            for name in SAMPLING:
                if getattr(request, name, None) is not None or options.get(name) is not None:
                    yield name, f"leave {name} out{while_off * self._can_be_off(self.sampling)}"
        choices = (request.tool_choice, options.get("tool_choice"))
        if any(map(is_forced, choices)) and (self.forced is False or (self.forced == "off" and thinks)):
            remedy = "use tool_choice='auto', and ask for the call in the prompt"
            yield "tool_choice", remedy + while_off * self._can_be_off(self.forced)
        if self.efforts is not None and effort not in (None, *self.efforts):
            choice = f"use one of {', '.join(self.efforts)}, or " if self.efforts else ""
            yield "reasoning_effort", f"{choice}leave reasoning_effort out"
        match options.get("thinking"):
            case {"type": "enabled"} if self.form == "level":
                yield "thinking", "set reasoning_effort instead of a budget"
            case {"type": "disabled" | "between_tools" as off}:
                if self.efforts is not None and "none" not in self.efforts:
                    yield "thinking", "leave thinking out, because this model always thinks"
                elif self.form is not None and off != self.off:
                    yield "thinking", f"the type that stops thinking is {self.off!r}"
            case _:
                pass

    def _can_be_off(self, accepts: Accepts) -> bool:
        return accepts == "off" and (self.efforts is None or "none" in self.efforts)


def _effort_in(options: Mapping[str, Any]) -> str | None:
    match options:
        case {"reasoning": {"effort": str(effort)}} | {"output_config": {"effort": str(effort)}}:
            return effort
        case {"reasoning_effort": str(effort)}:
            return effort
        case _:
            return None


def is_forced(choice: Any) -> bool:
    """Return whether a ``tool_choice`` forces the model to call a tool.

    >>> [is_forced(choice) for choice in (None, "auto", "required", "look_up", {"type": "any"})]
    [False, False, True, True, True]
    """
    match choice:
        case None | "auto" | "none" | {"type": "auto" | "none"}:
            return False
        case {"type": "allowed_tools", "mode": mode}:
            return mode == "required"
        case dict():
            return "type" in cast(dict[str, Any], choice)
        case _:
            return True


_LONGEST = 200
"""How many characters of a model's name are looked at."""


def base_name(model: str) -> str:
    """Return a model's name without dates, versions and the names of clouds, in one spelling.

    >>> base_name("us.anthropic.claude-opus-4-8-20260601-v1:0"), base_name("anthropic/claude-opus-4.8:beta")
    ('claude-opus-4-8', 'claude-opus-4-8')
    >>> base_name("gpt-5.1-2025-11-13"), base_name("claude-haiku-4-5@20251001")
    ('gpt-5-1', 'claude-haiku-4-5')
    """
    name = re.sub(r"[@:\[].*", "", model.lower().rpartition("/")[2][:_LONGEST])
    found = re.search(r"(?<![a-z\d])(claude|gpt)-.*", name)
    name = found[0] if found else name
    return re.sub(r"(-v\d+|-latest|-\d{8}|-\d{4}-\d\d-\d\d)+$", "", name).replace(".", "-")


@lru_cache(maxsize=256)
def takes(model: str | None) -> Takes | None:
    """Return the settings that `model` accepts, or None if the table does not contain it."""
    name = base_name(model or "")
    return next((row for pattern, row in _TABLE if re.fullmatch(pattern, name)), None)


_ON = tuple(effort for effort in EFFORTS if effort != "none")
_TO_HIGH = ("low", "medium", "high")
_TO_XHIGH = (*_TO_HIGH, "xhigh")
_EARLIER = Takes(EFFORTS, sampling="off", forced="off", form="budget")
_CLAUDE = Takes(EFFORTS, sampling=False, thinks=True, form="level")
_OPENAI = Takes(sampling=False, thinks=True)

_TABLE: tuple[tuple[str, Takes], ...] = (
    # Claude. The Messages API has no "minimal"; the adapter sends "low".
    ("claude-(3-7-sonnet|(opus|sonnet|haiku)-4(-[015])?)", _EARLIER),
    ("claude-(opus|sonnet)-4-6", replace(_EARLIER, efforts=("none", "minimal", *_TO_HIGH, "max"), form="both")),
    ("claude-opus-4-[78]", replace(_CLAUDE, thinks=False)),
    ("claude-(opus-5|sonnet-5|haiku-5-5)", _CLAUDE),
    ("claude-sonnet-5-5", replace(_CLAUDE, forced=False, off="between_tools")),
    ("claude-(fable|mythos)-5", replace(_CLAUDE, efforts=_ON)),
    ("claude-(opus-5-5|(fable|mythos)-5-[12])", replace(_CLAUDE, efforts=_ON, forced=False)),
    # OpenAI. Sampling options are accepted only while the model does not think.
    (r"o\d(-mini|-pro)?", replace(_OPENAI, efforts=_TO_HIGH)),
    ("gpt-5-pro", replace(_OPENAI, efforts=("high",))),
    ("gpt-5(-mini|-nano)?", replace(_OPENAI, efforts=("minimal", *_TO_HIGH))),
    ("gpt-5(-1)?-codex(-mini)?", replace(_OPENAI, efforts=_TO_HIGH)),
    ("gpt-5-1-codex-max", replace(_OPENAI, efforts=_TO_XHIGH)),
    ("gpt-5-[123]-chat", replace(_OPENAI, efforts=("medium",))),
    ("gpt-5-[245]-pro", replace(_OPENAI, efforts=_ON)),
    ("gpt-5-1", Takes(("none", *_TO_HIGH), sampling="off")),
    ("gpt-5-[234](-codex|-mini|-nano)?", Takes(("none", *_TO_XHIGH), sampling="off")),
    ("gpt-5-5", Takes(("none", *_TO_XHIGH), sampling="off", thinks=True)),
    ("gpt-5-6(-[a-z]+)?", Takes(("none", *_TO_XHIGH, "max"), sampling="off", thinks=True)),
    ("gpt-6-astra", replace(_OPENAI, efforts=(*_TO_XHIGH, "max"))),
    # Models that do not think
    ("gpt-5-chat|(chat)?gpt-(3-5|4).*|claude-[23].*|grok-code-fast-1", Takes(())),
)
"""Patterns of base names, and what these models accept. The first match counts."""
