"""Bootstrap objects of pods: the launcher, and what it and the controller identify each other by.

The launcher is a ConfigMap of each namespace, named by its content, so that a newer controller leaves the pods of an
older one alone. The identity is a Secret of each gang: the address and certificate of the launcher listener, and a
token for each launcher of the newest attempt, derived from the controller's key. Launchers read theirs again whenever
they connect, so a controller with another key or address writes it again and is found.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import CERTIFICATE_FILE, LISTENER_FILE, PodSettings, owner_reference
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.objects import Key
from ganger.kubeapi.resources import CONFIG_MAPS, SECRETS
from ganger.model.decision import Start
from ganger.model.policy import RESTRICTED

_HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEndpoint:
    """Address (HOST:PORT) and certificate (PEM) of the launcher listener, and the key of its tokens."""

    address: str
    certificate: str
    key: bytes = field(repr=False)


class PodBootstrap:
    """Creates the bootstrap objects. launcher: path of its zipapp; image: default image of jobs.

    Attributes:
        image: the default image.
        security: Pod Security Standard of the pods of jobs, by the policy in force.
        fetched: GangJobs whose code was fetched, and is in the controller's store: their launchers receive it.
    """

    security = RESTRICTED
    fetched: Container[Key] = frozenset()

    def __init__(self, api: ApiClient, launcher: Path, endpoint: LauncherEndpoint, image: str) -> None:
        self._api, self._endpoint, self.image = api, endpoint, image
        self._launcher = launcher.read_bytes()
        self._config_map = f"ganger-launcher-{hashlib.sha256(self._launcher).hexdigest()[:_HASH_DIGITS]}"
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """The newest write for each gang, or namespace, and the version that it writes."""

    def settings(self, gang: str) -> PodSettings:
        """Return the settings for the pods of a gang."""
        identity = object_names.identity_secret(gang)
        return PodSettings(launcher=self._config_map, identity=identity, image=self.image, security=self.security)

    def token(self, gang: str, uid: str, generation: int, node: str) -> str:
        """Return the token of the launcher of one attempt on one node, of the GangJob with this UID.

        Another attempt, another node and a later GangJob of the same name, perhaps another user's, have another one; so
        have the remote-start agents of the attempt (`node` is empty).
        """
        return hmac.digest(self._endpoint.key, "\0".join((gang, uid, str(generation), node)).encode(), "sha256").hex()

    async def ensure(self, start: Start, uid: str) -> None:
        """Create or update the objects for the pods of a generation of the GangJob with this UID. Raises ApiError."""
        await self.ensure_launcher(object_names.key_of(start.gang).namespace)
        await self._once(start.gang, f"{uid} {start.generation}", lambda: self._apply_identity(start, uid))

    async def ensure_launcher(self, namespace: str) -> str:
        """Create the ConfigMap of the launcher in a namespace; return its name. Raises ApiError."""
        await self._once(namespace, namespace, lambda: self._apply_launcher(namespace))
        return self._config_map

    def forget(self, gang: str) -> None:
        """Forget a gang that has ended."""
        self._tasks.pop(gang, None)

    def close(self) -> None:
        """Cancel what is in progress."""
        for _, task in self._tasks.values():
            task.cancel()

    async def _once(self, owner: str, version: str, write: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `write` unless the owner's objects have this version; concurrent callers wait for the same task."""
        written_version, task = self._tasks.get(owner, ("", None))
        if task is None or written_version != version or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(write())
            self._tasks[owner] = version, task
        await asyncio.shield(task)

    async def _apply_launcher(self, namespace: str) -> None:
        metadata = {"name": self._config_map, "namespace": namespace, "labels": object_names.MANAGED}
        content = {"launcher.pyz": base64.b64encode(self._launcher).decode()}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": content, "immutable": True}
        await self._api.apply(CONFIG_MAPS, body)

    async def _apply_identity(self, start: Start, uid: str) -> None:
        """Apply the Secret: the tokens of earlier attempts are removed from it."""
        key, endpoint = object_names.key_of(start.gang), self._endpoint
        metadata = {
            "name": object_names.identity_secret(start.gang),
            "namespace": key.namespace,
            "labels": {object_names.JOB: key.name},
            "ownerReferences": [owner_reference(key, uid)],
        }
        values = {LISTENER_FILE: endpoint.address, CERTIFICATE_FILE: endpoint.certificate}
        for index, node in enumerate(start.nodes):
            name = object_names.token_key(start.generation, index)
            values[name] = self.token(start.gang, uid, start.generation, node)
        data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        await self._api.apply(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
