"""GPUs allocated to ResourceClaims, by node.

A device that several pods share through one claim is one device, and so are slices of one GPU. A claim that the
scheduler created for a pod's `nvidia.com/gpu` is not counted: the pod's request counts already.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from ganger.kubeapi.device_objects import ClaimedDevice, ResourceClaim
from ganger.kubeapi.objects import Key

DRIVERS: Final = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
"""DRA drivers of GPUs."""

_EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
_SLICE_INFIX: Final = "-mig-"
_NAME_FIELD: Final = "metadata.name"


class Device(NamedTuple):
    """One GPU, by its driver's name for it."""

    driver: str
    pool: str
    name: str


def allocated_gpus(claim: ResourceClaim) -> tuple[str, frozenset[Device]]:
    """Return the node of a claim, and its GPUs. Without GPUs the node does not matter."""
    allocation = claim.status.allocation
    if allocation is None or claim.metadata.annotations.get(_EXTENDED_RESOURCE_CLAIM) == "true":
        return "", frozenset()
    gpus = [device for device in allocation.devices.results if device.driver in DRIVERS and not device.admin_access]
    terms = allocation.node_selector.node_selector_terms
    names = [field.values for term in terms for field in term.match_fields if field.key == _NAME_FIELD and field.values]
    # A node's own driver publishes its devices in a pool with the node's name.
    node = names[0][0] if names else next((gpu.pool for gpu in gpus), "")
    return node, frozenset(map(_device, gpus))


class ClaimedGpus:
    """GPUs that claims hold, by node, and the nodes on which each pod uses some by a claim."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[Key, ResourceClaim]] = {}
        self._nodes: dict[str, Counter[str]] = {}
        """Claims on each node, by UID of the pod that uses them."""

    def claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> set[str]:
        """Handle a change of a claim; return the nodes of its GPUs."""
        changed = set[str]()
        for claim in (before, after):
            node, gpus = ("", None) if claim is None else allocated_gpus(claim)
            if claim is not None and gpus:
                changed.add(node)
                self._put(node, claim, exists=claim is after)
        return changed

    def nodes_of(self, pod: str) -> set[str]:
        """Return the nodes on which the pod with this UID uses GPUs by a claim."""
        return set(self._nodes.get(pod, ()))

    def of_others(self, node: str, uids: Collection[str]) -> frozenset[Device]:
        """Return the GPUs of a node that claims hold which none of these pods uses."""
        claims = self._claims.get(node, {}).values()
        foreign = (claim for claim in claims if not any(user.uid in uids for user in claim.status.reserved_for))
        return frozenset(gpu for claim in foreign for gpu in allocated_gpus(claim)[1])

    def _put(self, node: str, claim: ResourceClaim, *, exists: bool) -> None:
        claims = self._claims.setdefault(node, {})
        claims.pop(claim.metadata.key, None)
        if exists:
            claims[claim.metadata.key] = claim
        if not claims:
            del self._claims[node]
        for user in claim.status.reserved_for:
            nodes = self._nodes.setdefault(user.uid, Counter())
            nodes[node] += 1 if exists else -1
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._nodes[user.uid]


def _device(result: ClaimedDevice) -> Device:
    return Device(result.driver, result.pool, result.device.partition(_SLICE_INFIX)[0])
