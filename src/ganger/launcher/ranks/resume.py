"""The checkpoint that an attempt resumes from, the newer ones that it skips, and the one before it.

It is the one for GANGER_RESUME_FROM, or what `ganger.train.latest()` returned in a rank; newer ones are skipped because
they are incomplete or an attempt failed on them. A job that has saved none begins from that of another job, if
`checkpoint.resume_from` says so, and from no other: what else is in reach was made by other code, or with other
parameters, and its results would be taken for those of this job. The launcher of rank 0 reports it. Here a checkpoint
is complete if every file of its manifest exists with its size, and with its contents if they are not large; `latest()`
verifies the rest. Older attempts publish nothing from then on (`ganger.train.fence`).
"""

from __future__ import annotations

import os
from contextlib import suppress

from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.messages import MAX_FLAWS
from ganger.launcher.ranks import named_checkpoints, roll_back, tracker_files
from ganger.launcher.ranks.process import StartError
from ganger.train import complete_checkpoints, fence, resume_sources
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from ganger.launcher.protocol.link import MessageSender
    from ganger.launcher.task_plan import Plan

READ_BYTES = 256 << 20
"""Part of a checkpoint that is read before the ranks start: takes a fraction of a second from memory."""


TRACKER_POLL_S = 2.0


class Resumption:
    """The resumption of one generation on this node."""

    def __init__(self, plan: Plan, sender: MessageSender) -> None:
        self._plan = plan
        self._sender = sender
        self._uid = plan.environment.get("GANGER_JOB_UID", "")
        self._has_rank_0 = any(rank.rank == 0 for rank in plan.ranks)
        # An attempt after the first one is expected to resume from a checkpoint: having none is reported.
        self._last_sent: tuple[object, object, str] | None = (None, [], "") if plan.generation == 1 else None
        self._source_rank = float("inf")
        self._started_ranks: set[int] = set()
        self._look_at = 0.0
        self._tracker_times_ns: list[int] = []
        self._tracked_step: int | None = None
        self._pattern = plan.environment.get("GANGER_CHECKPOINT_PATTERN", "")
        self._seen: tuple[object, ...] | None = None
        self._known: tuple[object, ...] | None = None
        self._step: int | None = None
        self._sources = resume_sources.sources(plan.environment)

    def find(self) -> dict[str, str]:
        """Return GANGER_RESUME_FROM if there is a checkpoint to resume from.

        Raise StartError if the job is to begin from a checkpoint that is not there, and where it would find those of
        other jobs in a directory that is not its own.
        """
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR")
        if root is None:
            return {}
        environment = self._plan.environment
        own_fence = fence.Fence(root, environment.get("GANGER_JOB_ID", ""), self._uid, self._plan.generation)
        if self._has_rank_0 and "GANGER_CHECKPOINT_IN_PLACE" in environment and own_fence.is_new():
            self._refuse_others(root)
            with suppress(OSError):
                os.makedirs(root, exist_ok=True)  # its marker tells later attempts that what is there is their own
        with suppress(OSError):  # missing or read-only: a rank that saves gets the error
            own_fence.claim()
        roll_back.set_aside_newer(environment)
        if self._pattern:
            named = named_checkpoints.newest(root, self._pattern)
            self._known = named.version if named is not None else None
            if "*" not in self._pattern and named is not None and not named.flaw:
                return {"GANGER_RESUME_FROM": named.path}  # its step is that of the newest that the server knows
        newest, skipped = self._newest(root)
        newest, skipped = self._tracked(root, newest, skipped)
        if newest is None and self._sources:
            return self._begin_from_source(root, skipped)
        step = None if newest is None else newest[0]
        if step is not None or skipped or self._plan.generation > 1:
            self._send(step, skipped)
        return {} if newest is None else {"GANGER_RESUME_FROM": self._nearest(root, *newest)}

    def _refuse_others(self, root: str) -> None:
        """Raise StartError if there are checkpoints that the job, which has not run yet, was not told to go on from."""
        if any(source.directory == root for source in self._sources):
            return
        names = [os.path.basename(path) for _, path in complete_checkpoints.list_checkpoints(root)]
        named = named_checkpoints.newest(root, self._pattern) if self._pattern else None
        tracked = tracker_files.newest(root)
        names += [os.path.basename(path) for path in (named and named.path, tracked and tracked[1].directory) if path]
        if names:
            raise StartError(
                f"{root} has {names[0]}, which another job has saved, and this one is to save there in place; next: "
                "name that job with --resume-from, or another directory, or remove what is there"
            )

    def _begin_from_source(self, root: str, skipped: list[dict[str, Any]]) -> dict[str, str]:
        """Return GANGER_RESUME_FROM of another job; raise StartError if it has no such checkpoint."""
        for source in self._sources:
            found = self._find_in(source, root)
            if found is not None:
                self._send(found[0], skipped, source.job)
                return {"GANGER_RESUME_FROM": found[1]}
        if required := [str(source) for source in self._sources if not source.by_index]:
            raise StartError(f"there is no complete checkpoint to begin from: {', nor '.join(required)} (resume_from)")
        if skipped or self._plan.generation > 1:
            self._send(None, skipped)
        return {}

    def _find_in(self, source: resume_sources.Source, root: str) -> tuple[int | None, str] | None:
        """Return step and path of the newest complete checkpoint of another job; None if it has none.

        Scripts that read the file which names their newest checkpoint get one in `root`, and a link to that.
        """
        candidates = [
            (step, path, complete_checkpoints.examine(path, step, READ_BYTES)[1]) for step, path in source.candidates()
        ]
        named = named_checkpoints.find(source.directory, source.pattern)
        steps = ((one.step, one) for one in named if one.step is not None)
        candidates += [(step, one.path, one.flaw) for step, one in steps if source.counts(step)]
        for step, path, flaw in sorted(candidates, key=lambda candidate: -candidate[0]):
            if not flaw:
                return step, path
            note(f"{path} is not resumed from: {flaw}")
        if source.pattern and "*" not in source.pattern and not source.is_of_one_step:
            one = named_checkpoints.newest(source.directory, source.pattern)
            return None if one is None or one.flaw else (None, one.path)
        tracked = tracker_files.find(source.directory, source.counts)
        if tracked is None:
            return None
        try:
            tracker_files.link(root, *tracked)
        except OSError as error:
            raise StartError(f"{tracked[1].directory} cannot be linked into {root}: {error.strerror}") from error
        return tracked[1].step, tracked[1].directory

    def tick(self, now: float) -> None:
        """Report the checkpoint of a script that names it in a tracker file, or in its own name, once it is there."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR")
        if root is None or not self._has_rank_0 or now < self._look_at:
            return
        self._look_at = now + TRACKER_POLL_S
        if self._pattern:
            self._report_named(root, is_last=now == float("inf"))
        times_ns = [_modified_ns(os.path.join(root, name)) for name in tracker_files.TRACKERS]
        if times_ns == self._tracker_times_ns:
            return
        self._tracker_times_ns = times_ns
        named = tracker_files.newest(root)
        if named is not None and not named[1].flaw and named[1].step != self._tracked_step:
            self._tracked_step = named[1].step
            saved_ms = max(times_ns) // 1_000_000
            self._sender.send_fact("checkpointed", step=self._tracked_step, took_ms=0, saved_ms=saved_ms, parts=1)

    def _report_named(self, root: str, *, is_last: bool) -> None:
        """Report the newest checkpoint of that name once it has not changed between two looks."""
        named = named_checkpoints.newest(root, self._pattern)
        if named is None or named.flaw or named.version == self._known:
            return
        step = self._step if named.step is None else named.step
        if step is not None and (named.version == self._seen or is_last):
            self._known = named.version
            self._sender.send_fact("checkpointed", step=step, took_ms=0, saved_ms=named.saved_ms, parts=1)
        self._seen = named.version

    def _tracked(
        self, root: str, newest: tuple[int, str] | None, skipped: list[dict[str, Any]]
    ) -> tuple[tuple[int, str] | None, list[dict[str, Any]]]:
        """Return the newest checkpoint and the flaws of others with what a tracker file names, which is repaired."""
        self._tracker_times_ns = [_modified_ns(os.path.join(root, name)) for name in tracker_files.TRACKERS]
        if not any(self._tracker_times_ns):
            return newest, skipped
        failed_on = complete_checkpoints.steps_in(self._plan.environment.get("GANGER_RESUME_SKIP", ""))
        try:
            tracked, flaws = tracker_files.repair(root, failed_on)
        except OSError as error:
            note(f"the file that names the newest checkpoint in {root} cannot be replaced: {error.strerror}")
            return newest, skipped
        self._tracker_times_ns = [_modified_ns(os.path.join(root, name)) for name in tracker_files.TRACKERS]
        self._tracked_step = tracked.step if tracked else None
        skipped = [*skipped, *({"step": step, "flaw": flaw} for step, flaw in flaws.items())]
        if tracked is not None and tracked.step is not None and (newest is None or tracked.step > newest[0]):
            newest = tracked.step, tracked.directory
        return newest, skipped

    def report_received(self, rank: int, record: dict[str, Any]) -> None:
        """Handle a record of a rank's report.

        What a rank looks up once it has made a step is not where it resumed, and the lowest rank is decisive.
        """
        if "step" in record:
            self._step = record["step"]
        if "step" in record or "checkpoint" in record:
            self._started_ranks.add(rank)
        elif "resumed" in record and rank not in self._started_ranks and rank <= self._source_rank:
            self._source_rank = rank
            source = record.get("source", "")
            is_known = any(one.job == source for one in self._sources)
            self._send(record["resumed"], record.get("skipped", []), source if is_known else "")

    def _nearest(self, root: str, step: int, directory: str) -> str:
        """Return the directory on this node from which ranks read a checkpoint, if it has a part of it."""
        local = self._plan.environment.get("GANGER_CHECKPOINT_LOCAL", "")
        if not local or os.path.dirname(directory) == local:
            return directory
        try:
            return local_tier.link_part(root, local, step) or directory
        except OSError as error:
            note(f"the part in {local} of the checkpoint of step {step} is not used: {error.strerror}")
            return directory

    def _newest(self, root: str) -> tuple[tuple[int, str] | None, list[dict[str, Any]]]:
        """Return step and directory of the newest complete checkpoint, and the flaws of the skipped ones.

        A checkpoint that an attempt failed on is still better than none.
        """
        skipped: dict[int, str] = {}
        failed_on = newest = None
        for step, directory, flaw in self._candidates(root, READ_BYTES):
            if not flaw:
                newest = step, directory
                break
            skipped[step] = flaw
            if flaw == complete_checkpoints.FAILED_ON:
                failed_on = failed_on or (step, directory)
        newest = newest or failed_on
        skipped = {**local_tier.find_lost(root, newest[0] if newest else -1, self._uid), **skipped}
        flaws = [{"step": step, "flaw": flaw} for step, flaw in skipped.items() if newest is None or step != newest[0]]
        return newest, flaws

    def _previous(self, before: int) -> int | None:
        """Return the newest complete checkpoint before that step, judged by sizes only."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR", "")
        return next((step for step, _, flaw in self._candidates(root, -1) if step < before and not flaw), None)

    def _candidates(self, root: str, most_bytes: int) -> Iterator[tuple[int, str, str]]:
        """Yield (step, directory, flaw) of checkpoints that count, newest first; the flaw of a complete one is ""."""
        environment = self._plan.environment
        skipped = complete_checkpoints.steps_in(environment.get("GANGER_RESUME_SKIP", ""))
        local, nodes = environment.get("GANGER_CHECKPOINT_LOCAL", ""), int(environment.get("GANGER_NODES", "1"))
        named = [(one.step or 0, one.path, one.flaw) for one in named_checkpoints.find(root, self._pattern)]
        own = [(step, path, "") for step, path in local_tier.candidates(root, local, nodes)]
        for step, directory, known_flaw in sorted([*own, *named], key=lambda candidate: -candidate[0]):
            if (step, directory, known_flaw) in named:
                yield step, directory, known_flaw or (complete_checkpoints.FAILED_ON if step in skipped else "")
                continue
            flaw = complete_checkpoints.examine(directory, step, -1 if step in skipped else most_bytes)[1]
            yield step, directory, flaw or (complete_checkpoints.FAILED_ON if step in skipped else "")

    def _send(self, step: object, skipped: list[dict[str, Any]], source: str = "") -> None:
        """Report where the attempt begins; `source` is the job whose checkpoint it is, empty for this one."""
        skipped = skipped[:MAX_FLAWS]
        if self._has_rank_0 and (step, skipped, source) != self._last_sent:
            self._last_sent = (step, skipped, source)
            older_step = self._previous(step) if isinstance(step, int) and not source else None
            self._sender.send_fact("resumed", step=step, skipped=skipped, older_step=older_step, source=source)


def _modified_ns(path: str) -> int:
    """Return when a file was modified, 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
