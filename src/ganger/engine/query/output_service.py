"""The part of the service about the output of jobs: see `engine.service`, which inherits these methods.

A query for something that never existed is an error, not an empty log.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.query.job_lookup import find_job, stored_job
from ganger.errors import BrokenStreamError, RequestError
from ganger.launcher.send_files import END, FilesError, TornFileError, named_files, written_files
from ganger.model.job import ENDED, JobSpec, shell_quoted_id
from ganger.model.job_metrics import Point
from ganger.model.views.service_views import JobRow, MetricsView, MetricView, Stacks
from ganger.patterns import PatternError, pattern
from ganger.ports import Backend, LogLine, LogQuery, NotSupported

COPIED_MS: Final = 2
"""Time after the submission, in whole milliseconds, before which only the copy of the code was written."""


class OutputService:
    """The service's methods for logs, metrics and stacks. Safe from any thread."""

    _loop: Loop
    _log: EventLog
    _backend: Backend

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """Return what ranks of a job have written so far. `query.job` is an id.

        Raise RequestError (no_such_attempt, no_such_rank, no_such_role, no_such_node; 404) when the job never had them,
        and (bad_pattern) for an invalid `grep`.
        """
        self._check_log_query(query, may_come=False)
        return self._backend.lines(query)

    def follow(self, query: LogQuery) -> Iterator[LogLine | None]:
        """Return the lines so far and those to come, until the job has ended; None from time to time while idle.

        Waits for an attempt that may still start.
        """
        self._check_log_query(query, may_come=True)
        return self._backend.follow(query, self._end_detector(query.job))

    def reports(self, text: str) -> Iterator[dict[str, Any]]:
        """Return every report of rank 0, oldest first."""
        return self._backend.reports(find_job(self._log, text))

    def metrics(self, text: str) -> MetricsView:
        """Return the metrics of a job with their curves. Raise RequestError (is_array) for an array."""
        row = stored_job(self._log, find_job(self._log, text))[0]
        if row.elements is not None:
            detail = f"{row.id} is an array: each element has metrics of its own"
            raise RequestError("is_array", detail, f"ganger ls {shell_quoted_id(row.id)}")
        metrics = row.metrics if row.state in ENDED else row.metrics.followed_by(self._backend.metrics(row.id))
        curves = self._backend.curves(row.id)
        points = None if curves is None else {curve.name: curve.points for curve in curves}
        views = [
            MetricView(**asdict(metric), points=None if points is None else points.pop(metric.name, ()))
            for metric in metrics.values
        ]
        # A server that was away when a launcher was killed knows only what is on the disk.
        views += [metric_of_curve(name, of_name) for name, of_name in (points or {}).items() if of_name]
        return MetricsView(job=row.id, metrics=tuple(views), left_out=metrics.left_out)

    def stacks(self, text: str, attempt: int | None = None) -> Stacks:
        """Return the newest stacks: those of `attempt`, else of the newest attempt that has any.

        Raise RequestError (no_stacks, no_such_attempt; 404).
        """
        row = stored_job(self._log, find_job(self._log, text))[0]
        check_attempt(attempt or 1, row)
        for generation in (attempt,) if attempt else range(row.generation, 0, -1):
            if stacks := self._backend.stacks(row.id, generation):
                return stacks
        subject = f"attempt {attempt} of {row.id}" if attempt else row.id
        detail = f"no stacks of {subject} were recorded: it has neither hung nor been silent for a minute or more"
        raise RequestError("no_stacks", detail, f"ganger get {shell_quoted_id(row.id)}", 404)

    def fetch(self, text: str, path: str | None) -> Iterator[bytes]:
        """Return files of a job as a tar stream: `path` in its run directory or its copy of the code.

        Without a path that is all files there that it wrote, but for its checkpoints. Raise RequestError (no_such_file,
        404), (too_many_files) and (conflict), if its files are on no disk of this machine.
        """
        row, _, _, job = stored_job(self._log, find_job(self._log, text))
        try:
            roots = self._backend.output_directories(row.id)
        except NotSupported as error:
            raise RequestError("conflict", str(error), error.next) from None
        checkpoints = job.spec.checkpoint.dir if job.spec.checkpoint else None
        try:
            if path is not None:
                blocks = named_files(roots, path)
            else:
                blocks = written_files(roots, (row.submitted_ms + COPIED_MS) * 1_000_000, checkpoints or "")
        except FilesError as error:
            detail, typed = f"{row.id} has {error.detail}", f"ganger fetch {shell_quoted_id(row.id)}"
            if error.code == "too_many_files":
                raise RequestError(error.code, detail, f"name a part: {typed} PATH") from None
            if not job.spec.code:
                detail += (
                    f"\n{row.id} runs in place, without a copy of its code: its files are in {job.origin.directory}"
                )
            remedy = f"all that it wrote: {typed}" if path is not None else f"ganger get {shell_quoted_id(row.id)}"
            raise RequestError(error.code, detail, remedy, 404) from None
        return chain(_unbroken(blocks), (END,))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _check_log_query(self, query: LogQuery, *, may_come: bool) -> None:
        """Check that the job has what is queried; a future attempt is accepted only if it `may_come`."""
        row, _, _, job = stored_job(self._log, query.job)
        if row.elements is not None:
            last = job.element(job.spec.array.indices[-1] if job.spec.array else 0)
            raise RequestError(
                "is_array", f"{row.id} is an array: each element has logs of its own", f"ganger logs '{last.id}'"
            )
        with self._loop.view() as state:
            names = state.nodes.attributes.names
        check_log_query(query, row, job.spec, names, may_come=may_come)

    def _end_detector(self, id: str) -> Callable[[], bool]:
        """Return a function that tells whether a job has ended, or is gone; it reads only after new events."""
        last_seq, has_ended = -1, False

        def ended() -> bool:
            nonlocal last_seq, has_ended
            if not has_ended and (newest := self._loop.wait(-1, 0)) != last_seq:
                stored = self._log.job(id)
                last_seq, has_ended = newest, stored is None or stored[0].state in ENDED
            return has_ended

        return ended


def metric_of_curve(name: str, points: tuple[Point, ...]) -> MetricView:
    """Return a metric of which only points of its curve are known."""
    finite = [(value, step) for step, _, value in points if value is not None]
    least, most = min(finite, default=(None, None)), max(finite, default=(None, None), key=lambda point: point[0])
    last_step, _, last = points[-1]
    return MetricView(
        name=name,
        last_step=last_step,
        last=last,
        min_step=least[1],
        min=least[0],
        max_step=most[1],
        max=most[0],
        points=points,
    )


def check_log_query(query: LogQuery, row: JobRow, spec: JobSpec, nodes: Collection[str], *, may_come: bool) -> None:
    """Raise RequestError when a query is invalid for a job.

    That is (no_such_attempt, no_such_rank, no_such_role, no_such_node; 404) when the job never had them, `nodes` being
    those of the cluster, or (bad_pattern, 409). A future attempt is accepted only if it `may_come`.
    """
    check_attempt(query.generation or query.first or row.generation, row, may_come=may_come)
    last = spec.resized(spec.sizes[-1]).processes - 1 if spec.elastic_role else spec.processes - 1
    missing = [rank for rank in query.ranks or () if rank > last]
    if missing:
        has = f"ranks 0 to {last}" if last else "rank 0 alone"
        remedy = f"ganger logs {shell_quoted_id(row.id)} --rank all"
        raise RequestError("no_such_rank", f"{row.id} has {has}, and no rank {missing[0]}", remedy, 404)
    if query.role is not None and query.role not in spec.order:
        has = " and ".join(spec.order)
        remedy = f"ganger logs {shell_quoted_id(row.id)} --role {spec.order[0]}"
        raise RequestError("no_such_role", f"{row.id} has the roles {has}, and no role {query.role}", remedy, 404)
    if query.node is not None and query.node not in (*nodes, *row.nodes):
        raise RequestError("no_such_node", f"there is no node {query.node}", "ganger node", 404)
    if query.grep is not None:
        try:
            pattern(query.grep)
        except PatternError as error:
            message = f"{query.grep[:80]!r} is not a regular expression: {error}"
            raise RequestError(
                "bad_pattern", message, "put \\ before special characters that are meant literally"
            ) from None


def check_attempt(attempt: int, row: JobRow, *, may_come: bool = False) -> None:
    """Raise RequestError (no_such_attempt, 404) unless the job has had the attempt, or it `may_come`."""
    if attempt > row.generation and not (may_come and row.state not in ENDED):
        had = f"attempts 1 to {row.generation}" if row.generation > 1 else "one attempt"
        detail = f"{row.id} has had {had if row.generation else 'no attempt'}, and no attempt {attempt}"
        raise RequestError("no_such_attempt", detail, f"ganger get {shell_quoted_id(row.id)}", 404)


def _unbroken(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks; raise BrokenStreamError where the disk does not give a file that was begun."""
    try:
        yield from blocks
    except TornFileError as error:
        raise BrokenStreamError(str(error)) from None
