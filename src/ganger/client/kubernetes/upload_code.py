"""A directory of a person's machine as the code of a GangJob: packed, and put into the job's namespace, as the person.

Called by `gang_job_making`, before the GangJob is made and again when it is. What is left out, and what is refused, is
what a server of ganger's leaves out and refuses (`engine.submit.code_snapshot`); and all of it, packed, has to fit into
one object."""

import asyncio
import base64
import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.code_archive import check_size, packed
from ganger.client.kubernetes.caller import REFUSED, Caller, CannotError
from ganger.engine.submit.code_snapshot import snapshot
from ganger.engine.submit.command_check import check_directory
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ConfigMap
from ganger.kubeapi.resources import CONFIG_MAPS
from ganger.model.job import GitCode, JobSpec


@dataclass(frozen=True, slots=True)
class UploadedCode:
    """The SHA-256 of an archive, and the archive as base64."""

    digest: str
    content: str = field(repr=False)


async def brought(spec: JobSpec, directory: str) -> UploadedCode | None:
    """The code that a job brings along; None when that is no directory. `directory`: where the person stands.

    Raises Refused."""
    if spec.code is None or isinstance(spec.code, GitCode):
        return None
    archive = await asyncio.to_thread(_packed, Path(directory), spec.code)
    check_size(archive, "leave files out by lines in .gangerignore, name a repository (code: {git: URL})")
    return UploadedCode(hashlib.sha256(archive).hexdigest(), base64.b64encode(archive).decode())


async def bring(who: Caller, code: UploadedCode) -> None:
    """Have it where pods find it. Once more when the GangJob is made: before that, a controller knows of nobody who
    uses what it finds there, and may remove it. Raises ApiError and CannotError."""
    name = object_names.code_name(code.digest)
    about = {"name": name, "namespace": who.namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True}
    there = await _found(who, name)
    if there is None:
        try:
            there = await who.api.create(CONFIG_MAPS, body | {"binaryData": {object_names.ARCHIVE: code.content}})
        except ApiError as error:
            if not error.conflict:
                raise
            there = await who.api.get(CONFIG_MAPS, name, who.namespace)
    # Whoever brought the same code before; or somebody who wants other code to run.
    if there.binary_data.get(object_names.ARCHIVE) != code.content:
        why = f"the ConfigMap {name} of namespace {who.namespace} has other code than its name says"
        next_ = who.kubectl("-n", who.namespace, "delete", "configmap", name)
        raise CannotError("code_replaced", why, next_, REFUSED)


async def _found(who: Caller, name: str) -> ConfigMap | None:
    try:
        return await who.api.get(CONFIG_MAPS, name, who.namespace)
    except ApiError as error:
        if not error.missing:
            raise
        return None


def _packed(directory: Path, code: str) -> bytes:
    place = check_directory(str(directory / Path(code).expanduser()), "code:")
    with tempfile.TemporaryDirectory(prefix="ganger-code-") as store:
        return packed(Path(store) / snapshot(place, Path(store)))
