"""Options for the source of jobs and nodes of a simulation: a trace or the log of a server, equal nodes or a file."""

import os
from pathlib import Path
from typing import Any, Final

import click

from ganger import settings
from ganger.cli.options import DURATION, Decorated
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.sim.simulation_process import Record

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_OF_TRACES: Final = (
    "faults",
    "fault_rate",
    "fault_seed",
    "fault_nodes",
    "detect",
    "repair",
    "spares",
    "checkpoint_cost",
    "notice",
    "save",
)
"""Options that need a trace: in a log nodes failed when they did."""
_OF_WORKLOADS: Final = ("map_queue", "estimates", "load_scale", "elastic", "elastic_max", "throughputs", "recorded_on")
"""Options that need a trace: jobs of a log are replayed as they were."""
_OPTIONS: Final = (
    click.argument("trace", metavar="[TRACE]", required=False, type=_FILE),
    click.option(
        "--from-log",
        is_flag=False,
        flag_value="",
        metavar="[FILE]",
        help="Instead of a trace, replay the event log of your own server, or a copy of one.",
    ),
    click.option("--since", type=DURATION, help="Replay only the last part of the log, such as 7d; unset: all of it."),
    click.option("--cluster", type=_FILE, metavar="FILE", help="File with the nodes, instead of --nodes."),
)


def source_options(command: Decorated) -> Decorated:
    """Add the options for a trace or a log, and for a file of nodes, to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_MAP_QUEUE: Final = click.option(
    "--map-queue",
    multiple=True,
    metavar="FROM=TO",
    help="Queue of the document for a queue of the trace; '*=TO' for all that it lacks. Jobs are in the queue of their"
    " name otherwise.",
)


def document_option(command: Decorated) -> Decorated:
    """Add the options for a policy document, and for the queues of a trace in it, to a command."""
    text = "Policy document, as for `ganger policy apply`, instead of --policy."
    return click.option("--document", type=_FILE, metavar="FILE", help=text)(_MAP_QUEUE(command))


def documents_option(command: Decorated) -> Decorated:
    """Add the repeatable option for policy documents, and that for queues, to a command."""
    text = "Policy document to compare, as for `ganger policy apply`; may be given several times."
    return click.option("--document", type=_FILE, multiple=True, metavar="FILE", help=text)(_MAP_QUEUE(command))


def check_options(options: dict[str, Any], command: str) -> dict[str, Any]:
    """Return the options with the path of the log. Problem: they contradict each other, or one is missing."""
    trace, log, nodes, cluster = (options[name] for name in ("trace", "from_log", "nodes", "cluster"))
    if (trace is None) == (log is None):
        raise Problem("name a TRACE, or --from-log for the log of your own server, not both", f"{command} --help")
    if options["since"] and log is None:
        raise Problem("--since needs --from-log", f"{command} --from-log --since 7d")
    if nodes is not None and cluster is not None:
        raise Problem("--nodes and --cluster cannot be combined: each defines the nodes", f"{command} --help")
    if nodes is None and cluster is None and trace is not None:
        raise Problem("a trace does not define the nodes: add --nodes N or --cluster FILE", f"{command} --help")
    if nodes is None and (options["gpus"] or options["gpu_type"] or options["cpus"]):
        raise Problem("--gpus, --gpu-type and --cpus need --nodes", f"{command} --help")
    check_document(options)
    if log is not None and (names := [name for name in _OF_TRACES if options.get(name)]):
        flag = names[0].replace("_", "-")
        raise Problem(f"--{flag} needs a trace: a log has the node failures that occurred", f"{command} --help")
    if log is not None and (names := [name for name in _OF_WORKLOADS if options[name]]):
        flag = names[0].replace("_", "-")
        raise Problem(f"--{flag} needs a trace: jobs of a log are replayed as they were", f"{command} --help")
    if log == "":
        log = settings.home(os.environ).database
    return options | {"from_log": None if log is None else Path(log)}


def check_document(options: dict[str, Any]) -> None:
    """Raise Problem if there is both a queue order and a document, which has one, or a queue without a document."""
    if options.get("map_queue") and not options.get("document"):
        raise Problem(
            "--map-queue needs --document, which has the queues", "--document policy.yaml --map-queue vc1=research"
        )
    if options.get("policy") and options.get("document"):
        raise Problem("--policy and --document cannot be combined", "put the order into the document: order: NAME")


def cluster_size(result: Record) -> str:
    """Return the size of the cluster: `4 nodes x 8 GPUs`; in all if nodes differ: `4 nodes with 20 GPUs`.

    The nodes of a log may have come and gone: `3 nodes x 8 GPUs (at most 2 at a time)`.
    """
    nodes, most = result["nodes"], result.get("most_nodes_up", result["nodes"])
    up = f" (at most {most} at a time)" if most < nodes else ""
    if result["gpus"] is None:
        return f"{count(nodes, 'node')} with {count(result['gpus_in_all'], 'GPU')}{up}"
    return f"{count(nodes, 'node')} x {count(result['gpus'], 'GPU')}{up}"
