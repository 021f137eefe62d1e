"""The body of a submission: the request, and the environment it comes from.

The job itself is parsed by the server only, so that all errors are reported together.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ganger import settings
from ganger.client.client_errors import USAGE, BadRequest
from ganger.client.job_name import name_of_command
from ganger.client.secret_values import secret_values, secret_values_of_text
from ganger.sdk.job_fields import spec_of
from ganger.sdk.sdk_types import JobFile


def submission(job: JobFile | Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for a file or a mapping, with `fields` over it.

    It carries its own id, so that sending it twice creates one job.
    """
    request: dict[str, Any] = {
        "directory": _here(),
        "environment": settings.job_environment(os.environ),
        "request_id": os.urandom(16).hex(),
    }
    if isinstance(job, JobFile):
        overrides = plain(_merge(job.overrides, fields))
        values = secret_values_of_text(job.text, os.environ) | secret_values(overrides, os.environ)
        return request | {
            "spec_text": job.text,
            "filename": job.filename,
            "overrides": overrides,
            "secrets": values,
        }
    if not isinstance(job, Mapping):
        raise BadRequest(
            "bad_spec",
            f"{job!r} is neither a job file nor a mapping",
            "a command: ganger.run(COMMAND)   a file: ganger.submit(ganger.Job.load(PATH))",
            USAGE,
        )
    spec = plain(_merge(spec_of(job), fields))
    if "name" not in spec and isinstance(spec.get("run"), str | list) and spec["run"]:
        spec["name"] = name_of_command(spec["run"])
    return request | {"spec": spec, "secrets": secret_values(spec, os.environ)}


Policy = str | Path | Mapping[str, Any] | int
"""A policy document: YAML, the path of a file, a mapping, or the number of an earlier version."""


def proposal(policy: Policy) -> dict[str, Any]:
    """Return the request for a policy document; raise BadRequest if its file cannot be read."""
    if isinstance(policy, Path):
        try:
            return {"text": policy.read_text("utf-8"), "filename": str(policy)}
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest("bad_policy", f"cannot read {policy}: {error}", f"ls -l {policy}", USAGE) from None
    if isinstance(policy, Mapping):
        return {"document": plain(policy)}
    if isinstance(policy, str):
        return {"text": policy}
    version: Any = policy
    if isinstance(version, int) and not isinstance(version, bool):
        return {"version": version}
    why = f"{policy!r} is not a policy: give text, the Path of a file, a mapping or the number of a version"
    raise BadRequest("bad_policy", why, "ganger policy", USAGE)


def plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a job as JSON has them, lists for tuples; raise BadRequest for other values."""
    try:
        value: dict[str, Any] = json.loads(json.dumps(dict(spec), allow_nan=False))
    except (TypeError, ValueError) as error:
        why = f"a job is made of text, numbers, lists and mappings: {error}"
        raise BadRequest("bad_spec", why, "ganger explain-spec", USAGE) from None
    return value


def _merge(spec: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields merged over the spec like the server does: nested mappings are merged, all else is replaced."""
    joined = dict(spec)
    for key, value in fields.items():
        mine = joined.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        joined[key] = _merge(joined[key], value) if both else value
    return joined


def _here() -> str:
    """Return the directory that the job is submitted from, and runs in."""
    try:
        return str(Path.cwd())
    except OSError as error:
        why = f"the current directory does not exist: {error.strerror}"
        raise BadRequest("no_directory", why, "os.chdir to one that is", USAGE) from None
