"""`ganger sim size`: the fewest equal nodes on which the p99 of waiting keeps a target.

While it searches, a JSON object is printed on a line of its own for each number of nodes that was tried (`probe`); the
answer is the last line. Waiting is that of the jobs that ended (`metrics.scorecard`); a number of nodes on which a job
does not end, or that cannot hold a job which more nodes could, does not keep any target.
"""

import argparse
import math

from ganger.model.policy import ORDER
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.cluster_arguments import check_cpus, equal_nodes
from ganger.simulation.arguments.policy_arguments import order_and_score
from ganger.simulation.arguments.run_arguments import trace_run_from
from ganger.simulation.arguments.trace_queues import with_document
from ganger.simulation.arguments.workload_arguments import read_workload
from ganger.simulation.compare.progress import print_json
from ganger.simulation.json_output import Record, findings_json, source_json
from ganger.simulation.sweep.size_search import Probe, SizeSearch, fewest_nodes, least_that
from ganger.simulation.trace_replay import TraceRun, jobs_that_fit, simulate_trace
from ganger.simulation.traces.trace import Finding, Flaw, RecordedJob, Trace


def size(arguments: argparse.Namespace) -> Record:
    """Return the fewest nodes and all probes; `nodes` is None, and `reason` says why, if no number keeps the target.

    InvalidArgument, UnreadableTrace, RequestError: an argument or a file cannot be used.
    """
    order_and_score(arguments.policy or ORDER)  # before a long file is read
    sizes = _Sizes(arguments, read_workload(arguments))
    least, most = sizes.least, min(arguments.max_nodes or sizes.enough_for_all, sizes.enough_for_all)
    answer = {
        **source_json(sizes.trace, ()),
        "policy": str(arguments.document[0]) if arguments.document else arguments.policy or ORDER,
        "gpus": arguments.gpus,
        "target_ms": arguments.wait_p99_ms,
        "least": least,
    }
    if least > most:
        reason = f"the largest job needs {least} nodes, and at most {most} are allowed"
        search, no_size = SizeSearch(nodes=None, probes=()), {"reason": reason, "next": f"--max-nodes {least}"}
    else:
        search = fewest_nodes(sizes.probe, least, most, sizes.mean_demand)
        no_size = {} if search.nodes is not None else _unreachable(most, sizes.enough_for_all)
    return {
        **answer,
        "findings": findings_json(sizes.findings),
        "nodes": search.nodes,
        **no_size,
        "probes": [_probe_json(probe) for probe in search.probes],
        "contradictions": [[fewer.nodes, more.nodes] for fewer, more in search.contradictions],
    }


class _Sizes:
    """Runs of one trace on different numbers of nodes.

    enough_for_all: number of nodes on which all jobs could run at once
    least: the fewest nodes that can hold each job that `enough_for_all` can hold
    mean_demand: number of nodes that jobs ask for on average, from the first submission to the last
    findings: flaws of the last run
    """

    def __init__(self, arguments: argparse.Namespace, trace: Trace[RecordedJob]) -> None:
        """Count nodes. InvalidArgument: no job can be run on such nodes."""
        self.trace, self._arguments, self._spares = trace, arguments, arguments.spares or 0
        (self._node,) = equal_nodes(arguments, 1)
        self.findings: tuple[Finding, ...] = ()
        check_cpus(trace, (self._node,))
        known = [job for job in trace.records if job.duration_ms is not None]
        self.enough_for_all = self._spares + max(1, sum(self._nodes_of(job) for job in known))
        fitting = self._fitting(self.enough_for_all)
        if not any(job.duration_ms is not None for job in fitting):
            raise InvalidArgument(
                f"no job of {trace.path} can be run on such nodes, however many",
                f"ganger sim run {trace.path} --nodes 16",
            )
        self.least = least_that(lambda nodes: len(self._fitting(nodes)) == len(fitting), self.enough_for_all)
        span_ms = max(1, trace.records[-1].submitted_ms - trace.records[0].submitted_ms)
        self.mean_demand = math.ceil(sum(self._nodes_of(job) * (job.duration_ms or 0) for job in known) / span_ms)

    def probe(self, nodes: int) -> Probe:
        """Run the trace on a number of nodes, and print the probe."""
        outcome = simulate_trace(self._run(nodes))
        self.findings = outcome.findings
        has_unended = any(reason != Flaw.NO_DURATION for reason in outcome.unended)
        wait_ms = None if has_unended else outcome.card.queueing_ms.p99
        probe = Probe(nodes=nodes, wait_ms=wait_ms, target_ms=self._arguments.wait_p99_ms)
        print_json({"probe": _probe_json(probe)})
        return probe

    def _run(self, nodes: int) -> TraceRun:
        arguments = argparse.Namespace(**{**vars(self._arguments), "nodes": nodes})
        run = trace_run_from(arguments, self.trace, arguments.policy)
        for path in arguments.document:
            run = with_document(run, path, arguments.map_queue)
        return run

    def _fitting(self, nodes: int) -> tuple[RecordedJob, ...]:
        return jobs_that_fit(self.trace, (self._node,) * max(0, nodes - self._spares)).records

    def _nodes_of(self, job: RecordedJob) -> int:
        """Return the number of nodes that a job fills, at most."""
        if job.nodes is not None:
            return job.nodes
        parts = (
            (job.gpus, self._node.gpus),
            (job.cpu_milli or 0, self._node.cpu_milli),
            (job.memory_bytes or 0, self._node.memory_bytes),
        )
        return max(1, *(-(-amount // of_node) for amount, of_node in parts))


def _unreachable(most: int, enough_for_all: int) -> Record:
    """Return the reason why no number of nodes keeps the target, and what to type next."""
    if most < enough_for_all:
        return {"reason": f"{most} nodes miss the target", "next": f"--max-nodes {2 * most}, or a longer --wait-p99"}
    reason = f"{most} nodes miss the target, on which all jobs could run at once: jobs do not wait for nodes"
    return {"reason": reason, "next": "a longer --wait-p99, or another --policy or --document"}


def _probe_json(probe: Probe) -> Record:
    return {"nodes": probe.nodes, "wait_p99_ms": probe.wait_ms, "keeps_target": probe.keeps_target}
