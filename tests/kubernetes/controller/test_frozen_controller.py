"""A controller that cannot follow the cluster any more ends and releases its lease, whatever it does at the time."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.__main__ import FAILED
from tests.examples import one_in_gate
from tests.kubernetes.binding import CRD
from tests.kubernetes.policy.test_policy_objects import definition
from tools.fakeapi import FakeApi

BROKEN = """
import asyncio, sys
from pathlib import Path
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.__main__ import main
follow = KubernetesBackend.run
async def run(self):
    following = asyncio.create_task(follow(self))
    while not Path(sys.argv[1]).exists():
        await asyncio.sleep(0.05)
    following.cancel()
    1 / 0
KubernetesBackend.run = run
sys.exit(main(sys.argv[2:]))
"""


LEASE: dict[str, Any] = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "ganger-controller", "namespace": "default"},
}


@pytest.mark.parametrize("begun", one_in_gate([" leads, by the lease", "standing by", ""]))
def test_a_controller_whose_informers_failed_ends_and_keeps_no_lease(begun: str, tmp_path: Path) -> None:
    home, flag, log = tmp_path / "home", tmp_path / "flag", tmp_path / "log"

    def is_begun() -> bool:
        return begun in log.read_text()

    async def test() -> None:
        async with FakeApi() as api, asyncio.timeout(60):
            for created in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
                api.put(created)
            if begun == "standing by":
                api.put(LEASE | {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 600}})
            options = ("--kubeconfig", api.kubeconfig(tmp_path / "config"), "--namespace", "default", "--image", "i")
            options += ("--home", home, "--launcher-address", "127.0.0.1:0")
            command = (sys.executable, "-c", BROKEN, flag, *options)
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(*command, stderr=stderr)
            try:
                while not is_begun():  # noqa: ASYNC110 - it is in a log
                    await asyncio.sleep(0.05)
                flag.touch()
                assert await process.wait() == FAILED
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert "this controller cannot follow the cluster any more, see its log" in log.read_text()
            assert "ZeroDivisionError" in log.read_text()
            holder = (api.get("leases", "ganger-controller") or {}).get("spec", {}).get("holderIdentity")
            assert holder == "another" if begun == "standing by" else not holder

    asyncio.run(test())
