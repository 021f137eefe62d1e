"""One sample of a node from all its sources, within a time-out.

A source that hangs costs its own values and no other's, and is named in `NodeSample.unread`.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ganger.agent.sampling.bounded_call import BoundedCall
from ganger.agent.sampling.dcgm_exporter import DcgmExporter, Profile
from ganger.agent.sampling.gpu_source import GpuDriver, GpuSource
from ganger.agent.sampling.host_source import HostSource, now_ms
from ganger.agent.sampling.kernel_log import KernelLog, KernelPosition
from ganger.agent.sampling.mount_source import MountSource
from ganger.agent.sampling.network_port_source import NetworkPortSource
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_sample import GpuSample, HostSample, KernelLine, NodeSample, PortSample

if TYPE_CHECKING:
    from ganger.agent.sampling.pod_devices import PodDevices

TIMEOUT_S: Final = 4.0
"""Of all sources together. A driver that answers in more than a second has been asleep; one in more than this hangs."""
HOST, PORTS, KERNEL_LOG, MOUNTS, NVML, DCGM = "host", "ports", "kernel_log", "mounts", "nvml", "dcgm"
"""Names of sources, as in `NodeSample.unread`."""
_NO_GPUS: Final[tuple[GpuSample, ...]] = ()
_NO_PORTS: Final[tuple[PortSample, ...]] = ()
_NO_PROFILES: Final[Profile] = {}
_NO_LINES: Final[tuple[tuple[KernelLine, ...], int]] = ((), 0)
_log = logging.getLogger(__name__)
T = TypeVar("T")


class NodeSampler:
    """The sources of one node. Used by one thread.

    position: the newest record of the kernel's log that an earlier agent has read.
    """

    def __init__(self, node: str, roots: SamplingRoots, position: KernelPosition | None = None) -> None:
        self._node = node
        self._host_source = HostSource(roots.proc)
        self._log = KernelLog(roots.kernel_log, position)
        self._host = BoundedCall(HOST, self._host_source.read)
        self._ports = BoundedCall(PORTS, NetworkPortSource(roots.sys).read)
        self._lines = BoundedCall(KERNEL_LOG, lambda: self._log.read(self._host_source.boot()))
        self._mounts = MountSource(roots.mounts, roots.files)
        self._gpus = GpuSource(GpuDriver(roots.nvml_library))
        self._dcgm = DcgmExporter(roots.dcgm_exporter) if roots.dcgm_exporter else None
        self._kubelet = _kubelet(roots.pod_resources) if roots.pod_resources else None

    @property
    def position(self) -> KernelPosition | None:
        """The newest record of the kernel's log that is in a sample."""
        return self._log.position

    def sample(self) -> NodeSample:
        """Return a sample, at the time-out at the latest."""
        answers = _Answers(time.monotonic() + TIMEOUT_S)
        for source in (self._host, self._ports, self._lines, self._mounts, self._gpus, self._dcgm, self._kubelet):
            if source is not None:
                source.begin()
        lines, lines_lost = answers.take(KERNEL_LOG, self._lines.result, _NO_LINES)
        profiles = answers.take(DCGM, self._dcgm.result, _NO_PROFILES) if self._dcgm is not None else _NO_PROFILES
        gpus = answers.take(NVML, self._gpus.result, _NO_GPUS)
        gpus = tuple(replace(gpu, **profiles.get(gpu.uuid, {})) for gpu in gpus) if profiles else gpus
        pods = self._kubelet.result(answers.deadline_s) if self._kubelet is not None else None
        return NodeSample(
            node=self._node,
            at_ms=now_ms(),
            host=answers.take(HOST, self._host.result, HostSample()),
            ports=answers.take(PORTS, self._ports.result, _NO_PORTS),
            gpus=gpus if pods is None else pods.join(gpus),
            mounts=self._mounts.result(answers.deadline_s),
            probes=() if pods is None else (pods.probe,),
            lines=lines,
            lines_lost=lines_lost,
            unread=tuple(answers.unread),
        )


def _kubelet(socket: Path) -> "PodDevices":
    """Return what asks the kubelet; its libraries are loaded where there is one."""
    from ganger.agent.sampling.pod_devices import PodDevices

    return PodDevices(socket)


class _Answers:
    """The answers of sources to one sample.

    deadline_s: monotonic clock.
    unread: sources that gave none.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.unread: list[str] = []

    def take(self, name: str, result: Callable[[float], T], missing: T) -> T:
        """Return the result of a source, else `missing`."""
        try:
            return result(self.deadline_s)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a source, the others are read
            _log.debug("%s: %s", name, error)
            self.unread.append(name)
            return missing
