"""A token that expires under a controller: logged, retried, nothing lost. Fake API server, virtual time."""

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.lease import LeaseLostError
from tests.kubernetes.binding import GANG, Controlled, controller
from tests.kubernetes.controller.test_controller_faults import MEMBERS, bound, leading, ruled, scene, status, submit
from tests.waiting import until
from tools.fakeapi import Call, FakeApi, Fault

RUN_OUT = "this process's credentials have expired: renew the token"
FOR_S = 300.0


class Renewed:
    """A token in a file, as a pod's service account has one."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self._api, self._file = api, folder / "token"
        self.token_value = ""
        self.renew()
        config = api.kubeconfig(folder / "config", self.token_value)
        written = json.loads(config.read_text())
        written["users"][0]["user"] = {"tokenFile": str(self._file)}
        config.write_text(json.dumps(written))
        self.access = Credentials.from_kubeconfig([config])

    def renew(self) -> None:
        self.token_value = f"renewed-at-{asyncio.get_running_loop().time()}"
        self._file.write_text(self._api.add_user(self.token_value))

    def expire(self) -> None:
        self._api.expire(f"{self.token_value}-token")


@dataclass(slots=True)
class Expiring(Fault):
    """A token that expires with the pod write after that many."""

    token: Renewed | None = None
    writes: int = 0
    is_over: bool = False

    def strikes(self, call: Call, rng: random.Random) -> bool:
        if self.token is not None and not self.is_over and call.verb == "create" and call.resource.startswith("pods"):
            self.is_over = self.writes == 0
            self.writes -= 1
            if self.is_over:
                self.token.expire()
                return True
        return False


def silent_s(system: Controlled) -> float:
    """Return the silence of the watch of pods, from the metrics."""
    return next(
        item for item in system.backend.backend_metrics() if item.name == "ganger_watch_silence_seconds"
    ).values["pods",]


def uids(api: FakeApi) -> set[str]:
    return {pod["metadata"]["uid"] for pod in api.objects("pods")}


def test_a_token_that_was_renewed_in_its_file_is_read_again_without_interruption(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, _: Credentials) -> None:
        token = Renewed(api, tmp_path)
        async with leading(token.access) as (election, leads), ruled(token.access, tmp_path, election) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            before, old = uids(api), f"{token.token_value}-token"
            token.renew()
            api.expire(old)
            await asyncio.sleep(FOR_S)
            assert (leads.done(), uids(api)) == (False, before)
            api.kubelet.finish("default", bound(api)[0], 3)
            await until(lambda: {name.rsplit("-", 2)[1] for name in bound(api)} == {"2"})
        assert RUN_OUT not in caplog.text

    scene(tmp_path, play)


def test_a_token_that_is_not_renewed_is_reported_and_running_gangs_go_on_until_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, _: Credentials) -> None:
        token = Renewed(api, tmp_path)
        async with leading(token.access) as (election, leads), ruled(token.access, tmp_path, election) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            before = uids(api)
            token.expire()
            await asyncio.sleep(FOR_S)
            assert f"could not watch pods: 401 Unauthorized: Unauthorized; {RUN_OUT}" in caplog.text
            assert "the lease ganger-controller: could not patch leases" in caplog.text
            assert silent_s(system) >= FOR_S - 1
            assert isinstance(leads.exception(), LeaseLostError)
            assert (system.state_of(GANG), uids(api)) == ("starting", before)
            token.renew()
            await until(lambda: silent_s(system) < 60)
            assert (system.state_of(GANG), uids(api)) == ("starting", before)
        api.server.calls.clear()
        async with leading(token.access) as (election, _leads), ruled(token.access, tmp_path, election) as system:
            await asyncio.sleep(FOR_S)
            assert (system.state_of(GANG), system.loop.copy().gangs[GANG].attempt.generation) == ("starting", 1)
            calls = {(call.verb, call.resource) for call in api.server.calls}
            assert not calls & {("create", "pods"), ("create", "pods/binding"), ("delete", "pods")}
            assert uids(api) == before

    scene(tmp_path, play)


@pytest.mark.parametrize("after_writes", [0, 1, MEMBERS, MEMBERS + 1])
def test_a_start_in_the_midst_of_which_it_runs_out_costs_no_attempt_when_it_is_renewed_soon(
    after_writes: int, tmp_path: Path
) -> None:
    async def play(api: FakeApi, _: Credentials) -> None:
        token = Renewed(api, tmp_path)
        async with controller(token.access, tmp_path) as system:
            struck = api.inject(Expiring(status=401, reason="Unauthorized", token=token, writes=after_writes))
            submit(system, retries=0)
            await until(lambda: struck.is_over)
            await asyncio.sleep(5)
            token.renew()
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            assert system.loop.copy().gangs[GANG].attempt.generation == 1

    scene(tmp_path, play)
