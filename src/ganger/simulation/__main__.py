"""The program behind `ganger sim`: `python -m ganger.simulation import|run|compare|size|sweep`.

Reads another cluster's trace, and writes it in ganger's own format or runs it in virtual time. Prints one JSON object
on the last line: the answer, or `error` and `next` and exit code 2.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from ganger.engine.eventlog.stream_log import line
from ganger.errors import RequestError
from ganger.model.event import Stamped
from ganger.model.policy import ORDER
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.cluster_arguments import cluster_json
from ganger.simulation.arguments.fault_arguments import faults_json
from ganger.simulation.arguments.policy_arguments import order_and_score
from ganger.simulation.arguments.run_arguments import trace_run_from
from ganger.simulation.arguments.trace_queues import with_document
from ganger.simulation.arguments.workload_arguments import read_workload
from ganger.simulation.compare.compare import compare
from ganger.simulation.estimate_regret import regret_json
from ganger.simulation.from_log.run_log import run_log
from ganger.simulation.json_output import Record, occupancy_for, outcome_json, source_json
from ganger.simulation.results.job_columns import NO_TRACE, job_columns
from ganger.simulation.results.job_file import check_job_file, write_job_file
from ganger.simulation.simulate import Outcome, Reader
from ganger.simulation.sweep.size import size
from ganger.simulation.sweep.sweep import sweep
from ganger.simulation.trace_replay import simulate_trace
from ganger.simulation.traces.ganger_format import write_jobs
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob, Trace, UnreadableTrace

OK, USAGE, INTERRUPTED = 0, 2, 130


def main(argv: Sequence[str]) -> int:
    """Carry out the subcommand, print its answer and return the exit code."""
    arguments = argument_parser().parse_args(argv)
    if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the parent; `multiprocessing` would unblock it
    try:
        answer = SUBCOMMANDS[arguments.subcommand](arguments)
    except UnreadableTrace as error:
        answer = {"error": f"{error.location}: {error.reason}", "next": error.next}
    except InvalidArgument as error:
        answer = {"error": error.reason, "next": error.next}
    except RequestError as error:
        answer = {"error": error.detail, "next": error.next}
    except OSError as error:
        answer = {"error": f"{error.filename}: {error.strerror}", "next": f"ls -l {error.filename}"}
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(json.dumps(answer) + "\n")
    return USAGE if "error" in answer else OK


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommands, which have their options in common."""
    parser = argparse.ArgumentParser(prog="python -m ganger.simulation", description=__doc__)
    parser.add_argument("subcommand", choices=[*SUBCOMMANDS])
    parser.add_argument("trace", type=Path, nargs="?", help="unset with --from-log")
    parser.add_argument("--from-log", type=Path, help="the log of a ganger server instead of a trace")
    parser.add_argument("--since-ms", type=int, help="of the log only the last days, so long before its newest event")
    parser.add_argument("--to", type=Path, help="import: the file to write; sweep: the folder")
    parser.add_argument("--format", default="", help="format of the trace; unset: detected by its first line")
    parser.add_argument("--policy", help="run: the queue order; unset: the default")
    parser.add_argument("--document", type=Path, action="append", default=[], help="a policy document, not --policy")
    parser.add_argument("--map-queue", action="append", default=[], help="FROM=TO: queue of the trace, of the document")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--cluster", type=Path, help="a file of nodes, instead of --nodes")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    parser.add_argument("--gpu-type", default="")
    parser.add_argument("--cpus", type=int, help="CPUs of each node; unset: enough for all jobs")
    parser.add_argument("--start-ms", type=int)
    parser.add_argument("--checkpoint-ms", type=int)
    parser.add_argument("--checkpoint-cost-ms", type=int, default=0, dest="write_ms")
    parser.add_argument("--notice-ms", type=int, help="time that a job has to save its work before it is stopped")
    parser.add_argument("--save-ms", type=int, help="time that such a save takes")
    parser.add_argument("--faults", type=Path, help="a trace of node faults, which the next options are about")
    parser.add_argument("--fault-rate", help="multiple of the recorded number of faults")
    parser.add_argument("--fault-seed", type=int)
    parser.add_argument("--fault-nodes", type=int, help="number of nodes that it covers; unset: those with a fault")
    parser.add_argument("--detect-ms", type=int)
    parser.add_argument("--repair-ms", type=int, help="unset: as recorded")
    parser.add_argument("--spares", type=int)
    parser.add_argument("--price", action="append", default=[], help="of a node-hour: 12.50 or h100=98.3")
    parser.add_argument("--estimates", help="of durations: recorded, exact, factor=N, noisy=N; unset: recorded")
    parser.add_argument("--load-scale", help="multiple of the recorded load; unset: 1")
    parser.add_argument("--elastic", help="share of the jobs that are made elastic; unset: those that the trace says")
    parser.add_argument("--elastic-max", help="multiple of the GPUs that these can use; unset: 2")
    parser.add_argument("--throughputs", type=Path, help="steps per second by model and type of GPU")
    parser.add_argument("--recorded-on", help="type of GPU that the durations of the trace were recorded on")
    parser.add_argument("--policies", help="compare: queue orders, or orders and scores, separated by commas")
    parser.add_argument("--grid", action="append", default=[], help="sweep: policy=easy,fifo,nodes=8,16")
    parser.add_argument("--measures", help="sweep: the two of the Pareto front, by their names in CSV")
    parser.add_argument("--wait-p99-ms", type=int, help="size: the longest p99 of waiting")
    parser.add_argument("--max-nodes", type=int, help="size: the most nodes; unset: on which all jobs run at once")
    parser.add_argument("--seeds", type=int, default=1, help="compare: runs of each policy that draws")
    parser.add_argument("--report", type=Path, help="compare: the HTML page to write")
    parser.add_argument("--jobs-out", type=Path, help="run, compare: the file to write a row for each job to")
    parser.add_argument("--log", type=Path, help="run: the file to write every event to")
    return parser


def _import(arguments: argparse.Namespace) -> Record:
    trace = read_jobs(arguments.trace, arguments.format)
    write_jobs(trace, arguments.to)
    return {**source_json(trace, trace.findings), "jobs": len(trace.records), "file": str(arguments.to)}


def _run(arguments: argparse.Namespace) -> Record:
    if arguments.jobs_out is not None:
        check_job_file(arguments.jobs_out)
    with ExitStack() as open_files:
        readers: list[Reader] = []
        if arguments.log is not None:
            readers.append(_row_writer(open_files.enter_context(arguments.log.open("wb"))))
        figures, outcome, trace = single_run(arguments, *readers)
    if arguments.jobs_out is not None:
        write_job_file(job_columns(outcome, trace), arguments.jobs_out)
    return figures


def single_run(arguments: argparse.Namespace, *readers: Reader) -> tuple[Record, Outcome, Trace[RecordedJob]]:
    """Run a trace or a log once; return its figures, the run and its trace. `readers` receive every row of the log."""
    policy = arguments.policy or ORDER
    order_and_score(policy)  # before a long file is read
    if arguments.from_log is not None:
        figures, outcome = run_log(arguments, *readers)
        return figures, outcome, NO_TRACE
    trace = read_workload(arguments)
    run = trace_run_from(arguments, trace, policy)
    if arguments.document:
        (path,) = arguments.document
        run = with_document(run, path, arguments.map_queue)
        policy = str(path)
    occupancy = occupancy_for(run)
    outcome = simulate_trace(run, occupancy.fold, *readers)
    figures = {
        **source_json(trace, outcome.findings),
        "policy": policy,
        **cluster_json(run.nodes),
        **outcome_json(outcome, occupancy),
        "estimates": regret_json(run, outcome),
        **faults_json(run.faults, outcome),
    }
    return figures, outcome, run.trace


def _row_writer(file: BinaryIO) -> Reader:
    def write(row: Stamped) -> None:
        file.write(line(row))

    return write


SUBCOMMANDS: Final[dict[str, Callable[[argparse.Namespace], Record]]] = {
    "import": _import,
    "run": _run,
    "compare": compare,
    "size": size,
    "sweep": sweep,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
