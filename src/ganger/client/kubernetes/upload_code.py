"""Upload of a local directory as the code of a GangJob, packed: the same files as a standalone server includes.

What fits into an object is stored in the job's namespace by the user. What does not is sent to the controller, for its
durable store.
"""

import asyncio
import base64
import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ganger.client.client_errors import REFUSED, ClientError, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.controller_requests import query_controller
from ganger.code.code_snapshot import code_directory, snapshot
from ganger.code.packed_code import pack
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import MAX_BYTES, check_size
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ConfigMap
from ganger.kubeapi.resources import CONFIG_MAPS
from ganger.model.job import GitCode, JobSpec
from ganger.spec.submission_checks import check_directory


@dataclass(frozen=True, slots=True)
class PackedCode:
    """SHA-256 of an archive, and the archive."""

    digest: str
    archive: bytes = field(repr=False)

    @property
    def content(self) -> str:
        """The archive as a ConfigMap has it."""
        return base64.b64encode(self.archive).decode()

    @property
    def fits_object(self) -> bool:
        """True for an archive that a ConfigMap has, false for one in the controller's store."""
        return len(self.archive) <= MAX_BYTES


async def pack_code(spec: JobSpec, directory: str) -> PackedCode | None:
    """Return the packed code of a job; None if its code is not a directory. `directory` is the working directory.

    Raises RequestError.
    """
    if spec.code is None or isinstance(spec.code, GitCode):
        return None
    archive = await asyncio.to_thread(_pack_directory, Path(directory), spec.code)
    return PackedCode(hashlib.sha256(archive).hexdigest(), archive)


async def upload(caller: Caller, code: PackedCode) -> None:
    """Store the code for pods. Raises ApiError, ClientError and RequestError (code_too_large).

    It is repeated after the GangJob was created: before that, a controller knows of no user of this code and may remove
    it.
    """
    if code.fits_object:
        await _create_config_map(caller, code)
        return
    try:
        if not await is_kept(caller, code.digest, in_store=True):
            await query_controller(caller, "PUT", _target(caller, code.digest), code.archive)
    except ClientError as error:
        if error.code not in ("forbidden", "no_controller"):
            raise
        remedy = "leave files out: .gangerignore; or code: {git: URL}; or send it to the controller's store"
        check_size(code.archive, f"{remedy}, which has to be allowed first: {error.next}")


async def is_kept(caller: Caller, digest: str, *, in_store: bool) -> bool:
    """Return whether the caller's namespace has an archive, in the store or as an object.

    Raises ApiError and ClientError.
    """
    if not in_store:
        return await _get(caller, object_names.code_config_map(digest)) is not None
    try:
        await query_controller(caller, "GET", _target(caller, digest))
    except ClientError as error:
        if error.code != "no_snapshot":
            raise
        return False
    return True


def _target(caller: Caller, digest: str) -> str:
    return f"/code/{digest}?namespace={caller.namespace}"


async def _create_config_map(caller: Caller, code: PackedCode) -> None:
    name = object_names.code_config_map(code.digest)
    metadata = {"name": name, "namespace": caller.namespace, "labels": object_names.MANAGED}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
    config_map = await _get(caller, name)
    if config_map is None:
        try:
            config_map = await caller.api.create(
                CONFIG_MAPS, body | {"binaryData": {object_names.ARCHIVE: code.content}}
            )
        except ApiError as error:
            if not error.conflict:
                raise
            config_map = await caller.api.get(CONFIG_MAPS, name, caller.namespace)
    # The same code was uploaded before, or another client wants other code to run.
    if config_map.binary_data.get(object_names.ARCHIVE) != code.content:
        detail = f"the ConfigMap {name} of namespace {caller.namespace} has other code than its name says"
        next_step = caller.kubectl("-n", caller.namespace, "delete", "configmap", name)
        raise client_error("code_replaced", detail, next_step, REFUSED)


async def _get(caller: Caller, name: str) -> ConfigMap | None:
    try:
        return await caller.api.get(CONFIG_MAPS, name, caller.namespace)
    except ApiError as error:
        if not error.missing:
            raise
        return None


def _pack_directory(directory: Path, code: str) -> bytes:
    source = check_directory(str(code_directory(directory, code)), "code:")
    with tempfile.TemporaryDirectory(prefix="ganger-code-") as store:
        return pack(Path(store) / snapshot(source, Path(store)))
