"""Leader election by a Lease, as in client-go: of several controllers, the holder acts.

A lease is no fence: the API server accepts a write from any client. So a leader stops acting at `until_s`, five seconds
before another candidate may take the lease, and checks `is_leading` before each write that matters. Clocks of machines
are not compared: how long a lease was not renewed is measured locally, from when its record was last observed to
change.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import jittered
from ganger.kubeapi.objects import Lease, LeaseSpec, Object
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import LEASES

LEASE_DURATION_S: Final = 15
"""Time for which a record must be unchanged before another candidate may take the lease."""
RENEW_DEADLINE_S: Final = 10.0
"""Time for which a leader acts without a renewal."""
RETRY_PERIOD_S: Final = 2.0
"""Interval at which a leader renews its lease."""
CANDIDATE_PERIOD_S: Final = 0.5
"""Interval at which a candidate reads the lease: one that is released is acquired within that time."""
ATTEMPT_TIMEOUT_S: Final = 5.0
"""Limit of one attempt, its retries included."""
CLIENT_RETRY_FOR_S: Final = ATTEMPT_TIMEOUT_S / 2
"""Retry limit of the lease's client: shorter, or an attempt would end before its error is known."""

_NEVER: Final = float("-inf")
_log = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """The lease could not be renewed in time, or has another holder: the leader's work was cancelled."""


class LeaderLease:
    """One candidate for a lease.

    Attributes:
        until_s: the end of its right to act, by the event loop's clock.
    """

    def __init__(self, api: ApiClient, namespace: str, name: str, identity: str) -> None:
        """Create a candidate.

        Args:
            api: a client of its own, so that the lease waits for no other request.
            namespace: the lease's namespace.
            name: the lease's name.
            identity: unique to this process: a second one with that name would pass for it.
        """
        self._api = api
        self._ref = ObjectRef(LEASES, namespace, name)
        self._identity = identity
        self._known: Lease | None = None
        """The lease as this candidate wrote it, if it was unchanged when last read."""
        self._observed: LeaseSpec | None = None
        self._observed_s = _NEVER
        self._logged = ""
        self.until_s = _NEVER

    @property
    def is_leading(self) -> bool:
        """True while the candidate may act."""
        return asyncio.get_running_loop().time() < self.until_s

    @property
    def holder(self) -> str:
        """Holder of the lease as far as is known; empty without one."""
        return (self._observed and self._observed.holder_identity) or ""

    async def lead(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease and run `act` while holding it; release it at the end, also when cancelled.

        Raises LeaseLostError after `act` was cancelled and has ended.
        """
        while not self.is_leading:
            await self._attempt()
            if not self.is_leading:
                await asyncio.sleep(jittered(CANDIDATE_PERIOD_S))
        _log.info("%s leads, by the lease %s", self._identity, self._ref.name)
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
                f"{self._identity} no longer holds the lease {self._ref.name}; holder: {self.holder or 'none'}"
            )
        acting.result()

    async def _keep(self) -> None:
        """Renew the lease for as long as that works."""
        loop = asyncio.get_running_loop()
        while (left_s := self.until_s - loop.time()) > 0:
            await asyncio.sleep(min(RETRY_PERIOD_S, left_s))
            if self.is_leading:
                await self._attempt()

    async def _attempt(self) -> None:
        """Acquire or renew the lease, if it is free or held by this candidate.

        A leader whose lease has ended does not renew it: it may have been refused writes since.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # A leader must not wait for a response beyond the end of its lease.
        end_s = self.until_s if self.is_leading else float("inf")
        try:
            async with asyncio.timeout_at(min(began_s + ATTEMPT_TIMEOUT_S, end_s)):
                lease = self._known or await self._read()
                if lease is not None and not self._may_acquire(lease.spec):
                    self.until_s = _NEVER
                    return
                self._known = await self._write(lease)
        except (ApiError, TimeoutError) as error:
            # The outcome is unknown: read the lease next time.
            self._known = None
            remedy = f"; {error.remedy}" if isinstance(error, ApiError) and error.remedy else ""
            self._log_once(f"{error}{remedy}" or "the API server did not respond in time")
            return
        if loop.time() < end_s:
            self.until_s = began_s + RENEW_DEADLINE_S
        self._observed, self._observed_s, self._logged = self._known.spec, loop.time(), ""

    async def _read(self) -> Lease | None:
        """Return the lease; None if it does not exist."""
        try:
            lease = await self._api.get(LEASES, self._ref.name, self._ref.namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise
        if lease.spec != self._observed:
            self._observed, self._observed_s = lease.spec, asyncio.get_running_loop().time()
        return lease

    def _may_acquire(self, spec: LeaseSpec) -> bool:
        """Return whether the candidate may acquire or renew the lease."""
        if spec.holder_identity in (None, "", self._identity):
            return True
        return asyncio.get_running_loop().time() >= self._observed_s + (spec.lease_duration_seconds or LEASE_DURATION_S)

    async def _write(self, lease: Lease | None) -> Lease:
        """Write the lease with this candidate as its holder. Raises ApiError; a conflict if another was faster."""
        renew_time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for readers: no clock is trusted with it
        spec: Object = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": renew_time,
        }
        if lease is None or lease.spec.holder_identity != self._identity:
            spec["acquireTime"] = renew_time
            spec["leaseTransitions"] = lease.spec.lease_transitions + 1 if lease is not None else 0
        if lease is not None:
            unchanged = {"resourceVersion": lease.metadata.resource_version}
            return await self._api.merge(self._ref, {"metadata": unchanged, "spec": spec})
        metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
        return await self._api.create(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        )

    async def _release(self) -> None:
        """Let the next candidate in at once, if this one still holds the lease: a renewal may have been in flight."""
        self._known, self.until_s = None, _NEVER
        try:
            async with asyncio.timeout(RETRY_PERIOD_S):
                while (lease := await self._read()) is not None and lease.spec.holder_identity == self._identity:
                    await self._clear_holder(lease)
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "could not release the lease, which expires in %d s: %s",
                LEASE_DURATION_S,
                str(error) or "no response",
            )

    async def _clear_holder(self, lease: Lease) -> None:
        unchanged = {"resourceVersion": lease.metadata.resource_version}
        try:
            await self._api.merge(self._ref, {"metadata": unchanged, "spec": {"holderIdentity": None}})
        except ApiError as error:
            if not error.conflict:
                raise

    def _log_once(self, message: str) -> None:
        if self._logged != message:
            self._logged = message
            _log.warning("the lease %s: %s", self._ref.name, message)
