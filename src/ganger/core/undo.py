"""One way to change the state's arrays, so that a round can try things and leave everything as it found it.

`core.state.state` owns the one Undo and hands it to its parts; `core.cycle.plan` opens a trial around a round.
Source of the idea: the reversible statements of KAI's scheduler, reduced to old values on a stack.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


class Undo:
    """A stack of old values. Outside a trial, `put` changes for good and remembers nothing."""

    def __init__(self) -> None:
        """Nothing is being tried."""
        self._stack: list[tuple[Any, Any, Any]] = []
        self._depth = 0

    @property
    def is_trying(self) -> bool:
        """Whether a trial is open: the state is not as it was found."""
        return self._depth > 0

    def put(self, where: Any, key: Any, value: Any) -> None:
        """`where[key] = value`, undone at the end of the trial if one is open. `where` is an array, list or dict."""
        if self._depth:
            old = where.get(key, _ABSENT) if isinstance(where, dict) else where[key]
            # A slice of an array is a view: without a copy it would change with the array.
            self._stack.append((where, key, old.copy() if isinstance(key, slice) else old))
        where[key] = value

    def drop(self, where: dict[Any, Any], key: Any) -> None:
        """`del where[key]`, undone likewise."""
        if self._depth:
            self._stack.append((where, key, where[key]))
        del where[key]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo, last first, everything put while inside. Trials nest."""
        mark = len(self._stack)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.back_to(mark)

    def mark(self) -> int:
        """A point inside a trial to come `back_to`."""
        return len(self._stack)

    def back_to(self, mark: int) -> None:
        """Undo what was put since `mark`."""
        while len(self._stack) > mark:
            where, key, old = self._stack.pop()
            if old is _ABSENT:
                del where[key]
            else:
                where[key] = old
