"""An asynchronous program: await a response, loop over a stream, ask two models at a time.

Prints::

    Hello
    one two three
    ['A', 'B']
"""

import asyncio
from typing import Any, assert_type

import rxllm
from rxllm import Fake, Response
from rxllm import operators as ops


async def main() -> None:
    response = await rxllm.generate(Fake("Hello"), "Hi")
    print(assert_type(response, Response[Any]).output_text)
    async for text in rxllm.stream_generate(Fake(["one ", "two ", "three\n"]), "Count!").pipe(ops.text()):
        print(assert_type(text, str), end="")
    first, second = await asyncio.gather(rxllm.generate(Fake("A"), "Hi"), rxllm.generate(Fake("B"), "Hi"))
    print([first.output_text, assert_type(second, Response[Any]).output_text])


asyncio.run(main())
