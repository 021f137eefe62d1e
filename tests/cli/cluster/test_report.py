"""`ganger report`: time breakdown and cost of each cause."""

import json
from dataclasses import replace

from ganger.model.views.service_views import Ledger, Loss, Totals
from tests.cli.conftest import Shell
from tests.cli.world import T0, World

HOUR_MS = 3_600_000
TIME = Ledger(
    queued_ms=HOUR_MS,
    starting_ms=HOUR_MS,
    productive_ms=6 * HOUR_MS,
    checkpoint_ms=HOUR_MS // 2,
    detect_ms=HOUR_MS // 2,
    recovery_ms=2 * HOUR_MS,
    lost_ms=HOUR_MS,
    total_ms=12 * HOUR_MS,
    held_ms=10 * HOUR_MS,
    losses=(
        Loss(cause="drained", restarts=1, recovery_ms=HOUR_MS, held_ms=HOUR_MS),
        Loss(cause="hung", failures=2, restarts=1, detect_ms=HOUR_MS // 2, recovery_ms=HOUR_MS, lost_ms=HOUR_MS),
    ),
)
TOTALS = Totals(
    at_ms=T0,
    since_ms=T0,
    user=None,
    queue=None,
    jobs={"failed": 1, "running": 2},
    time=TIME,
    gpu_time=Ledger(),
    goodput=0.6,
)


def test_parts_and_causes(shell: Shell, world: World) -> None:
    world.totals = TOTALS
    result = shell("report", "--since", "2026-09-21T14:13:20Z")
    heading, _, *parts = result.out.splitlines()
    assert heading == "3 jobs since 2026-09-21 14:13:20: 1 failed, 2 running"
    assert (
        "\n".join(parts)
        == """\
PART           TIME   SHARE
queued       1h 00m    8.3%
starting     1h 00m    8.3%
productive   6h 00m   50.0%
checkpoint  30m 00s    4.2%
detect      30m 00s    4.2%
recovery     2h 00m   16.7%
lost         1h 00m    8.3%
unobserved      0ms    0.0%
total       12h 00m  100.0%

goodput: 60.0% of the node time allocated

CAUSE    FAILURES  RESTARTS   DETECT  RECOVERY    LOST  UNOBSERVED
hung            2         1  30m 00s    1h 00m  1h 00m         0ms
drained         0         1      0ms    1h 00m     0ms         0ms
all             2         2  30m 00s    2h 00m  1h 00m         0ms"""
    )


def test_gpu_time(shell: Shell, world: World) -> None:
    gpu_time = replace(
        TIME, queued_ms=0, total_ms=8 * 10 * HOUR_MS, held_ms=8 * 10 * HOUR_MS, productive_ms=8 * 6 * HOUR_MS
    )
    world.totals = replace(TOTALS, gpu_time=gpu_time)
    lines = shell("report").out.splitlines()
    assert lines[2].split() == ["PART", "TIME", "SHARE", "GPU", "TIME", "SHARE"]
    assert (
        lines[5].split() == ["productive", "6h", "00m", "50.0%", "48h", "00m", "60.0%"]
        or lines[5].split()[-1] == "60.0%"
    )
    assert "goodput: 60.0% of the GPU time allocated" in lines
    assert lines[-1].split()[-2:] == ["3h", "30m"]


def test_nothing_yet(shell: Shell, world: World) -> None:
    world.totals = Totals(
        at_ms=T0, since_ms=None, user="ada", queue="nlp", jobs={}, time=Ledger(), gpu_time=Ledger(), goodput=None
    )
    assert shell("report", "--user", "ada", "--queue", "nlp").out == "0 jobs of ada in queue nlp\n"
    assert json.loads(shell("report", "-o", "json").out)["goodput"] is None
    assert next(target for _, target, _ in world.requests if "report" in target) == "/report?user=ada&queue=nlp"
