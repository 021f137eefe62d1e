"""The nodes an embedded server shows: this machine as one node, or the virtual ones of a topology file.

Called by `wiring` when a server starts. Virtual nodes let one machine stand for several: they may together have more
CPUs than the machine, since nothing is pinned, and more GPUs, which are then only slots.
The YAML library is loaded with the first file only: most servers have none, and it is slow to load.
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
"""The type of GPUs that are not there and that the file gives no type."""
MAX_NODES: Final = 10_000

MAX_LEVELS: Final = 8
MAX_PERFORMANCE: Final = 100

_AMOUNT_KEYS: Final = ("gpu", "gpus", "gpu_type", "gpu_memory", "cpu", "memory", "count")
_TRAIT_KEYS: Final = ("labels", "taints", "network", "suspicion", "performance")
_NODE_KEYS: Final = (*_AMOUNT_KEYS, *_TRAIT_KEYS)
_NO_LEVELS: Final = ("name", *_NODE_KEYS, "node", "cluster")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LEVEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NUMBER: Final = "{}"


class TopologyError(Exception):
    """A topology file that cannot be used. `detail` begins with file:line:column; `next` is what to do about it."""

    def __init__(self, detail: str, next: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next


@dataclass(slots=True)
class _Reading:
    """Where we are in a file: what every error needs, its levels, and the numbers given to names with `{}` so far."""

    path: Path
    machine: Machine
    levels: tuple[str, ...] = RACK
    numbers: Counter[str] = field(default_factory=Counter)

    def error(self, mark: tuple[int, int], what: str, next: str) -> TopologyError:
        return TopologyError(f"{self.path}:{mark[0] + 1}:{mark[1] + 1}: {what}", next)


def whole_machine(machine: Machine) -> tuple[Node, ...]:
    """This machine as a single node, called by its short host name."""
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
    """The virtual nodes that a file describes. TopologyError says where it is wrong and what is legal.

    ```
    levels: [spine, rack]
    nodes:
      - {name: "n{}", count: 4, spine: s1, rack: r1, gpu: h100:8, cpu: 16, memory: 64Gi}
    ```
    `levels` are those of the network, outermost first; unset, there is one, `rack`. A node says under the name of each
    in which domain it is; where it says nothing, it is in none. It may also have `labels: {zone: a}`, `taints: [spot]`,
    a `network: ib` or several, `suspicion: 2` and `performance: 0.9`.
    `gpus: 8` with `gpu_type: h100` says the same as `gpu: h100:8`; `gpu_memory: 80Gi` is what each GPU has, for jobs
    that ask for a part of it. Unset, a node has no GPUs, every CPU of the machine
    and an equal part of its memory. `{}` in a name becomes 1, 2, 3 ... over all entries with that name.
    Nodes get real GPUs, in order, when the machine has as many as all of them ask for and no other type is named.
    """
    reading = _Reading(path, machine)
    entries = _entries(reading)
    nodes: list[Node] = []
    for index, entry in enumerate(entries):
        mark = entries.lc.item(index)
        if not _is_mapping(entry):
            raise reading.error(mark, f"a node is a mapping, not {entry!r}", "write: {name: n1, gpus: 4}")
        for node in _nodes(reading, entry):
            if any(node.name == other.name for other in nodes):
                raise reading.error(mark, f"there are two nodes named {node.name}", 'rename one, or write name: "n{}"')
            nodes.append(node)
    if not 0 < len(nodes) <= MAX_NODES:
        raise reading.error((0, 0), f"{len(nodes)} nodes; there must be 1 to {MAX_NODES}", "write: nodes: [{name: n1}]")
    share_bytes = machine.memory_bytes // len(nodes)
    nodes = [replace(node, memory_bytes=node.memory_bytes or share_bytes) for node in nodes]
    return Cluster(_with_devices(nodes, machine), reading.levels)


def _entries(reading: _Reading) -> CommentedSeq:
    """The list under `nodes:`; the levels are noted."""
    found = _load(reading)
    if not _is_mapping(found):
        raise reading.error((0, 0), "a topology is a mapping with the key nodes", "write: nodes: [{name: n1}]")
    _refuse_unknown(reading, found, ("levels", "nodes"))
    if "levels" in found:
        reading.levels = _levels(reading, found)
    entries = found.get("nodes")
    if not _is_list(entries):
        mark = found.lc.value("nodes") if "nodes" in found else (0, 0)
        raise reading.error(mark, "nodes must be a list of nodes", "write: nodes: [{name: n1}]")
    return entries


def _levels(reading: _Reading, found: CommentedMap) -> tuple[str, ...]:
    """The names under `levels:`."""
    mark, levels, example = found.lc.value("levels"), found["levels"], "write: levels: [spine, rack]"
    if not _is_list(levels) or not 0 < len(levels) <= MAX_LEVELS:
        raise reading.error(mark, f"levels must be a list of 1 to {MAX_LEVELS} names", example)
    for index, level in enumerate(levels):
        here: Any = levels.lc.item(index)
        if not isinstance(level, str) or not _LEVEL.fullmatch(level):
            raise reading.error(here, f"{level!r} is no name of a level", f"use a-z, 0-9 and '_': {example}")
        if level in _NO_LEVELS:
            raise reading.error(here, f"a level cannot be called {level}: that means something else here", example)
        if level in levels[:index]:
            raise reading.error(here, f"there are two levels named {level}", "keep one of them")
    return tuple(levels)


def _load(reading: _Reading) -> Any:
    """The file as YAML, with the place of everything in it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    path = reading.path
    try:
        return YAML(typ="rt", pure=True).load(path.read_text())
    except OSError as error:
        raise TopologyError(f"cannot read {path}: {error.strerror}", "name a readable file with --topology") from None
    except UnicodeDecodeError:
        raise TopologyError(f"{path} is not text in UTF-8", "name a YAML file with --topology") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = (mark.line, mark.column) if mark else (0, 0)
        raise reading.error(position, f"not YAML: {error.problem or error.context}", "correct the line") from None
    except YAMLError as error:
        raise reading.error((0, 0), f"not YAML: {error}", "correct the file") from None


def _is_mapping(found: Any) -> TypeGuard[CommentedMap]:
    return isinstance(found, dict)


def _is_list(found: Any) -> TypeGuard[CommentedSeq]:
    return isinstance(found, list)


def _nodes(reading: _Reading, entry: CommentedMap) -> list[Node]:
    """The nodes of one entry, without what they share with the others: memory when unset, real GPUs."""
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
        labels=_labels(reading, entry),
        taints=_words(reading, entry, "taints", "spot"),
        networks=tuple(word.lower() for word in _words(reading, entry, "network", "ib")),
        suspicion=_whole(reading, entry, "suspicion") if "suspicion" in entry else 0,
        performance_milli=_performance(reading, entry),
    )
    return [replace(node, name=name) for name in _names(reading, entry)]


def _names(reading: _Reading, entry: CommentedMap) -> list[str]:
    pattern, mark = str(entry["name"]), entry.lc.value("name")
    count = _whole(reading, entry, "count", least=1) if "count" in entry else 1
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
                mark, f"{name!r} is no name of a node", "use up to 63 of a-z, 0-9, '-' and '.', like n1 or gpu-node-7"
            )
    return names


def _gpus(reading: _Reading, entry: CommentedMap) -> tuple[int, str]:
    """The count and the lower-case type of GPUs, in either form."""
    if "gpu" not in entry:
        count = _whole(reading, entry, "gpus") if "gpus" in entry else 0
        return count, _text(reading, entry, "gpu_type").lower()
    mark = entry.lc.value("gpu")
    if "gpus" in entry or "gpu_type" in entry:
        raise reading.error(mark, "gpu says the same as gpus and gpu_type", "keep one of the two forms")
    name, _, count_text = str(entry["gpu"]).rpartition(":")
    if not count_text.isdecimal():
        raise reading.error(mark, f"{entry['gpu']!r} is no number of GPUs", "write gpu: 4, or gpu: h100:4")
    return int(count_text), name.lower()


def _text(reading: _Reading, entry: CommentedMap, key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise reading.error(entry.lc.value(key), f"{key} must be a name, not {value!r}", f"write {key}: r1")
    return str(value)


def _labels(reading: _Reading, entry: CommentedMap) -> dict[str, str]:
    labels = entry.get("labels", {})
    legal = isinstance(labels, dict) and all(_is_word(key) and _is_word(value) for key, value in labels.items())
    if not legal:
        raise reading.error(entry.lc.value("labels"), "labels is a mapping of words", "write labels: {zone: a}")
    return {str(key): str(value) for key, value in labels.items()}


def _words(reading: _Reading, entry: CommentedMap, key: str, example: str) -> tuple[str, ...]:
    """One word, or a list of them."""
    said = entry.get(key, [])
    words = said if isinstance(said, list) else [said]
    if not all(_is_word(word) for word in words):
        raise reading.error(entry.lc.value(key), f"{key} is a list of words", f"write {key}: [{example}]")
    return tuple(map(str, words))


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value))


def _performance(reading: _Reading, entry: CommentedMap) -> int:
    """Thousandths of what such a node should do."""
    said = entry.get("performance", 1)
    if not isinstance(said, int | float) or isinstance(said, bool) or not 0 < said <= MAX_PERFORMANCE:
        what = f"performance must be a part of what is usual, over 0 and up to {MAX_PERFORMANCE}, not {said!r}"
        raise reading.error(entry.lc.value("performance"), what, "write performance: 0.95")
    return round(1000 * said)


def _whole(reading: _Reading, entry: CommentedMap, key: str, least: int = 0) -> int:
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        what = f"{key} must be a whole number, {least} or more, not {value!r}"
        raise reading.error(entry.lc.value(key), what, f"write {key}: 4")
    return int(value)


def _amount(reading: _Reading, entry: CommentedMap, key: str, parse: Callable[[str], int]) -> int:
    """An amount with a unit, as `model.units` reads it; 0 when unset."""
    if key not in entry:
        return 0
    try:
        amount = parse(str(entry[key]))
    except ValueError as error:
        raise reading.error(entry.lc.value(key), f"{key}: {error}", "correct the value") from None
    if amount <= 0:
        raise reading.error(entry.lc.value(key), f"{key} must be more than nothing", f"leave {key} out, or give more")
    return amount


def _refuse_unknown(reading: _Reading, mapping: CommentedMap, legal: tuple[str, ...]) -> None:
    for key in mapping:
        if key not in legal:
            near = difflib.get_close_matches(str(key), legal, n=1)
            next_step = f"did you mean {near[0]}? " if near else ""
            mark: Any = mapping.lc.key(key)
            raise reading.error(mark, f"unknown key {key}", f"{next_step}legal: {', '.join(legal)}")


def _with_devices(nodes: list[Node], machine: Machine) -> tuple[Node, ...]:
    """The nodes with real GPUs behind their slots, if there are enough of the right type."""
    others = [node for node in nodes if node.gpus and node.gpu_type not in (GPU_SLOT, machine.gpu_type)]
    if others or not 0 < sum(node.gpus for node in nodes) <= len(machine.gpus):
        return tuple(nodes)
    devices = iter(machine.gpus)
    real = []
    for node in nodes:
        ids = tuple(next(devices) for _ in range(node.gpus))
        # What the file says of its memory is the slot's; of a real GPU the driver knows more.
        has = min(node.gpu_memory_bytes or machine.gpu_memory_bytes, machine.gpu_memory_bytes) if ids else 0
        real.append(replace(node, device_ids=ids, gpu_type=machine.gpu_type if ids else "", gpu_memory_bytes=has))
    return tuple(real)
