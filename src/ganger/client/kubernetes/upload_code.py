"""Upload of a local directory as the code of a GangJob: packed, and stored in the job's namespace by the user.

It includes and refuses the same files as a standalone server (`code.code_snapshot`), and has to fit, packed,
into one object.
"""

import asyncio
import base64
import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ganger.client.client_errors import REFUSED, client_error
from ganger.client.kubernetes.caller import Caller
from ganger.code.code_snapshot import snapshot
from ganger.code.packed_code import pack
from ganger.gang_jobs import object_names
from ganger.gang_jobs.code_archive import check_size
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ConfigMap
from ganger.kubeapi.resources import CONFIG_MAPS
from ganger.model.job import GitCode, JobSpec
from ganger.spec.submission_checks import check_directory


@dataclass(frozen=True, slots=True)
class UploadedCode:
    """SHA-256 of an archive, and the archive as base64."""

    digest: str
    content: str = field(repr=False)


async def pack_code(spec: JobSpec, directory: str) -> UploadedCode | None:
    """Return the packed code of a job; None if its code is not a directory. `directory` is the working directory.

    Raises RequestError.
    """
    if spec.code is None or isinstance(spec.code, GitCode):
        return None
    archive = await asyncio.to_thread(_pack_directory, Path(directory), spec.code)
    check_size(archive, "leave files out by lines in .gangerignore, name a repository (code: {git: URL})")
    return UploadedCode(hashlib.sha256(archive).hexdigest(), base64.b64encode(archive).decode())


async def upload(caller: Caller, code: UploadedCode) -> None:
    """Store the code for pods. Raises ApiError and ClientError.

    It is repeated after the GangJob was created: before that, a controller knows of no user of this code and may remove
    it.
    """
    name = object_names.code_config_map(code.digest)
    metadata = {"name": name, "namespace": caller.namespace}
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
    source = check_directory(str(directory / Path(code).expanduser()), "code:")
    with tempfile.TemporaryDirectory(prefix="ganger-code-") as store:
        return pack(Path(store) / snapshot(source, Path(store)))
