"""rxllm's pytest plugin: the fixtures that ``rxllm.testing`` describes.

It lies beside the package, not in it: pytest imports its plugins whenever it starts, and a module inside would import
all of rxllm first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rxllm.testing.loopback import Loopback, Script

pytest.register_assert_rewrite("rxllm.testing")  # before it is imported: its failures show what was compared


@pytest.fixture
def loopback() -> Iterator[Callable[..., Loopback]]:
    """Starts servers: ``loopback(script)``, see `rxllm.testing.loopback.Loopback`.

    They are stopped at the test's end; what was wrong in a script is raised then.
    """
    from rxllm.testing.loopback import Loopback, Reply

    with ExitStack() as servers:

        def start(script: Script | None = None, **options: Any) -> Loopback:
            return servers.enter_context(Loopback(Reply() if script is None else script, **options))

        yield start
