"""An undo stack for the state's arrays: a scheduling cycle can try changes and leave everything as it was.

Source of the idea: the reversible statements of KAI's scheduler, reduced to old values on a stack.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


class Undo:
    """A stack of old values. Outside a trial, `put` changes for good and records nothing."""

    def __init__(self) -> None:
        """Create an empty stack with no trial open."""
        self._stack: list[tuple[Any, Any, Any]] = []
        self._depth = 0

    @property
    def in_trial(self) -> bool:
        """True while a trial is open, so that the state holds tentative changes."""
        return self._depth > 0

    def put(self, container: Any, key: Any, value: Any) -> None:
        """Set `container[key] = value` in an array, list or dict, to be undone at the end of the open trial."""
        if self._depth:
            old = container.get(key, _ABSENT) if isinstance(container, dict) else container[key]
            # A slice of an array is a view: without a copy it would change with the array.
            self._stack.append((container, key, old.copy() if isinstance(key, slice) else old))
        container[key] = value

    def drop(self, container: dict[Any, Any], key: Any) -> None:
        """Delete `container[key]`, to be undone at the end of the open trial."""
        if self._depth:
            self._stack.append((container, key, container[key]))
        del container[key]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo everything put inside the context, last change first. Trials nest."""
        mark = len(self._stack)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.roll_back(mark)

    def mark(self) -> int:
        """Return the current position, to be passed to `roll_back` in the same trial."""
        return len(self._stack)

    def roll_back(self, mark: int) -> None:
        """Undo the changes made since `mark`."""
        while len(self._stack) > mark:
            container, key, old = self._stack.pop()
            if old is _ABSENT:
                del container[key]
            else:
                container[key] = old
