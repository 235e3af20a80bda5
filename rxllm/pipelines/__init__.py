"""generate, step and chat: each a pipe of the operators."""

from rxllm.pipelines._chat import chat, stream
from rxllm.pipelines._generate import generate, generate_many, stream_generate
from rxllm.pipelines._options import ChatOptions, GenerateOptions, StepOptions
from rxllm.pipelines._request import Input, request
from rxllm.pipelines._step import step, stream_step

__all__ = [
    "ChatOptions",
    "GenerateOptions",
    "Input",
    "StepOptions",
    "chat",
    "generate",
    "generate_many",
    "request",
    "step",
    "stream",
    "stream_generate",
    "stream_step",
]
