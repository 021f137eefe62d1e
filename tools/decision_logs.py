"""Writes what the scheduler decides: on recorded traces with each queue order, and in each picture of tests/pictures.

    python -m tools.decision_logs FOLDER [JOBS]

Run it before and after a change that is to leave decisions as they are: `diff -r` of the two folders is empty. Each
file has one line for each cycle: its time, when the next one is due, and the decisions. JOBS is the number of jobs of
each trace, 150 unless given: all traces take 10 minutes, and the pictures one.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

from ganger import registry
from ganger.core.cycle import cycle
from ganger.core.state.state import State
from ganger.model.cluster import Node
from ganger.model.policy import Rules, document_of

TRACES: Final = Path(__file__).parents[2] / "shared" / "traces"
NODES: Final = tuple(Node(name=f"n{number:02}", gpus=8, cpu_milli=10**9, memory_bytes=1 << 46) for number in range(24))
PATTERNS: Final = ("elasticflow/cluster*", "muri/trace*", "shockwave/*.trace.gz", "openb/openb_pod_list_*")

_plan = cycle.plan
_log: TextIO | None = None


def _recorded_plan(state: State, now_ms: int, *args: Any, **options: Any) -> Any:
    plan = _plan(state, now_ms, *args, **options)
    if _log is not None:
        _log.write(f"{now_ms} {plan.next_wake_ms} {plan.decisions!r} {plan.forecasts!r}\n")
    return plan


class _OneLogForEachPicture:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        global _log  # noqa: PLW0603  # what is patched has no other way to it
        name = re.sub(r"[^\w.-]+", "-", item.nodeid)[-200:]
        with (self._folder / name).open("w") as _log:
            try:
                return (yield)
            finally:
                _log = None


def main(folder: str, jobs: str = "150") -> int:
    global _log  # noqa: PLW0603
    cycle.plan = _recorded_plan  # before the modules that take it by its name
    from ganger.simulation.trace_replay import TraceRun, simulate_trace
    from ganger.simulation.traces.read_trace import read_jobs, read_nodes

    traces, pictures = Path(folder, "traces"), Path(folder, "pictures")
    for path in (traces, pictures):
        path.mkdir(parents=True)
    pods = read_nodes(TRACES / "openb/openb_node_list_gpu_node.csv").records[:60]
    for path in sorted(path for pattern in PATTERNS for path in TRACES.glob(pattern)):
        trace = read_jobs(path)
        trace = replace(trace, records=trace.records[: int(jobs)])
        nodes = pods if path.parent.name == "openb" else NODES
        for name in sorted(registry.policies()):
            document = document_of(Rules(order=name), State().document.queues)
            with (traces / f"{path.name}-{name}").open("w") as _log:
                simulate_trace(TraceRun(trace=trace, nodes=nodes, order=registry.order, document=document))
            print(path.name, name, flush=True)
    _log = None
    os.environ["PYTHONHASHSEED"] = "0"
    return int(pytest.main(["-q", "-n", "0", "tests/pictures"], plugins=[_OneLogForEachPicture(pictures)]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
