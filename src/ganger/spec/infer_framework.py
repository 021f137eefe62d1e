"""Commands that name a launcher, such as torchrun or mpirun: the job is of the framework that the launcher belongs to.

Called by `spec` before anything is validated. Only what the user left open is filled in: the framework, and how
many nodes and processes there are, from the launcher's own options.
"""

from typing import Any

from ganger.model.job import JobSpec
from ganger.registry import frameworks, plugin_attribute


def recognise(data: dict[str, Any]) -> None:
    """Add to a job's mapping what its command says. A framework that was named stays; so does a size."""
    argv = _argv(data.get("run"))
    named = data.get("framework")
    for name, module in sorted(frameworks().items()) if argv else ():
        sizes = plugin_attribute(module, "recognise")(argv) if named in (None, name) else None
        if sizes is not None:
            data["framework"] = name
            if "roles" not in data:
                _fill(data, dict(sizes))
            return


def say_what_is_not_recognised(spec: JobSpec, data: dict[str, Any]) -> None:
    """Add to the mapping of `spec` the defaults that its command would change, were they left out."""
    changed = dict(data)
    recognise(changed)
    said = {"framework": spec.framework, "nodes": spec.nodes, "nproc_per_node": spec.nproc_per_node or "auto"}
    data |= {key: said[key] for key in changed if key not in data}


def _fill(data: dict[str, Any], sizes: dict[str, int]) -> None:
    processes, nodes = sizes.pop("processes", None), data.get("nodes", 1)
    if processes and isinstance(nodes, int) and nodes > 0:
        sizes["nproc_per_node"] = -(-processes // nodes)
    for name, size in sizes.items():
        data.setdefault(name, size)


def _argv(run: Any) -> tuple[str, ...] | None:
    """As it will be executed; None for what is no command yet."""
    if isinstance(run, str):
        return ("/bin/sh", "-c", run)
    return tuple(run) if isinstance(run, list) and run and all(isinstance(word, str) for word in run) else None
