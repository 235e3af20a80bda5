"""``ops.plugins``: the operators of other packages. Not an operator itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rxllm import plugins as installed
from rxllm.runtime.stream_arguments import OperatorMaker


class Plugins:
    """The operators that installed packages add, each under its own name: ``ops.plugins.shout()``.

    An operator is imported when its name is looked up, see ``rxllm.plugins``; ``dir(ops.plugins)`` lists them. One that
    does not load raises ``EngineError("missing_dependency")``, a name that several packages use
    ``EngineError("invalid_engine")``, a call with the wrong arguments ``TypeError``; all name the package.

    A type checker does not know which packages are installed: here every operator is a ``Callable[..., Any]``, and so
    is what it emits. The package's own function is the same operator with its types::

        events.pipe(ops.plugins.citations())        # Any

        from rxllm_cohere import citations
        events.pipe(citations())                    # Stream[Mapping[str, Any]]
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            make = installed.load("rxllm.operators", name)
        except KeyError:
            known = ", ".join(dir(self)) or "none"
            message = f"no installed package adds an operator {name!r}; there are: {known}"
            raise AttributeError(message, name=name, obj=self) from None
        return OperatorMaker(f"plugins.{name}", make, partial(installed.about, "rxllm.operators", name))

    def __dir__(self) -> list[str]:
        return installed.names("rxllm.operators")

    def __repr__(self) -> str:
        return (
            f"<ops.plugins: {', '.join(installed.listed('rxllm.operators')) or 'no installed package adds operators'}>"
        )


plugins = Plugins()
