"""The nodes of a server on one machine: the machine as one node, or the virtual nodes of a topology file.

With virtual nodes one machine stands for several: together they may have more CPUs than the machine, since nothing is
pinned, and more GPUs, which are then only slots. The YAML library is imported only when there is a file, since most
servers have none.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ganger.backends.local.machine import Machine
from ganger.model.cluster import RACK, Cluster, Node
from ganger.model.units import parse_bytes, parse_cpu_milli

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

GPU_SLOT: Final = "slot"
"""The type of GPUs that do not exist and for which the file names no type."""
MAX_NODES: Final = 10_000

MAX_LEVELS: Final = 8
MAX_UNITS: Final = 1_000_000_000
MAX_PERFORMANCE: Final = 100

_AMOUNT_KEYS: Final = ("gpu", "gpus", "gpu_type", "gpu_memory", "cpu", "memory", "extended", "count")
_ATTRIBUTE_KEYS: Final = ("labels", "taints", "network", "suspicion", "performance")
_NODE_KEYS: Final = (*_AMOUNT_KEYS, *_ATTRIBUTE_KEYS)
_RESERVED: Final = ("name", *_NODE_KEYS, "node", "cluster")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*")
_LEVEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NUMBER: Final = "{}"


class TopologyError(Exception):
    """An invalid topology file. `detail` begins with file:line:column; `next` is the repair."""

    def __init__(self, detail: str, next: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next


@dataclass(slots=True)
class _Reading:
    """The state of reading one file: path, levels, and the numbers given so far to names with `{}`."""

    path: Path
    machine: Machine
    levels: tuple[str, ...] = RACK
    numbers: Counter[str] = field(default_factory=Counter)

    def error(self, mark: tuple[int, int], message: str, next: str) -> TopologyError:
        return TopologyError(f"{self.path}:{mark[0] + 1}:{mark[1] + 1}: {message}", next)


def whole_machine(machine: Machine) -> tuple[Node, ...]:
    """Return this machine as a single node, named by its short host name."""
    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[:63]
    return (
        Node(
            name=name or "localhost",
            gpus=len(machine.gpus),
            gpu_type=machine.gpu_type if machine.gpus else "",
            gpu_memory_bytes=machine.gpu_memory_bytes if machine.gpus else 0,
            cpu_milli=machine.cpu_milli,
            memory_bytes=machine.memory_bytes,
            device_ids=machine.gpus,
        ),
    )


def read_topology(path: Path, machine: Machine) -> Cluster:
    """Return the virtual nodes that a file describes. TopologyError says where it is wrong and what is legal.

    ```
    levels: [spine, rack]
    nodes:
      - {name: "n{}", count: 4, spine: s1, rack: r1, gpu: h100:8, cpu: 16, memory: 64Gi}
    ```

    `levels` are the topology levels, outermost first, by default `[rack]`. A node gives its domain under the name of
    each level; without it, it is in none. It may also have `labels: {zone: a}`, `taints: [spot]`, networks
    (`network: ib`), `suspicion: 2` and `performance: 0.9`.

    `gpus: 8` with `gpu_type: h100` is the same as `gpu: h100:8`; `gpu_memory: 80Gi` is the memory of each GPU, for jobs
    that request a share of one. `extended: {rdma/hca: 2}` are other resources. By default a node has no GPUs, all CPUs
    of the machine and an equal share of its memory. `{}` in a name becomes 1, 2, 3 ... over all entries with that name.
    Nodes get real GPUs, in order, if the machine has enough for all of them and no other type is named.
    """
    reading = _Reading(path, machine)
    entries = _entries(reading)
    nodes: list[Node] = []
    for index, entry in enumerate(entries):
        mark = entries.lc.item(index)
        if not _is_mapping(entry):
            raise reading.error(mark, f"a node must be a mapping, not {entry!r}", "write: {name: n1, gpus: 4}")
        for node in _nodes(reading, entry):
            if any(node.name == existing.name for existing in nodes):
                raise reading.error(mark, f"there are two nodes named {node.name}", 'rename one, or write name: "n{}"')
            nodes.append(node)
    if not 0 < len(nodes) <= MAX_NODES:
        raise reading.error((0, 0), f"{len(nodes)} nodes; there must be 1 to {MAX_NODES}", "write: nodes: [{name: n1}]")
    share_bytes = machine.memory_bytes // len(nodes)
    nodes = [replace(node, memory_bytes=node.memory_bytes or share_bytes) for node in nodes]
    return Cluster(_with_devices(nodes, machine), reading.levels)


def _entries(reading: _Reading) -> CommentedSeq:
    """Return the list under `nodes:`, and read the levels."""
    document = _load(reading)
    if not _is_mapping(document):
        raise reading.error((0, 0), "a topology must be a mapping with the key nodes", "write: nodes: [{name: n1}]")
    _refuse_unknown(reading, document, ("levels", "nodes"))
    if "levels" in document:
        reading.levels = _levels(reading, document)
    entries = document.get("nodes")
    if not _is_list(entries):
        mark = document.lc.value("nodes") if "nodes" in document else (0, 0)
        raise reading.error(mark, "nodes must be a list of nodes", "write: nodes: [{name: n1}]")
    return entries


def _levels(reading: _Reading, document: CommentedMap) -> tuple[str, ...]:
    """Return the names under `levels:`."""
    mark, levels, example = document.lc.value("levels"), document["levels"], "write: levels: [spine, rack]"
    if not _is_list(levels) or not 0 < len(levels) <= MAX_LEVELS:
        raise reading.error(mark, f"levels must be a list of 1 to {MAX_LEVELS} names", example)
    for index, level in enumerate(levels):
        level_mark: Any = levels.lc.item(index)
        if not isinstance(level, str) or not _LEVEL.fullmatch(level):
            raise reading.error(level_mark, f"{level!r} is not a valid level name", f"use a-z, 0-9 and '_': {example}")
        if level in _RESERVED:
            raise reading.error(level_mark, f"a level cannot be named {level}, which is another key", example)
        if level in levels[:index]:
            raise reading.error(level_mark, f"there are two levels named {level}", "keep one of them")
    return tuple(levels)


def _load(reading: _Reading) -> Any:
    """Return the file as YAML with the positions of its nodes."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    path = reading.path
    try:
        return YAML(typ="rt", pure=True).load(path.read_text())
    except OSError as error:
        raise TopologyError(f"cannot read {path}: {error.strerror}", "name a readable file with --topology") from None
    except UnicodeDecodeError:
        raise TopologyError(f"{path} is not UTF-8 text", "name a YAML file with --topology") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = (mark.line, mark.column) if mark else (0, 0)
        raise reading.error(position, f"not YAML: {error.problem or error.context}", "fix the line") from None
    except YAMLError as error:
        raise reading.error((0, 0), f"not YAML: {error}", "fix the file") from None


def _is_mapping(value: Any) -> TypeGuard[CommentedMap]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[CommentedSeq]:
    return isinstance(value, list)


def _nodes(reading: _Reading, entry: CommentedMap) -> list[Node]:
    """Return the nodes of one entry, without real GPUs and the default of memory, which depend on the other nodes."""
    _refuse_unknown(reading, entry, ("name", *reading.levels, *_NODE_KEYS))
    if "name" not in entry:
        raise reading.error((entry.lc.line, entry.lc.col), "the node has no name", "add name: n1")
    gpus, gpu_type = _gpus(reading, entry)
    node = Node(
        name=str(entry["name"]),
        domains=tuple(_text(reading, entry, level) for level in reading.levels),
        gpus=gpus,
        gpu_type=(gpu_type or GPU_SLOT) if gpus else "",
        gpu_memory_bytes=_amount(reading, entry, "gpu_memory", parse_bytes) if gpus else 0,
        cpu_milli=_amount(reading, entry, "cpu", parse_cpu_milli) or reading.machine.cpu_milli,
        memory_bytes=_amount(reading, entry, "memory", parse_bytes),
        extended=_extended(reading, entry),
        labels=_labels(reading, entry),
        taints=_strings(reading, entry, "taints", "spot"),
        networks=tuple(network.lower() for network in _strings(reading, entry, "network", "ib")),
        suspicion=_integer(reading, entry, "suspicion") if "suspicion" in entry else 0,
        performance_milli=_performance(reading, entry),
    )
    return [replace(node, name=name) for name in _names(reading, entry)]


def _names(reading: _Reading, entry: CommentedMap) -> list[str]:
    pattern, mark = str(entry["name"]), entry.lc.value("name")
    count = _integer(reading, entry, "count", minimum=1) if "count" in entry else 1
    if count > 1 and _NUMBER not in pattern:
        raise reading.error(mark, f"{count} nodes cannot all be named {pattern}", f'write name: "{pattern}{_NUMBER}"')
    if count > MAX_NODES:
        raise reading.error(entry.lc.value("count"), f"{count} nodes are more than {MAX_NODES}", "ask for fewer")
    first = reading.numbers[pattern] + 1
    reading.numbers[pattern] += count
    names = [pattern.replace(_NUMBER, str(number)) for number in range(first, first + count)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise reading.error(
                mark,
                f"{name!r} is not a valid node name",
                "use up to 63 of a-z, 0-9, '-' and '.', like n1 or gpu-node-7",
            )
    return names


def _gpus(reading: _Reading, entry: CommentedMap) -> tuple[int, str]:
    """Return the count and the lower-case type of GPUs, from either form."""
    if "gpu" not in entry:
        count = _integer(reading, entry, "gpus") if "gpus" in entry else 0
        return count, _text(reading, entry, "gpu_type").lower()
    mark = entry.lc.value("gpu")
    if "gpus" in entry or "gpu_type" in entry:
        raise reading.error(mark, "gpu and gpus or gpu_type are two forms of the same", "keep one of the two forms")
    name, _, count_text = str(entry["gpu"]).rpartition(":")
    if not count_text.isdecimal():
        raise reading.error(mark, f"{entry['gpu']!r} is not a number of GPUs", "write gpu: 4, or gpu: h100:4")
    return int(count_text), name.lower()


def _text(reading: _Reading, entry: CommentedMap, key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise reading.error(entry.lc.value(key), f"{key} must be a name, not {value!r}", f"write {key}: r1")
    return str(value)


def _labels(reading: _Reading, entry: CommentedMap) -> dict[str, str]:
    labels = entry.get("labels", {})
    is_legal = isinstance(labels, dict) and all(_is_string(key) and _is_string(value) for key, value in labels.items())
    if not is_legal:
        raise reading.error(entry.lc.value("labels"), "labels must be a mapping of strings", "write labels: {zone: a}")
    return {str(key): str(value) for key, value in labels.items()}


def _extended(reading: _Reading, entry: CommentedMap) -> dict[str, int]:
    value, example = entry.get("extended", {}), "write extended: {rdma/hca: 2}"
    if not isinstance(value, dict):
        mark = entry.lc.value("extended")
        raise reading.error(mark, f"extended must be a mapping of names to integers, not {value!r}", example)
    for name in value:
        if not _RESOURCE.fullmatch(str(name)):
            raise reading.error(value.lc.key(name), f"{name!r} is not DOMAIN/NAME", example)  # type: ignore[attr-defined]
    return {str(name): _integer(reading, value, name) for name in value}  # type: ignore[arg-type]


def _strings(reading: _Reading, entry: CommentedMap, key: str, example: str) -> tuple[str, ...]:
    """Return one string, or a list of them, as a tuple."""
    value = entry.get(key, [])
    strings = value if isinstance(value, list) else [value]
    if not all(_is_string(string) for string in strings):
        raise reading.error(entry.lc.value(key), f"{key} must be a list of strings", f"write {key}: [{example}]")
    return tuple(map(str, strings))


def _is_string(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value))


def _performance(reading: _Reading, entry: CommentedMap) -> int:
    """Return the performance in thousandths of the nominal one."""
    value = entry.get("performance", 1)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_PERFORMANCE:
        message = (
            f"performance must be a fraction of the usual one, above 0 and at most {MAX_PERFORMANCE}, not {value!r}"
        )
        raise reading.error(entry.lc.value("performance"), message, "write performance: 0.95")
    return round(1000 * value)


def _integer(reading: _Reading, entry: CommentedMap, key: str, minimum: int = 0) -> int:
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_UNITS:
        message = f"{key} must be an integer, {minimum} or more, not {value!r}"
        message += f": at most {MAX_UNITS}" if isinstance(value, int) and value > MAX_UNITS else ""
        raise reading.error(entry.lc.value(key), message, f"write {key}: 4")
    return int(value)


def _amount(reading: _Reading, entry: CommentedMap, key: str, parse: Callable[[str], int]) -> int:
    """Return an amount with a unit, as `model.units` parses it; 0 if it is not given."""
    if key not in entry:
        return 0
    try:
        amount = parse(str(entry[key]))
    except ValueError as error:
        raise reading.error(entry.lc.value(key), f"{key}: {error}", "fix the value") from None
    if amount <= 0:
        raise reading.error(entry.lc.value(key), f"{key} must be positive", f"leave {key} out, or give more")
    return amount


def _refuse_unknown(reading: _Reading, mapping: CommentedMap, legal: tuple[str, ...]) -> None:
    for key in mapping:
        if key not in legal:
            near = difflib.get_close_matches(str(key), legal, n=1)
            next_step = f"did you mean {near[0]}? " if near else ""
            mark: Any = mapping.lc.key(key)
            raise reading.error(mark, f"unknown key {key}", f"{next_step}valid keys: {', '.join(legal)}")


def _with_devices(nodes: list[Node], machine: Machine) -> tuple[Node, ...]:
    """Assign real GPUs to the nodes, if the machine has enough of the right type."""
    other_types = [node for node in nodes if node.gpus and node.gpu_type not in (GPU_SLOT, machine.gpu_type)]
    if other_types or not 0 < sum(node.gpus for node in nodes) <= len(machine.gpus):
        return tuple(nodes)
    devices = iter(machine.gpus)
    real = []
    for node in nodes:
        ids = tuple(next(devices) for _ in range(node.gpus))
        # The file gives the memory of a slot; of a real GPU the driver knows the size.
        gpu_memory_bytes = (
            min(node.gpu_memory_bytes or machine.gpu_memory_bytes, machine.gpu_memory_bytes) if ids else 0
        )
        real.append(
            replace(node, device_ids=ids, gpu_type=machine.gpu_type if ids else "", gpu_memory_bytes=gpu_memory_bytes)
        )
    return tuple(real)
