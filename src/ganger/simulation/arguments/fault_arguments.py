"""The node faults that `ganger sim` was asked for, from the arguments of its errand; and what of them is told.

Called by `simulation.arguments.run_arguments`, and by the errand `sim run` for its answer.
"""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from ganger.model.cluster import Node
from ganger.model.units import DAY_MS
from ganger.simulation.arguments.argument_error import Unaskable
from ganger.simulation.node_outages import Faultiness, outages, period_ms
from ganger.simulation.result import flaws
from ganger.simulation.run import Faults, Outcome
from ganger.simulation.traces.read_trace import read_faults

LARGEST_RATE: Final = 1_000
NEEDS_FAULTS: Final = ("fault_rate", "fault_seed", "fault_nodes", "detect_ms", "repair_ms", "spares")
"""Arguments that mean something only with `--faults`."""


def faults_of(arguments: argparse.Namespace, nodes: Sequence[Node], seed: int = 0) -> Faults:
    """The outages of these nodes, none where nobody asked for any; `seed` is added to the one asked for. Unaskable,
    Unreadable: they cannot be."""
    _check(arguments, len(nodes))
    if arguments.faults is None:
        return Faults()
    record = read_faults(arguments.faults)
    named = len({fault.node for fault in record.records})
    if arguments.fault_nodes is not None and arguments.fault_nodes < named:
        raise Unaskable(
            f"{arguments.faults} names {named} nodes that failed, more than {arguments.fault_nodes}",
            f"say of how many nodes it is: --fault-nodes {named} is the least",
        )
    how = Faultiness(
        rate=Fraction(arguments.fault_rate or 1),
        seed=(arguments.fault_seed or 0) + seed,
        nodes=arguments.fault_nodes,
        detect_ms=arguments.detect_ms or 0,
        repair_ms=arguments.repair_ms,
    )
    found = outages(record.records, [node.name for node in nodes], how)
    return Faults(record=record, outages=found, spares=arguments.spares or 0)


def faults_told(faults: Faults, outcome: Outcome) -> dict[str, Any]:
    """Where the faults come from, and whether they cover the run."""
    if faults.record is None:
        return {}
    ends_ms = max((each.ended_ms or 0 for each in outcome.histories), default=0)
    begins_ms = min((each.submitted_ms for each in outcome.histories), default=0)
    told = {
        "file": faults.record.place,
        "format": faults.record.format,
        "rows": faults.record.rows,
        "findings": flaws(faults.record.findings),
        "outages": len(faults.outages),
        "spares": faults.spares,
        "days": period_ms(faults.record.records) / DAY_MS,
        "days_of_run": max(0, ends_ms - begins_ms) / DAY_MS,
    }
    return {"faults": told}


def _check(arguments: argparse.Namespace, nodes: int) -> None:
    said = [name for name in NEEDS_FAULTS if getattr(arguments, name) is not None]
    if said and arguments.faults is None:
        flag = f"--{said[0].removesuffix('_ms').replace('_', '-')}"
        raise Unaskable(f"{flag} says something of faults, and there are none", "name a file of them: --faults FILE")
    if arguments.fault_rate is not None and not 0 < Fraction(arguments.fault_rate) <= LARGEST_RATE:
        raise Unaskable(
            f"a rate of {arguments.fault_rate} is not above 0 and at most {LARGEST_RATE}",
            "say how many times as many faults: --fault-rate 0.5; for none leave out --faults",
        )
    if (arguments.spares or 0) >= nodes:
        raise Unaskable(
            f"{arguments.spares} spares of {nodes} nodes leave none to run on", f"--spares {nodes - 1} is the most"
        )
    if arguments.checkpoint_ms == 0:
        raise Unaskable(
            "checkpoints after 0 ms of work are no checkpoints", "leave out --checkpoint for a job that keeps all of it"
        )
    if arguments.write_ms and not arguments.checkpoint_ms:
        raise Unaskable("--checkpoint-cost says what a checkpoint costs, and there are none", "add --checkpoint 30m")
