"""A directory of a person's machine as the code of a GangJob: packed, and put into the job's namespace, as the person.

Called by `in_context` before the GangJob is made. What is left out, and what is refused, is what a server of ganger's
leaves out and refuses (`engine.snapshot`); and all of it, packed, has to fit into one object.
"""

import asyncio
import base64
import hashlib
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from ganger.backends.kubernetes import names
from ganger.backends.kubernetes.api_error import ApiError
from ganger.backends.kubernetes.resources import Resource
from ganger.backends.kubernetes.types import Fields, Meta
from ganger.engine.command import check_directory
from ganger.engine.snapshot import snapshot
from ganger.model.job import GitCode, JobSpec
from ganger.wiring.job_code import check_size, packed
from ganger.wiring.person import REFUSED, CannotError, Person


class _File(Fields, frozen=True):
    metadata: Meta
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)


_CONFIG_MAPS: Final = Resource("", "v1", "configmaps", _File)


async def bring(who: Person, spec: JobSpec, directory: str) -> str | None:
    """The SHA-256 of the archive that pods find; None for a job that brings no directory. `directory`: where the person
    stands. Raises ApiError, CannotError and Refused."""
    if spec.code is None or isinstance(spec.code, GitCode):
        return None
    archive = await asyncio.to_thread(_packed, Path(directory), spec.code)
    check_size(archive, "leave files out by lines in .gangerignore, name a repository (code: {git: URL})")
    digest = hashlib.sha256(archive).hexdigest()
    name, content = names.code_name(digest), base64.b64encode(archive).decode()
    about = {"name": name, "namespace": who.namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True}
    try:
        await who.api.create(_CONFIG_MAPS, body | {"binaryData": {names.ARCHIVE: content}})
    except ApiError as error:
        if not error.conflict:
            raise
        # Whoever brought the same code before; or somebody who wants other code to run.
        there = await who.api.get(_CONFIG_MAPS, name, who.namespace)
        if there.binary_data.get(names.ARCHIVE) != content:
            why = f"the ConfigMap {name} of namespace {who.namespace} has other code than its name says"
            next_ = who.kubectl("-n", who.namespace, "delete", "configmap", name)
            raise CannotError("code_replaced", why, next_, REFUSED) from None
    return digest


def _packed(directory: Path, code: str) -> bytes:
    place = check_directory(str(directory / Path(code).expanduser()), "code:")
    with tempfile.TemporaryDirectory(prefix="ganger-code-") as store:
        return packed(Path(store) / snapshot(place, Path(store)))
