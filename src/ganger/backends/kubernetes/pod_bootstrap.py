"""What pods of a job are given besides the job's own: the launcher, and by what it and the controller know each other.

Called by `supervisor` before it makes the pods of a generation. The launcher is a ConfigMap of each namespace, named by
its content, so that a newer controller leaves the pods of an older one alone. The identity is a Secret of each GangJob:
a token, made of the controller's own key, and address and certificate of its door. Launchers read it again whenever
they connect, so a controller that has another key, or is elsewhere, writes it anew and is found.
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
from ganger.backends.kubernetes.pod_template import DOOR, Setting, owner
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key
from ganger.kubeapi.resources import CONFIG_MAPS, SECRETS

_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where launchers come in: `address` (HOST:PORT), its `certificate` (PEM), and the secret `key` of which their
    tokens are made."""

    address: str
    certificate: str
    key: bytes = field(repr=False)


class PodBootstrap:
    """launcher: its zipapp; image: that of jobs which name none."""

    def __init__(self, api: Api, launcher: Path, entry: Entry, image: str) -> None:
        self._api, self._entry, self._image = api, entry, image
        self._launcher = launcher.read_bytes()
        self._name = f"ganger-launcher-{hashlib.sha256(self._launcher).hexdigest()[:_DIGITS]}"
        self._there: dict[tuple[str, str], asyncio.Task[None]] = {}

    def setting(self, key: Key) -> Setting:
        """What the pods of a GangJob are told."""
        return Setting(launcher=self._name, identity=_identity(key), image=self._image)

    def token(self, gang: str) -> str:
        """What the launchers of a gang show: the same for all elements of an array. ValueError: it is no id."""
        return hmac.digest(self._entry.key, object_names.id_of(object_names.key_of(gang)).encode(), "sha256").hex()

    def agent_token(self, gang: str, generation: int) -> str:
        """What the remote-start agents of a generation know each other by; told to none of the job's other gangs."""
        return hmac.digest(self._entry.key, f"agent of {gang}.{generation}".encode(), "sha256").hex()

    async def put(self, key: Key, uid: str) -> None:
        """Have all of it there for the pods of a GangJob. Raises ApiError."""
        await self._once((key.namespace, ""), lambda: self._put_launcher(key.namespace))
        await self._once((key.namespace, uid), lambda: self._put_identity(key, uid))

    def forget(self, key: Key, uid: str) -> None:
        """The job has ended."""
        self._there.pop((key.namespace, uid), None)

    def close(self) -> None:
        """Put nothing more."""
        for task in self._there.values():
            task.cancel()

    async def _once(self, which: tuple[str, str], put: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do it when nobody has done it; who comes while it is done waits for that."""
        task = self._there.get(which)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._there[which] = asyncio.create_task(put())
        await asyncio.shield(task)

    async def _put_launcher(self, namespace: str) -> None:
        about = {"name": self._name, "namespace": namespace}
        content = {"launcher.pyz": base64.b64encode(self._launcher).decode()}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "binaryData": content, "immutable": True}
        await self._api.apply(CONFIG_MAPS, body)

    async def _put_identity(self, key: Key, uid: str) -> None:
        about = {
            "name": _identity(key),
            "namespace": key.namespace,
            "labels": {object_names.JOB: key.name},
            "ownerReferences": [owner(key, uid)],
        }
        token, entry = self.token(object_names.id_of(key)), self._entry
        given = {"token": token, DOOR: entry.address, "ca.crt": entry.certificate}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": given}
        try:
            await self._api.create(SECRETS, body)  # of a new job, it is not there: cheaper than applying it
        except ApiError:
            await self._api.apply(SECRETS, body)


def _identity(key: Key) -> str:
    """Name of the Secret of a GangJob."""
    return f"{key.name}-ganger"
