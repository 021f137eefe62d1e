"""Oracle of the time for which gangs keep nodes between two attempts, by what the state says that they hold."""

from collections import Counter
from dataclasses import dataclass, field

from ganger.core.state.state import State


@dataclass
class KeptNodes:
    """For how long gangs held nodes without an attempt on them, by what the state says that they hold."""

    since_ms: dict[str, int] = field(default_factory=dict)
    over_ms: Counter[str] = field(default_factory=Counter)

    def note(self, state: State, at_ms: int) -> None:
        """Take in the state after an event."""
        keeping = {name for name, shares in state.allocations.items() if shares and not state.gangs[name].attempt.left}
        for name in [*self.since_ms]:
            if name not in keeping:
                self.over_ms[name] += at_ms - self.since_ms.pop(name)
        for name in keeping:
            self.since_ms.setdefault(name, at_ms)

    def held_ms(self, gang: str, now_ms: int) -> int:
        """Return for how long a gang has done so."""
        return self.over_ms[gang] + now_ms - self.since_ms.get(gang, now_ms)
