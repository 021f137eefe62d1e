"""`ganger diagnose` on labelled excerpts of logs: share of right classes, confusion table, hardware on user errors.

The labelled set of ../shared/failure_logs, and an own one in log_excerpts.jsonl. Each excerpt is written to a file and
diagnosed as a user's would be, but in this process.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.measure import ROOT, Figure
from ganger.core.failure.failure_classes import CLASSES, FailureClass, Origin
from ganger.diagnosis.diagnose_logs import diagnose_logs

SHARED: Final = ROOT.parent / "shared" / "failure_logs" / "failure_logs.jsonl"
OWN: Final = Path(__file__).with_name("log_excerpts.jsonl")
ACCURACY_BAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """One excerpt: its label, and the class that was found."""

    name: str
    label: str
    found: FailureClass

    @property
    def is_right(self) -> bool:
        return self.label == self.found.name

    @property
    def blames_machine(self) -> bool:
        """True for an error of a user that is taken for one of the infrastructure."""
        return CLASSES[self.label].origin is Origin.USER and self.found.origin is Origin.INFRASTRUCTURE


def diagnose_excerpts(path: Path) -> Iterator[Diagnosed]:
    """Iterate over the excerpts of a file of JSON lines, each diagnosed."""
    with TemporaryDirectory(prefix="ganger-bench-") as directory:
        log = Path(directory) / "log"
        for line in path.read_text(encoding="utf-8").splitlines():
            excerpt = json.loads(line)
            log.write_text("\n".join([*excerpt["lines"], ""]), encoding="utf-8")
            yield Diagnosed(excerpt["id"], excerpt["label"], diagnose_logs(log).diagnosis.failure_class)


def run() -> list[Figure]:
    figures = []
    for name, path, bar in (("shared", SHARED, ACCURACY_BAR), ("own", OWN, None)):
        if not path.exists():
            print(f"{name}: {path} is not there")
            continue
        diagnosed = list(diagnose_excerpts(path))
        _print_confusion(name, diagnosed)
        accuracy = sum(one.is_right for one in diagnosed) / len(diagnosed)
        blamed = float(sum(one.blames_machine for one in diagnosed))
        figures += [
            Figure(
                name=f"diagnose_accuracy_{name}",
                unit="share",
                samples=(accuracy,),
                value=accuracy,
                op=None if bar is None else ">=",
                bar=bar,
            ),
            Figure(
                name=f"diagnose_user_errors_as_hardware_{name}",
                unit="excerpts",
                samples=(blamed,),
                value=blamed,
                op="==",
                bar=0.0,
            ),
        ]
    return figures


def _print_confusion(name: str, diagnosed: list[Diagnosed]) -> None:
    """Print for each label the classes that were found, those that are not the label marked."""
    print(f"{name}: {sum(one.is_right for one in diagnosed)} of {len(diagnosed)}")
    for label in sorted({one.label for one in diagnosed}):
        found = Counter(one.found.name for one in diagnosed if one.label == label)
        others = ", ".join(f"{count} {other}" for other, count in found.most_common() if other != label)
        print(f"  {label:32} {found[label]:3} of {found.total():3}{f'   not: {others}' if others else ''}")
