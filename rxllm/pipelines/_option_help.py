"""Show the options of a call, with their meanings, in ``help(...)``, in signatures, and so in completions.

The meanings are the docstrings under the fields of a ``TypedDict``, which Python itself does not keep: they are read
from the source. Without it there are names and types only.
"""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, cleandoc, getsource, signature
from textwrap import fill
from typing import Any, TypeVar, cast

from rxllm.pipelines._option_advice import advice
from rxllm.runtime import shorten_traceback
from rxllm.values import EngineError, LLMError
from rxllm.values.argument_checks import call_fault

F = TypeVar("F", bound=Callable[..., Any])

_FIELD = re.compile(r'^    (\w+): [^\n]+\n    """(.+?)"""\n', re.MULTILINE | re.DOTALL)
_DEFAULT = re.compile(r"Default: ``(.+?)``")


def describe(options: type[Any]) -> None:
    """Append to the docstring of a ``TypedDict`` what its fields mean."""
    options.__doc__ = _with_table(options.__doc__, options)


def with_options(options: type[Any]) -> Callable[[F], F]:
    """Give a function with ``**opts`` a signature with all `options`, and a docstring that says what they mean.

    Where an option that there is not takes the place of a positional argument, as in ``generate(engine, prompt="Hi")``,
    the call raises ``EngineError("unknown_option")``. Others that do not fit are a ``TypeError`` with a remedy.
    """

    def decorate(function: F) -> F:
        own = signature(function)
        named = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]

        @wraps(function)
        def explaining(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except LLMError as error:
                shorten_traceback(error)
                raise
            except TypeError as error:
                if call_fault(function, *args, **kwargs) is None:  # an error from inside
                    raise
                known = {*options.__annotations__, *(p.name for p in named)}
                unknown = [name for name in kwargs if name not in known]
                if not unknown:
                    raise TypeError(f"{error}; {_order(function.__name__, named)}, {_places(named, args)}") from None
                message = advice(unknown[0], kwargs[unknown[0]], known)
                raise EngineError("unknown_option", f"{message}; {_order(function.__name__, named)}") from None

        vars(explaining)["__signature__"] = own.replace(parameters=[*named, *_parameters(options)])
        explaining.__doc__ = _with_table(function.__doc__, options)
        return cast(F, explaining)

    return decorate


def _order(function: str, parameters: list[Parameter]) -> str:
    """Return how the call begins: ``write generate(engine, request, ...)``."""
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    needed = [f"{p.name}=..." for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty]
    return f"write {function}({', '.join([*positional, *needed])}, ...)"


def _places(parameters: list[Parameter], args: tuple[Any, ...]) -> str:
    """Return where those of `args` belong that are too many, or what is first if one is missing."""
    if len(args) > sum(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
        return "with options by keyword, and a picture in the message: rxllm.user(text, path)"
    return "with the engine first, such as 'openai:gpt-5'"


@cache
def meanings(options: type[Any]) -> dict[str, str]:
    """Return the meaning of each field of `options`."""
    try:
        found: dict[str, str] = dict(_FIELD.findall(getsource(sys.modules[options.__module__])))
    except OSError:
        found = {}
    return {name: " ".join(found.get(name, "").split()) for name in options.__annotations__}


@cache
def _parameters(options: type[Any]) -> list[Parameter]:
    annotations, texts = _annotations(options), meanings(options)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default(text), annotation=annotations[name])
        for name, text in texts.items()
    ]


def _default(meaning: str) -> Any:
    written = _DEFAULT.search(meaning)
    return literal_eval(written[1]) if written else None


def _annotations(options: type[Any]) -> dict[str, str]:
    return {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}


def _with_table(docstring: str | None, options: type[Any]) -> str:
    return f"{cleandoc(docstring or '')}\n\n{_table(options)}"


@cache
def _table(options: type[Any]) -> str:
    annotations = _annotations(options)
    entries = (f"{name} : {annotations[name]}\n{_indented(text)}" for name, text in meanings(options).items())
    return "\n".join(("Options, by keyword; None means the default, except where it is no limit:\n", *entries))


def _indented(text: str) -> str:
    return fill(text, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
