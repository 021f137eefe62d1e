"""The jobs of a simulation: `--load-scale`, `--elastic`, and their speed: `--throughputs`, `--recorded-on`."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from ganger.model.cluster import Node
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.traces.read_trace import read_jobs
from ganger.simulation.traces.trace import RecordedJob, Trace
from ganger.simulation.workload.gpu_speeds import GpuSpeeds
from ganger.simulation.workload.scaling import ElasticJobs
from ganger.simulation.workload.throughputs import read_throughputs

LARGEST_LOAD: Final = 1_000
LARGEST_SIZE: Final = 64
DEFAULT_SIZE: Final = "2"
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_workload(arguments: argparse.Namespace) -> Trace[RecordedJob]:
    """Return the jobs of the trace under the load that was asked for.

    InvalidArgument, UnreadableTrace: an argument or a file cannot be used.
    """
    factor = load_from(arguments.load_scale or "1")
    speeds = _speeds_from(arguments)
    trace = read_jobs(arguments.trace, arguments.format)
    return scale_load(trace if speeds is None else speeds.with_durations(trace), factor)


def load_from(text: str) -> Fraction:
    """Return a factor of the load. InvalidArgument: it is not a number above 0."""
    factor = Fraction(text) if _NUMBER.fullmatch(text) else Fraction(0)
    if not Fraction(1, LARGEST_LOAD) <= factor <= LARGEST_LOAD:
        raise InvalidArgument(
            f"load {text!r} is not a number from {1 / LARGEST_LOAD:g} to {LARGEST_LOAD}",
            "for twice the load: --load-scale 2",
        )
    return factor


def elastic_from(arguments: argparse.Namespace) -> ElasticJobs | None:
    """Return which jobs are made elastic; None: those that the trace says. InvalidArgument: a number cannot be used."""
    if arguments.elastic is None:
        if arguments.elastic_max is not None:
            raise InvalidArgument("--elastic-max needs the share of the jobs that are elastic", "--elastic 0.5")
        return None
    share, largest = (
        Fraction(text) if _NUMBER.fullmatch(text) else Fraction(-1)
        for text in (arguments.elastic, arguments.elastic_max or DEFAULT_SIZE)
    )
    if not 0 <= share <= 1:
        raise InvalidArgument(f"share {arguments.elastic!r} is not a number from 0 to 1", "for half: --elastic 0.5")
    if not 1 < largest <= LARGEST_SIZE:
        raise InvalidArgument(
            f"size {arguments.elastic_max!r} is not a number above 1, at most {LARGEST_SIZE}",
            "for jobs that can use twice the GPUs that they ask for: --elastic-max 2",
        )
    return ElasticJobs(share, largest)


def speeds_for(arguments: argparse.Namespace, nodes: Sequence[Node]) -> GpuSpeeds | None:
    """Return the speeds of the types of GPU; None without `--throughputs`.

    InvalidArgument, UnreadableTrace: an argument or the file cannot be used, or the nodes have no type of GPU.
    """
    speeds = _speeds_from(arguments)
    if speeds is not None and any(node.gpus and not node.gpu_type for node in nodes):
        raise InvalidArgument("--throughputs needs the type of the nodes' GPUs", f"--gpu-type {speeds.reference}")
    return speeds


def _speeds_from(arguments: argparse.Namespace) -> GpuSpeeds | None:
    if (arguments.throughputs is None) != (arguments.recorded_on is None):
        raise InvalidArgument(
            "--throughputs and --recorded-on need each other: the file, and the type of GPU that durations were "
            "recorded on",
            "--throughputs throughputs.csv --recorded-on v100",
        )
    if arguments.throughputs is None:
        return None
    throughputs, reference = read_throughputs(arguments.throughputs), arguments.recorded_on.lower()
    known = sorted({gpu_type for by_gpu_type in throughputs.values() for gpu_type in by_gpu_type})
    if reference not in known:
        raise InvalidArgument(
            f"{arguments.throughputs} has no throughputs on {reference}", f"name one of {', '.join(known)}"
        )
    return GpuSpeeds(throughputs=throughputs, reference=reference)


def scale_load(trace: Trace[RecordedJob], factor: Fraction) -> Trace[RecordedJob]:
    """Return the trace with `factor` times the load: times since the first submission are divided by it.

    Durations stay as they are, and so does the time that a job has from its submission to its deadline.
    """
    if factor == 1 or not trace.records:
        return trace
    first_ms = trace.records[0].submitted_ms
    return replace(trace, records=tuple(_scaled(job, first_ms, factor) for job in trace.records))


def _scaled(job: RecordedJob, first_ms: int, factor: Fraction) -> RecordedJob:
    earlier_ms = job.submitted_ms - first_ms - round((job.submitted_ms - first_ms) / factor)
    return replace(
        job,
        submitted_ms=job.submitted_ms - earlier_ms,
        started_ms=None if job.started_ms is None else job.started_ms - earlier_ms,
        deadline_ms=None if job.deadline_ms is None else job.deadline_ms - earlier_ms,
    )
