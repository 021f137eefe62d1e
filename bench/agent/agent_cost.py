"""Cost of the agent of a node with 8 GPUs of the stub: share of a core at its interval of 10 s, and memory.

The agent runs alone in a process, with the real /proc, /sys and kernel's log. Its CPU time is that of whole samples
with their history, taken one after the other, and at the interval. The floor of the memory is Python that does nothing.
That of a cluster also asks a kubelet, and sends each sample over TLS to the controller's endpoint.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Figure, median
from ganger.agent.node_agent import INTERVAL_S
from tools.agent_listener import Listening, PlayedCluster
from tools.stub_kubelet.pod_resources import PlayedKubelet
from tools.stub_nvml import VARIABLE, build_stub_nvml, write_modes

GPUS, SAMPLES, RUNS = 8, 60, 5
CPU_BAR_PERCENT, MEMORY_BAR_MB = 1.0, 60.0


def run() -> list[Figure]:
    with TemporaryDirectory(prefix="ganger-bench-") as folder:
        library = build_stub_nvml(Path(folder))
        modes = Path(folder) / "modes"
        write_modes(modes, str(GPUS))
        samples = [_agent(Path(folder) / str(number), library, modes, "sampling_process.py") for number in range(RUNS)]
        with _cluster(Path(folder)) as prepare:
            sent = [
                _agent(prepare(Path(folder) / f"sent-{number}"), library, modes, "sending_process.py")
                for number in range(RUNS)
            ]
        floor = _python(["-c", "import psutil; print(psutil.Process().memory_info().rss / 1e6)"])
    cpu = [100 * sample["cpu_s"] / INTERVAL_S for sample in samples]
    return [
        median("agent_cpu_at_10_s", "%", cpu, under=CPU_BAR_PERCENT),
        median("agent_cpu_at_1_s", "%", [100 * sample["cpu_s"] for sample in samples]),
        median("agent_memory", "MB", [sample["rss_mb"] for sample in samples], under=MEMORY_BAR_MB, floor=float(floor)),
        median(
            "cluster_agent_cpu_at_10_s",
            "%",
            [100 * sample["cpu_s"] / INTERVAL_S for sample in sent],
            under=CPU_BAR_PERCENT,
        ),
        median(
            "cluster_agent_memory",
            "MB",
            [sample["rss_mb"] for sample in sent],
            under=MEMORY_BAR_MB,
            floor=float(floor),
        ),
    ]


@contextmanager
def _cluster(folder: Path) -> Iterator[Callable[[Path], Path]]:
    """Run a controller's endpoint and a kubelet; yield what prepares the directory of an agent."""
    listening = Listening(PlayedCluster("n1"), folder)
    listening.publish()
    listening.token.write_text("n1")
    kubelet = folder / "kubelet.sock"
    pods = {"ml/train-1-0": [("nvidia.com/gpu", [f"GPU-{number}" for number in range(GPUS)])]}

    def prepare(directory: Path) -> Path:
        directory.mkdir()
        for place in (listening.directory, listening.token, kubelet):
            (directory / place.name).symlink_to(place)
        return directory

    with listening.serving(), PlayedKubelet(pods).serving(kubelet):
        yield prepare
    (sample,) = listening.cluster.agents.samples().values()
    if len(sample.gpus) != GPUS or any(probe.error for probe in sample.probes):
        raise SystemExit(f"the controller's sample has {len(sample.gpus)} GPUs, and of the kubelet {sample.probes}")


def _agent(directory: Path, library: Path, modes: Path, program: str) -> dict[str, float]:
    """Return the CPU time of a sample and the memory afterwards."""
    directory.mkdir(exist_ok=True)
    script = Path(__file__).with_name(program)
    text = _python([str(script), str(directory), str(library), str(SAMPLES)], {VARIABLE: str(modes)})
    found: dict[str, float] = json.loads(text)
    return found


def _python(words: list[str], variables: dict[str, str] | None = None) -> str:
    command = [sys.executable, *words]
    environment = os.environ | (variables or {})
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
