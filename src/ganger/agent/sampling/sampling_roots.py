"""Places from which a node is sampled: those of this machine, of a container that sees its host's, or of a test."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRoots:
    """Places of every source.

    Attributes:
        proc, sys: As /proc and /sys.
        mounts: The mounts of the node, as /proc/self/mountinfo.
        files: The root of the node's files, below which its mounts are.
        kernel_log: As /dev/kmsg; also a file or a FIFO of such records.
        nvml_library: The driver's library; None: the one that the loader finds.
        dcgm_exporter: URL of the metrics page of a DCGM exporter; None: there is none.
        pod_resources: Socket on which the kubelet lists the devices of pods; None: there is no kubelet.
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    mounts: Path = Path("/proc/self/mountinfo")
    files: Path = Path("/")
    kernel_log: Path = Path("/dev/kmsg")
    nvml_library: Path | None = None
    dcgm_exporter: str | None = None
    pod_resources: Path | None = None
