"""Settings of the loss watch: what each finding leads to, by policy and by job, and which log lines have the loss."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.model.described import described


class Finding(StrEnum):
    """A finding of the loss watch. Stable: these are codes of the API.

    Attributes:
        nan: The loss is not a finite number.
        spike: The loss is far above its usual values.
        stall: The loss has not fallen for many steps.
        slow: Steps take much longer than before.
    """

    NAN = "nan"
    SPIKE = "spike"
    STALL = "stall"
    SLOW = "slow"


IGNORE, TELL, STOP, ROLLBACK = "ignore", "tell", "stop", "rollback"
REACTIONS: Final = (IGNORE, TELL, STOP, ROLLBACK)
DIVERGENCES: Final = (Finding.NAN, Finding.SPIKE)
"""Findings after which the newest weights are not worth saving."""
_OF_NAN = "of a loss that is not a finite number"
_OF_SPIKE = "of a loss far above its usual values"
_OF_STALL = "of a loss that has not fallen for many steps"
_OF_SLOW = "of steps that take much longer than before"
_LEADS_TO = "ignore, tell, stop or rollback: the consequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """Consequences of the findings of the loss watch for jobs that do not name their own."""

    nan: str = described(f"{_LEADS_TO} {_OF_NAN}", form="watch_reaction", default=TELL)
    spike: str = described(f"{_LEADS_TO} {_OF_SPIKE}", form="watch_reaction", default=TELL)
    stall: str = described(f"{_LEADS_TO} {_OF_STALL}", form="watch_reaction", default=IGNORE)
    slow: str = described(f"{_LEADS_TO} {_OF_SLOW}", form="watch_reaction", default=TELL)
    max_rollbacks: int = described(
        "rollbacks of a job by the loss watch; at the next finding that asks for one, the job is stopped",
        form="retries",
        default=3,
    )

    def reaction(self, finding: Finding) -> str:
        """Return the consequence of a finding."""
        reactions = {
            Finding.NAN: self.nan,
            Finding.SPIKE: self.spike,
            Finding.STALL: self.stall,
            Finding.SLOW: self.slow,
        }
        return reactions[finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMarkers:
    """Texts before the figures in a log line that reports a step: literal, except that spaces match any spaces."""

    step: str = described("text before the number of the step: 'iteration'", form="log_marker")
    loss: str = described("text before the loss: 'lm loss:'", form="log_marker")
    nan_steps: str | None = described(
        "text before a number of steps without a finite loss: 'number of nan iterations:'",
        form="log_marker",
        default=None,
    )


LOG_FORMATS: Final = {
    "deepspeed": LogMarkers(step="steps:", loss="loss:"),
    "megatron": LogMarkers(step="iteration", loss="lm loss:", nan_steps="number of nan iterations:"),
    "torchtitan": LogMarkers(step="step:", loss="loss:"),
}
"""Lines of unmodified programs: DeepSpeed's PipelineEngine, Megatron-LM's and torchtitan's training loops.

Sources: `steps: 200 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706` of deepspeed/runtime/pipe/engine.py,
`iteration       10/ 3125000 | ... | lm loss: 1.010967E+01 | ... | number of nan iterations:   0 |` of
megatron/training/training.py, `step:  1  loss: 12.2  grad_norm: ...` of torchtitan/components/metrics.py.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Settings of the loss watch, where they differ from those of the policy; also which figures it follows."""

    nan: str | None = described(
        f"{_LEADS_TO} {_OF_NAN}; unset: as the policy says", form="watch_reaction", default=None
    )
    spike: str | None = described(
        f"{_LEADS_TO} {_OF_SPIKE}; unset: as the policy says", form="watch_reaction", default=None
    )
    stall: str | None = described(
        f"{_LEADS_TO} {_OF_STALL}; unset: as the policy says", form="watch_reaction", default=None
    )
    slow: str | None = described(
        f"{_LEADS_TO} {_OF_SLOW}; unset: as the policy says", form="watch_reaction", default=None
    )
    max_rollbacks: int | None = described(
        "rollbacks by the loss watch, after which the job is stopped; unset: as the policy says",
        form="retries",
        default=None,
    )
    metric: str = described("name of the loss among the metrics of report()", form="metric_name", default="loss")
    log_format: str | None = described(
        "program whose log lines have step and loss: megatron, deepspeed or torchtitan; unset: report() has them",
        form="log_format",
        default=None,
    )
    log: LogMarkers | None = described("log lines of another program that have step and loss", default=None)

    @property
    def markers(self) -> LogMarkers | None:
        """The texts before the figures in the log lines that it follows; None: it follows report()."""
        return LOG_FORMATS[self.log_format] if self.log_format else self.log

    def with_defaults(self, rules: WatchRules) -> WatchRules:
        """Return the rules that hold for the job."""
        return WatchRules(
            nan=self.nan or rules.nan,
            spike=self.spike or rules.spike,
            stall=self.stall or rules.stall,
            slow=self.slow or rules.slow,
            max_rollbacks=rules.max_rollbacks if self.max_rollbacks is None else self.max_rollbacks,
        )


def rules_of(watch: Watch | None, rules: WatchRules) -> WatchRules:
    """Return the rules that hold for a job with that section, or without one."""
    return watch.with_defaults(rules) if watch else rules
