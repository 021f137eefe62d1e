"""Owners of foreign pods, read when a gang forms, and suspended and resumed for it.

Most are read one by one and not watched: a gang needs its owner only when it forms, is preempted and starts again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ganger.backends.kubernetes.foreign.gang_kinds import (
    KINDS,
    PARENTS,
    GangKind,
    GangNeeds,
    GangSpecError,
    Owner,
    field_of,
    find_kind,
    merge_patch,
    owner_key,
    read_needs,
    with_parent,
)
from ganger.backends.kubernetes.foreign.pod_groups import PodGroup
from ganger.gang_jobs.custom_resources import GROUP
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import ListOptions, Resource

SUSPENDED: Final = f"{GROUP}/suspended"
"""Label of an owner that ganger has suspended because its gang was preempted."""
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of owners that Kueue suspends and resumes."""
RETRY_S: Final = 5.0
_OWNED_PODS: Final = Resource("", "v1", "pods", Owner)
"""Pods with their owners, which the view of all pods leaves out."""

_log = logging.getLogger(__name__)


class SuspendTarget(NamedTuple):
    """Object that is suspended for a gang: the owner of its pods, or the owner of that."""

    kind: GangKind
    key: Key


class OwnerView(NamedTuple):
    """Demand of an owner. target: None where its kind cannot be suspended, or Kueue does that."""

    needs: GangNeeds
    target: SuspendTarget | None = None


class GangOwners:
    """The owners of gangs.

    Args:
        api: client of the API server.
        may_act: returns whether this controller leads.
        groups: live view of the upstream PodGroups, the only owners that are watched.
    """

    def __init__(self, api: ApiClient, may_act: Callable[[], bool], groups: Mapping[Key, PodGroup]) -> None:
        self._api, self._may_act, self.groups = api, may_act, groups

    async def read(self, kind: GangKind, pod: Pod) -> OwnerView:
        """Return what the owner of a pod asks for. Raises GangSpecError, also where it cannot be read."""
        if kind.resource is None:
            return OwnerView(read_needs(kind, None, pod))
        owner = await self._get(kind.resource, kind.name, owner_key(kind, pod))
        needs, target = read_needs(kind, owner, pod), _target(kind, owner)
        for reference in owner.metadata.owner_references:
            parent_kind = PARENTS.get(reference.kind) if reference.controller else None
            if parent_kind is not None and parent_kind.resource is not None:
                key = Key(pod.metadata.namespace, reference.name)
                parent = await self._get(parent_kind.resource, parent_kind.name, key)
                return OwnerView(with_parent(needs, parent), _target(parent_kind, parent))
        return OwnerView(needs, target)

    async def creates(self, pod: Pod) -> bool:
        """Return whether a controller creates a pod of a gang again when it is deleted. Raises ApiError."""
        kind = find_kind(pod) if pod.spec.scheduling_group is None else None
        if kind is not None and kind.roles:
            return True
        owned = await self._api.get(_OWNED_PODS, pod.metadata.name, pod.metadata.namespace)
        return any(reference.controller for reference in owned.metadata.owner_references)

    async def is_in_order(self, pod: Pod) -> bool:
        """Return whether the owner of a pod has gangs that do not wait for each other. Raises GangSpecError."""
        kind = find_kind(pod) if pod.spec.scheduling_group is None else None
        return kind is not None and (await self.read(kind, pod)).needs.in_order

    async def suspend(self, target: SuspendTarget) -> bool:
        """Suspend an owner. Return False if that is not possible."""
        return await self._patch(target, "true", value=True)

    async def resume(self, target: SuspendTarget) -> bool:
        """Resume an owner that `suspend` suspended, whatever fails meanwhile: no other would.

        Return False if it is gone, or not suspended by ganger any more.
        """
        while await self.is_suspended(target):
            if await self.try_resume(target):
                return True
            await asyncio.sleep(RETRY_S)
        return False

    async def try_resume(self, target: SuspendTarget) -> bool:
        """Resume an owner; return whether that was possible."""
        return await self._patch(target, None, value=False)

    async def is_suspended(self, target: SuspendTarget) -> bool:
        """Return whether an owner is still suspended by ganger; True if it cannot be read."""
        assert target.kind.resource is not None  # noqa: S101  # what is suspended is an object
        try:
            owner = await self._api.get(target.kind.resource, target.key.name, target.key.namespace)
        except ApiError as error:
            return not error.missing
        return SUSPENDED in owner.metadata.labels and bool(field_of(owner.spec, target.kind.suspend))

    async def suspended(self) -> list[SuspendTarget]:
        """Return what ganger has suspended."""
        targets = list[SuspendTarget]()
        served = dict[tuple[str, str], frozenset[str]]()  # asked once: most kinds share their group with others
        for kind in (*KINDS, *PARENTS.values()):
            if not kind.suspend or (resource := kind.resource) is None:
                continue
            group = resource.group, resource.version
            try:
                if group not in served:
                    served[group] = await self._api.list_resources(*group)
                if resource.plural in served[group]:
                    owners = await self._api.list(resource, ListOptions(labels=SUSPENDED))
                    targets += [SuspendTarget(kind, owner.metadata.key) for owner in owners]
            except ApiError as error:
                _log.warning("cannot find out which %s are suspended: %s", resource.plural, error)
        return targets

    async def _get(self, resource: Resource[Owner], kind: str, key: Key) -> Owner:
        try:
            return await self._api.get(resource, key.name, key.namespace)
        except ApiError as error:
            if not error.missing:
                raise GangSpecError(f"{kind} {key.name} cannot be read: {error}") from None
        version = f"{resource.group}/{resource.version}"
        if resource.plural not in await self._served(resource):
            why = f"this cluster does not serve {resource.plural} in {version}, the version that ganger reads"
            raise GangSpecError(f"{why}; install an operator with that version, or place these pods by a PodGroup")
        raise GangSpecError(f"{kind} {key.name}, which its labels name, does not exist")

    async def _served(self, resource: Resource[Owner]) -> frozenset[str]:
        try:
            return await self._api.list_resources(resource.group, resource.version)
        except ApiError as error:
            raise GangSpecError(f"cannot find out whether this cluster has {resource.plural}: {error}") from None

    async def _patch(self, target: SuspendTarget, label: str | None, *, value: bool) -> bool:
        """Set the field, and the label that says who did it, in one write."""
        resource, key = target.kind.resource, target.key
        if resource is None or not self._may_act():
            return False
        body: dict[str, Any] = {"metadata": {"labels": {SUSPENDED: label}}}
        body["spec"] = merge_patch(target.kind.suspend, value)
        verb = "suspend" if value else "resume"
        try:
            owner = await self._api.merge(ObjectRef(resource, key.namespace, key.name), body)
        except ApiError as error:
            _log.warning("cannot %s %s %s/%s: %s", verb, target.kind.name, key.namespace, key.name, error)
            return False
        if value and not field_of(owner.spec, target.kind.suspend):
            why = f"the installed definition has no field {target.kind.suspend}; its pods are deleted"
            _log.warning("cannot %s %s %s/%s: %s", verb, target.kind.name, key.namespace, key.name, why)
            await self._patch(target, None, value=False)
            return False
        return True


def _target(kind: GangKind, owner: Owner) -> SuspendTarget | None:
    is_managed = KUEUE_QUEUE in owner.metadata.labels
    is_possible = kind.suspend and (not kind.suspend_needs or bool(field_of(owner.spec, kind.suspend_needs)))
    return SuspendTarget(kind, owner.metadata.key) if is_possible and not is_managed else None
