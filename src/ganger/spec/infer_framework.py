"""Inference of the framework from a command that names its launcher, such as torchrun or mpirun.

It runs before validation and fills in only what the user left open: the framework, and from the launcher's options the
number of nodes and processes, and the retries. srun is no framework: it is removed when the ranks start, and what it
would start chooses the framework.
"""

from typing import TYPE_CHECKING, Any

from ganger.framework_api.launcher_command import size_range
from ganger.model.job import JobSpec
from ganger.registry import frameworks, plugin_attribute
from ganger.spec.amounts import read_node_range, write_range
from ganger.spec.spec_document import SpecProblem

if TYPE_CHECKING:
    from ganger.framework_api.srun import Srun


def infer_framework(data: dict[str, Any]) -> list[SpecProblem]:
    """Add to a job's mapping what its command implies; what was written takes precedence.

    Return what is wrong with options of srun in it.
    """
    argv = command_words(data.get("run"))
    srun = None
    if argv and "srun" in str(argv):
        from ganger.framework_api.srun import find_srun

        srun = find_srun(argv)
    name, implied = _recognised(data.get("framework"), argv if srun is None else srun.command)
    problems = [] if srun is None else _fill_from_srun(data, srun, has_launcher=name is not None)
    if name is not None:
        data["framework"] = name
        _fill_retries(data, implied.pop("retries", None))
        if "roles" not in data:
            _fill(data, implied)
    return problems


def _recognised(named: Any, argv: tuple[str, ...] | None) -> tuple[str | None, dict[str, Any]]:
    """Return the framework whose launcher the command starts, and what that implies; None without one."""
    for name, module in sorted(frameworks().items()) if argv else ():
        options = plugin_attribute(module, "recognise")(argv) if named in (None, name) else None
        if options is not None:
            return name, dict(options)
    return None, {}


def _fill_from_srun(data: dict[str, Any], srun: "Srun", *, has_launcher: bool) -> list[SpecProblem]:
    from ganger.framework_api.srun import job_keys

    if srun.error:
        return [SpecProblem(("run",), srun.error)]
    try:
        implied = job_keys(srun, data, has_launcher=has_launcher)
    except ValueError as error:
        return [SpecProblem(("run",), str(error))]
    for key, value in implied.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            data[key] = value | data[key]
        else:
            data.setdefault(key, value)
    return []


def add_defaults_that_inference_would_change(spec: JobSpec, data: dict[str, Any]) -> None:
    """Add to the mapping of `spec` the defaults that its command would change if they were left out."""
    inferred = dict(data)
    infer_framework(inferred)
    values = {
        "framework": spec.framework,
        "nodes": write_range((spec.nodes, spec.max_nodes)),
        "nproc_per_node": spec.nproc_per_node or "auto",
    }
    data |= {key: values[key] for key in inferred if key in values and key not in data}


def _fill(data: dict[str, Any], sizes: dict[str, Any]) -> None:
    """Add the sizes that the user has left open. A number of processes is of one node, a range of them of several."""
    processes = sizes.pop("processes", None)
    low, high = _ends(processes)
    if low and low != high and "nodes" not in data:
        per_node = _ends(data.get("nproc_per_node"))[0] or sizes.get("nproc_per_node", 1)
        least = -(-low // per_node)
        sizes |= {"nodes": size_range(least, max(least, high // per_node)), "nproc_per_node": per_node}
    elif low and (nodes := _ends(data.get("nodes", 1))[0]):
        sizes["nproc_per_node"] = -(-low // nodes)
    for name, size in sizes.items():
        data.setdefault(name, size)


def _ends(size: Any) -> tuple[int, int]:
    """Return both ends of a size, which may be one number; zeros for a value that is none."""
    try:
        low, high = read_node_range(size)
    except ValueError:
        return 0, 0
    return low, high or low


def _fill_retries(data: dict[str, Any], retries: int | None) -> None:
    retry = data.get("retry", {})
    if retries is not None and isinstance(retry, dict):
        data["retry"] = {"max": retries, **retry}


def command_words(run: Any) -> tuple[str, ...] | None:
    """Return the command as it will be executed, None for a value that is no command."""
    if isinstance(run, str):
        return ("/bin/sh", "-c", run)
    return tuple(run) if isinstance(run, list | tuple) and run and all(isinstance(word, str) for word in run) else None
