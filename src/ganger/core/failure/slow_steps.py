"""Slow steps: a job that makes progress, but whose steps take much longer than they did.

Used where the logs hold no error at all. Reads the durations that training loops print with each step."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Final

from ganger.core.failure.failure_classes import CLASSES, Depth
from ganger.core.failure.findings import Finding, Place
from ganger.core.failure.first_cause import Confidence, Diagnosis

SLOW_CLASS: Final = "straggler_or_slowdown"
MIN_STEPS: Final = 4
SLOWER: Final = 3
"""Times the median from which on a step is slow."""
_DURATION: Final = re.compile(
    r"(?P<name>(?i:elapsed|step[ _]?time|iter\w*[ _]?time|time|duration|t/iter|sec(?:onds)?/\w+"
    r"|batch[ _]time)[\w /().-]{0,30}?)[:= ] ?(?P<value>\d{1,12}(?:\.\d{1,9})?)(?! ?[:/\d])"
    r"|(?P<rate>\d{1,9}(?:\.\d{1,9})?)s/(?:it|step)"
)


def find_slow_steps(file: str, lines: Sequence[tuple[int, str]]) -> Diagnosis | None:
    """Return the diagnosis of a log whose steps became slow, None if none did; lines have their numbers."""
    durations: dict[str, list[tuple[float, int, str]]] = {}
    for number, text in lines:
        if match := _DURATION.search(text):
            durations.setdefault(match["name"] or "s/it", []).append(
                (float(match["value"] or match["rate"]), number, text)
            )
    for steps in durations.values():
        usual = median(seconds for seconds, _, _ in steps[: max(len(steps) // 2, MIN_STEPS - 1)])
        slow = [step for step in steps if step[0] > SLOWER * usual > 0]
        if len(steps) >= MIN_STEPS and slow:
            return _diagnosis(file, usual, slow)
    return None


def _diagnosis(file: str, usual: float, slow: list[tuple[float, int, str]]) -> Diagnosis:
    failure_class = CLASSES[SLOW_CLASS]
    slowest = max(slow)
    evidence = Finding(name=SLOW_CLASS, depth=Depth.EFFECT, place=Place(file, slowest[1]), text=slowest[2])
    return Diagnosis(
        failure_class=failure_class,
        confidence=Confidence.MEDIUM,
        sentence=f"{failure_class.title}: a step took {slowest[0]:g}, usually {usual:g}",
        evidence=(evidence,),
    )
