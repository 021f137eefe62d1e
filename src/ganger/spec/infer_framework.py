"""Inference of the framework from a command that names its launcher, such as torchrun or mpirun.

It runs before validation and fills in only what the user left open: the framework, and from the launcher's options the
number of nodes and processes, and the retries.
"""

from typing import Any

from ganger.model.job import JobSpec
from ganger.registry import frameworks, plugin_attribute


def infer_framework(data: dict[str, Any]) -> None:
    """Add to a job's mapping what its command implies; what was written takes precedence."""
    argv = _argv(data.get("run"))
    named = data.get("framework")
    for name, module in sorted(frameworks().items()) if argv else ():
        options = plugin_attribute(module, "recognise")(argv) if named in (None, name) else None
        if options is not None:
            data["framework"] = name
            sizes = dict(options)
            _fill_retries(data, sizes.pop("retries", None))
            if "roles" not in data:
                _fill(data, sizes)
            return


def add_defaults_that_inference_would_change(spec: JobSpec, data: dict[str, Any]) -> None:
    """Add to the mapping of `spec` the defaults that its command would change if they were left out."""
    inferred = dict(data)
    infer_framework(inferred)
    values = {"framework": spec.framework, "nodes": spec.nodes, "nproc_per_node": spec.nproc_per_node or "auto"}
    data |= {key: values[key] for key in inferred if key in values and key not in data}


def _fill(data: dict[str, Any], sizes: dict[str, int]) -> None:
    processes, nodes = sizes.pop("processes", None), data.get("nodes", 1)
    if processes and isinstance(nodes, int) and nodes > 0:
        sizes["nproc_per_node"] = -(-processes // nodes)
    for name, size in sizes.items():
        data.setdefault(name, size)


def _fill_retries(data: dict[str, Any], retries: int | None) -> None:
    retry = data.get("retry", {})
    if retries is not None and isinstance(retry, dict):
        data["retry"] = {"max": retries, **retry}


def _argv(run: Any) -> tuple[str, ...] | None:
    """Return the command as it will be executed, None for a value that is no command."""
    if isinstance(run, str):
        return ("/bin/sh", "-c", run)
    return tuple(run) if isinstance(run, list) and run and all(isinstance(word, str) for word in run) else None
