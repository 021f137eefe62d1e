"""Random schedules of faults on gangs of 2 to 6 gloo ranks: one world, one writer, each sample once per epoch.

A schedule is some faults at random times, one over the other: a rank or launcher killed, or stopped for a while or for
good, the job suspended and resumed, the connection of a launcher cut or silent, an elastic gang resized. Then the gang
must step again. Ten schedules follow each other on a gang, and follow from its seed. GANGER_BENCH_SCHEDULES is their
number; with GANGER_BENCH_SCHEDULES_FILE the result of each gang is appended to that file, and what it has is not run
again.
"""

import json
import os
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bench.faults.schedules import Result, World
from bench.measure import Figure, wall_s

SCHEDULES = int(os.environ.get("GANGER_BENCH_SCHEDULES", "60"))
OF_A_GANG = 10
AT_A_TIME = 3
SHOWN = 20


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    file = Path(os.environ.get("GANGER_BENCH_SCHEDULES_FILE") or os.devnull)
    results = [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.is_file() else []
    seeds = sorted({*range(SCHEDULES // OF_A_GANG)} - {result.seed for result in results})
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ganger-bench-", ignore_cleanup_errors=True))
        world = stack.enter_context(World(Path(folder)))
        pool, out = stack.enter_context(ThreadPoolExecutor(AT_A_TIME)), stack.enter_context(file.open("a"))
        for result in pool.map(lambda seed: world.run(seed, OF_A_GANG), seeds):
            results.append(result)
            out.write(json.dumps(result.record()) + "\n")
            out.flush()
    faults = sum((Counter(result.faults) for result in results), Counter())
    schedules, attempts = (sum(getattr(result, name) for result in results) for name in ("schedules", "attempts"))
    print(f"{schedules} schedules, {dict(faults)}; {attempts} attempts")
    errors = [f"gang {result.seed}: {error}" for result in results for error in result.errors]
    print(*errors[:SHOWN], sep="\n")
    count = float(len(errors))
    return [Figure(name="random_schedules_errors", unit="", samples=(count,), value=count, op="==", bar=0.0)]
