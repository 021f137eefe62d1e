"""Devices of a node that pods of other schedulers have by a dialect of GPU sharing.

Such a device counts as used whole: what another scheduler puts on the rest of it is not known here. A pod that does not
say which device it has counts as one that has any. What it asks for, and not its annotations, says how many it has.

Pods that share a GPU by KAI Scheduler have none of their own: the pod that reserves it has. Where that is missing, each
of their groups counts as one device.
"""

from collections.abc import Collection

from ganger.backends.kubernetes.gpus.hami_devices import hami_gpus
from ganger.backends.kubernetes.gpus.kai_groups import gpu_groups, reserved_device
from ganger.backends.kubernetes.gpus.sharing_dialects import KAI, ShareRequest, placed_devices, share_request
from ganger.kubeapi.objects import Node, Pod


class SharesOfOthers:
    """The shares of foreign pods by node."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, tuple[int | str, ...] | int]] = {}
        """Devices of each pod by its UID: their indices or UUIDs, or only their number."""
        self._groups: dict[str, dict[str, tuple[str, ...]]] = {}
        """Groups of KAI Scheduler of each pod with shares, by its UID."""
        self._reserved: dict[str, dict[str, str]] = {}
        """Group whose GPU a pod reserves, by its UID."""

    def add(self, node: str, pod: Pod, share: ShareRequest | None, gpus: int) -> bool:
        """Count the devices that a pod has of a node; return whether they are counted here, rather than as `gpus`."""
        groups = gpu_groups(pod)
        if share is None and gpus == 1 and len(groups) == 1:
            self._reserved.setdefault(node, {})[pod.metadata.uid] = groups[0]
            self._devices.setdefault(node, {})[pod.metadata.uid] = (reserved_device(pod),)
            return True
        share = None if share is None or share.error else share
        if share is not None and share.dialect == KAI and groups:
            self._groups.setdefault(node, {})[pod.metadata.uid] = groups
        devices, count = placed_devices(pod), gpus if share is None else share.devices
        is_reserved = share is not None and devices == ()
        if devices is not None and len(devices) != count and not is_reserved:
            devices = None
        if share is None and devices is None:
            return False
        self._devices.setdefault(node, {})[pod.metadata.uid] = count if devices is None else devices
        return True

    def remove(self, node: str, pod: Pod) -> bool:
        """Count nothing of a pod any more; return whether its devices were counted here."""
        for grouped in (self._groups, self._reserved):
            if (of_node := grouped.get(node)) is not None:
                of_node.pop(pod.metadata.uid, None)
                if not of_node:
                    del grouped[node]
        on_node = self._devices.get(node, {})
        is_known = on_node.pop(pod.metadata.uid, None) is not None
        if is_known and not on_node:
            del self._devices[node]
        return is_known

    def on(self, node: Node, gpus: int, ours: Collection[int]) -> tuple[frozenset[int], int]:
        """Return the indices of devices that are shared by others only, and how many more they have somewhere."""
        index_of: dict[int | str, int] = {index: index for index in range(gpus)}
        index_of |= {gpu.uuid: index for index, gpu in enumerate(hami_gpus(node.metadata.annotations))}
        groups = {group for names in self._groups.get(node.metadata.name, {}).values() for group in names}
        known, unknown = set[int](), len(groups.difference(self._reserved.get(node.metadata.name, {}).values()))
        for devices in self._devices.get(node.metadata.name, {}).values():
            if isinstance(devices, int):
                unknown += devices
                continue
            indices = [index_of.get(device, gpus) for device in devices]
            known.update(index for index in indices if index < gpus)
            unknown += sum(index >= gpus for index in indices)
        return frozenset(known.difference(ours)), unknown


def same_devices(before: Pod, after: Pod) -> bool:
    """Return whether a pod asks for and has the same devices by its metadata before and after a change."""
    if gpu_groups(before) != gpu_groups(after) or reserved_device(before) != reserved_device(after):
        return False
    return share_request(before) == share_request(after) and placed_devices(before) == placed_devices(after)
