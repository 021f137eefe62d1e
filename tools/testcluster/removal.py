"""Removal of a cluster, or of what a crash left of it: everything that `Shape` lists, and nothing else."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from tools.testcluster import processes
from tools.testcluster.nodes.nodes import cgroups
from tools.testcluster.shape import Shape
from tools.testcluster.waiting import until


def remove(shape: Shape) -> None:
    """Remove processes, links, control groups and files, in this order; what is gone already is not an error."""
    records = [path for path in (shape.folder / "processes").glob("*") if path.suffix != ".new"]
    # Nodes first: everything that runs in one ends with its first process.
    for record in sorted(records, key=lambda path: (not path.name.startswith("node-"), path.name)):
        processes.end(record)
    for node in shape.numbers:
        for group in cgroups(f"{shape.cgroup()}-{node}"):
            _empty(group)
        _delete_link(shape.node_link(node))
    if shape.nodes:
        _delete_link(shape.bridge)
    shape.forget()


def _delete_link(name: str) -> None:
    if Path(f"/sys/class/net/{name}").exists():
        # A veth is removed with its node, perhaps at this moment.
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    until(lambda: not Path(f"/sys/class/net/{name}").exists(), f"the end of the link {name}")


def _empty(group: Path) -> None:
    """Remove a control group and those below it, once the kernel has reaped their processes."""

    def is_gone() -> bool:
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process in it has not ended yet
                Path(folder).rmdir()
        return not group.exists()

    until(is_gone, f"the end of all in the control group {group}")
