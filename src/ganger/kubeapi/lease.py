"""Which of several controllers acts: the one that holds a Lease, as Kubernetes' own controllers do it.

Used by the controller around everything that changes the cluster. A lease is no fence: the API server takes a write
from whoever sends it. So a leader stops acting at `until_s`, five seconds before anybody else may take the lease, and
asks `leading` before each write that matters. No machine's clock is compared with another's: how long a lease has not
been renewed is measured here, from when its record was last seen to change.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Lease, LeaseSpec, Object
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import LEASES

LASTS_S: Final = 15
"""How long a record may stand unchanged before others take the lease."""
RENEWED_WITHIN_S: Final = 10.0
"""After which time without a renewal a leader stops acting."""
RETRY_S: Final = 2.0
ATTEMPT_S: Final = 5.0
"""How long one attempt may take, its repetitions included."""
ASKED_WITHIN_S: Final = ATTEMPT_S / 2
"""How long its Api is to repeat a request: less, or else an attempt would end before it is known what was wrong."""

_NEVER: Final = float("-inf")
_log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """The lease could not be renewed in time, or somebody else has it: what was being done was broken off."""


class LeaderLease:
    """One candidate for a lease. `identity` is of this process alone: a second one of that name would be taken for it.

    `until_s`, on the event loop's clock: until when it may act. The Api is to be its own, so that no other request is
    waited for.
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._place = Place(LEASES, namespace, name)
        self._identity = identity
        self._known: Lease | None = None
        """As we have written it, and it still was when we last looked."""
        self._seen: LeaseSpec | None = None
        self._seen_s = _NEVER
        self._said = ""
        self.until_s = _NEVER

    @property
    def leading(self) -> bool:
        """Whether it may act now."""
        return asyncio.get_running_loop().time() < self.until_s

    @property
    def holder(self) -> str:
        """Who has the lease, as far as is known; empty if nobody."""
        return (self._seen and self._seen.holder_identity) or ""

    async def lead(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease, and do `act` while holding it; give it back at the end, also when cancelled.

        Raises Lost, after `act` was cancelled and has ended.
        """
        while not self.leading:
            await self._attempt()
            if not self.leading:
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.0))
        _log.info("%s leads, by the lease %s", self._identity, self._place.name)
        acting, keeping = asyncio.ensure_future(act()), asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({acting, keeping}, return_when=asyncio.FIRST_COMPLETED)
            lost = not acting.done()
        finally:
            for task in (acting, keeping):
                task.cancel()
            await asyncio.gather(acting, keeping, return_exceptions=True)
            await self._release()
        if lost:
            keeping.result()
            raise LeaseLostError(
                f"{self._identity} no longer holds the lease {self._place.name}; {self.holder or 'nobody'} does"
            )
        acting.result()

    async def _keep(self) -> None:
        """Renew it, as long as that works."""
        loop = asyncio.get_running_loop()
        while (left_s := self.until_s - loop.time()) > 0:
            await asyncio.sleep(min(RETRY_S, left_s))
            await self._attempt()

    async def _attempt(self) -> None:
        """Take the lease or renew it, if it is free or ours."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            # A leader that waits for an answer must not wait beyond its end.
            async with asyncio.timeout_at(min(began_s + ATTEMPT_S, self.until_s if self.leading else float("inf"))):
                lease = self._known or await self._looked()
                if lease is not None and not self._free(lease.spec):
                    self.until_s = _NEVER
                    return
                self._known = await self._written(lease)
        except (ApiError, TimeoutError) as error:
            # Whether it was written is not known: look, next time.
            self._known = None
            remedy = f"; {error.remedy}" if isinstance(error, ApiError) and error.remedy else ""
            self._failed(f"{error}{remedy}" or "the API server did not answer in time")
            return
        self.until_s = began_s + RENEWED_WITHIN_S
        self._seen, self._seen_s, self._said = self._known.spec, loop.time(), ""

    async def _looked(self) -> Lease | None:
        """The lease as it is; None when there is none."""
        try:
            found = await self._api.get(LEASES, self._place.name, self._place.namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise
        if found.spec != self._seen:
            self._seen, self._seen_s = found.spec, asyncio.get_running_loop().time()
        return found

    def _free(self, spec: LeaseSpec) -> bool:
        """Whether it may be taken, or renewed."""
        if spec.holder_identity in (None, "", self._identity):
            return True
        return asyncio.get_running_loop().time() >= self._seen_s + (spec.lease_duration_seconds or LASTS_S)

    async def _written(self, lease: Lease | None) -> Lease:
        """The lease with our name in it. Raises ApiError; a conflict when somebody was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people: nobody's clock is trusted with it
        spec: Object = {"holderIdentity": self._identity, "leaseDurationSeconds": LASTS_S, "renewTime": now}
        if lease is None or lease.spec.holder_identity != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = lease.spec.lease_transitions + 1 if lease is not None else 0
        if lease is not None:
            unchanged = {"resourceVersion": lease.metadata.resource_version}
            return await self._api.merge(self._place, {"metadata": unchanged, "spec": spec})
        about = {"name": self._place.name, "namespace": self._place.namespace}
        return await self._api.create(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": spec}
        )

    async def _release(self) -> None:
        """Let the next one in at once, if it is still ours to give: a renewal may have been under way."""
        self._known, self.until_s = None, _NEVER
        try:
            async with asyncio.timeout(RETRY_S):
                while (lease := await self._looked()) is not None and lease.spec.holder_identity == self._identity:
                    await self._give_back(lease)
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "could not give back the lease, which ends by itself in %d s: %s", LASTS_S, str(error) or "no answer"
            )

    async def _give_back(self, lease: Lease) -> None:
        unchanged = {"resourceVersion": lease.metadata.resource_version}
        try:
            await self._api.merge(self._place, {"metadata": unchanged, "spec": {"holderIdentity": None}})
        except ApiError as error:
            if not error.conflict:
                raise

    def _failed(self, why: str) -> None:
        if self._said != why:
            self._said = why
            _log.warning("the lease %s: %s", self._place.name, why)
