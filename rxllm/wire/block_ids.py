"""Give every block of a response an id."""

from __future__ import annotations

from itertools import count


class BlockIds:
    """The ids of one response's blocks: those that arrive, and ``block_0``, ``block_1`` for blocks without one.

    >>> ids = BlockIds()
    >>> ids.of(None), ids.of("msg_1"), ids.of(None), ids.of("msg_1")
    ('block_0', 'msg_1', 'block_1', 'msg_1')

    An id that arrives stays as it is, unless an earlier block was given the same one here: then two blocks would become
    one, and text would be lost. This happens when an adapter puts text before the events of another one.

    >>> ids.of("block_1")
    'block_2'
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}  # by the ids that arrived
        self._minted: set[str] = set()
        self._numbers = count()

    def of(self, id: str | None) -> str:
        """Return the id of a block whose events have this id, or of a block that begins without one."""
        if id is None:
            return self._mint()
        if id not in self._ids:
            self._ids[id] = self._mint() if id in self._minted else id
        return self._ids[id]

    def _mint(self) -> str:
        id = next(id for number in self._numbers if (id := f"block_{number}") not in self._ids)
        self._minted.add(id)
        return id
