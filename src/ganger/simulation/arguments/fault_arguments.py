"""The node faults of a simulation: `--faults` and the options that go with it, and their part of the answer."""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from ganger.model.cluster import Node
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.units import DAY_MS
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.json_output import findings_json
from ganger.simulation.node_outages import FaultModel, draw_outages, record_length_ms
from ganger.simulation.simulate import Outcome
from ganger.simulation.trace_replay import Faults
from ganger.simulation.traces.read_trace import read_faults
from ganger.simulation.traces.trace import NodeFault

NOTE: Final = "note"
"""Level of a fault that takes no node away."""
LARGEST_RATE: Final = 1_000
NEED_FAULTS: Final = ("fault_rate", "fault_seed", "fault_nodes", "detect_ms", "repair_ms", "spares")
"""Arguments that have a meaning only with `--faults`."""


def faults_from(arguments: argparse.Namespace, nodes: Sequence[Node], seed: int = 0) -> Faults:
    """Return the outages of these nodes, none without `--faults`; `seed` is added to `--fault-seed`.

    InvalidArgument, UnreadableTrace: the faults cannot be simulated.
    """
    _check(arguments, len(nodes))
    if arguments.faults is None:
        return Faults()
    trace = read_faults(arguments.faults)
    failed = len({fault.node for fault in trace.records})
    if arguments.fault_nodes is not None and arguments.fault_nodes < failed:
        raise InvalidArgument(
            f"{arguments.faults} names {failed} nodes that failed, more than {arguments.fault_nodes}",
            f"use --fault-nodes {failed} or more",
        )
    model = FaultModel(
        rate=Fraction(arguments.fault_rate or 1),
        seed=(arguments.fault_seed or 0) + seed,
        nodes=arguments.fault_nodes,
        detect_ms=arguments.detect_ms or 0,
        repair_ms=arguments.repair_ms,
    )
    names = [node.name for node in nodes]
    outages = draw_outages([fault for fault in trace.records if fault.level != NOTE], names, model)
    notes = _notes([fault for fault in trace.records if fault.level == NOTE], names)
    return Faults(trace=trace, outages=outages, notes=notes, spares=arguments.spares or 0)


def _notes(faults: Sequence[NodeFault], names: Sequence[str]) -> tuple[tuple[int, Fault], ...]:
    """Return faults that take no node away as reports of checks. InvalidArgument: one is of a node of another name."""
    known = dict.fromkeys(names)
    for fault in faults:
        if fault.node not in known:
            raise InvalidArgument(
                f"line {fault.line} is a {NOTE} of {fault.node}, which is no node of the cluster",
                f"name a node from {names[0]} to {names[-1]}",
            )
    return tuple((fault.start_ms, _note(fault)) for fault in faults)


def _note(fault: NodeFault) -> Fault:
    code, sentence = fault.category or NOTE, fault.detail or fault.category or NOTE
    return Fault(
        node=fault.node, check="trace", code=code, severity=Severity.NOTE, at_ms=fault.start_ms, sentence=sentence
    )


def faults_json(faults: Faults, outcome: Outcome) -> dict[str, Any]:
    """Return the source of the faults, and whether they cover the run; nothing without faults."""
    if faults.trace is None:
        return {}
    end_ms = max((job.ended_ms or 0 for job in outcome.histories), default=0)
    begin_ms = min((job.submitted_ms for job in outcome.histories), default=0)
    record = {
        "file": faults.trace.path,
        "format": faults.trace.format,
        "rows": faults.trace.rows,
        "findings": findings_json(faults.trace.findings),
        "outages": len(faults.outages),
        "spares": faults.spares,
        "days": record_length_ms(faults.trace.records) / DAY_MS,
        "days_of_run": max(0, end_ms - begin_ms) / DAY_MS,
    }
    return {"faults": record}


def _check(arguments: argparse.Namespace, nodes: int) -> None:
    given = [name for name in NEED_FAULTS if getattr(arguments, name) is not None]
    if given and arguments.faults is None:
        flag = f"--{given[0].removesuffix('_ms').replace('_', '-')}"
        raise InvalidArgument(f"{flag} needs --faults", "add --faults FILE")
    if arguments.fault_rate is not None and not 0 < Fraction(arguments.fault_rate) <= LARGEST_RATE:
        raise InvalidArgument(
            f"--fault-rate {arguments.fault_rate} is not above 0 and at most {LARGEST_RATE}",
            "for half as many faults: --fault-rate 0.5; for none leave out --faults",
        )
    if (arguments.spares or 0) >= nodes:
        raise InvalidArgument(
            f"{arguments.spares} spares of {nodes} nodes leave none to run on", f"use --spares {nodes - 1} or fewer"
        )
    if arguments.checkpoint_ms == 0:
        raise InvalidArgument(
            "--checkpoint must be longer than 0", "leave out --checkpoint for a job that keeps all of it"
        )
    if arguments.write_ms and not arguments.checkpoint_ms:
        raise InvalidArgument("--checkpoint-cost needs --checkpoint", "add --checkpoint 30m")
