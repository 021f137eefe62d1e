"""At most one candidate leads, one leads soon, and no other machine's clock is trusted."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.lease import CANDIDATE_PERIOD_S, RENEW_DEADLINE_S, RETRY_PERIOD_S, LeaderLease, LeaseLostError
from tests.examples import one_in_gate
from tests.kubernetes.scripted import broken, refused, run, serving
from tools.skipping import SkippingLoop

PATH = "/apis/coordination.k8s.io/v1/namespaces/ganger/leases"


class Leases:
    """One lease, with its resource version as a precondition; requests of some candidates get lost."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.cut: set[str] = set()
        self.deaf: set[str] = set()
        self.holders: list[str | None] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        identity = request.headers["Authorization"].removeprefix("Bearer ")
        if identity in self.cut:
            return broken(request)
        body = await request.json() if request.can_read_body else None
        answer = self._answer(request, body)
        self.before_answer()
        return broken(request) if identity in self.deaf else answer

    def _answer(self, request: web.Request, body: Any) -> web.Response:
        if request.method == "POST":
            assert request.path == PATH
            if self.lease is not None:
                return refused(409, "AlreadyExists")
            self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": "0", "uid": "u"}}
        else:
            assert request.path == f"{PATH}/one"
            if self.lease is None:
                return refused(404, "NotFound")
            if request.method == "PATCH":
                if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                    return refused(409, "Conflict")
                self.lease["spec"] |= body["spec"]
        if request.method != "GET":
            self.lease["metadata"]["resourceVersion"] = str(int(self.lease["metadata"]["resourceVersion"]) + 1)
            if (holder := self.lease["spec"]["holderIdentity"]) != (self.holders or [None])[-1]:
                self.holders.append(holder)
        return web.json_response(self.lease)


class Candidate:
    """Records from when until when it leads."""

    def __init__(self, api: ApiClient, identity: str, acting: set[str]) -> None:
        self.identity = identity
        self.election = LeaderLease(api, "ganger", "one", identity)
        self.acting = acting
        self.began_s: list[float] = []
        self.stopped = asyncio.Event()
        self.task = asyncio.ensure_future(self.run())

    async def act(self) -> None:
        assert self.election.is_leading
        assert not self.acting, f"{self.identity} acts beside {self.acting}"
        self.acting.add(self.identity)
        self.began_s.append(asyncio.get_running_loop().time())
        try:
            while True:
                await asyncio.sleep(0.5)
                assert self.acting == {self.identity}
        finally:
            self.acting.discard(self.identity)
            self.stopped.set()

    async def run(self) -> None:
        while True:
            try:
                await self.election.lead(self.act)
            except LeaseLostError:
                continue


@asynccontextmanager
async def candidates(leases: Leases, folder: Path, *names: str) -> AsyncIterator[list[Candidate]]:
    acting: set[str] = set()
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        opened: asyncio.Queue[Candidate] = asyncio.Queue()

        async def run_candidate(identity: str) -> None:
            own = folder / identity
            own.mkdir()
            async with serving(leases, own, {"token": identity}) as access, ApiClient(access, PROGRAM) as api:
                opened.put_nowait(candidate := Candidate(api, identity, acting))
                await stop.wait()
                candidate.task.cancel()
                await asyncio.gather(candidate.task, return_exceptions=True)

        for name in names:
            group.create_task(run_candidate(name))
        yield sorted([await opened.get() for _ in names], key=lambda item: names.index(item.identity))
        stop.set()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_one_of_them_leads_and_stays(tmp_path: Path) -> None:
    async def test() -> None:
        leases = Leases()
        async with candidates(leases, tmp_path, "a", "b", "c") as all_of_them:
            await asyncio.sleep(300)
            assert sum(item.election.is_leading for item in all_of_them) == 1
            holders = list(leases.holders)
            assert [leases.lease["spec"]["holderIdentity"]] == holders
            assert {item.election.holder for item in all_of_them} == set(holders)
            assert leases.lease["spec"]["leaseTransitions"] == 0

    run(test())


def test_a_leader_that_ends_releases_the_lease(tmp_path: Path) -> None:
    async def test() -> None:
        leases = Leases()
        async with candidates(leases, tmp_path, "a", "b") as both:
            await asyncio.sleep(30)
            first, second = sorted(both, key=lambda item: not item.election.is_leading)
            first.task.cancel()
            ended_s = now_s()
            await asyncio.sleep(60)
            assert leases.holders == [first.identity, None, second.identity]
            assert second.began_s[0] - ended_s <= CANDIDATE_PERIOD_S
            assert leases.lease["spec"]["leaseTransitions"] == 1

    run(test())


@pytest.mark.parametrize("how", ["cut", "deaf"])
def test_a_leader_that_is_cut_off_stops_before_the_next_one_begins(how: str, tmp_path: Path) -> None:
    """Nothing of a cut-off candidate arrives; everything of a deaf one, but it never gets a response."""

    async def test() -> None:
        leases = Leases()
        async with candidates(leases, tmp_path, "a", "b") as both:
            await asyncio.sleep(30)
            first, second = sorted(both, key=lambda item: not item.election.is_leading)
            getattr(leases, how).add(first.identity)
            cut_s = now_s()
            await first.stopped.wait()
            assert RENEW_DEADLINE_S - RETRY_PERIOD_S - 0.5 <= now_s() - cut_s <= RENEW_DEADLINE_S + 0.5
            assert not first.election.is_leading
            if how == "cut":
                await asyncio.sleep(cut_s + 15 + RETRY_PERIOD_S - now_s())
                assert second.election.is_leading
            getattr(leases, how).clear()
            await asyncio.sleep(60)
            assert sum(item.election.is_leading for item in both) == 1

    run(test())


@pytest.mark.parametrize("when", ["between two renewals", "during a renewal"])
def test_a_leader_whose_loop_stalled_beyond_its_lease_ends(when: str, tmp_path: Path) -> None:
    """It may have been refused writes, which nothing in it makes up for; another one may not have acted yet."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        leases = Leases()
        async with candidates(leases, tmp_path, "a") as (only,):
            await asyncio.sleep(30)
            if when == "during a renewal":
                leases.before_answer = lambda: loop.stall(RENEW_DEADLINE_S)
                await only.stopped.wait()
            else:
                loop.stall(RENEW_DEADLINE_S)
                assert not only.election.is_leading
                await asyncio.sleep(0.1)
            assert only.stopped.is_set()
            leases.before_answer = lambda: None
            await asyncio.sleep(30)
            assert len(only.began_s) == 2, "it is a candidate like any other"

    run(test())


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_no_other_clock_is_believed(renewed: str, tmp_path: Path) -> None:
    """A dead leader's lease, with a time wrong by centuries, is taken when it was unchanged for its duration."""

    async def test() -> None:
        leases = Leases()
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 40, "renewTime": renewed, "leaseTransitions": 3}
        leases.lease = {"metadata": {"name": "one", "resourceVersion": "7"}, "spec": spec}
        async with candidates(leases, tmp_path, "a") as (only,):
            await asyncio.sleep(39)
            assert not only.election.is_leading
            assert only.election.holder == "dead"
            await asyncio.sleep(1 + RETRY_PERIOD_S + 1)
            assert only.election.is_leading
            assert leases.lease["spec"]["leaseTransitions"] == 4

    run(test())


def test_a_deleted_lease_is_made_again(tmp_path: Path) -> None:
    async def test() -> None:
        leases = Leases()
        async with candidates(leases, tmp_path, "a") as (only,):
            await asyncio.sleep(10)
            leases.lease = None
            await asyncio.sleep(30)
            assert only.election.is_leading
            assert len(only.began_s) == 1

    run(test())


def test_what_ends_by_itself_gives_the_lease_back(tmp_path: Path) -> None:
    async def test() -> None:
        leases = Leases()

        async def act() -> None:
            await asyncio.sleep(5)
            raise ValueError("done badly")

        async with serving(leases, tmp_path, {"token": "a"}) as access, ApiClient(access, PROGRAM) as api:
            with pytest.raises(ValueError, match="done badly"):
                await LeaderLease(api, "ganger", "one", "a").lead(act)
        assert leases.holders == ["a", None]

    run(test())


@pytest.mark.parametrize("seed", one_in_gate(range(6)))
def test_never_two_whatever_gets_lost(seed: int, tmp_path: Path) -> None:
    """Three candidates for five minutes, with random faults: each asserts while leading that no other leads."""
    chance = random.Random(seed)

    async def test() -> None:
        leases = Leases()
        async with candidates(leases, tmp_path, "a", "b", "c") as all_of_them:
            for _ in range(20):
                for fault in (leases.cut, leases.deaf):
                    fault.clear()
                    fault.update(name for name in "abc" if chance.random() < 0.25)
                await asyncio.sleep(chance.uniform(0.5, 30))
                for item in all_of_them:
                    assert not item.task.done(), item.task
            leases.cut.clear()
            leases.deaf.clear()
            await asyncio.sleep(25)
            assert sum(item.election.is_leading for item in all_of_them) == 1

    run(test())
