"""GPUs allocated to ResourceClaims, by node.

A device that several pods share through one claim is one device, and so are slices of one GPU. A claim that the
scheduler created for a pod's `nvidia.com/gpu` is not counted: the pod's request counts already.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from ganger.kubeapi.objects import ClaimedDevice, ResourceClaim

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


def is_used_by(claim: ResourceClaim, uids: Collection[str]) -> bool:
    """Return whether one of these pods uses the claim."""
    return any(consumer.uid in uids for consumer in claim.status.reserved_for)


def _device(result: ClaimedDevice) -> Device:
    return Device(result.driver, result.pool, result.device.partition(_SLICE_INFIX)[0])
