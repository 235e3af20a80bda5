"""An answer as a value of a class.

Prints::

    Lima has 10.2 million people
    City(name='Lima', millions=10.2)
"""

from dataclasses import dataclass
from typing import assert_type

import rxllm
from rxllm import Fake, Response
from rxllm import operators as ops


@dataclass
class City:
    name: str
    millions: float


fake = Fake('{"name": "Lima", "millions": 10.2}')
response = rxllm.generate(fake, "The capital of Peru?", response_format=City).run()
assert_type(response, Response[City])
city = assert_type(response.parsed, City)
print(f"{city.name} has {city.millions} million people")
for partial in rxllm.stream_generate(fake, "The capital of Peru?").pipe(ops.parsed(City)):
    print(assert_type(partial, City))
