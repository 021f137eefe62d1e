"""Keeps an eye on the ranks of a generation here, and tells the server what stands still. Called by `generation`.

`vitals` sees, `watch` judges; the server joins what the nodes of a gang say.
"""

from __future__ import annotations

from ganger.launcher.task import now_ms
from ganger.launcher.vitals import Vitals
from ganger.launcher.watch import Attention, Desertion

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.link import Speaker

LOOK_S = 0.5
FIND_S = 5.0
STARTERS = frozenset(
    (
        "mpirun",
        "mpiexec",
        "prterun",
        "prted",
        "orterun",
        "orted",
        "mpiexec.hydra",
        "hydra_pmi_proxy",
        "hydra_bstrap_pro",
    )
)
"""Programs that have nothing to do but to start ranks and to wait for them; names as /proc has them."""


class Lookout:
    """Over the generation with this directory, from the moment its first program runs here."""

    def __init__(self, directory: str, tell: Speaker, now: float) -> None:
        self.due = now + LOOK_S
        self._find_at = now
        self._tell = tell
        self._vitals = Vitals(directory)
        self._attention = Attention(now)
        self._desertion = Desertion()
        self._standing: dict[str, Any] = {}

    def tick(self, now: float) -> None:
        """Look, when it is time to, and tell what has changed."""
        if now < self.due:
            return
        self.due = now + LOOK_S
        attended_s = self._attention.look(now)
        if now >= self._find_at or (self._vitals.others and not self._vitals.any_rank_lives()):
            self._find_at = now + FIND_S
            self._vitals.find()
        starters = [vital for vital in self._vitals.others if vital.name in STARTERS]
        deserted_s = self._desertion.look(attended_s, has_ranks=bool(self._vitals.of_ranks), has_starter=bool(starters))
        standing = {
            "has_run": self._desertion.has_run,
            "deserted_ms": None if deserted_s is None else now_ms() - int((attended_s - deserted_s) * 1000),
        }
        if _gist(standing) != _gist(self._standing):
            self._standing = standing
            self.announce()

    def announce(self) -> None:
        """To a server that may not know it: how the ranks here stand."""
        if self._standing:
            self._tell.state("standing", **self._standing)


def _gist(standing: dict[str, Any]) -> dict[str, Any]:
    """What is news when it differs: of times, only whether there is one."""
    return {name: value is not None if name.endswith("_ms") else value for name, value in standing.items()}
