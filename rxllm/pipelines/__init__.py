"""Build the pipelines that call models, such as `generate`, `chat` and `generate_image`."""

from rxllm.pipelines._generate import chat, generate, step, stream, stream_generate, stream_step
from rxllm.pipelines._generate_image import ImageOptions, edit_image, generate_image, image_variations
from rxllm.pipelines._generate_many import Requests, Responses, generate_many, readable_again
from rxllm.pipelines._long_threads import compact_thread, count_tokens, trim_thread
from rxllm.pipelines._setup import Input, as_thread, request
from rxllm.pipelines.options import ChatOptions, GenerateOptions, PlainOptions, StepOptions
from rxllm.pipelines.resuming import resume, stream_resume

__all__ = [
    "ChatOptions",
    "GenerateOptions",
    "ImageOptions",
    "Input",
    "PlainOptions",
    "Requests",
    "Responses",
    "StepOptions",
    "as_thread",
    "chat",
    "compact_thread",
    "count_tokens",
    "edit_image",
    "generate",
    "generate_image",
    "generate_many",
    "image_variations",
    "readable_again",
    "request",
    "resume",
    "step",
    "stream",
    "stream_generate",
    "stream_resume",
    "stream_step",
    "trim_thread",
]
