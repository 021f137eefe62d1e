"""What jobs and which nodes `ganger sim` is about: a trace or the server's own log, equal nodes or those of a file.

Called by the commands of `ganger sim` that simulate.
"""

import os
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.options import DURATION, Decorated
from ganger.cli.output.error_output import Problem
from ganger.cli.output.messages import count

Record = dict[str, Any]

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FAULTS: Final = ("faults", "fault_rate", "fault_seed", "fault_nodes", "detect", "repair", "spares", "checkpoint_cost")
_OPTIONS: Final = (
    click.argument("trace", metavar="[TRACE]", required=False, type=_FILE),
    click.option(
        "--from-log",
        is_flag=False,
        flag_value="",
        metavar="[FILE]",
        help="Instead of a trace: what the log of your own server, or a copy of one, has.",
    ),
    click.option("--since", type=DURATION, help="Of the log only its last days: 7d; unset: all that it has."),
    click.option("--cluster", type=_FILE, metavar="FILE", help="Nodes of a file, instead of --nodes."),
)


def sourced(command: Decorated) -> Decorated:
    """A trace or a log, and a file of nodes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def document_option(command: Decorated) -> Decorated:
    """A whole policy document instead of an order."""
    words = "A policy document, as `ganger policy apply` takes it, instead of --policy."
    return click.option("--document", type=_FILE, metavar="FILE", help=words)(command)


def documents_option(command: Decorated) -> Decorated:
    """The same, several times."""
    words = "A policy document to compare with, as `ganger policy apply` takes it; may be given several times."
    return click.option("--document", type=_FILE, multiple=True, metavar="FILE", help=words)(command)


def checked(said: dict[str, Any], command: str) -> dict[str, Any]:
    """What was said, with the path of the log, where it can be meant so. Problem: it contradicts itself."""
    trace, log, nodes, cluster = (said[name] for name in ("trace", "from_log", "nodes", "cluster"))
    if (trace is None) == (log is None):
        raise Problem("name a TRACE, or --from-log for your own server's: one of them", f"{command} --help")
    if said["since"] and log is None:
        raise Problem("--since is of your own server's log", f"{command} --from-log --since 7d")
    if nodes is not None and cluster is not None:
        raise Problem("--nodes and --cluster both say which nodes there are", f"{command} --help")
    if nodes is None and cluster is None and trace is not None:
        what = "how many nodes there are is not in a trace: add --nodes N or --cluster FILE"
        raise Problem(what, f"{command} --help")
    if nodes is None and (said["gpus"] or said["gpu_type"]):
        raise Problem("--gpus and --gpu-type are of the nodes that --nodes counts", f"{command} --help")
    if said.get("policy") and said.get("document"):
        raise Problem("--policy and --document both say the policy", "put the order into the document: order: NAME")
    if log is not None and (named := [name for name in _FAULTS if said.get(name)]):
        flag = named[0].replace("_", "-")
        raise Problem(f"--{flag} is of a trace: in a log nodes failed as they did", f"{command} --help")
    if log == "":
        log = settings.home(os.environ).database
    return said | {"from_log": None if log is None else Path(log)}


def cluster_of(told: Record) -> str:
    """How large it is, in words."""
    if told["gpus"] is None:
        return f"{count(told['nodes'], 'node')} with {count(told['gpus_in_all'], 'GPU')}"
    return f"{count(told['nodes'], 'node')} x {count(told['gpus'], 'GPU')}"
