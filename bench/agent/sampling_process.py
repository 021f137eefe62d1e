"""A process with an agent that takes samples one after the other: `sampling_process.py DIRECTORY LIBRARY SAMPLES`.

Prints the CPU time of a sample with its history, and the memory afterwards, as JSON.
"""

import json
import sys
import threading
import time
from pathlib import Path

import psutil

from ganger.agent import node_agent
from ganger.agent.node_agent import NodeAgent
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_sample import NodeSample

GPUS = 8


def main(directory: Path, library: Path, samples: int) -> None:
    used_s: list[float] = []
    is_done = threading.Event()

    def listen(sample: NodeSample) -> None:
        if len(sample.gpus) != GPUS or sample.unread:
            raise SystemExit(f"{len(sample.gpus)} GPUs, unread: {sample.unread}")
        used_s.append(time.process_time())
        if len(used_s) > samples:
            is_done.set()

    node_agent.FIRST_S = node_agent.INTERVAL_S = 0.0  # type: ignore[misc]
    agent = NodeAgent("bench", SamplingRoots(nvml_library=library), directory / "telemetry.db", listen)
    with agent.running():
        is_done.wait()
        rss_mb = psutil.Process().memory_info().rss / 1e6
    print(json.dumps({"cpu_s": (used_s[samples] - used_s[0]) / samples, "rss_mb": rss_mb}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
