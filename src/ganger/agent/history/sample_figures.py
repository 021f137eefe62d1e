"""The figures of a sample: of the machine, and of each GPU by its UUID."""

from typing import Final

from ganger.model.node_health.node_figures import Figures
from ganger.model.node_health.node_sample import GpuSample, NodeSample, PortSample

MACHINE: Final = ""
"""Key of the machine itself, beside those of its GPUs."""
_INFINIBAND_WORD_BYTES: Final = 4
"""Unit of the data counters of InfiniBand ports (IBTA, PortXmitData)."""

_Traffic = dict[tuple[str, int], tuple[int, int]]
"""Bytes received and sent by each port."""


class FigureReader:
    """Reads figures from one sample after the other; rates are since the one before."""

    def __init__(self) -> None:
        self._traffic: _Traffic = {}
        self._at_s = 0.0

    def read(self, sample: NodeSample, at_s: float) -> dict[str, Figures]:
        """Return the figures of a sample. at_s: when it was taken, by a clock that does not jump."""
        received, sent = self._rates(sample.ports, at_s)
        host = sample.host
        is_cpu_known = host.cpu_milli is not None and host.cpu_total_milli
        is_memory_known = host.memory_bytes is not None and host.memory_available_bytes is not None
        machine = Figures(
            busy_permille=1000 * (host.cpu_milli or 0) // (host.cpu_total_milli or 1) if is_cpu_known else None,
            memory_bytes=(host.memory_bytes or 0) - (host.memory_available_bytes or 0) if is_memory_known else None,
            received_bytes_s=received,
            sent_bytes_s=sent,
        )
        return {MACHINE: machine} | {gpu.uuid: gpu_figures(gpu) for gpu in sample.gpus if gpu.uuid}

    def _rates(self, ports: tuple[PortSample, ...], at_s: float) -> tuple[int | None, int | None]:
        """Return bytes received and sent per second, of ports whose counters have gone on."""
        before, before_s = self._traffic, self._at_s
        self._traffic, self._at_s = dict(filter(None, map(_traffic, ports))), at_s
        spans = [
            (now[0] - before[port][0], now[1] - before[port][1])
            for port, now in self._traffic.items()
            if port in before and now[0] >= before[port][0] and now[1] >= before[port][1]
        ]
        span_s = at_s - before_s
        if not spans or span_s <= 0:
            return None, None
        return round(sum(span[0] for span in spans) / span_s), round(sum(span[1] for span in spans) / span_s)


def gpu_figures(gpu: GpuSample) -> Figures:
    """Return the figures of a GPU."""
    return Figures(
        busy_permille=None if gpu.utilisation_percent is None else 10 * gpu.utilisation_percent,
        memory_bytes=gpu.memory_used_bytes,
        power_mw=gpu.power_mw,
        temperature_c=gpu.temperature_c,
    )


def _traffic(port: PortSample) -> tuple[tuple[str, int], tuple[int, int]] | None:
    """Return the bytes of a port; None for one without counters, and for IP over InfiniBand, which the port counts."""
    counters, key = port.counters, (port.device, port.port)
    if port.port and "port_rcv_data" in counters and "port_xmit_data" in counters:
        data = counters["port_rcv_data"], counters["port_xmit_data"]
        return key, (_INFINIBAND_WORD_BYTES * data[0], _INFINIBAND_WORD_BYTES * data[1])
    if not port.port and port.layer == "ethernet" and "rx_bytes" in counters and "tx_bytes" in counters:
        return key, (counters["rx_bytes"], counters["tx_bytes"])
    return None
