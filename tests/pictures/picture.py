"""Scenarios as pictures: what a row of text means. One character is one GPU.

A cluster is nodes, `rack/name:GPUS,words`, or `spine/rack/name`, or `spine/rack/nvlink/name`: `.` a free GPU, a capital
the gang that holds it, `(AB)` a GPU that A and B share, `@` one that others use, a small letter a gang that holds a CPU
and no GPU, `-` no GPU;
words are a GPU type, `cpu=4`, `mem=8`, `gmem=80` (of each GPU), label=zone:a, taint=spot, net=ib+tcp, doubt
(suspicion), speed (performance). `A,time=1h` says more of a gang in it.
A queue is `name=GPUS,words`: borrow, lend, cpu, weight, in (its parent), user_gpus, user_jobs, user_time, user_nodes
(node-hours); of one type of GPU: `h100=4`, `h100.borrow=0`, `h100.lend=1`.
A job is `C:2x4h100,words`: nodes x GPUs and type; q, user, prio, cpu, mem, time, wait (in the queue), save, max, pause,
rules: `ecc:fail+node_lost:retry`, what is found in the log, or the cause, and what to do; after: `A+B:failed`, the jobs
that come first; in: a level, `must` if it is required; how: the strategy; slice: `rack:4+nvlink:2`, of so many nodes;
exclusive, whole; milli and gmem: of one GPU, instead of whole ones; roles: `500+600`, one process more of each, on that
much of a GPU; at: names of nodes; dev: `0+1`, GPUs; on: `zone:a`, labels; bears: taints; net: networks; else: other
types of GPU than the first; array: `3%1`, elements 0 to 2, one at a time; need: labels that are required,
`zone_in_(a&b)|cores>8`, with _ for a blank, & for a comma and | between terms; like: what is preferred,
`disk=ssd*10|!old`, with weights.
An element is drawn as its array, and named `C[1]`.
"""

import re
from dataclasses import replace
from typing import Any

from ganger.core.state.state import State
from ganger.model.affinity import Affinity, Preference, Term
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.decision import Cause
from ganger.model.event import NodesListed
from ganger.model.job import (
    PRIORITIES,
    After,
    Array,
    Checkpoint,
    GpuRequest,
    Job,
    JobSpec,
    Limits,
    Origin,
    Resources,
    Retry,
    Role,
    Rule,
)
from ganger.model.placement_spec import Placement, Slice
from ganger.model.queue import ROOT, Amount, Queue, UserLimits
from ganger.model.units import GIB_BYTES, HOUR_MS, parse_duration_ms
from ganger.spec.placement_fields import read_term

MARKS = {NodeState.READY: "", NodeState.CORDONED: "#", NodeState.LOST: "x", NodeState.LOST_CORDONED: "x#"}

LEVELS = {2: ("spine", "rack"), 3: ("spine", "rack", "nvlink")}

Words = dict[str, str]


def words(token: str) -> tuple[str, Words]:
    """`name:size,key=value,word` -> (`name:size`, {"key": "value", "word": ""})."""
    head, *rest = token.split(",")
    return head, {key: value for key, _, value in (word.partition("=") for word in rest)}


def node(token: str) -> tuple[Node, str]:
    """A node, and who holds it: its row as drawn."""
    head, said = words(token)
    where, _, row = head.partition(":")
    *domains, name = where.split("/")
    types = [word for word, value in said.items() if not value]
    made = Node(name=name, domains=tuple(domains), gpus=sum(not mark.islower() and mark != "-" for mark in row))
    made = replace(made, foreign=tuple(at for at, mark in enumerate(row) if mark == "@"))
    cpu_milli, memory_bytes = 1000 * int(said.get("cpu", "64")), GIB_BYTES * int(said.get("mem", "64"))
    made = replace(made, cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_type="".join(types))
    return replace(made, gpu_memory_bytes=_number(said, "gmem", GIB_BYTES) or 0, **_traits(said)), row


def _traits(said: Words) -> dict[str, Any]:
    return {
        "labels": _pairs(said.get("label", "")),
        "taints": tuple(filter(None, said.get("taint", "").replace(":", "=").split("+"))),
        "networks": tuple(filter(None, said.get("net", "").split("+"))),
        "suspicion": int(said.get("doubt", "0")),
        "performance_milli": int(said.get("speed", "1000")),
    }


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split("+") if pair)


def listing(nodes: list[Node]) -> NodesListed:
    """The nodes, and as many levels as they are drawn in."""
    deepest = max(len(node.domains) for node in nodes)
    return NodesListed(nodes=tuple(nodes), levels=LEVELS.get(deepest, RACK))


def queue(token: str) -> Queue:
    """A queue; `name=` has no GPUs of its own."""
    head, said = words(token)
    name, _, gpus = head.partition("=")
    hours = _number(said, "user_nodes")
    return Queue(
        name=name,
        parent=None if name == ROOT else said.get("in", ROOT),
        weight=int(said.get("weight", "1")),
        nominal=Amount(
            gpus=int(gpus) if gpus else None, cpu_milli=_number(said, "cpu", 1000), gpu_types=_of_types(said, "")
        ),
        borrowing=Amount(gpus=_number(said, "borrow"), gpu_types=_of_types(said, ".borrow")),
        lending=Amount(gpus=_number(said, "lend"), gpu_types=_of_types(said, ".lend")),
        user_limits=UserLimits(
            gpus=_number(said, "user_gpus"),
            jobs=_number(said, "user_jobs"),
            time_ms=_ms(said, "user_time"),
            node_ms=None if hours is None else hours * HOUR_MS,
        ),
    )


def job(token: str) -> Job:
    """A job, its name being its id."""
    head, said = words(token)
    parts = re.fullmatch(r"(\w+):(\d+)x(\d+)(\w*)", head)
    assert parts, f"{token} is not a job: write C:2x4,words"
    name, nodes, gpus, kind = parts.groups()
    priority = said.get("prio", "0")
    spec = JobSpec(
        run="train",
        queue=said.get("q", "default"),
        priority=PRIORITIES[priority] if priority in PRIORITIES else int(priority),
        nodes=int(nodes),
        resources=Resources(
            gpu=GpuRequest(
                count=int(gpus),
                type=kind or None,
                other_types=_several(said, "else"),
                milli=_number(said, "milli"),
                memory_bytes=_number(said, "gmem", GIB_BYTES),
            ),
            cpu_milli=_number(said, "cpu", 1000),
            memory_bytes=_number(said, "mem", GIB_BYTES) or 0,
        ),
        placement=_placement(said),
        roles={f"role{at}": _role(milli) for at, milli in enumerate(_several(said, "roles"))},
        checkpoint=Checkpoint() if "save" in said else None,
        retry=Retry(max=_number(said, "max"), backoff_first_ms=_ms(said, "pause") or 1000, rules=_rules(said)),
        limits=Limits(time_ms=_ms(said, "time"), time_min_ms=_ms(said, "least"), queue_time_ms=_ms(said, "wait")),
        array=_array(said["array"]) if "array" in said else None,
    )
    awaits = tuple(_after(text) for text in said.get("after", "").split("+") if text)
    return Job(id=name, user=said.get("user", "ann"), spec=spec, origin=Origin(directory="/"), awaits=awaits)


def _role(milli: str) -> Role:
    """One more of the gang, on a share of a GPU."""
    return Role(count=1, resources=Resources(gpu=GpuRequest(milli=int(milli))))


def _of_types(said: Words, which: str) -> dict[str, int]:
    return {kind: int(said[kind + which]) for kind in ("h100", "a100") if kind + which in said}


def _placement(said: Words) -> Placement:
    return Placement(
        topology=said.get("in"),
        mode="required" if "must" in said else "preferred",
        strategy=said.get("how", "pack"),
        slices=tuple(Slice(level=level, nodes=int(size)) for level, size in _pairs(said.get("slice", "")).items()),
        sharing=next((word for word in ("exclusive", "whole") if word in said), "shared"),
        nodes=_several(said, "at"),
        devices=tuple(map(int, _several(said, "dev"))),
        node_selector=_pairs(said.get("on", "")),
        affinity=Affinity(
            required=tuple(map(_term, filter(None, said.get("need", "").split("|")))),
            preferred=tuple(map(_preference, filter(None, said.get("like", "").split("|")))),
        ),
        tolerations=tuple(text.replace(":", "=") for text in _several(said, "bears")),
        network=_several(said, "net"),
    )


def _term(text: str) -> Term:
    return read_term(text.replace("_", " ").replace("&", ","))


def _preference(text: str) -> Preference:
    term, _, weight = text.partition("*")
    return Preference(match=_term(term), weight=int(weight or "1"))


def _several(said: Words, key: str) -> tuple[str, ...]:
    return tuple(filter(None, said.get(key, "").split("+")))


def _array(text: str) -> Array:
    count, _, limit = text.partition("%")
    return Array(indices=tuple(range(int(count))), limit=int(limit) if limit else None)


def _after(text: str) -> After:
    name, _, when = text.partition(":")
    return After(job=name, when=when or "succeeded")


def _rules(said: Words) -> tuple[Rule, ...]:
    pairs = [token.split(":") for token in said.get("rules", "").split("+") if token]
    return tuple(Rule(cause=on, do=do) if on in [*Cause] else Rule(log=on, do=do) for on, do in pairs)


def drawn(state: State) -> str:
    """The nodes as they are held, in topology order, by what was decided and not given back."""
    return " ".join(_row(state, at) for at in range(len(state.nodes.nodes)))


def _row(state: State, at: int) -> str:
    here, small = state.nodes.nodes[at], ""
    row = ["@" if device in here.foreign else "." for device in range(here.gpus)]
    for gang in state.gangs.values():
        for share in gang.start.shares if gang.start else ():
            if share.node == here.name and share.node in gang.left:
                part = gang.shape.parts[share.part]
                for device in share.devices:
                    assert row[device] == "." or part.has_share, f"device {device} of {here.name} is held twice"
                    row[device] = f"{row[device][:-1]}{gang.id[0]})" if row[device] != "." else gang.id[0]
                    row[device] = f"({row[device]})" if part.has_share and row[device][-1] != ")" else row[device]
                small += "" if share.devices else gang.id[0].lower()
    return ("".join(row) + small or "-") + MARKS[state.nodes.states[at]]


def _number(said: Words, key: str, scale: int = 1) -> int | None:
    return scale * int(said[key]) if key in said else None


def _ms(said: Words, key: str) -> int | None:
    return parse_duration_ms(said[key]) if key in said else None
