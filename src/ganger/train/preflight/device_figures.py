"""Findings about what nodes measured of their GPUs and of their host: which devices are bad or slow, and which node is.

A device is compared with the median of those of its type in the same run, and with a documented figure of its type
where there is one. Figures come from other machines: whatever is no positive number counts as a failed measurement.
Pure: figures in, findings out, so that any run can be judged again.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST = -1
"""Number of the host among the devices of its node."""
MAX_DEVICES = 64
MAX_TEXT = 200
MOST_GBPS = 1e6
MIN_PEERS = 3
"""Measured devices of a type without which their median says nothing: of two it cannot be said which one is slow."""


class Metric:
    """One figure of a device.

    Attributes:
        name: Key of the figure in a report, and code of the fault.
        words: The figure in a sentence.
        share: A device below this share of the median is bad, or of the host: slow.
        least_gbps: Least figure by a part of the name of the GPU type, the first that is in it.
    """

    __slots__ = ("least_gbps", "name", "share", "words")

    def __init__(self, name: str, words: str, share: float, least_gbps: Sequence[tuple[str, float]] = ()) -> None:
        self.name, self.words, self.share, self.least_gbps = name, words, share, least_gbps


# Of the published bandwidth of the memory of each type a copy within it reaches 80 to 95 %; less than 70 % is bad.
# Between host and device: the threshold of Azure's node check for an H100 (../shared/reference/reliability.md).
METRICS = (
    Metric(
        "hbm",
        "memory bandwidth",
        0.8,
        (("H200", 3360.0), ("H100 80GB HBM3", 2346.0), ("A100-SXM4-80GB", 1427.0), ("A100-SXM4-40GB", 1088.0)),
    ),
    Metric("pcie_to_device", "PCIe bandwidth to the device", 0.8, (("H200", 52.0), ("H100 80GB HBM3", 52.0))),
    Metric("pcie_to_host", "PCIe bandwidth to the host", 0.8, (("H200", 52.0), ("H100 80GB HBM3", 52.0))),
)
HOST_METRIC = Metric("host_memory", "host memory bandwidth", 0.5)
"""Other processes of the host share it: a low figure is no proof."""


class DeviceFigures:
    """Figures of one device, or of the host.

    Attributes:
        device: Its number on the node, HOST for the host.
        type: Type of the GPU, empty if unknown.
        error: What went wrong, empty for nothing.
        figures_gbps: By name of the metric, in 10^9 bytes a second.
    """

    __slots__ = ("device", "error", "figures_gbps", "type")

    def __init__(
        self, device: int, figures_gbps: dict[str, float] | None = None, type: str = "", error: str = ""
    ) -> None:
        self.device, self.figures_gbps, self.type, self.error = device, figures_gbps or {}, type, error


class NodeFigures:
    """Figures that one node measured.

    Attributes:
        devices: Figures of its devices, and of its host.
        skipped: Why there are none of GPUs, empty if there are.
    """

    __slots__ = ("devices", "skipped")

    def __init__(self, devices: Sequence[DeviceFigures] = (), skipped: str = "") -> None:
        self.devices, self.skipped = list(devices), skipped


class DeviceFinding:
    """A device that is bad or slow.

    Attributes:
        node: Place of its node in the run.
        device: Number on the node, HOST for the host.
        code: cuda for a device that does not work, else the name of the metric.
        sentence: With the figure, and what it was compared with.
        is_bad: False for a figure that is no proof.
    """

    __slots__ = ("code", "device", "is_bad", "node", "sentence")

    def __init__(self, node: int, device: int, code: str, sentence: str, *, is_bad: bool) -> None:
        self.node, self.device, self.code, self.sentence, self.is_bad = node, device, code, sentence, is_bad


def judge(nodes: Sequence[NodeFigures]) -> list[DeviceFinding]:
    """Return the devices of all nodes that are bad or slow, and the nodes that lack some."""
    findings = [
        finding
        for index, node in enumerate(nodes)
        for device in node.devices
        for finding in _findings(index, device, nodes)
    ]
    return [*_lacking(nodes), *findings]


def _lacking(nodes: Sequence[NodeFigures]) -> Iterator[DeviceFinding]:
    """Yield the nodes with fewer GPUs than most others have: one that fell off the bus is not there to be measured."""
    counts = [sum(one.device != HOST for one in node.devices) for node in nodes]
    usual = sorted(counts)[len(counts) // 2] if len(counts) >= MIN_PEERS else 0
    for index, (node, count) in enumerate(zip(nodes, counts)):
        if count < usual:
            reason = f": {node.skipped}" if node.skipped else ""
            sentence = f"it has {count} GPUs, and most other nodes have {usual}{reason}"
            yield DeviceFinding(index, HOST, "cuda", sentence, is_bad=True)


def performance_milli(nodes: Sequence[NodeFigures]) -> list[int]:
    """Return the performance of each node by its GPUs: the least share of the median of any figure, in thousandths.

    A gang is as fast as its slowest GPU. A GPU that does not work, or is not there, makes it 0. The memory of the host
    does not count.
    """
    lacking = [finding.node for finding in _lacking(nodes)]
    return [
        0 if index in lacking else min([1000, *(_share_milli(device, nodes) for device in node.devices)])
        for index, node in enumerate(nodes)
    ]


def _findings(index: int, device: DeviceFigures, nodes: Sequence[NodeFigures]) -> Iterator[DeviceFinding]:
    is_host = device.device == HOST
    words = "the host" if is_host else f"GPU {device.device}" + (f" ({device.type})" if device.type else "")
    if device.error:
        yield DeviceFinding(index, device.device, "cuda", f"{words}: {device.error}", is_bad=not is_host)
        return
    for metric in _metrics(device):
        value = device.figures_gbps.get(metric.name, math.nan)
        if not is_measured(value):
            sentence = f"{words}: no {metric.words} was measured ({value:g})"
            yield DeviceFinding(index, device.device, metric.name, sentence, is_bad=not is_host)
            continue
        median, least = _median(device, metric, nodes), _least_gbps(device, metric)
        if median is not None and value < metric.share * median:
            reason = f"{_percent(value, median)} of the median of {median:.4g} GB/s"
        elif value < least:
            reason = f"less than {least:g} GB/s, which such a device must reach"
        else:
            continue
        sentence = f"{words}: {metric.words} is {value:.4g} GB/s, {reason}"
        yield DeviceFinding(index, device.device, metric.name, sentence, is_bad=not is_host)


def _share_milli(device: DeviceFigures, nodes: Sequence[NodeFigures]) -> int:
    if device.device == HOST:
        return 1000
    if device.error:
        return 0
    shares = []
    for metric in _metrics(device):
        value, median = device.figures_gbps.get(metric.name, math.nan), _median(device, metric, nodes)
        shares.append(
            0 if not is_measured(value) else 1000 if median is None else min(1000, round(1000 * value / median))
        )
    return min(shares)


def is_measured(value: object) -> bool:
    """Return True for a figure that may be one: a positive number, and none that no memory will reach."""
    return type(value) in (int, float) and 0 < value < MOST_GBPS  # type: ignore[operator]


def _metrics(device: DeviceFigures) -> Sequence[Metric]:
    return (HOST_METRIC,) if device.device == HOST else METRICS


def _median(device: DeviceFigures, metric: Metric, nodes: Sequence[NodeFigures]) -> float | None:
    """Return the median of a figure among the devices of the same type, None of too few."""
    is_host = device.device == HOST
    values = sorted(
        value
        for node in nodes
        for other in node.devices
        if (other.device == HOST) == is_host and other.type == device.type
        for value in [other.figures_gbps.get(metric.name)]
        if value is not None and is_measured(value)
    )
    return values[len(values) // 2] if len(values) >= MIN_PEERS else None


def _least_gbps(device: DeviceFigures, metric: Metric) -> float:
    return next((least for part, least in metric.least_gbps if part in device.type), 0.0)


def _percent(value: float, median: float) -> str:
    return f"{100 * value / median:.0f} %"


# -- reports of nodes --------------------------------------------------------------------------------------------------


def encode(node: NodeFigures) -> dict[str, object]:
    """Return the figures of a node for JSON."""
    devices = [[one.device, one.type, one.error, one.figures_gbps] for one in node.devices]
    return {"devices": devices, "skipped": node.skipped}


def decode(document: object) -> NodeFigures:
    """Return the figures of a node. Raise ValueError, in one line, when they are none."""
    fields = document if isinstance(document, dict) else {}
    devices, skipped = fields.get("devices"), fields.get("skipped", "")
    if not (isinstance(devices, list) and len(devices) <= MAX_DEVICES + 1 and isinstance(skipped, str)):
        raise ValueError(f"the figures of a node are no object with at most {MAX_DEVICES} devices")
    decoded = [*map(_decode_device, devices)]
    if len({one.device for one in decoded}) < len(decoded):
        raise ValueError("a device is reported twice")
    return NodeFigures(decoded, skipped[:MAX_TEXT])


def _decode_device(document: object) -> DeviceFigures:
    names = [metric.name for metric in (*METRICS, HOST_METRIC)]
    if not (isinstance(document, list) and len(document) == 4):
        raise ValueError("the figures of a device are no list of number, type, error and figures")
    number, gpu_type, error, figures = document
    if type(number) is not int or not HOST <= number < MAX_DEVICES:
        raise ValueError("the number of a device is out of range")
    are_typed = isinstance(gpu_type, str), isinstance(error, str), isinstance(figures, dict)
    if not all(are_typed):
        raise ValueError(f"the type, the error or the figures of device {number} have another type")
    # What is no number is kept as NaN: the findings name the device.
    known = {
        name: float(figures[name]) if is_measured(figures[name]) else math.nan for name in names if name in figures
    }
    return DeviceFigures(number, known, gpu_type[:MAX_TEXT], error[:MAX_TEXT])
