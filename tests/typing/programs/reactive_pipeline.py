"""reactivex's methods on the streams of two models.

Prints::

    ['ONE', 'TWO']
    3 7 12
    ['four', 'one', 'three', 'two']
    ['Lima?', 'Rome?']
    [['one', 'two'], ['three']]
"""

from typing import Any, assert_type

import reactivex
from reactivex import operators as rx

import rxllm
from rxllm import Fake, Response, Stream
from rxllm import operators as ops

words = rxllm.stream_generate(Fake("one two three"), "Count!").pipe(ops.words()).map(str.strip)
assert_type(words, Stream[str])
first = words.take(2).map(str.upper).to_list()
print(assert_type(first.run(), list[str]))

lengths = words.scan(lambda total, word: total + len(word) + (total > 0), 0)
assert_type(lengths, Stream[int])
print(*lengths.pipe(rx.map(lambda length: length if length < 10 else length - 1)))

both = words.merge(rxllm.stream_generate(Fake("four"), "And then?").pipe(ops.words()))
assert_type(both, Stream[str])
print(sorted(both))


def ask(city: str) -> Stream[Response[Any]]:
    return rxllm.generate(Fake(lambda request: request.messages[-1].text + "?"), city)


answers = Stream.of(reactivex.of("Lima", "Paris", "Rome")).filter(lambda city: city != "Paris").concat_map(ask)
assert_type(answers, Stream[Response[Any]])
print([answer.output_text for answer in answers])

print(list(assert_type(words.buffer_with_count(2), Stream[list[str]])))
