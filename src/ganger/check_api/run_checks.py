"""Driver of checks: all of them over one sample, and what they find turned into faults.

The same function serves an agent, a server and a replay. A fault that lasts is reported once, and again only when it
becomes graver or after it had gone; a finding that is not found for `GONE_MS` has gone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ganger.check_api.check_interface import Check, Finding
from ganger.check_api.counters import newest
from ganger.check_api.kernel_text import shown
from ganger.check_api.rule import Repeat, Rule, RuleBook
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.node_sample import NodeSample

GONE_MS: Final = 300_000
"""A fault that is found again within this time has not gone: the window of gpud for lines of the kernel's log."""
BURST_MS: Final = 15_000
"""Findings within this time are one occurrence: one failure often writes several lines."""
CREDIBLE_STEP_MS: Final = 60_000
"""The longest step of the clock between two samples that is believed in any case; else it is compared with the one
before it."""
USUAL_STEP_MS: Final = 10_000
"""The time between two samples as long as none is known."""
MAX_TRACKS: Final = 1024
MAX_FINDINGS: Final = 64
"""Findings of one check in one sample; what is above it is counted in one note."""
MAX_TIMES: Final = 64
LIMITS: Final = {
    "gpus": 128,
    "ports": 512,
    "mounts": 1024,
    "probes": 256,
    "conditions": 512,
    "lines": 20_000,
    "unread": 64,
}
"""Parts of a sample that are read; a machine has fewer."""

FAILED: Final = Rule(table="checks", code="check_failed", meaning="a check that failed", severity=Severity.NOTE)
SURPLUS: Final = Rule(table="checks", code="too_many_findings", meaning="surplus findings", severity=Severity.NOTE)


class _Track(NamedTuple):
    """The record of one fault: a check, a code and a device.

    since_ms, seen_ms: of the present episode, and when it was last found. number: of the sample it was last found in.
    fault: as reported; None before it is. occurrences: times and places, the newest last.
    """

    since_ms: int
    seen_ms: int
    number: int
    gone_ms: int = GONE_MS
    fault: Fault | None = None
    occurrences: tuple[tuple[int, str], ...] = ()
    kept_ms: int = 0


_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ChecksState:
    """The state of all checks of one node, between two samples.

    Attributes:
        now_ms: The driver's time: that of the node while its clock runs steadily. A jump counts as one usual step.
        wall_ms, wall_step_ms: The node's time of the last sample, and the step to it by that clock.
        step_ms: The step to it by the driver's time.
        number: Samples so far.
        states: Of the checks, by NAME.
        tracks: Faults that last, that are not yet reported, or whose repetitions are counted.
    """

    now_ms: int = 0
    wall_ms: int = 0
    wall_step_ms: int = 0
    step_ms: int = USUAL_STEP_MS
    number: int = 0
    states: Mapping[str, Any] = field(default_factory=dict)
    tracks: Mapping[_Key, _Track] = field(default_factory=dict)

    @property
    def lasting(self) -> tuple[Fault, ...]:
        """The reported faults that have not gone."""
        return tuple(
            track.fault for track in self.tracks.values() if track.fault is not None and self._is_lasting(track)
        )

    def _is_lasting(self, track: _Track) -> bool:
        return track.number == self.number or self.now_ms - track.seen_ms <= track.gone_ms


def run_checks(
    state: ChecksState, sample: NodeSample, checks: Mapping[str, Check], rules: RuleBook
) -> tuple[ChecksState, tuple[Fault, ...]]:
    """Return the next state, and the faults that are new in this sample, gravest first.

    A check that raises is itself a fault, and keeps its state; the others are not affected.
    """
    state = _advance(state, sample)
    steady = replace(_limited(sample), at_ms=state.now_ms)
    states, findings = dict(state.states), list[tuple[str, Finding]]()
    for name, module in checks.items():
        try:
            states[name], found = module.check(states.get(name, module.INITIAL_STATE), steady, rules)
            findings += [(name, _shown(finding)) for finding in _few(found)]
        except Exception as error:  # noqa: BLE001 - whatever a check does, the others must not suffer
            sentence = shown(f"the check {name} failed: {type(error).__name__}: {error}")
            findings.append((name, Finding(rule=FAILED, sentence=sentence)))
    tracks, faults = dict(state.tracks), list[Fault]()
    for name, finding in findings:
        key = (name, finding.rule.fault_code, finding.device)
        track = _follow(tracks.pop(key, None), finding, state)
        severity, suffix = _judge(key, track, finding, tracks, state)
        is_shadow = finding.rule.is_shadow or name in rules.shadow_checks
        if _is_news(track, finding, severity, state, is_shadow=is_shadow):
            fault = replace(_fault(name, finding, severity, suffix, sample), is_shadow=is_shadow)
            track = track._replace(fault=fault)
            faults.append(fault)
        tracks[key] = track
    kept = newest({key: track for key, track in tracks.items() if _is_kept(track, state)}, MAX_TRACKS)
    faults.sort(key=lambda fault: (-fault.severity, fault.key))
    return replace(state, states=states, tracks=kept), tuple(faults)


def replay_checks(samples: Iterable[NodeSample], checks: Mapping[str, Check], rules: RuleBook) -> Iterator[Fault]:
    """Iterate over the faults in recorded samples, which may be of several nodes, each in the order of its time."""
    states: dict[str, ChecksState] = {}
    for sample in samples:
        states[sample.node], faults = run_checks(states.get(sample.node, ChecksState()), sample, checks, rules)
        yield from faults


def _advance(state: ChecksState, sample: NodeSample) -> ChecksState:
    """Return the state at the time of a sample: a jump of the node's clock counts as one usual step."""
    wall_ms = sample.at_ms
    if state.number == 0:
        return replace(state, now_ms=wall_ms, wall_ms=wall_ms, number=1)
    wall_step_ms = wall_ms - state.wall_ms
    is_credible = 0 < wall_step_ms <= max(CREDIBLE_STEP_MS, 3 * state.wall_step_ms)
    step_ms = wall_step_ms if is_credible else state.step_ms
    return replace(
        state,
        now_ms=state.now_ms + step_ms,
        wall_ms=wall_ms,
        wall_step_ms=wall_step_ms,
        step_ms=step_ms,
        number=state.number + 1,
    )


def _limited(sample: NodeSample) -> NodeSample:
    """Return the sample without what is beyond the limits."""
    surplus = {name: getattr(sample, name)[:most] for name, most in LIMITS.items() if len(getattr(sample, name)) > most}
    return replace(sample, **surplus) if surplus else sample


def _few(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings, the gravest of them and a note if they are too many."""
    if len(findings) <= MAX_FINDINGS:
        return findings
    ordered = sorted(findings, key=lambda one: (-(one.severity or one.rule.severity), one.rule.code, one.device))
    sentence = f"{len(findings) - MAX_FINDINGS} more findings in one sample are not listed"
    return (*ordered[:MAX_FINDINGS], Finding(rule=SURPLUS, sentence=sentence))


def _shown(finding: Finding) -> Finding:
    """Return a finding with short and printable texts. Raise TypeError if one of them is no text."""
    evidence = tuple(shown(text) for text in finding.evidence[:3])
    return replace(finding, device=shown(finding.device), sentence=shown(finding.sentence), evidence=evidence)


def _follow(track: _Track | None, finding: Finding, state: ChecksState) -> _Track:
    """Return the track of a finding in this sample: the same episode, or a new one."""
    now_ms, rule = state.now_ms, finding.rule
    gone_ms = max(GONE_MS, rule.per_s * 1000)
    occurrences = track.occurrences if track else ()
    is_same = track is not None and (
        (not finding.is_event and state.number - track.number <= 1)
        or (track.fault is not None and now_ms - track.seen_ms <= track.gone_ms)
    )
    if finding.is_event or not is_same:
        last_ms = max((ms for ms, place in occurrences if place == finding.place), default=None)
        if last_ms is None or now_ms - last_ms > BURST_MS:
            occurrences = (*occurrences, (now_ms, finding.place))[-MAX_TIMES:]
    return _Track(
        since_ms=track.since_ms if track and is_same else now_ms,
        seen_ms=now_ms,
        number=state.number,
        gone_ms=gone_ms,
        fault=track.fault if track and is_same else None,
        occurrences=occurrences,
        kept_ms=rule.repeat.within_s * 1000 if rule.repeat else 0,
    )


def _judge(
    key: _Key, track: _Track, finding: Finding, others: Mapping[_Key, _Track], state: ChecksState
) -> tuple[Severity, str]:
    """Return the severity of a finding with its repetitions, and what to say of these."""
    severity, repeat = finding.rule.severity if finding.severity is None else finding.severity, finding.rule.repeat
    if repeat is None or repeat.severity <= severity or finding.severity is not None:
        return severity, ""
    start_ms = state.now_ms - repeat.within_s * 1000
    times = sum(ms >= start_ms and place == finding.place for ms, place in track.occurrences)
    if times < repeat.times or (repeat.is_alone and _others_have_it(key, others, start_ms)):
        return severity, ""
    return repeat.severity, f", {times} times in {_duration(repeat)} on the same device"


def _others_have_it(key: _Key, others: Mapping[_Key, _Track], start_ms: int) -> bool:
    return any(
        other[:2] == key[:2] and other != key and track.occurrences and track.occurrences[-1][0] >= start_ms
        for other, track in others.items()
    )


def _duration(repeat: Repeat) -> str:
    for seconds, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if repeat.within_s % seconds == 0:
            return f"{repeat.within_s // seconds} {unit}"
    return f"{repeat.within_s} s"


def _is_news(track: _Track, finding: Finding, severity: Severity, state: ChecksState, *, is_shadow: bool) -> bool:
    """Return whether to report it: it has lasted long enough, and is new, graver, or no longer in shadow mode."""
    if not finding.is_event and state.now_ms - track.since_ms < finding.rule.hold_s * 1000:
        return False
    fault = track.fault
    return fault is None or severity > fault.severity or (fault.is_shadow and not is_shadow)


def _is_kept(track: _Track, state: ChecksState) -> bool:
    if track.number == state.number or (track.fault is not None and state.now_ms - track.seen_ms <= track.gone_ms):
        return True
    return bool(track.occurrences) and state.now_ms - track.occurrences[-1][0] <= track.kept_ms


def _fault(name: str, finding: Finding, severity: Severity, suffix: str, sample: NodeSample) -> Fault:
    action = f"; {finding.rule.action}" if finding.rule.action and severity > Severity.NOTE else ""
    return Fault(
        node=sample.node,
        check=name,
        code=finding.rule.fault_code,
        severity=severity,
        device=finding.device,
        gpu=finding.gpu,
        at_ms=sample.at_ms if finding.at_ms is None else finding.at_ms,
        sentence=f"{finding.sentence}{suffix}{action}",
        evidence=finding.evidence,
    )
