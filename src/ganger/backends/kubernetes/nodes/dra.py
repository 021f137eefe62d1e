"""GPUs that ResourceClaims have been given, by node. Pure; called by `nodes`.

A device that several pods share through one claim is one device, and so are slices of one GPU. A claim that the
scheduler made for a pod's `nvidia.com/gpu` is not counted at all: the pod's request counts it already.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from ganger.kubeapi.objects import ClaimedDevice, ResourceClaim

DRIVERS: Final = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
"""Drivers whose devices are GPUs."""

_MADE_FOR_A_REQUEST: Final = "resource.kubernetes.io/extended-resource-claim"
_SLICE: Final = "-mig-"
_NAME: Final = "metadata.name"


class Device(NamedTuple):
    """One GPU, as its driver calls it."""

    driver: str
    pool: str
    name: str


def claimed(claim: ResourceClaim) -> tuple[str, frozenset[Device]]:
    """On which node, and which GPUs, a claim holds. Without any the node is of no account."""
    allocation = claim.status.allocation
    if allocation is None or claim.metadata.annotations.get(_MADE_FOR_A_REQUEST) == "true":
        return "", frozenset()
    held = [each for each in allocation.devices.results if each.driver in DRIVERS and not each.admin_access]
    terms = allocation.node_selector.node_selector_terms
    named = [field.values for term in terms for field in term.match_fields if field.key == _NAME and field.values]
    # What a node's own driver publishes is in a pool of the node's name.
    node = named[0][0] if named else next((each.pool for each in held), "")
    return node, frozenset(map(_device, held))


def is_of(claim: ResourceClaim, uids: Collection[str]) -> bool:
    """Whether one of these pods uses it."""
    return any(consumer.uid in uids for consumer in claim.status.reserved_for)


def _device(result: ClaimedDevice) -> Device:
    return Device(result.driver, result.pool, result.device.partition(_SLICE)[0])
