"""The checkpoint that an attempt resumes from, the newer ones that it skips, and the one before it.

It is the one for GANGER_RESUME_FROM, or what `ganger.train.latest()` returned in a rank; newer ones are skipped because
they are incomplete or an attempt failed on them. The launcher of rank 0 reports it. Here a checkpoint is complete if
every file of its manifest exists with its size, and with its contents if they are not large; `latest()` verifies the
rest. Older attempts publish nothing from then on (`ganger.train.fence`).
"""

from __future__ import annotations

from contextlib import suppress

from ganger.launcher.protocol.messages import MAX_FLAWS
from ganger.train import complete_checkpoints, fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from ganger.launcher.protocol.link import MessageSender
    from ganger.launcher.task_plan import Plan

READ_BYTES = 256 << 20
"""Part of a checkpoint that is read before the ranks start: takes a fraction of a second from memory."""


class Resumption:
    """The resumption of one generation on this node."""

    def __init__(self, plan: Plan, sender: MessageSender) -> None:
        self._plan = plan
        self._sender = sender
        self._has_rank_0 = any(rank.rank == 0 for rank in plan.ranks)
        # An attempt after the first one is expected to resume from a checkpoint: having none is reported.
        self._last_sent: tuple[object, object] | None = (None, []) if plan.generation == 1 else None
        self._source_rank = float("inf")
        self._started_ranks: set[int] = set()

    def find(self) -> dict[str, str]:
        """Return GANGER_RESUME_FROM if there is a checkpoint to resume from."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR")
        if root is None:
            return {}
        environment = self._plan.environment
        job, uid = (environment.get(name, "") for name in ("GANGER_JOB_ID", "GANGER_JOB_UID"))
        with suppress(OSError):  # missing or read-only: a rank that saves gets the error
            fence.Fence(root, job, uid, self._plan.generation).claim()
        step, skipped = self._newest(root)
        if step is not None or skipped or self._plan.generation > 1:
            self._send(step, skipped)
        return {} if step is None else {"GANGER_RESUME_FROM": complete_checkpoints.directory_of(root, step)}

    def report_received(self, rank: int, record: dict[str, Any]) -> None:
        """Handle a record of a rank's report.

        What a rank looks up once it has made a step is not where it resumed, and the lowest rank is decisive.
        """
        if "step" in record or "checkpoint" in record:
            self._started_ranks.add(rank)
        elif "resumed" in record and rank not in self._started_ranks and rank <= self._source_rank:
            self._source_rank = rank
            self._send(record["resumed"], record.get("skipped", []))

    def _newest(self, root: str) -> tuple[int | None, list[dict[str, Any]]]:
        """Return the newest complete checkpoint, and the flaws of the skipped ones.

        A checkpoint that an attempt failed on is still better than none.
        """
        skipped: dict[int, str] = {}
        newest = None
        for step, flaw in self._candidates(root, READ_BYTES):
            if not flaw:
                newest = step
                break
            skipped[step] = flaw
        else:
            newest = next((step for step, flaw in skipped.items() if flaw == complete_checkpoints.FAILED_ON), None)
        return newest, [{"step": step, "flaw": flaw} for step, flaw in skipped.items() if step != newest]

    def _previous(self, before: int) -> int | None:
        """Return the newest complete checkpoint before that step, judged by sizes only."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR", "")
        return next((step for step, flaw in self._candidates(root, -1) if step < before and not flaw), None)

    def _candidates(self, root: str, most_bytes: int) -> Iterator[tuple[int, str]]:
        """Yield (step, flaw) of the checkpoints that count, newest first; the flaw of a complete one is ""."""
        environment = self._plan.environment
        uid = environment.get("GANGER_JOB_UID") if environment.get("GANGER_RESUME") == "never" else None
        skipped = complete_checkpoints.steps_in(environment.get("GANGER_RESUME_SKIP", ""))
        for step, directory in complete_checkpoints.list_checkpoints(root):
            manifest, flaw = complete_checkpoints.examine(directory, step, -1 if step in skipped else most_bytes)
            if uid is None or not manifest or manifest.get("uid") == uid:
                yield step, flaw or (complete_checkpoints.FAILED_ON if step in skipped else "")

    def _send(self, step: object, skipped: list[dict[str, Any]]) -> None:
        skipped = skipped[:MAX_FLAWS]
        if self._has_rank_0 and (step, skipped) != self._last_sent:
            self._last_sent = (step, skipped)
            older_step = self._previous(step) if isinstance(step, int) else None
            self._sender.send_fact("resumed", step=step, skipped=skipped, older_step=older_step)
