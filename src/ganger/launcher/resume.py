"""From which checkpoint an attempt begins: the one for GANGER_RESUME_FROM, or what `ganger.train.latest()` found in a
rank; and which newer ones are not whole. Told by the launcher of rank 0. Called by `generation`, fed by `reports`.

Whole as far as can be told soon: every file that the manifest names is there, with its size; with its contents, if they
are not many. The rest is checked by whoever loads it (`latest()`). Older attempts publish nothing from then on
(`ganger.train.fence`).
"""

from __future__ import annotations

from contextlib import suppress

from ganger.train import fence, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.link import Speaker
    from ganger.launcher.plan import Plan

READ_BYTES = 256 << 20
"""What is read of a checkpoint before the ranks begin: a fraction of a second from memory."""


class Resumption:
    """Of one generation on this node."""

    def __init__(self, plan: Plan, tell: Speaker) -> None:
        self._plan = plan
        self._tell = tell
        self._tells = any(rank.rank == 0 for rank in plan.ranks)
        self._told: tuple[object, object] = (None, [])
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
        return {} if step is None else {"GANGER_RESUME_FROM": whole.directory_of(root, step)}

    def heard(self, rank: int, record: dict[str, Any]) -> None:
        """A record of a rank's report. What it looks up when it is at work is not where it began, and the lowest rank
        is right."""
        if "step" in record or "checkpoint" in record:
            self._begun.add(rank)
        elif "resumed" in record and rank not in self._begun and rank <= self._by:
            self._by = rank
            self._say(record["resumed"], record.get("passed", []))

    def _newest(self, root: str) -> tuple[int | None, list[dict[str, Any]]]:
        environment = self._plan.environment
        uid = environment.get("GANGER_JOB_UID") if environment.get("GANGER_RESUME") == "never" else None
        passed: list[dict[str, Any]] = []
        for step, directory in whole.found_in(root):
            manifest, flaw = whole.examine(directory, step, READ_BYTES)
            if uid is not None and manifest and manifest.get("uid") != uid:
                continue
            if not flaw:
                return step, passed
            passed.append({"step": step, "flaw": flaw})
        return None, passed

    def _say(self, step: object, passed: object) -> None:
        if self._tells and (step, passed) != self._told:
            self._told = (step, passed)
            self._tell.fact("resumed", step=step, passed=passed)
