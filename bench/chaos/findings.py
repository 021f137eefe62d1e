"""Observer of gangs under chaos: every second it recomputes from the raw pods what must never be, and for how long.

- doubled: a node's pods request more GPUs than it has; or a gang has two bound pods for one place, or of two
  generations.
- half-bound: a gang has pods that are bound and pods that are not, for longer than `SETTLES_S` since the last fault and
  since a controller leads. Of a GangJob all pods count; of the other kinds those that exist, since others create them.
- lost: in the end a gang that nobody stopped is not fully bound, or an ended one has pods.
"""

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.chaos.gangs import GANG_JOB, GPUS, Gang, Users, gang_of, part_of
from bench.chaos.raw_objects import NODES, PODS, RawObjects
from ganger.gang_jobs import object_names

SETTLES_S: Final = 10.0
POLL_S: Final = 1.0
DOUBLED, HALF, LOST = SORTS = ("doubled", "half_bound", "lost")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    sort: str
    text: str


class Observer:
    """Observer of the pods.

    Args:
        led_s: returns the time since when a controller leads.

    Attributes:
        calm_s: time of the last fault; infinite while faults strike.
        findings: what was found so far.
        polls: number of polls.
    """

    def __init__(self, objects: RawObjects, users: Users, led_s: Callable[[], float]) -> None:
        self._objects, self._users, self._led_s = objects, users, led_s
        self._half_since_s: dict[str, float] = {}
        self._bound: dict[str, frozenset[str]] = {}
        self.calm_s = math.inf
        self.findings: list[Finding] = []
        self.polls = 0
        self.pods: list[Any] = []

    async def run(self) -> None:
        """Poll every second until cancelled; users complete their gangs with what is polled."""
        while True:
            pods = await self._objects.list(PODS)
            self.polls += 1
            self.pods = pods
            self._report(DOUBLED, doubled(pods))
            self._report(HALF, self.late(half_bound(pods, self._users.live), pods))
            await self._users.complete(pods)
            await asyncio.sleep(POLL_S)

    def late(self, half: Mapping[str, str], pods: Sequence[Any]) -> list[str]:
        """Return those that have been half-bound for too long. A gang that loses a pod begins anew."""
        now_s, bound = time.monotonic(), _bound_names(pods)
        self._half_since_s = {
            name: self._half_since_s.get(name, now_s) if self._bound.get(name, frozenset()) <= bound[name] else now_s
            for name in half
        }
        self._bound = bound
        since_s = max(self.calm_s, self._led_s())
        return [text for name, text in half.items() if now_s - max(self._half_since_s[name], since_s) > SETTLES_S]

    async def check_lost(self, within_s: float) -> None:
        """Record the gangs that are still lost after that time."""
        texts = list[str]()
        for _ in range(int(within_s / POLL_S)):
            nodes = {str(node["metadata"]["name"]) for node in await self._objects.list(NODES)}
            texts = lost(await self._objects.list(PODS), self._users.live, nodes)
            if not texts:
                return
            await asyncio.sleep(POLL_S)
        self._report(LOST, texts)

    def _report(self, sort: str, texts: Sequence[str]) -> None:
        for text in texts:
            finding = Finding(sort, text)
            if finding not in self.findings:
                print(f"  FOUND {sort}: {text}", flush=True)
                self.findings.append(finding)


def is_over(pod: Any) -> bool:
    """Return whether a pod has ended."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_live(pod: Any) -> bool:
    """Return whether a pod has not ended and is not being deleted."""
    return not is_over(pod) and "deletionTimestamp" not in pod["metadata"]


def node_of(pod: Any) -> str:
    """Return the node of a pod, or an empty text."""
    return str(pod["spec"].get("nodeName", ""))


def gpus_of(pod: Any) -> int:
    """Return the GPUs that a pod requests."""
    return sum(
        int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
        for container in pod["spec"]["containers"]
    )


def doubled(pods: Sequence[Any]) -> list[str]:
    """Return nodes and gangs with too many bound pods. A pod that is being deleted has its GPUs until it is gone."""
    by_node, by_gang = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for pod in pods:
        if node_of(pod) and not is_over(pod):
            by_node[node_of(pod)].append(pod)
            if is_live(pod):
                by_gang[gang_of(pod)].append(pod)
    texts = []
    for node, on_node in by_node.items():
        if sum(map(gpus_of, on_node)) > GPUS:
            texts.append(f"{node} has {', '.join(sorted(map(_text, on_node)))}")
    for name, bound in by_gang.items():
        parts = Counter(map(part_of, bound))
        generations = {pod["metadata"].get("labels", {}).get(object_names.GENERATION) for pod in bound}
        if len(generations) > 1 or max(parts.values()) > 1:
            texts.append(f"{name} has {', '.join(sorted(map(_text, bound)))}")
    return texts


def half_bound(pods: Sequence[Any], live: Mapping[str, Gang]) -> dict[str, str]:
    """Return the live gangs of which some pods are bound and others not."""
    existing = defaultdict[str, list[Any]](list)
    for pod in filter(is_live, pods):
        existing[gang_of(pod)].append(pod)
    half = {}
    for name, gang in live.items():
        count = sum(bool(node_of(pod)) for pod in existing[name])
        total = gang.size if gang.kind == GANG_JOB else len(existing[name])
        if 0 < count < total:
            half[name] = f"{name}: {count} of {total} pods are bound"
    return half


def lost(pods: Sequence[Any], live: Mapping[str, Gang], nodes: set[str]) -> list[str]:
    """Return live gangs with a pod that is not bound to an existing node, and pods of no live gang.

    The Job controller waits longer each time before it replaces a pod: a Job without some of its pods is not lost.
    """
    placed, existing, texts = Counter[str](), Counter[str](), []
    for pod in pods:
        if is_over(pod):
            continue
        name = gang_of(pod)
        existing[name] += 1
        placed[name] += node_of(pod) in nodes and is_live(pod)
        if name not in live:
            texts.append(f"{pod['metadata']['name']} is left of {name}")
    for name, gang in live.items():
        total = existing[name] if gang.kind == "Job" and existing[name] else gang.size
        if placed[name] != total:
            texts.append(f"{name}: {placed[name]} of {total} pods are bound to existing nodes")
    return texts


def _bound_names(pods: Sequence[Any]) -> defaultdict[str, frozenset[str]]:
    bound = defaultdict[str, frozenset[str]](frozenset)
    for pod in pods:
        if node_of(pod) and is_live(pod):
            bound[gang_of(pod)] |= {str(pod["metadata"]["uid"])}
    return bound


def _text(pod: Any) -> str:
    return f"{pod['metadata']['name']}{'' if is_live(pod) else ', being deleted'} ({gpus_of(pod)} GPUs)"
