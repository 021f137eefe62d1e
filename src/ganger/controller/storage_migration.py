"""Migration of ganger's objects to the version in which the API server stores them.

A definition whose storage version has changed lists in `status.storedVersions` each version in which objects may still
be stored; none of these can be removed from the definition. So every object is written once more, by a patch that
changes nothing, and then the older versions leave the list. Source: "Versions in CustomResourceDefinitions", upgrade
existing objects to a new stored version, of the Kubernetes documentation.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

from ganger.gang_jobs.custom_resources import GANG_JOBS, NETWORK_PROFILES, POLICIES, QUEUES
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ApiStruct, ObjectMeta
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import Resource

PASS_S: Final = 600.0
"""Interval of looks at the definitions, which change with upgrades alone."""
SETTLE_S: Final = 5.0
"""Time for which an API server may go on to store objects in the older version after the definition has changed."""
_log = logging.getLogger(__name__)


class _Version(ApiStruct, frozen=True):
    name: str
    storage: bool = False


class _Spec(ApiStruct, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Status(ApiStruct, frozen=True):
    stored_versions: tuple[str, ...] = ()


class Definition(ApiStruct, frozen=True):
    """Definition of a resource, with its versions."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def storage_version(self) -> str:
        """Version in which objects are stored."""
        return next((version.name for version in self.spec.versions if version.storage), "")


DEFINITIONS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", Definition)


class StorageMigration:
    """Migrates objects while `run` runs. `may_act` returns whether this controller leads."""

    def __init__(self, api: ApiClient, may_act: Callable[[], bool]) -> None:
        self._api, self._may_act = api, may_act

    async def run(self) -> None:
        """Look at the definitions from time to time until cancelled."""
        while True:
            await asyncio.gather(*map(self._try, (GANG_JOBS, QUEUES, POLICIES, NETWORK_PROFILES)))
            await asyncio.sleep(PASS_S)

    async def _try(self, resource: Resource[Any]) -> None:
        """Migrate the objects of one resource, or log why that is not possible."""
        try:
            await self._migrate(resource)
        except ApiError as error:
            if not error.missing:  # a definition that an older release did not have
                _log.warning("objects of %s are not migrated to their storage version: %s", resource.plural, error)

    async def _migrate(self, resource: Resource[Any]) -> None:
        """Migrate the objects of one resource if it has another storage version. Raises ApiError."""
        name = f"{resource.plural}.{resource.group}"
        definition = await self._api.get(DEFINITIONS, name)
        target = definition.storage_version
        if not self._may_act() or definition.status.stored_versions == (target,):
            return
        await asyncio.sleep(SETTLE_S)
        count = 0
        async with aclosing(self._api.pages(resource)) as pages:
            async for page in pages:
                for item in page.items or ():
                    if not self._may_act():
                        return
                    count += await self._rewrite(resource, item.metadata)
        # It conflicts if the definition has changed meanwhile, and then the objects are migrated again.
        steps: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": definition.metadata.resource_version},
            {"op": "replace", "path": "/status/storedVersions", "value": [target]},
        ]
        await self._api.patch(ObjectRef(DEFINITIONS, "", name, "status"), steps)
        _log.info("%s: %d objects are stored as %s now", name, count, target)

    async def _rewrite(self, resource: Resource[Any], metadata: ObjectMeta) -> bool:
        """Have the API server store an object again; return whether it was still there. Raises ApiError."""
        try:
            await self._api.merge(ObjectRef(resource, metadata.namespace, metadata.name, "status"), {})
        except ApiError as error:
            if error.missing:
                return False
            raise
        return True
