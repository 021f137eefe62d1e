"""GangJobs and foreign pods for which kinds of claims are counted: a kind without any is forgotten."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ganger.kubeapi.objects import PodResourceClaim


class Source(NamedTuple):
    """Names of the claims of a GangJob. Jobs may have one in common.

    Attributes:
        parts: claims of the job, and of its roles.
        indices: the only devices that these may have, by their attribute `index`; none: any.
        networks: fabrics that it asks for, whose rails may be claims too.
    """

    namespace: str
    parts: tuple[tuple[PodResourceClaim, ...], ...]
    indices: tuple[int, ...] = ()
    networks: tuple[str, ...] = ()


class KindUsers:
    """Users of each kind. `forget` is called with the name of one that has none any more."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._jobs = Counter[Source]()
        """Number of GangJobs with each source."""
        self._kinds: dict[Source | str, set[str]] = {}
        """Kinds by source, and by UID of a foreign pod."""
        self._users = Counter[str]()
        self._unused: set[Source] = set()
        """Sources of no GangJob: of requests for a plan, and of jobs that were deleted meanwhile."""

    def add_job(self, source: Source) -> None:
        """Add a GangJob."""
        self._jobs[source] += 1
        self._unused.discard(source)

    def remove_job(self, source: Source) -> None:
        """Remove a GangJob."""
        self._jobs[source] -= 1
        if not self._jobs[source]:
            del self._jobs[source]
            self._remove(source)

    def note_source(self, source: Source, kind: str) -> None:
        """Note a kind that is counted for the jobs of a source."""
        self._note(source, kind)
        if source not in self._jobs:
            self._unused.add(source)

    def note_pod(self, uid: str, kind: str) -> None:
        """Note a kind that is counted for a foreign pod."""
        self._note(uid, kind)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that is gone."""
        self._remove(uid)

    def forget_unused(self) -> None:
        """Forget the kinds that were counted for no GangJob or pod."""
        unused, self._unused = self._unused, set()
        for source in unused:
            self._remove(source)

    def _note(self, user: Source | str, kind: str) -> None:
        kinds = self._kinds.setdefault(user, set())
        self._users[kind] += kind not in kinds
        kinds.add(kind)

    def _remove(self, user: Source | str) -> None:
        for kind in self._kinds.pop(user, ()):
            self._users[kind] -= 1
            if not self._users[kind]:
                del self._users[kind]
                self._forget(kind)
