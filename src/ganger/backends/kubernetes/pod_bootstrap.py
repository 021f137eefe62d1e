"""Bootstrap objects of pods: the launcher, and what it and the controller identify each other by.

The launcher is a ConfigMap of each namespace, named by its content, so that a newer controller leaves the pods of an
older one alone. The identity is a Secret of each GangJob: a token derived from the controller's key, and the address
and certificate of its launcher listener. Launchers read it again whenever they connect, so a controller with another
key or address writes it anew and is found.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.pod_template import LISTENER_FILE, PodSettings, owner_reference
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key
from ganger.kubeapi.resources import CONFIG_MAPS, SECRETS

_HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEndpoint:
    """Address (HOST:PORT) and certificate (PEM) of the launcher listener, and the key of its tokens."""

    address: str
    certificate: str
    key: bytes = field(repr=False)


class PodBootstrap:
    """Creates the bootstrap objects. launcher: path of its zipapp; image: default image of jobs."""

    def __init__(self, api: ApiClient, launcher: Path, endpoint: LauncherEndpoint, image: str) -> None:
        self._api, self._endpoint, self._image = api, endpoint, image
        self._launcher = launcher.read_bytes()
        self._config_map = f"ganger-launcher-{hashlib.sha256(self._launcher).hexdigest()[:_HASH_DIGITS]}"
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def settings(self, key: Key) -> PodSettings:
        """Return the settings for the pods of a GangJob."""
        return PodSettings(launcher=self._config_map, identity=_identity_secret(key), image=self._image)

    def token(self, key: Key, uid: str) -> str:
        """Return the token of the launchers of a GangJob with this UID: of an array, of all elements.

        A later GangJob of the same name, perhaps another user's, has another one.
        """
        return hmac.digest(self._endpoint.key, f"{object_names.id_of(key)} {uid}".encode(), "sha256").hex()

    def agent_token(self, gang: str, uid: str, generation: int) -> str:
        """Return the token of a generation's remote-start agents; other gangs of the job do not get it."""
        return hmac.digest(self._endpoint.key, f"agent of {gang}.{generation} {uid}".encode(), "sha256").hex()

    async def ensure(self, key: Key, uid: str) -> None:
        """Create or update the objects for the pods of a GangJob. Raises ApiError."""
        await self._once((key.namespace, ""), lambda: self._apply_launcher(key.namespace))
        await self._once((key.namespace, uid), lambda: self._write_identity(key, uid))

    def forget(self, key: Key, uid: str) -> None:
        """Forget a job that has ended."""
        self._tasks.pop((key.namespace, uid), None)

    def close(self) -> None:
        """Cancel what is in progress."""
        for task in self._tasks.values():
            task.cancel()

    async def _once(self, task_key: tuple[str, str], create: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `put` unless it was done; concurrent callers wait for the same task."""
        task = self._tasks.get(task_key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._tasks[task_key] = asyncio.create_task(create())
        await asyncio.shield(task)

    async def _apply_launcher(self, namespace: str) -> None:
        metadata = {"name": self._config_map, "namespace": namespace}
        content = {"launcher.pyz": base64.b64encode(self._launcher).decode()}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": content, "immutable": True}
        await self._api.apply(CONFIG_MAPS, body)

    async def _write_identity(self, key: Key, uid: str) -> None:
        metadata = {
            "name": _identity_secret(key),
            "namespace": key.namespace,
            "labels": {object_names.JOB: key.name},
            "ownerReferences": [owner_reference(key, uid)],
        }
        token, endpoint = self.token(key, uid), self._endpoint
        data = {"token": token, LISTENER_FILE: endpoint.address, "ca.crt": endpoint.certificate}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
        try:
            await self._api.create(SECRETS, body)  # a new job's does not exist: creating is cheaper than applying
        except ApiError:
            await self._api.apply(SECRETS, body)


def _identity_secret(key: Key) -> str:
    """Return the name of a GangJob's Secret."""
    return f"{key.name}-ganger"
