"""Network profiles of a cluster: which are in force, and on which nodes.

A profile is in force if it does not contradict itself and its networks exist. Its condition `Accepted` says so, and
names what `ganger net check` would find. Nodes of a profile that is not in force do not count as on its fabric: a job
that asks for it would run on the cluster's own network without a message.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import NETWORK_PROFILES
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.resources import Resource
from ganger.model.network_profile import NetworkProfile
from ganger.networks.findings import Finding
from ganger.networks.profile_checks import check, check_attachments
from ganger.networks.profile_text import KIND, profile_from_object

ATTACHMENTS: Final = Resource("k8s.cni.cncf.io", "v1", "network-attachment-definitions", CustomObject)
ACCEPTED: Final = "Accepted"
COLLECT_S: Final = 0.2
"""Time for which changes are collected: `kubectl apply` changes several objects at once."""
MAX_MESSAGE: Final = 2000


class NodeFabric(NamedTuple):
    """The fabric of the nodes with these labels; not `usable`: they are on it, and its profile is not in force."""

    labels: Mapping[str, str]
    fabric: str
    usable: bool

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels is on it."""
        return self.labels.items() <= labels.items()


ProfilesChanged = Callable[[tuple[NetworkProfile, ...], tuple[NodeFabric, ...]], None]


class NetworkProfiles:
    """The profiles, judged again whenever they or the networks change.

    `changed` gets those in force, by name, and the fabrics of nodes by all.
    """

    def __init__(self, api: ApiClient, may_act: Callable[[], bool], changed: ProfilesChanged) -> None:
        self.profiles = Informer(api, NETWORK_PROFILES, self._object_changed)
        self.attachments = Informer(api, ATTACHMENTS, self._object_changed)
        self.writer = StatusWriter(api, NETWORK_PROFILES, self.profiles.objects, may_act)
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None

    def judge(self) -> None:
        """Determine which profiles are in force, and write it to the objects."""
        self._timer = None
        if not (self.profiles.synced.is_set() and self.attachments.synced.is_set()):
            return
        attachments = {
            f"{key.namespace}/{key.name}": _as_object(item) for key, item in self.attachments.objects.items()
        }
        in_force, fabrics = list[NetworkProfile](), list[NodeFabric]()
        for key, item in sorted(self.profiles.objects.items()):
            data = {"kind": KIND, "metadata": {"name": key.name}, "spec": msgspec.json.decode(item.spec) or {}}
            try:
                profile = profile_from_object(data, key.name)
            except RequestError as error:
                self._write(item, "Invalid", error.detail)
                continue
            found = [*check(profile), *check_attachments(profile, attachments)]
            reason = "MissingNetwork" if any(each.code == "missing_network" for each in found) else ""
            self._write(item, reason, _message(found))
            fabrics.append(NodeFabric(profile.node_selector, profile.fabric, not reason))
            in_force += [] if reason else [profile]
        self._changed(tuple(in_force), tuple(fabrics))

    def close(self) -> None:
        """Judge nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _object_changed(self, before: CustomObject | None, after: CustomObject | None) -> None:
        if self._timer is None and (before is None or after is None or _differs(before, after)):
            self._timer = asyncio.get_running_loop().call_later(COLLECT_S, self.judge)

    def _write(self, item: CustomObject, reason: str, message: str) -> None:
        status = msgspec.json.decode(item.status) or {}
        condition: dict[str, Any] = {
            "type": ACCEPTED,
            "status": "False" if reason else "True",
            "reason": reason or "InForce",
            "message": message[:MAX_MESSAGE],
            "observedGeneration": item.metadata.generation,
        }
        for old in status.get("conditions", ()):
            if {**old, "lastTransitionTime": ""} == {**condition, "lastTransitionTime": ""}:
                return
        condition["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.writer.update(item.metadata.key, {"conditions": [condition]})


def _differs(before: CustomObject, after: CustomObject) -> bool:
    """Return whether more than the status differs."""
    return bytes(before.spec) != bytes(after.spec) or before.metadata.annotations != after.metadata.annotations


def _as_object(item: CustomObject) -> dict[str, Any]:
    return {"metadata": {"annotations": item.metadata.annotations}, "spec": msgspec.json.decode(item.spec) or {}}


def _message(found: list[Finding]) -> str:
    """Return the findings, with the repair of the first: `ganger net check` has those of all."""
    return "; ".join([*(f"{each.code}: {each.what}" for each in found), *(f"next: {each.fix}" for each in found[:1])])
