"""The program behind `ganger sim`: `python -m ganger.simulation import|run|compare`.

Reads another cluster's trace, and writes it in ganger's own format or runs it in virtual time. Prints one JSON object,
on the last line: the answer, or `error` and `next` and exit code 2.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from ganger.engine.eventlog.stream_log import line
from ganger.errors import RequestError
from ganger.model.event import Stamped
from ganger.model.policy import ORDER
from ganger.simulation.arguments.argument_error import Unaskable
from ganger.simulation.arguments.fault_arguments import faults_told
from ganger.simulation.arguments.node_arguments import size_of
from ganger.simulation.arguments.policy_arguments import read_document
from ganger.simulation.arguments.run_arguments import parts_of, run_of
from ganger.simulation.compare.compare import compare
from ganger.simulation.from_log.days import own_days
from ganger.simulation.result import Record, figures, looks, source
from ganger.simulation.run import simulate
from ganger.simulation.traces.ganger_format import write_jobs
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import Unreadable

OK, USAGE, INTERRUPTED = 0, 2, 130


def main(argv: Sequence[str]) -> int:
    """Do what the arguments say, print the answer and return the exit code."""
    arguments = _parser().parse_args(argv)
    if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # not for this process; `multiprocessing` would unblock it
    try:
        answer = DO[arguments.what](arguments)
    except Unreadable as error:
        answer = {"error": f"{error.place}: {error.reason}", "next": error.next}
    except Unaskable as error:
        answer = {"error": error.reason, "next": error.next}
    except RequestError as error:
        answer = {"error": error.detail, "next": error.next}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}", "next": f"ls -l {error.filename}"}
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(json.dumps(answer) + "\n")
    return USAGE if "error" in answer else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ganger.simulation", description=__doc__)
    parser.add_argument("what", choices=["import", "run", "compare"])
    parser.add_argument("trace", type=Path, nargs="?", help="unset with --from-log")
    parser.add_argument("--from-log", type=Path, help="instead of a trace the log of a server of ganger's")
    parser.add_argument("--since-ms", type=int, help="of the log: so long before its newest event, and what followed")
    parser.add_argument("--to", type=Path, help="import: the file to write")
    parser.add_argument("--format", default="", help="of the trace; unset: as its first line tells")
    parser.add_argument("--policy", help="run: the queue order; unset: the default")
    parser.add_argument(
        "--document", type=Path, action="append", default=[], help="instead of --policy a whole document"
    )
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--cluster", type=Path, help="a file of nodes, instead of --nodes")
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--gpu-type", default="")
    parser.add_argument("--start-ms", type=int)
    parser.add_argument("--checkpoint-ms", type=int)
    parser.add_argument("--checkpoint-cost-ms", type=int, default=0, dest="write_ms")
    parser.add_argument("--faults", type=Path, help="a record of nodes that failed; what follows is of it")
    parser.add_argument("--fault-rate", help="times as many")
    parser.add_argument("--fault-seed", type=int)
    parser.add_argument("--fault-nodes", type=int, help="of how many nodes the record is; unset: those with a fault")
    parser.add_argument("--detect-ms", type=int)
    parser.add_argument("--repair-ms", type=int, help="unset: as recorded")
    parser.add_argument("--spares", type=int)
    parser.add_argument("--price", action="append", default=[], help="of an hour of a node: 12.50 or h100=98.3")
    parser.add_argument("--policies", help="compare: queue orders, or orders and scores, with commas between")
    parser.add_argument("--seeds", type=int, default=1, help="compare: runs of each policy that draws")
    parser.add_argument("--report", type=Path, help="compare: write an HTML page there")
    parser.add_argument("--log", type=Path, help="run: write every event there")
    return parser


def _imported(arguments: argparse.Namespace) -> Record:
    trace = read_jobs(arguments.trace, arguments.format)
    write_jobs(trace, arguments.to)
    return {**source(trace, trace.findings), "jobs": len(trace.records), "file": str(arguments.to)}


def _ran(arguments: argparse.Namespace) -> Record:
    policy = arguments.policy or ORDER
    parts_of(policy)  # before a long file is read
    with ExitStack() as open_files:
        readers: list[Callable[[Stamped], None]] = []
        if arguments.log is not None:
            readers.append(_writer(open_files.enter_context(arguments.log.open("wb"))))
        if arguments.from_log is not None:
            return own_days(arguments, *readers)
        trace = read_jobs(arguments.trace, arguments.format)
        asked = run_of(arguments, trace, policy)
        if arguments.document:
            (path,) = arguments.document
            asked = replace(asked, document=read_document(path, asked.nodes))
            policy = str(path)
        occupancy = looks(asked)
        outcome = simulate(asked, occupancy.take, *readers)
    return {
        **source(trace, outcome.findings),
        "policy": policy,
        **size_of(asked.nodes),
        **figures(outcome, occupancy),
        **faults_told(asked.faults, outcome),
    }


def _writer(file: BinaryIO) -> Callable[[Stamped], None]:
    def write(row: Stamped) -> None:
        file.write(line(row))

    return write


DO: Final[dict[str, Callable[[argparse.Namespace], Record]]] = {
    "import": _imported,
    "run": _ran,
    "compare": compare,
}
"""What `ganger sim` has a word for."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
