"""The queues of a trace in those of a policy document: by name, or as `--map-queue` says.

A policy is tried on a trace for what its queues do to the jobs, so a job of a queue that the document does not have is
refused. Without a document all jobs are in one queue.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ganger.model.policy import PolicyDocument
from ganger.model.queue import DEFAULT
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.arguments.policy_arguments import read_document
from ganger.simulation.trace_replay import TraceRun
from ganger.simulation.traces.trace import RecordedJob, Trace

OTHERS: Final = "*"
"""In `--map-queue`, all queues of the trace that the document does not have and that are not mapped themselves."""
SHOWN_QUEUES: Final = 8


def with_document(run: TraceRun, path: Path, mappings: Sequence[str]) -> TraceRun:
    """Return the run under the document of a file, with each job in its queue.

    mappings: `FROM=TO`, from a queue of the trace to one of the document.

    RequestError (bad_policy): the document has errors; InvalidArgument: it lacks a queue.
    """
    document = read_document(path, run.nodes)
    return replace(run, document=document, queues=document_queues(run.trace, document, path, mappings))


def document_queues(
    trace: Trace[RecordedJob], document: PolicyDocument, path: Path, mappings: Sequence[str]
) -> dict[str, str]:
    """Return the queue of the document for each queue of the trace; "" is that of jobs without one."""
    amounts = Counter(job.queue for job in trace.records)
    mapped = dict[str, str]()
    for mapping in mappings:
        source, equals, target = mapping.rpartition("=")
        if not equals:
            raise InvalidArgument(f"--map-queue {mapping} is not FROM=TO", "--map-queue vc1=research")
        if target not in document.queues:
            legal = ", ".join(sorted(document.queues))
            raise InvalidArgument(f"{path} has no queue {target}", f"name one of {legal}, as in {source}=QUEUE")
        if source != OTHERS and source not in amounts:
            known = ", ".join(sorted(filter(None, amounts))[:SHOWN_QUEUES])
            raise InvalidArgument(f"no job of {trace.path} is in a queue {source}", f"its queues are {known}")
        mapped[source] = target
    queues = dict[str, str]()
    missing = Counter[str]()
    for name, amount in amounts.items():
        target = mapped.get(name, name or DEFAULT)
        if target not in document.queues:
            target = mapped.get(OTHERS, "")
        if target:
            queues[name] = target
        else:
            missing[name] = amount
    if missing:
        shown = [f"{name or 'none'} ({amount})" for name, amount in missing.most_common(SHOWN_QUEUES)]
        more = f" and {len(missing) - SHOWN_QUEUES} more" if len(missing) > SHOWN_QUEUES else ""
        source = missing.most_common(1)[0][0]
        raise InvalidArgument(
            f"jobs of {trace.path} are in queues that {path} does not have: {', '.join(shown)}{more}",
            f"add them to the document, or map them: --map-queue {source}=QUEUE, or --map-queue '*=QUEUE' for all",
        )
    return queues
