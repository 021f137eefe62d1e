"""Start-up times: read from what kubelets report, and written to the GangJob."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.startup_times import startup_times
from ganger.cli.output.job_detail_text import startup_text
from ganger.kubeapi.objects import Pod
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER
from tests.kubernetes.jobs.test_gang_jobs import put, reconciling_controller, status
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def reported(bound: int, ready: int | None, began: int | None, *inits: int) -> dict[str, Any]:
    """Return the status of a pod with these times, in seconds."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(bound)}]
    if ready is not None:
        conditions.append({"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": at(ready)})
    ends = [{"name": f"i{end}", "state": {"terminated": {"exitCode": 0, "finishedAt": at(end)}}} for end in inits]
    state = {"waiting": {"reason": "ContainerCreating"}} if began is None else {"running": {"startedAt": at(began)}}
    ranks = [{"name": "log-shipper", "state": {"running": {"startedAt": at(0)}}}, {"name": "ranks", "state": state}]
    phase = "Pending" if began is None else "Running"
    return {"phase": phase, "conditions": conditions, "initContainerStatuses": ends, "containerStatuses": ranks}


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        ((10, 13, 60), (50, 3, 0, 47)),
        ((10, 13, 60, 20, 40), (50, 3, 27, 20)),
        ((10, 10, 10), (0, 0, 0, 0)),
        ((10, 8, 9), (0, 0, 0, 0)),
        ((10, 70, 60), (50, 50, 0, 0)),
        ((10, 13, 60, 90), (50, 3, 47, 0)),
        ((10, 13, None), None),
        ((10, None, 60), None),
    ],
    ids=["image", "init containers", "at once", "a clock behind", "ready late", "a late end", "not yet", "old kubelet"],
)
def test_times_of_a_pod(times: Any, parts: tuple[int, ...] | None) -> None:
    pod = {"metadata": {"name": "p", "annotations": {"ganger.dev/node": "n0"}}, "status": reported(*times)}
    found = startup_times(msgspec.convert(pod, Pod))
    assert (None if found is None else tuple(found[:4])) == parts


def test_the_pod_that_took_longest_is_on_the_job() -> None:
    async def played(folder: Path) -> None:
        async with FakeApi() as api:
            for name in ("n0", "n1"):
                ready = {"conditions": [{"type": "Ready", "status": "True"}]}
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": OFFER | ready})
            api.put(CRD)
            access = credentials_of(api)
            async with reconciling_controller(access, folder):
                put(api)
                await until(lambda: len([pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]) == 2)
                first, second = api.objects("pods")
                api.put(second | {"status": reported(10, 12, 55)})
                await until(lambda: status(api).get("startup", {}).get("seconds") == 45)
                api.put(first | {"status": reported(10, 11, 20)})
                await asyncio.sleep(20)
                assert status(api)["startup"] == {
                    "attempt": 1,
                    "node": "n1",
                    "seconds": 45,
                    "preparationSeconds": 2,
                    "initSeconds": 0,
                    "imageSeconds": 43,
                }
                text = "attempt 1: 45s on n1 (volumes and network 2s, image 43s)"
                assert startup_text(status(api)["startup"]) == text

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(played(Path(folder)))
