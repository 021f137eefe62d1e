"""The checkpoint that an attempt begins from: the one for GANGER_RESUME_FROM, or what `ganger.train.latest()` found in
a rank; which newer ones are passed over, since they are not whole or an attempt failed on them; and which one is before
it. Told by the launcher of rank 0. Called by `generation`, fed by `reports`.

Whole as far as can be told soon: every file that the manifest names is there, with its size; with its contents, if they
are not many. The rest is checked by whoever loads it (`latest()`). Older attempts publish nothing from then on
(`ganger.train.fence`).
"""

from __future__ import annotations

from contextlib import suppress

from ganger.launcher.protocol.messages import MOST_FLAWS
from ganger.train import complete_checkpoints, fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from ganger.launcher.protocol.link import Speaker
    from ganger.launcher.task_plan import Plan

READ_BYTES = 256 << 20
"""What is read of a checkpoint before the ranks begin: a fraction of a second from memory."""


class Resumption:
    """Of one generation on this node."""

    def __init__(self, plan: Plan, tell: Speaker) -> None:
        self._plan = plan
        self._tell = tell
        self._tells = any(rank.rank == 0 for rank in plan.ranks)
        # An attempt after the first one is expected to begin from a checkpoint: none is news.
        self._told: tuple[object, object] | None = (None, []) if plan.generation == 1 else None
        self._by = float("inf")
        self._begun: set[int] = set()

    def find(self) -> dict[str, str]:
        """GANGER_RESUME_FROM, where there is a checkpoint to begin from."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR")
        if root is None:
            return {}
        environment = self._plan.environment
        job, uid = (environment.get(name, "") for name in ("GANGER_JOB_ID", "GANGER_JOB_UID"))
        with suppress(OSError):  # it is not there yet, or must not be written: a rank that saves is told
            fence.Fence(root, job, uid, self._plan.generation).claim()
        step, passed = self._newest(root)
        if step is not None or passed or self._plan.generation > 1:
            self._say(step, passed)
        return {} if step is None else {"GANGER_RESUME_FROM": complete_checkpoints.directory_of(root, step)}

    def heard(self, rank: int, record: dict[str, Any]) -> None:
        """A record of a rank's report. What it looks up when it is at work is not where it began, and the lowest rank
        is right."""
        if "step" in record or "checkpoint" in record:
            self._begun.add(rank)
        elif "resumed" in record and rank not in self._begun and rank <= self._by:
            self._by = rank
            self._say(record["resumed"], record.get("passed", []))

    def _newest(self, root: str) -> tuple[int | None, list[dict[str, Any]]]:
        """Return the newest whole checkpoint, and those that are passed over. One that an attempt failed on is still
        better than none."""
        passed: dict[int, str] = {}
        found = None
        for step, flaw in self._candidates(root, READ_BYTES):
            if not flaw:
                found = step
                break
            passed[step] = flaw
        else:
            found = next((step for step, flaw in passed.items() if flaw == complete_checkpoints.FAILED_ON), None)
        return found, [{"step": step, "flaw": flaw} for step, flaw in passed.items() if step != found]

    def _older(self, than: int) -> int | None:
        """The newest whole checkpoint before that one, as far as sizes tell."""
        root = self._plan.environment.get("GANGER_CHECKPOINT_DIR", "")
        return next((step for step, flaw in self._candidates(root, -1) if step < than and not flaw), None)

    def _candidates(self, root: str, most_bytes: int) -> Iterator[tuple[int, str]]:
        """Checkpoints that count, newest first: (step, why it is passed over, "" where it is not)."""
        environment = self._plan.environment
        uid = environment.get("GANGER_JOB_UID") if environment.get("GANGER_RESUME") == "never" else None
        skipped = complete_checkpoints.steps_in(environment.get("GANGER_RESUME_SKIP", ""))
        for step, directory in complete_checkpoints.found_in(root):
            manifest, flaw = complete_checkpoints.examine(directory, step, -1 if step in skipped else most_bytes)
            if uid is None or not manifest or manifest.get("uid") == uid:
                yield step, flaw or (complete_checkpoints.FAILED_ON if step in skipped else "")

    def _say(self, step: object, passed: list[dict[str, Any]]) -> None:
        passed = passed[:MOST_FLAWS]
        if self._tells and (step, passed) != self._told:
            self._told = (step, passed)
            older_step = self._older(step) if isinstance(step, int) else None
            self._tell.fact("resumed", step=step, passed=passed, older_step=older_step)
