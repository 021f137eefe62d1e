"""What `run` and `submit` send: the file's text, and what the flags say, as the spec has it.

Nothing is parsed here but the flags: the server reads the file, so that there is one reader of specs. The request
carries its own id, so that sending it twice makes one job.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ganger import settings
from ganger.cli.options import read_given
from ganger.cli.output.error_output import Problem
from ganger.client.job_name import name_of_command
from ganger.client.secret_values import secret_values, secret_values_of_text

_EXAMPLE: Final = "ganger run -- python train.py"


def build_request(flags: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The body of a submission from click's parameters. Problem when there is no command, or no such file."""
    path = flags["path"]
    overrides = spec_of_flags(flags)
    if command:
        overrides["run"] = command_of_words(command)
    elif path is None:
        raise Problem("nothing to run: give a command, or a job file with -f", next=_EXAMPLE)
    request: dict[str, Any] = {
        "directory": _here(),
        "environment": settings.job_environment(os.environ),
        "request_id": os.urandom(16).hex(),
    }
    values = secret_values(overrides, os.environ)
    if path is None:
        overrides.setdefault("name", name_of_command(overrides["run"]))
        return request | {"spec": overrides, "secrets": values}
    text = read_given(path, "job", "ganger init")
    values = secret_values_of_text(text, os.environ) | values
    return request | {"spec_text": text, "filename": path, "overrides": overrides, "secrets": values}


def has_several_jobs(request: Mapping[str, Any]) -> bool:
    """Whether the file of a request has more than one document with anything in it."""
    pieces = re.split(r"^---(?=\s|$)", request.get("spec_text", ""), flags=re.MULTILINE)
    return sum(re.search(r"^[ \t]*[^\s#.]", piece, flags=re.MULTILINE) is not None for piece in pieces) > 1


def spec_of_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The spec that the flags make, nested as in a job file; what was not given is not in it."""
    nodes, nproc_per_node = _grid(flags)
    spec = {
        "name": flags["name"],
        "queue": flags["queue"],
        "priority": _number(flags["priority"]),
        "framework": flags["framework"],
        "nodes": nodes,
        "nproc_per_node": nproc_per_node,
        "resources": _given({"gpu": _gpu(flags), "cpu": flags["cpu"], "memory": flags["memory"]}),
        "placement": _given({"topology": flags["topology"], "mode": flags["mode"], "nodes": _names(flags["nodelist"])}),
        "code": flags["code"],
        "setup": flags["setup"],
        "env": dict(_variable(text) for text in flags["env"]) | dict.fromkeys(flags["secret"]),
        "params": dict(_parameter(text) for text in flags.get("param", ())),
        "checkpoint": _given(
            {"dir": flags["checkpoint"], "every": flags["checkpoint_every"], "keep": flags["checkpoint_keep"]}
        ),
        "retry": _given({"max": flags["retry"]}),
        "limits": _given({"time": flags["time"], "time_min": flags["time_min"], "queue_time": flags["queue_time"]}),
        "array": flags["array"],
        "after": [_after(text) for text in flags["after"]] or None,
    }
    return _given(spec)


def command_of_words(words: Sequence[str]) -> str | list[str]:
    """The `run` of a spec: one word with spaces in it is a shell line; a script in Python runs with the caller's."""
    if len(words) == 1 and re.search(r"\s", words[0]):
        return words[0]
    if words[0].endswith(".py"):
        return [_python(), *words]
    return list(words)


def _here() -> str:
    """The directory the job is submitted from, and runs in."""
    try:
        return str(Path.cwd())
    except OSError as error:
        raise Problem(f"this shell stands in a directory that is not there: {error.strerror}", next="cd") from None


def _python() -> str:
    return "python" if shutil.which("python") else "python3"


def _grid(flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if flags["grid"] is None:
        return flags["nodes"], flags["nproc_per_node"]
    if flags["nodes"] is not None or flags["nproc_per_node"] is not None:
        raise Problem(
            "-j says nodes and processes already: leave out --nodes and --nproc-per-node",
            next="ganger run -j 2x8 -- python train.py",
        )
    nodes, nproc_per_node = flags["grid"]
    return nodes, nproc_per_node


def _gpu(flags: Mapping[str, Any]) -> str | int | dict[str, Any] | None:
    """Whole GPUs, or a share of one."""
    share = _given({"milli": flags["gpu_milli"], "memory": flags["gpu_memory"]})
    if share and flags["gpu"] is not None:
        raise Problem(
            "--gpu is of whole GPUs, --gpu-milli and --gpu-memory are of a part of one: leave out --gpu",
            next="ganger run --gpu-milli 500 -- python train.py",
        )
    return share or _number(flags["gpu"])


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _number(text: str | None) -> str | int | None:
    """A number where the spec tells numbers from text."""
    return int(text) if text and re.fullmatch(r"-?\d+", text) else text


def _variable(text: str) -> tuple[str, str]:
    """A variable from K=V, or K with the value it has in this shell."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise Problem(
            f"--env {name}: {name} is not set in this shell", next=f"export {name}=..., or --env {name}=VALUE"
        )
    return name, os.environ[name]


def _after(text: str) -> dict[str, str]:
    """A job that comes first, from JOB or JOB:WHEN."""
    job, colon, when = text.rpartition(":")
    return {"job": job, "when": when} if colon else {"job": text}


def _parameter(text: str) -> tuple[str, str]:
    """A parameter from NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Problem(f"--param {text}: it has no value", next=f"--param {name}=VALUE")
    return name, value


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}
