"""Gangs whose owner was suspended for them: without pods, and waiting for nodes as before.

When such a gang has its nodes its owner is resumed, and the nodes are kept until the pods exist. Nothing of it is
recorded but a label of the owner: a restarted controller resumes all that have it, and their pods wait as new gangs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ganger.backends.kubernetes.foreign.foreign_gang import ForeignGang
from ganger.backends.kubernetes.foreign.gang_kinds import GangSpecError, find_kind
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners, SuspendTarget
from ganger.kubeapi.objects import Pod
from ganger.model.decision import Start
from ganger.model.event import Cleared, StopRequested

CHECK_S: Final = 30.0
"""Interval at which it is checked that a suspended owner is still to be resumed."""
OTHERS_S: Final = 60.0
"""Interval at which suspended owners without a gang are looked for."""
RESUME_S: Final = 120.0
"""Longest wait for the pods of a resumed owner, while nodes are kept for them."""

_log = logging.getLogger(__name__)


class Suspensions:
    """The suspended gangs, by what was suspended.

    Args:
        owners: suspends and resumes.
        report: reports events to the core.
        run: runs something in the background.
        delete: deletes pods.
    """

    def __init__(
        self,
        owners: GangOwners,
        report: Callable[..., None],
        run: Callable[[Coroutine[Any, Any, object]], None],
        delete: Callable[[list[Pod]], Awaitable[None]],
    ) -> None:
        self._owners, self._report, self._run, self._delete = owners, report, run, delete
        self._loop = asyncio.get_running_loop()
        self._gangs: dict[SuspendTarget, ForeignGang] = {}
        self._resumed: dict[str, Start] = {}
        """Nodes of gangs whose owner was resumed, and whose pods do not exist yet, by id."""

    def close(self) -> None:
        """Stop; what is suspended stays so."""
        self._gangs.clear()
        self._resumed.clear()

    async def resume_others(self) -> None:
        """Resume what an earlier controller suspended, perhaps by a request that arrives late: its pods wait again."""
        while True:
            for target in await self._owners.suspended():
                if target not in self._gangs:
                    await self._owners.try_resume(target)
            await asyncio.sleep(OTHERS_S)

    def gang_of(self, target: SuspendTarget | None) -> ForeignGang | None:
        """Return the gang for which an object was suspended, or is being resumed."""
        return self._gangs.get(target) if target is not None else None

    async def suspend(self, gang: ForeignGang) -> bool:
        """Suspend the owner of a gang whose pods run; return False if that is not possible."""
        target = await self._find_target(gang)
        if target is None or gang.stopping is None:
            return False
        gang.target, self._gangs[target] = target, gang
        if not await self._owners.suspend(target):
            self.forget(gang)
            return False
        if not gang.left:
            gang.reset()
        self._loop.call_later(CHECK_S, self._check, gang, target)
        return True

    async def _find_target(self, gang: ForeignGang) -> SuspendTarget | None:
        """Return what to suspend for a gang; None for surplus, which is not all that the owner has."""
        pod = gang.pods[0] if gang.is_base and gang.pods else None
        kind = find_kind(pod) if pod is not None and pod.spec.scheduling_group is None else None
        if pod is None or kind is None:
            return None
        try:
            needs, target = await self._owners.read(kind, pod)
        except GangSpecError:
            return None
        least = [needs.minimum_of(group) for group in needs.groups]
        return target if any(0 < count <= len(gang.shape) for count in least) else None

    def resume(self, gang: ForeignGang, target: SuspendTarget, start: Start) -> None:
        """Resume the owner of a gang that has its nodes."""
        self._resumed[gang.id] = start

        async def resume() -> None:
            if not await self._owners.resume(target) and self._resumed.get(gang.id) is start:
                self.drop(gang)

        self._loop.call_later(RESUME_S, self._give_up, gang, start)
        self._run(resume())

    def is_resumed(self, gang: ForeignGang) -> bool:
        """Return whether the owner of a gang was resumed, and its pods do not exist yet."""
        return gang.id in self._resumed

    def _give_up(self, gang: ForeignGang, start: Start) -> None:
        if self._resumed.get(gang.id) is start:
            _log.warning("%s: its owner was resumed, and has not created its pods in %.0f s", gang.id, RESUME_S)
            self.drop(gang)

    def end_resumed(self, gang: ForeignGang, *, may_wait: bool) -> None:
        """Stop a gang whose owner was resumed, before its pods exist. may_wait: it waits for nodes again."""
        target = gang.target
        if target is None or not may_wait:
            self.drop(gang)
            return
        start = self._resumed.pop(gang.id)
        gang.reset()
        self._run(self._owners.suspend(target))
        self._loop.call_later(CHECK_S, self._check, gang, target)
        self._report(Cleared(gang=gang.id, generation=start.generation, nodes=start.nodes))

    def _check(self, gang: ForeignGang, target: SuspendTarget) -> None:
        """Check that an owner is still suspended by ganger: it may have been deleted, or resumed by its user.

        Pods that it has not deleted by then are deleted: its operator may be down, or not act on the field at present.
        """

        async def check() -> None:
            is_suspended = await self._owners.is_suspended(target)
            if self._gangs.get(target) is not gang or self.is_resumed(gang):
                return
            if left := gang.bound_pods:
                _log.warning("%s: its owner was suspended and has not deleted its pods: they are deleted", gang.id)
                await self._delete(left)
            if is_suspended or not gang.is_clear:
                self._loop.call_later(CHECK_S, self._check, gang, target)
            else:
                self.drop(gang)

        if self._gangs.get(target) is gang:
            self._run(check())

    def drop(self, gang: ForeignGang) -> None:
        """End a gang without pods: what its owner creates from now on is another gang."""
        start, gang.is_broken = self.forget(gang), True
        cleared = [Cleared(gang=gang.id, generation=start.generation, nodes=start.nodes)] if start else []
        self._report(StopRequested(gang=gang.id), *cleared)

    def forget(self, gang: ForeignGang) -> Start | None:
        """Forget what was suspended for a gang; return the nodes that were kept for its pods."""
        if gang.target is not None and self._gangs.get(gang.target) is gang:
            del self._gangs[gang.target]
        gang.target = None
        return self._resumed.pop(gang.id, None)
