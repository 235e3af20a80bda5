"""Regular expressions take time in proportion to the text (tests/patterns.py)."""

from __future__ import annotations

import re

import pytest

from rxllm.adapters import profiles
from rxllm.adapters.openai_chat import images
from tests.patterns import Use, all_uses, is_slow

CLIPPED = {
    "rxllm/adapters/_http_errors.py": "a provider's message is clipped to 2,000 characters",
    "rxllm/adapters/anthropic/refused_thoughts.py": "a provider's message is clipped to 2,000 characters",
    "rxllm/cli/_main.py": "text of the program itself",
    "rxllm/pipelines/options.py": "text of the program itself",
    "rxllm/testing/_adapter_run.py": "text of the program itself",
    "rxllm/values/advice.py": "text of the program itself",
    "rxllm/values/codec.py": "text of the program itself",
    "rxllm/values/docstrings.py": "text of the program itself",
    "rxllm/values/model_table.py": "a model's name is clipped to 200 characters",
}
"""The files whose patterns read only text of at most 2,000 characters, and why."""

TABLES = {
    "rxllm/adapters/_connect.py": [profile.call_id for profile in profiles.PROFILES.values() if profile.call_id],
    "rxllm/adapters/openai_chat/images.py": list(images._FAMILIES),
    "rxllm/adapters/profiles.py": list(profiles._MODEL_PATTERNS.values()),
}
"""The patterns of files that choose one when they run."""


def patterns_of(use: Use) -> list[re.Pattern[str]]:
    return [use.pattern] if use.pattern else list(map(re.compile, TABLES[use.path]))


@pytest.mark.judges
def test_no_pattern_that_reads_the_text_of_others_takes_more_than_linear_time() -> None:
    uses = [use for use in all_uses() if use.path not in CLIPPED]
    assert len(uses) > 50
    slow = [use for use in uses for pattern in patterns_of(use) if is_slow(pattern, use.how)]
    assert not slow, "a part is repeated where another repeated part, or a new start, can read the same text"


@pytest.mark.parametrize(
    ("pattern", "how", "expected"),
    [
        (r"token count.*exceeds", "search", True),
        (r"a*b", "search", True),
        (r"a*b", "match", False),
        (r"a++b", "search", True),
        (r"a+", "search", False),
        (r"a+", "fullmatch", False),
        (r"\s+$", "search", True),
        (r"^\s+$", "search", False),
        (r"\n\s*(?=\S)", "search", True),
        (r"\n[^\S\n]*(?=\S)", "search", False),
        (r"(\d+\.?\d*)s", "fullmatch", True),
        (r"(\d+(?:\.\d*)?)s", "fullmatch", False),
        (r"[\w.]*\w[\w.]*", "fullmatch", True),
        (r"\.*+\w[\w.]*+", "fullmatch", False),
        (r"(a+)+b", "match", True),
        (r"(a++)+b", "match", False),
        (r"(ab|a|b)*c", "match", True),
        (r"(?<!a)a*b", "search", False),
        (r"(?<=a)[^b]*c", "search", True),
        (r"x.{0,2000}y", "search", False),
        (r"\s*\S+\s*|\s+", "findall", True),
        (r"a(?!.*c)a*b", "match", False),
    ],
)
def test_a_slow_pattern_is_found(pattern: str, how: str, expected: bool) -> None:
    assert is_slow(re.compile(pattern), how) is expected
