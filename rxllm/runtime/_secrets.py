"""Which values are secrets, and how they are kept out of what is shown."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from rxllm.values import LLMError
from rxllm.values.secrets import MASK, is_secret_name

SECRET_LENGTH = 8

E = TypeVar("E", bound=LLMError)

_QUERY = "code"  # as Azure's functions call theirs
_USER = re.compile(r"^(\w+://)?([^/?#]*)@")


def secrets_in(value: Any, *, secret: bool = False) -> Iterator[str]:
    """The strings that stand under names of secrets in `value`, and their words: the key of ``Bearer ...`` is one."""
    match value:
        case str() if secret:
            yield from {value, *value.split()}
        case Mapping():
            for name, entry in cast(Mapping[Any, Any], value).items():
                yield from secrets_in(entry, secret=secret or is_secret_name(name))
        case list() | tuple():
            for item in cast(Iterable[Any], value):
                yield from secrets_in(item, secret=secret)
        case _:
            pass


def secrets_of_url(url: str) -> Iterator[str]:
    """The user and the password in `url`, and what its query holds under names of secrets."""
    if user := _USER.match(url):
        yield from (unquote(part) for part in user[2].split(":") if part)
    _, _, query = url.partition("?")
    for name, entry in parse_qsl(query.partition("#")[0]):
        if is_secret_name(name) or name == _QUERY:
            yield entry


def public_url(url: str) -> str:
    """`url` without its user and its query, which may hold secrets.

    >>> public_url("https://me:pass@host/v1?key=abc")
    'https://host/v1'
    """
    return _USER.sub(r"\1", re.split("[?#]", url)[0])


def keyless_url(url: str) -> str:
    """`url` without its user, and without what its query holds under names of secrets.

    >>> keyless_url("https://me:pass@host/v1?api-version=2&key=abc")
    'https://host/v1?api-version=2'
    """
    path, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair and not _is_secret_pair(pair)]
    return _USER.sub(r"\1", path) + (f"?{'&'.join(pairs)}" if pairs else "")


def _is_secret_pair(pair: str) -> bool:
    name = pair.partition("=")[0]
    return is_secret_name(name) or name == _QUERY


def without(value: Any, secrets: Iterable[str]) -> Any:
    """`value` without `secrets` in any of its strings and bytes.

    What is shorter than eight characters is not a key that anyone has been given, and might be a word of any text.
    """
    forms = {form for secret in secrets if len(secret) >= SECRET_LENGTH for form in _forms(secret)}
    return _without(value, sorted(forms, key=len, reverse=True))


def redacted(error: E, secrets: str | Iterable[str] | None) -> E:
    """`error` without `secrets` in anything that it says; some servers say which key they refuse.

    A cause that says one is left out.
    """
    secrets = [secrets] if isinstance(secrets, str) else list(secrets or ())
    fields = error.fields()
    shown = without(fields, secrets)
    cause = error.__cause__
    is_discreet = without(_said(error), secrets) == _said(error)
    if shown == fields and is_discreet:
        return error
    made = type(error).from_fields(shown)
    made.__cause__ = cause if is_discreet else None
    return made


def hide_in_log(record: logging.LogRecord) -> bool:
    """A filter for httpx's log, which tells the URL of every request, with its query."""
    if isinstance(record.args, tuple):
        record.args = tuple(_hidden(arg) if type(arg).__name__ == "URL" else arg for arg in record.args)
    return True


def _hidden(url: object) -> object:
    return f"{public_url(str(url))}?{MASK}" if any(secrets_of_url(str(url))) else url


def _said(error: BaseException) -> str:
    """All that the causes of `error` say, as a traceback shows them."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{cause!r} {cause} {_said(cause)}" if cause is not None else ""


def _forms(secret: str) -> set[str]:
    """How `secret` is written in text, in a URL and in JSON."""
    sent = secret.encode(errors="replace")  # what cannot be is written with a question mark
    return {secret, quote(sent), quote(sent, safe=""), quote_plus(sent), json.dumps(secret)[1:-1]}


def _without(value: Any, forms: list[str]) -> Any:
    match value:
        case str():
            for form in forms:
                value = value.replace(form, MASK)
            return value
        case bytes():
            for form in forms:
                value = value.replace(form.encode(errors="surrogatepass"), MASK.encode())
            return value
        case list() | tuple():
            items = [_without(item, forms) for item in cast(Iterable[Any], value)]
            return tuple(items) if isinstance(value, tuple) else items
        case Mapping():
            pairs = cast(Mapping[Any, Any], value).items()
            return {_without(name, forms): _without(entry, forms) for name, entry in pairs}
        case _:
            return value
