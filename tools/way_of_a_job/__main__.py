"""Command that traces jobs and writes the page: `python -m tools.way_of_a_job [--traces N]`.

Without a test cluster the part about Kubernetes stays as it is.
"""

import argparse
import sys
from collections.abc import Callable

from tools.testcluster import running_cluster
from tools.way_of_a_job import kubernetes, one_machine
from tools.way_of_a_job.page import PAGE, World, read, write
from tools.way_of_a_job.way import Way


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.way_of_a_job", description="Write the page from new traces.")
    parser.add_argument(
        "--traces", type=int, default=3, help="traces of each world; what any of them enters is listed (3)"
    )
    traces = parser.parse_args().traces
    ways = read(PAGE.read_text()) if PAGE.exists() else {}
    ways[World.MACHINE] = _together(one_machine.trace, traces)
    cluster = running_cluster()
    if cluster is None:
        print("no test cluster runs: the part about Kubernetes is not traced", file=sys.stderr)
    else:
        ways[World.KUBERNETES] = _together(lambda: kubernetes.trace(cluster), traces)
    PAGE.write_text(write(ways))
    for world, way in ways.items():
        print(f"{world.value}: {len(way.files)} files, {len(way.stack)} frames")
    return 0


def _together(trace: Callable[[], Way], amount: int) -> Way:
    """Return what any of several traces has entered."""
    way = Way()
    for _ in range(amount):
        way.include(trace())
    return way


if __name__ == "__main__":
    sys.exit(main())
