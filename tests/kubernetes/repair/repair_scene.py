"""A cluster in which a node fails and is repaired by hooks as Jobs, on the fake API server and on virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.object_names import HEALTH, NODE, REPAIR
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.node_health.health_record import NodeHealth
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER, Controlled, controller
from tests.kubernetes.jobs.test_gang_jobs import running
from tests.kubernetes.policy.test_policy_objects import definition, policy
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

NODES = 3
FAULTY = "n1"
HOOK_S = 1.0
RULES: dict[str, Any] = {
    "hooks": {"reset_device": ["reset"], "reboot": ["reboot"], "test": ["burn-in"], "timeout": "1m"},
    "correlation": {"settle": "1s"},
}
WITHIN_S = 3_600.0


@dataclass
class Scene:
    """The cluster.

    Attributes:
        ends: how the Job of each step ends, by the step: True succeeds, False fails, None never ends.
        ran: node, step and name of each Job that was created, in order.
        returned_untested: what the node was when it took jobs before its test had succeeded.
    """

    api: FakeApi
    access: Credentials
    folder: Path
    ends: dict[str, bool | None] = field(default_factory=lambda: {"reset_device": False, "reboot": True, "test": True})
    ran: list[tuple[str, str, str]] = field(default_factory=list)
    returned_untested: list[str] = field(default_factory=list)
    _seen: dict[str, float] = field(default_factory=dict)
    _lives: int = 0

    @asynccontextmanager
    async def leads(self, win: Callable[[], Awaitable[Any]] | None = None) -> AsyncIterator[Controlled]:
        """Run a controller that leads for the duration of the context, and then vanishes as if killed.

        win: what it waits for as a standby, which follows the cluster.
        """
        self._lives += 1
        folder = self.folder / str(self._lives)
        folder.mkdir()
        async with ApiClient(self.access, PROGRAM) as api:
            policies = PolicyReconciler(api, lambda: True)
            async with running(policies.run()), controller(self.access, folder, policies, win=win) as system:
                yield system

    def node(self, name: str = FAULTY) -> Any:
        """Return a node."""
        return self.api.get("nodes", name, "")

    def annotations(self, name: str = FAULTY) -> dict[str, str]:
        """Return the annotations of a node."""
        return self.node(name)["metadata"].get("annotations") or {}

    def is_cordoned(self, name: str = FAULTY) -> bool:
        """Return whether a node is marked unschedulable."""
        return bool(self.node(name).get("spec", {}).get("unschedulable"))

    def change_node(self, name: str = FAULTY, *, cordoned: bool) -> None:
        """Cordon or uncordon a node as `kubectl` does."""
        node = self.node(name)
        self.api.put(node | {"spec": {**node.get("spec", {}), "unschedulable": cordoned}})

    def annotate(self, name: str = FAULTY, **annotations: str | None) -> None:
        """Change annotations of ganger by hand: `health`, `cordoned`."""
        node = self.node(name)
        changed = {**self.annotations(name), **{f"ganger.dev/{key}": value for key, value in annotations.items()}}
        kept = {key: value for key, value in changed.items() if value is not None}
        self.api.put(node | {"metadata": {**node["metadata"], "annotations": kept}})

    def kept_state(self, name: str = FAULTY) -> str:
        """Return the state of the health that is kept on a node; empty for none."""
        text = self.annotations(name).get(HEALTH)
        return json.loads(text)["record"].get("state", "healthy") if text else ""

    async def play_jobs(self) -> None:
        """Be the Job controller and the kubelets: each Job ends after a while, as `ends` says. Judge the node."""
        loop = asyncio.get_running_loop()
        while True:
            for job in self.api.objects("jobs"):
                about, step = job["metadata"], job["metadata"]["labels"][REPAIR]
                if about["uid"] not in self._seen:
                    self._seen[about["uid"]] = loop.time()
                    self.ran.append((about["annotations"][NODE], step, about["name"]))
                end = self.ends[step]
                if not job.get("status") and end is not None and loop.time() >= self._seen[about["uid"]] + HOOK_S:
                    condition = {"type": "Complete" if end else "Failed", "status": "True", "reason": "x"}
                    self.api.put(job | {"status": {"conditions": [condition]}})
            if self.ran and not self.is_cordoned() and not self._is_tested():
                self.returned_untested.append(self.kept_state())
            await asyncio.sleep(0.2)

    def _is_tested(self) -> bool:
        tests = [job for job in self.api.objects("jobs") if job["metadata"]["labels"][REPAIR] == "test"]
        return any((test.get("status") or {}).get("conditions", [{}])[0].get("type") == "Complete" for test in tests)


def report_fault(system: Controlled, node: str = FAULTY, severity: Severity = Severity.RESET_DEVICE) -> None:
    """Report a fault, as the agent does again and again while it lasts."""
    fault = Fault(
        node=node, check="xid", code="xid_79", severity=severity, gpu=0, at_ms=0, sentence=f"Xid 79 on {node}"
    )
    system.loop.post(NodeFaulty(fault=fault))


def health(system: Controlled, node: str = FAULTY) -> NodeHealth | None:
    """Return what the core knows of the health of a node."""
    with system.loop.view() as state:
        return state.health.by_node.get(node)


def play(folder: Path, played: Callable[[Scene], Awaitable[None]], rules: dict[str, Any] = RULES) -> None:
    """Play with a policy in force."""

    async def whole() -> None:
        async with FakeApi(kubelet=True) as api:
            for created in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
                api.put(created)
            for index in range(NODES):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            record = json.dumps({"spec": {"node_health": rules}})
            api.put(policy(node_health=rules) | {"status": {"record": record}})
            scene = Scene(api, credentials_of(api), folder)
            async with running(scene.play_jobs()):
                await played(scene)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(whole())
