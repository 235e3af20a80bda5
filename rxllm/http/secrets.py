"""Find the secrets of a call, and remove them from errors, URLs and logs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from rxllm.values import LLMError
from rxllm.values.errors import with_origin
from rxllm.values.secret_names import MASK, is_secret_name, mapped

if TYPE_CHECKING:
    import httpx


SECRET_LENGTH = 8
"""The length of the shortest secret that is masked. A shorter string could be an ordinary word."""

E = TypeVar("E", bound=LLMError)

_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_USER = re.compile(r"^(\w+://)?([^/?#]*)@")


def secrets_in(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield the secret strings in `value`, and each word in those strings.

    A string is secret if a key that leads to the string suggests a secret, or if the argument `secret` is True.
    """
    # `seen` keeps the objects alive, so that their ids stay unique.
    waiting, seen = [(value, secret)], dict[tuple[int, bool], Any]()
    while waiting:
        item, is_secret = waiting.pop()
        if isinstance(item, str):
            yield from {item, *item.split()} if is_secret else ()
        elif isinstance(item, Mapping | list | tuple) and (key := (id(cast(object, item)), is_secret)) not in seen:
            seen[key] = item
            waiting += _entries(cast(Any, item), is_secret)


def _entries(item: Any, secret: bool) -> list[tuple[Any, bool]]:
    if isinstance(item, Mapping):
        pairs = cast(Mapping[Any, Any], item).items()
        return [(entry, secret or is_secret_name(name)) for name, entry in pairs]
    return [(entry, secret) for entry in item]


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield the user, the password and the secret query parameters of `url`."""
    if user := _USER.match(url):
        yield from (unquote(part) for part in user[2].split(":") if part)
    _, _, query = url.partition("?")
    for name, entry in parse_qsl(query.partition("#")[0]):
        if _is_secret_parameter(name):
            yield entry


def public_url(url: str) -> str:
    """Return `url` without its user, password, query and fragment.

    >>> public_url("https://me:pass@host/v1?key=abc")
    'https://host/v1'
    """
    return _USER.sub(r"\1", re.split("[?#]", url)[0])


def address(request: httpx.Request) -> str:
    return public_url(str(request.url))


def keyless_url(url: str) -> str:
    """Return `url` without its user, password and secret query parameters.

    >>> keyless_url("https://me:pass@host/v1?api-version=2&key=abc")
    'https://host/v1?api-version=2'
    """
    path, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair and not _is_secret_parameter(pair.partition("=")[0])]
    return _USER.sub(r"\1", path) + (f"?{'&'.join(pairs)}" if pairs else "")


def _is_secret_parameter(name: str) -> bool:
    return is_secret_name(name) or name == "code"  # in Azure Functions, `code` is a key


def without(value: Any, secrets: Iterable[str]) -> Any:
    """Mask `secrets` in all strings and bytes that `value` contains."""
    forms = {form for secret in secrets if len(secret) >= SECRET_LENGTH for form in _forms(secret)}
    return _without(value, sorted(forms, key=len, reverse=True))


def redacted(error: E, secrets: str | Iterable[str] | None) -> E:
    """Mask `secrets` in `error`. If one of its causes contains a secret, the causes are dropped."""
    secrets = [secrets] if isinstance(secrets, str) else list(secrets or ())
    fields = error.fields()
    clean = without(fields, secrets)
    try:
        causes = _text_of_causes(error)
        is_cause_clean = without(causes, secrets) == causes
    except Exception:  # some causes cannot be converted to text, for example deeply nested ones
        is_cause_clean = False
    if clean == fields and is_cause_clean:
        return error
    result = type(error).from_fields(clean)
    return with_origin(result, error) if is_cause_clean else result


def hide_in_log(record: logging.LogRecord) -> bool:
    """Hide secret queries in httpx's log, and the server's own words in its status line, which may repeat a key."""
    if isinstance(record.args, tuple):
        record.args = tuple(_hidden_url(arg) if type(arg).__name__ == "URL" else arg for arg in record.args)
        if str(record.msg).endswith('%d %s"') and isinstance(status := record.args[-2], int):
            record.args = (*record.args[:-1], _PHRASES.get(status, "?"))
    return True


def print_in_log(record: logging.LogRecord) -> bool:
    """Show an error, and the rest of what a provider sends, on one line and without control characters."""
    if isinstance(record.args, tuple):
        record.args = tuple(arg if isinstance(arg, int | float) else _Printed(arg) for arg in record.args)
    return True


class _Printed:
    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _printable(str(self._value), "\n\t" if isinstance(self._value, str) else "")

    def __repr__(self) -> str:
        return _printable(repr(self._value))


def _printable(text: str, others: str = "") -> str:
    """Escape all characters of `text` that are neither printable nor in `others`."""
    if text.isprintable():
        return text
    escaped = (char.encode("unicode_escape", "surrogatepass").decode() for char in text)
    return "".join(
        char if char.isprintable() or char in others else code for char, code in zip(text, escaped, strict=True)
    )


def _hidden_url(url: object) -> object:
    return f"{public_url(str(url))}?{MASK}" if any(secrets_of_url(str(url))) else url


def _text_of_causes(error: BaseException) -> str:
    cause = error.__cause__ or error.__context__
    return f"{cause!r} {cause} {_text_of_causes(cause)}" if cause is not None else ""


def _forms(secret: str) -> set[str]:
    """Return `secret` as it would appear in text, in URLs and in JSON."""
    sent = secret.encode(errors="replace")  # a lone surrogate becomes a question mark
    return {secret, quote(sent), quote(sent, safe=""), quote_plus(sent), json.dumps(secret)[1:-1]}


def _without(value: Any, forms: list[str]) -> Any:
    def change(item: Any) -> Any:
        if isinstance(item, str):
            for form in forms:
                item = item.replace(form, MASK)
        elif isinstance(item, bytes):
            for form in forms:
                item = item.replace(form.encode(errors="surrogatepass"), MASK.encode())
        return item

    return mapped(value, change)
