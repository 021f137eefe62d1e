"""The errand `sim`: read another cluster's trace, and write it in ganger's own format or run it in virtual time.

Called by `wiring.__main__` for `ganger sim`. Prints one JSON object: the answer, or `error` and `next` and exit code 2.
"""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any, BinaryIO, Final

from ganger.backends.simulator.scorecard import Scorecard
from ganger.backends.simulator.traces.documented import write_jobs
from ganger.backends.simulator.traces.read import read_jobs
from ganger.backends.simulator.traces.recorded import MEANING, Finding, RecordedJob, Trace, Unreadable
from ganger.core.state import State
from ganger.engine import registry
from ganger.engine.recording import line
from ganger.model.cluster import Node
from ganger.model.event import Stamped
from ganger.model.policy import ORDER, Rules, document_of
from ganger.wiring.simulate import Costs, Outcome, Run, simulate

OK, USAGE = 0, 2
AMPLE_CPU_MILLI: Final = 1_000_000_000
AMPLE_BYTES: Final = 1 << 46
"""What each node has where only its GPUs are said: they are what jobs wait for."""
SPARED: Final = 20
"""Preemptions that a limit has room for."""
Record = dict[str, Any]


def sim(arguments: argparse.Namespace) -> int:
    """Do it, and print the answer."""
    try:
        answer = _imported(arguments) if arguments.what == "import" else _ran(arguments)
    except Unreadable as error:
        answer = {"error": f"{error.place}: {error.reason}", "next": error.next}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}", "next": f"ls -l {error.filename}"}
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return USAGE if "error" in answer else OK


def _imported(arguments: argparse.Namespace) -> Record:
    trace = read_jobs(arguments.trace, arguments.format)
    write_jobs(trace, arguments.to)
    return {**_read(trace, trace.findings), "jobs": len(trace.records), "file": str(arguments.to)}


def _ran(arguments: argparse.Namespace) -> Record:
    orders = registry.policies()
    policy = arguments.policy or ORDER
    if policy not in orders:
        return {"error": f"there is no queue order {policy}", "next": f"name one of {', '.join(sorted(orders))}"}
    trace = read_jobs(arguments.trace, arguments.format)
    costs = _costs(arguments.start_ms, arguments.checkpoint_ms, orders[policy])
    document = document_of(replace(Rules(), order=policy), State().queues)
    asked = Run(trace=trace, nodes=_nodes(arguments), order=registry.order, document=document, costs=costs)
    with ExitStack() as open_files:
        readers: list[Callable[[Stamped], None]] = []
        if arguments.log is not None:
            readers.append(_writer(open_files.enter_context(arguments.log.open("wb"))))
        outcome = simulate(asked, *readers)
    return {
        **_read(trace, outcome.findings),
        "policy": policy,
        "nodes": arguments.nodes,
        "gpus": arguments.gpus,
        **_figures(outcome),
    }


def _costs(start_ms: int, checkpoint_ms: int, order: ModuleType) -> Costs:
    """Where jobs are stopped for others these costs come again and again; limits have room for some of them."""
    spare_ms = SPARED * (start_ms + checkpoint_ms) if order.ORDERS_RUNNING else 0
    return Costs(start_ms=start_ms, checkpoint_ms=checkpoint_ms, spare_ms=spare_ms)


def _writer(file: BinaryIO) -> Callable[[Stamped], None]:
    def write(row: Stamped) -> None:
        file.write(line(row))

    return write


def _nodes(arguments: argparse.Namespace) -> tuple[Node, ...]:
    """Equal ones."""
    width = len(str(arguments.nodes - 1))
    kind = arguments.gpu_type.lower()
    return tuple(
        Node(
            name=f"n{at:0{width}}",
            gpus=arguments.gpus,
            gpu_type=kind,
            cpu_milli=AMPLE_CPU_MILLI,
            memory_bytes=AMPLE_BYTES,
        )
        for at in range(arguments.nodes)
    )


def _read(trace: Trace[RecordedJob], findings: tuple[Finding, ...]) -> Record:
    """Where the jobs come from, and what of it has a flaw."""
    flaws = [
        {
            "flaw": found.flaw,
            "count": found.count,
            "kept": found.is_kept,
            "meaning": MEANING[found.flaw],
            "first": [{"line": number, "what": what} for number, what in found.first],
        }
        for found in findings
    ]
    return {"trace": trace.place, "format": trace.format, "rows": trace.rows, "findings": flaws}


def _figures(outcome: Outcome) -> Record:
    counted = {name: getattr(outcome, name) for name in ("unended", "starts", "preemptions", "events")}
    return {**counted, "scorecard": _card(outcome.card)}


def _card(card: Scorecard) -> Record:
    slowdown = {f"slowdown_{tau_ms // 1000}s": asdict(of) for tau_ms, of in card.slowdown.items()}
    return {name: value for name, value in asdict(card).items() if name != "slowdown"} | slowdown
