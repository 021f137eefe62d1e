"""The agent of a node of a cluster as a process, with samples one after the other, each of which is sent.

`sending_process.py DIRECTORY LIBRARY SAMPLES` prints the CPU time of a sample with its history and its way, and the
memory afterwards, as JSON. The directory has the controller's address in `controller`, and the token in `token`.
"""

import json
import sys
import threading
import time
from pathlib import Path

import psutil

from ganger.agent import node_agent
from ganger.agent.controller_link import ControllerLink
from ganger.agent.node_agent import NodeAgent
from ganger.agent.notice_watch import OFF, watch
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.agent.taint_process import TaintProcess
from ganger.model.node_health.node_sample import NodeSample

PAUSE_S = 0.1
"""Between two samples: each is sent before the next is taken."""


def main(directory: Path, library: Path, samples: int) -> None:
    used_s: list[float] = []
    is_done = threading.Event()
    link = ControllerLink("n1", directory / "controller", directory / "token")

    def listen(sample: NodeSample) -> None:
        used_s.append(time.process_time())
        link.offer(sample)
        if len(used_s) > samples:
            is_done.set()

    node_agent.FIRST_S = node_agent.INTERVAL_S = PAUSE_S  # type: ignore[misc]
    roots = SamplingRoots(nvml_library=library, pod_resources=directory / "kubelet.sock")
    agent = NodeAgent("n1", roots, directory / "telemetry.db", listen)
    with watch(OFF, TaintProcess("n1", None).announce), link.running(), agent.running():
        is_done.wait()
        rss_mb = psutil.Process().memory_info().rss / 1e6
    print(json.dumps({"cpu_s": (used_s[samples] - used_s[0]) / samples, "rss_mb": rss_mb}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
