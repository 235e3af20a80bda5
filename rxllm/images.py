"""Image adapters.

The adapters are `OpenAIImages`, `GeminiImages` and, for tests, `FakeImages`. Use them with ``rxllm.generate_image``,
``edit_image`` and ``image_variations``. To write your own, subclass `HTTPImageAdapter`. Every image adapter implements
the `ImageAdapter` protocol.
"""

from typing import TYPE_CHECKING

from rxllm._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rxllm.adapters.fake.images import FakeImages
    from rxllm.adapters.gemini.images import GeminiImages
    from rxllm.adapters.images import Answer, HTTPImageAdapter, ImageAdapter, as_image_adapter, is_image_adapter
    from rxllm.adapters.openai_chat.images import OpenAIImages

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

if not TYPE_CHECKING:
    # If type checkers saw a `__getattr__`, they would accept any name.
    __getattr__ = lazy_exports(
        __name__,
        {
            "rxllm.adapters.fake.images": "FakeImages",
            "rxllm.adapters.gemini.images": "GeminiImages",
            "rxllm.adapters.images": "Answer HTTPImageAdapter ImageAdapter as_image_adapter is_image_adapter",
            "rxllm.adapters.openai_chat.images": "OpenAIImages",
        },
    )


def __dir__() -> list[str]:
    return __all__
