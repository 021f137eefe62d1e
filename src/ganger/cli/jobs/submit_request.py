"""The request of `run` and `submit`: the text of the job file, and the flags in the form of a spec.

Only flags are parsed here: the server reads the file, so that there is one parser of specs. The request carries an id
of its own, so that sending it twice creates one job.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.options import read_text_file
from ganger.cli.output.error_output import SHELL_NEXT_TO_A_RANK, Problem
from ganger.cli.output.print_output import shell_quote, show
from ganger.client.job_name import name_of_command
from ganger.client.secret_values import secret_values, secret_values_of_text
from ganger.model.units import MIB_BYTES

_EXAMPLE: Final = "ganger run -- python train.py"
_SCRIPT_HEAD_BYTES: Final = 4096


def build_request(flags: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Return the body of a submission from click's parameters. Problem: no command, or no such file."""
    path = flags["path"]
    overrides = spec_of_flags(flags)
    if command:
        _check_is_command(command)
        overrides["run"] = command_of_arguments(command)
    elif path is None:
        raise Problem("nothing to run: give a command or a job file (-f)", next=_EXAMPLE)
    else:
        _check_is_no_slurm_script(path)
    request: dict[str, Any] = {
        "directory": _working_directory(),
        "environment": settings.job_environment(os.environ),
        "request_id": os.urandom(16).hex(),
    }
    values = secret_values(overrides, os.environ)
    if path is None:
        overrides.setdefault("name", name_of_command(overrides["run"]))
        return request | {"spec": overrides, "secrets": values}
    text = read_text_file(path, "job", "ganger init")
    values = secret_values_of_text(text, os.environ) | values
    return request | {"spec_text": text, "filename": path, "overrides": overrides, "secrets": values}


def request_of_spec(spec: dict[str, Any], directory: str = "") -> dict[str, Any]:
    """Return the body of a submission of a job that was translated from another program's words."""
    return {
        "spec": spec,
        "directory": str(Path(_working_directory()) / directory),
        "environment": settings.job_environment(os.environ),
        "request_id": os.urandom(16).hex(),
        "secrets": secret_values(spec, os.environ),
    }


def print_job_file(spec: dict[str, Any]) -> None:
    """Print a job as its file would be written, scripts line by line."""
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import LiteralScalarString

    yaml, stream = YAML(), StringIO()
    yaml.width = 120
    run = spec["run"]
    words = [run] if isinstance(run, str) else run
    literal = [LiteralScalarString(word) if "\n" in word else word for word in words]
    yaml.dump(spec | {"run": literal[0] if isinstance(run, str) else literal}, stream)
    show(stream.getvalue().rstrip())


def has_several_jobs(request: Mapping[str, Any]) -> bool:
    """Tell if the file of a request has several documents that are not empty."""
    documents = re.split(r"^---(?=\s|$)", request.get("spec_text", ""), flags=re.MULTILINE)
    return sum(re.search(r"^[ \t]*[^\s#.]", document, flags=re.MULTILINE) is not None for document in documents) > 1


def spec_of_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec that the flags describe, nested as in a job file, without flags that were not given."""
    nodes, nproc_per_node = _grid(flags)
    spec = {
        "name": flags["name"],
        "queue": flags["queue"],
        "priority": _number(flags["priority"]),
        "framework": flags["framework"],
        "nodes": nodes,
        "nproc_per_node": nproc_per_node,
        "replica_groups": flags["replica_groups"],
        "resources": _without_unset(
            {
                "gpu": _gpu(flags),
                "cpu": flags["cpu"],
                "memory": _memory(flags["memory"]),
                "extended": {name: _amount(text) for name, text in pairs("--resource", flags["extended"])} or None,
            }
        ),
        "placement": _without_unset(
            {
                "topology": flags["topology"],
                "mode": flags["mode"],
                "nodes": _names(flags["nodelist"]),
                "network": "rdma" if flags["network"] == "rdma" else _names(flags["network"]),
                "node_selector": dict(pairs("--node-label", flags["node_labels"])) or None,
                "tolerations": list(flags["tolerations"]) or None,
            }
        ),
        "image": flags["image"],
        "code": flags["code"],
        "volumes": [_volume(text) for text in flags["volumes"]] or None,
        "setup": flags["setup"],
        "env": dict(_variable(text) for text in flags["env"]) | dict.fromkeys(flags["secret"]),
        "params": dict(pairs("--param", flags.get("param", ()))),
        "checkpoint": _without_unset(
            {
                "dir": flags["checkpoint"],
                "every": flags["checkpoint_every"],
                "keep": flags["checkpoint_keep"],
                "grace": flags["checkpoint_grace"],
                "resume_from": flags["resume_from"],
            }
        ),
        "retry": _without_unset({"max": flags["retry"]}),
        "limits": _without_unset(
            {"time": flags["time"], "time_min": flags["time_min"], "queue_time": flags["queue_time"]}
        ),
        "array": flags["array"],
        "after": [_dependency(text) for text in flags["after"]] or None,
    }
    return _without_unset(spec)


def _memory(text: str | None) -> str | None:
    """Return --memory as it is; Problem for a number of Slurm, where one without a unit is in MB."""
    if text is not None and text.isdigit() and 0 < int(text) < MIB_BYTES:
        typed = f"ganger {click.get_current_context().info_name} --memory {text}Mi ..."
        raise Problem(f"--memory {text} is {text} bytes: write the unit", typed)
    return text


def command_of_arguments(arguments: Sequence[str]) -> str | list[str]:
    """Return the `run` of a spec: one argument with spaces is a shell line, a script runs with python."""
    if len(arguments) == 1 and re.search(r"\s", arguments[0]):
        return arguments[0]
    if arguments[0].endswith(".py"):
        return [_python(), *arguments]
    return list(arguments)


def _check_is_command(command: Sequence[str]) -> None:
    """Raise Problem if the command is a job file, or opens a shell, as other schedulers take it."""
    program = command[0]
    if program == "srun" and "--pty" in command:
        raise Problem("srun --pty opens a shell: a job has no terminal, open one next to a rank", SHELL_NEXT_TO_A_RANK)
    if program.lower().endswith((".yaml", ".yml")):
        typed = f"ganger {click.get_current_context().info_name} -f {shell_quote(program)}"
        raise Problem(f"{program} is a job file, not a command: -f submits it", typed)
    script = command[1] if program in ("bash", "sh") and len(command) > 1 else program
    if "/" not in script:
        _check_is_no_slurm_script(script)


def _check_is_no_slurm_script(path: str) -> None:
    """Raise Problem if a file is a script for sbatch."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_SCRIPT_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    if "\n#SBATCH" in text:
        raise Problem(f"{path} is a batch script of Slurm, not a command", f"ganger sbatch {shell_quote(path)}")


def _working_directory() -> str:
    """Return the directory from which the job is submitted and in which it runs."""
    try:
        return str(Path.cwd())
    except OSError as error:
        raise Problem(f"the working directory of this shell does not exist: {error.strerror}", next="cd") from None


def _python() -> str:
    return "python" if shutil.which("python") else "python3"


def _grid(flags: Mapping[str, Any]) -> tuple[int | None, int | None]:
    if flags["grid"] is None:
        return flags["nodes"], flags["nproc_per_node"]
    if flags["nodes"] is not None or flags["nproc_per_node"] is not None:
        raise Problem(
            "-j already sets nodes and processes: leave out --nodes and --nproc-per-node",
            next="ganger run -j 2x8 -- python train.py",
        )
    nodes, nproc_per_node = flags["grid"]
    return nodes, nproc_per_node


def _gpu(flags: Mapping[str, Any]) -> str | int | dict[str, Any] | None:
    """Return the number of whole GPUs, or a share of one."""
    share = _without_unset({"milli": flags["gpu_milli"], "memory": flags["gpu_memory"]})
    if share and flags["gpu"] is not None:
        raise Problem(
            "--gpu asks for whole GPUs, --gpu-milli and --gpu-memory for a share of one: leave out --gpu",
            next="ganger run --gpu-milli 500 -- python train.py",
        )
    return share or _number(flags["gpu"])


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _number(text: str | None) -> str | int | None:
    """Return an integer if the text is one."""
    return int(text) if text and re.fullmatch(r"-?\d+", text) else text


def _variable(text: str) -> tuple[str, str]:
    """Parse K=V, or K, whose value comes from this shell."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise Problem(
            f"--env {name}: {name} is not set in this shell", next=f"export {name}=..., or --env {name}=VALUE"
        )
    return name, os.environ[name]


def _dependency(text: str) -> dict[str, str]:
    """Parse a dependency from JOB or JOB:WHEN."""
    job, colon, condition = text.rpartition(":")
    return {"job": job, "when": condition} if colon else {"job": text}


def pairs(option: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the values of an option as NAME=VALUE. Problem: one without a value."""
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Problem(f"{option} {text} is not NAME=VALUE", next=f"{option} {name or 'NAME'}=VALUE")
        yield name, value


def _amount(text: str) -> int | str:
    """Return an amount of an extended resource as a job file has it: a number, or a size."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text


def _volume(text: str) -> dict[str, str]:
    """Parse a volume from NAME:PATH."""
    name, colon, path = text.partition(":")
    if not name or not colon or not path:
        raise Problem(f"--volume {text} is not NAME:PATH", next=f"--volume {name or 'data'}:/data")
    return {"name": name, "path": path}


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}
