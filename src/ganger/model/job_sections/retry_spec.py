"""Retries and limits of a job as a user writes them."""

from collections.abc import Collection
from dataclasses import dataclass

from ganger.model.described import described as _spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule for one kind of failure. With both `log` and `cause`, both must match."""

    log: str | None = _spec(
        "regular expression (RE2) that matches a line written by a process of the attempt", form="pattern", default=None
    )
    cause: str | None = _spec("cause of the failure, as shown by `ganger get`", form="cause", default=None)
    do: str = _spec(
        "retry: restart, within max; fail: do not restart; exclude_node: restart, within max, and never on that node",
        form="remedy",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Limit of a failed job's restarts. An attempt that saved a new checkpoint does not count."""

    max: int | None = _spec(
        "number of attempts without progress that are retried; unset: 3, but 0 if a rank exits by itself before "
        "the first step, or after the same error of the program at the same step",
        form="retries",
        default=None,
    )
    backoff_first_ms: int = _spec(
        "pause before the next attempt, doubled each time up to a maximum: 10s..5m; 10s alone stays constant",
        form="backoff",
        key="backoff",
        default=1_000,
    )
    backoff_max_ms: int = _spec("the longest such pause", form="backoff", key="backoff", default=300_000)
    rules: tuple[Rule, ...] = _spec("rules for specific failures; the first that matches decides", default=())

    def rule_for(self, cause: str, matched_patterns: Collection[int]) -> int | None:
        """Return the index of the first rule that matches a failure.

        Args:
            cause: The cause of the failure.
            matched_patterns: Indices of the rules whose pattern occurs in the log.
        """
        candidates = (index for index, rule in enumerate(self.rules) if rule.cause in (None, cause))
        return next((i for i in candidates if self.rules[i].log is None or i in matched_patterns), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits after which ganger ends a job."""

    time_ms: int | None = _spec(
        "time that the job may hold its nodes, over all attempts", form="duration", key="time", default=None
    )
    time_min_ms: int | None = _spec(
        "shortest time that the job may be granted at a start, if it then ends before a reserved start or "
        "maintenance; unset: as time",
        form="duration",
        key="time_min",
        default=None,
    )
    queue_time_ms: int | None = _spec(
        "time that the job may be pending; then it ends", form="duration", key="queue_time", default=None
    )
    hang_time_ms: int | None = _spec(
        "time without progress after which the job is taken to hang; never: it is not judged by progress; "
        "unset: 10m in which no rank works or writes, less if others wait for it in a collective operation",
        form="hang_time",
        key="hang_time",
        default=None,
    )
