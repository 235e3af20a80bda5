"""Image adapters: an image request in, one response out.

`FakeImages` for tests, `OpenAIImages`, `GeminiImages`; `HTTPImageAdapter` is the base for others over HTTP, and
`ImageAdapter` what each of them has. Call them with ``rxllm.generate_image``, ``edit_image`` and ``image_variations``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rxllm.images._adapter import ImageAdapter, as_image_adapter, is_image_adapter
    from rxllm.images._fake import FakeImages
    from rxllm.images._fetch import Answer
    from rxllm.images._gemini import GeminiImages
    from rxllm.images._http import HTTPImageAdapter
    from rxllm.images._openai import OpenAIImages

__all__ = [
    "Answer",
    "FakeImages",
    "GeminiImages",
    "HTTPImageAdapter",
    "ImageAdapter",
    "OpenAIImages",
    "as_image_adapter",
    "is_image_adapter",
]

_FILES = {
    "Answer": "_fetch",
    "FakeImages": "_fake",
    "GeminiImages": "_gemini",
    "HTTPImageAdapter": "_http",
    "ImageAdapter": "_adapter",
    "OpenAIImages": "_openai",
    "as_image_adapter": "_adapter",
    "is_image_adapter": "_adapter",
}

if not TYPE_CHECKING:  # to a type checker every name would be there

    def __getattr__(name: str) -> Any:
        # A program needs one or two of these names, and does not load the files of the others.
        if name not in _FILES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return __all__
