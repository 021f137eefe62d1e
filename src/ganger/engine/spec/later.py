"""Fields that a spec will have later: refused by name, with what to do until then, never ignored.

Called by `engine.spec`. The list is the whole spec of the design, less what `model.job` has by now: a field leaves it
when it arrives there.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from ganger.engine.registry import frameworks
from ganger.engine.spec.document import Document, Loc, Problem, dotted, shown
from ganger.engine.spec.schema import KIND
from ganger.engine.spec.words import did_you_mean

_KEYS: Final[dict[Loc, str]] = {
    ("image",): "the job uses the programs of this machine: activate the environment to run in, and leave it out",
    ("data",): "read the data by its path on this machine",
    ("volumes",): "read and write by paths on this machine",
    ("placement",): "every node that is free and large enough is taken: leave it out",
    ("roles",): "all processes have the one role worker: branch on GANGER_RANK in the script",
    ("services",): "start it by hand beside the job",
    ("after",): "submit the job when the other has ended: `ganger wait ID && ganger submit FILE`",
    ("array",): "submit one job for each value, in a shell loop",
    ("sweep",): "submit one job for each value, in a shell loop",
    ("params",): "write the values into run or env",
    ("stop_when",): "a job ends when all its processes have: let the others exit with the first",
    ("notify",): "wait for it: `ganger wait ID`",
    ("secrets",): "set the variable before the job starts, in a file that run or setup reads",
    ("labels",): "use the name",
    ("notes",): "use a comment",
    ("resources", "shm"): "processes share the shared memory of this machine: leave it out",
    ("resources", "rdma"): "processes have the network of this machine: leave it out",
    ("resources", "gpu", "fraction"): "ask for whole GPUs",
    ("resources", "gpu", "memory"): "ask for whole GPUs",
    ("limits", "idle"): "set time",
    ("limits", "cost"): "set time",
    ("retry", "on"): "set max: what is not the job's fault is tried again anyway",
    ("retry", "rules"): "set max",
}
_KINDS: Final = ("dev", "service", "sweep", "workflow")
_FRAMEWORKS: Final = {
    "torchrun": "write torch, and the script without torchrun: ganger starts the processes itself",
    "deepspeed": "write torch, and the script without the deepspeed launcher",
    "mpi": "write plain, with nodes: 1 and run: mpirun ...",
    "horovod": "write plain, with nodes: 1 and run: horovodrun ...",
    **dict.fromkeys(
        ("tensorflow", "jax", "paddle", "mxnet", "xgboost", "ray"),
        "write plain, and set what it needs from the GANGER_ variables in the script",
    ),
}
_TEMPLATE: Final = re.compile(r"\$\{\{\s*params\.\w{1,40}")


def later(document: Document) -> Iterator[Problem]:
    """A problem for everything in the document that comes later. `document.data` is a mapping."""
    for at, instead in _KEYS.items():
        if _has(document.data, at):
            yield Problem(at, f"{dotted(at)} is not yet supported: {instead}", key=True)
    yield from _kind(document.data)
    yield from _forms(document.data)
    yield from _variables(document)
    yield from _templates(document.data)


def _has(data: Any, at: Loc) -> bool:
    for key in at:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _kind(data: dict[str, Any]) -> Iterator[Problem]:
    kind = data.get("kind", KIND)
    if kind in _KINDS:
        yield Problem(("kind",), f"kind: {kind} is not yet supported: write job, or leave it out")
    elif kind != KIND:
        meant = did_you_mean(kind, (KIND, *_KINDS)) if isinstance(kind, str) else ""
        yield Problem(("kind",), f"kind: {shown(kind)} is not a kind of work: write job, or leave it out{meant}")


def _forms(data: dict[str, Any]) -> Iterator[Problem]:
    """Keys that are there already, with a form that comes later."""
    framework, nodes, code = data.get("framework"), data.get("nodes"), data.get("code")
    if isinstance(framework, str) and framework in _FRAMEWORKS and framework not in frameworks():
        yield Problem(("framework",), f"framework: {framework} is not yet supported: {_FRAMEWORKS[framework]}")
    if isinstance(nodes, str) and re.fullmatch(r"\s*\d+\s*\.\.\s*\d+\s*", nodes):
        yield Problem(("nodes",), f"nodes: a range, {shown(nodes)}, is not yet supported: write one number")
    if isinstance(code, dict):
        yield Problem(("code",), "code: a repository is not yet supported: clone it, and write the directory")


def _variables(document: Document) -> Iterator[Problem]:
    """A variable without a value will be a secret."""
    env = document.data.get("env")
    for name, value in env.items() if isinstance(env, dict) else ():
        at = ("env", name)
        if value is None and at not in document.unreadable:
            yield Problem(at, f"{dotted(at)}: no value (a secret) is not yet supported: write one, or leave it out")


def _templates(data: dict[str, Any]) -> Iterator[Problem]:
    """`${{ params.x }}` would reach the shell as it is."""
    env, run = data.get("env"), data.get("run")
    texts: list[tuple[Loc, Any]] = [(("setup",), data.get("setup")), (("run",), run)]
    texts += [(("run", index), word) for index, word in enumerate(run)] if isinstance(run, list) else []
    texts += [(("env", name), value) for name, value in env.items()] if isinstance(env, dict) else []
    for at, text in texts:
        if isinstance(text, str) and (found := _TEMPLATE.search(text)):
            yield Problem(at, f"{dotted(at)}: {found[0]} }}}} is not yet supported: write the value out")
