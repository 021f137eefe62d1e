"""Scenarios as pictures: the notation. One character is one GPU.

A cluster consists of nodes, `rack/name:GPUS,options` or `spine/rack/name` or `spine/rack/nvlink/name`: `.` is a free
GPU, a capital letter the gang that holds it, or is on it as a spare of another one, `(AB)` a GPU that A and B share,
`@` a foreign GPU, a small letter a gang that holds a CPU and no GPU, `-` no GPU. Options are a GPU type, `cpu=4`,
`mem=8`, `gmem=80` (of each GPU), `links=4` (NVLinks within islands of 4 GPUs), `hca=2` (of rdma/hca), label=zone:a,
taint=spot, net=ib+tcp, doubt (suspicion), speed (performance), img=a+b (images). `A,time=1h` gives options of a gang in
it.

A queue is `name=GPUS,options`: borrow, lend, cpu, weight, in (its parent), user_gpus, user_jobs, user_time, user_nodes
(node-hours), user_used (`128/30d`: node-hours in a period), user_prio (highest priority); for one type of GPU:
`h100=4`, `h100.borrow=0`, `h100.lend=1`.

A job is `C:2x4h100,options`: nodes x GPUs and type; q, user, prio, cpu, mem, hca, time, wait (queue time), save, max,
pause; stays: not preemptible; rules: `ecc:fail+node_lost:retry`, log text or cause, and the action; after:
`A+B:failed`, the dependencies; in: a level, `must` if it is required; how: the strategy; slice: `rack:4+nvlink:2`,
with numbers of nodes; exclusive, whole; milli and gmem: of one GPU, instead of whole ones; roles: `500+600`, one more
process for each, on that much of a GPU; worker: its workers are processes of a role, on as many GPUs each; at: names
of nodes; dev: `0+1`, GPUs; on: `zone:a`, labels; bears: taints; net: networks; else: alternative GPU types; to: the
most nodes of an elastic gang, whose least are those written, or `from`; unit, unit_in: its step, and the level of that;
moves: it may be moved; spares; array: `3%1`, elements 0 to 2, one at a time; groups: `2..4`, replica groups; need:
required labels, `zone_in_(a&b)|cores>8`, with _ for a blank, & for a comma and | between terms; like: preferences,
`disk=ssd*10|!old`, with weights; img: its image. An element is drawn as its array, and named `C[1]`.
"""

import re
from dataclasses import replace
from typing import Any

from ganger.core.state.state import State
from ganger.model.affinity import Affinity, Preference, Term
from ganger.model.cluster import RACK, Node, NodeState
from ganger.model.decision import Cause
from ganger.model.event import NodesListed
from ganger.model.job import PRIORITIES, After, Array, GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Elastic, Placement, Slice
from ganger.model.job_sections.retry_spec import Limits, Retry, Rule
from ganger.model.queue import ROOT, Amount, NodeTimeUsed, Queue, UserLimits
from ganger.model.units import GIB_BYTES, HOUR_MS, parse_duration_ms
from ganger.spec.placement_fields import read_term

MARKS = {NodeState.READY: "", NodeState.CORDONED: "#", NodeState.LOST: "x", NodeState.LOST_CORDONED: "x#"}

LEVELS = {2: ("spine", "rack"), 3: ("spine", "rack", "nvlink")}

Words = dict[str, str]


def words(token: str) -> tuple[str, Words]:
    """Parse `name:size,key=value,word` to (`name:size`, {"key": "value", "word": ""})."""
    head, *rest = token.split(",")
    return head, {key: value for key, _, value in (word.partition("=") for word in rest)}


def node(token: str) -> tuple[Node, str]:
    """Parse a node; return it with its row as drawn."""
    head, options = words(token)
    path, _, row = head.partition(":")
    *domains, name = path.split("/")
    types = [word for word, value in options.items() if not value]
    parsed = Node(name=name, domains=tuple(domains), gpus=sum(not mark.islower() and mark != "-" for mark in row))
    parsed = replace(parsed, foreign=tuple(index for index, mark in enumerate(row) if mark == "@"))
    cpu_milli, memory_bytes = 1000 * int(options.get("cpu", "64")), GIB_BYTES * int(options.get("mem", "64"))
    parsed = replace(parsed, cpu_milli=cpu_milli, memory_bytes=memory_bytes, gpu_type="".join(types))
    parsed = replace(parsed, gpu_links=_links(parsed.gpus, int(options.get("links", "0"))))
    return replace(parsed, gpu_memory_bytes=_number(options, "gmem", GIB_BYTES) or 0, **_attributes(options)), row


def _links(gpus: int, island: int) -> tuple[tuple[int, ...], ...]:
    """Return links of NVLink within islands of so many GPUs, and of PCIe between these."""
    row = range(gpus if island else 0)
    return tuple(tuple(0 if a == b else 200 if a // island == b // island else 10 for b in row) for a in row)


def _attributes(options: Words) -> dict[str, Any]:
    return {
        "extended": _extended(options),
        "labels": _pairs(options.get("label", "")),
        "taints": tuple(filter(None, options.get("taint", "").replace(":", "=").split("+"))),
        "networks": tuple(filter(None, options.get("net", "").split("+"))),
        "suspicion": int(options.get("doubt", "0")),
        "performance_milli": int(options.get("speed", "1000")),
        "images": tuple(filter(None, options.get("img", "").split("+"))),
    }


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split("+") if pair)


def listing(nodes: list[Node]) -> NodesListed:
    """Return the event that lists the nodes, with as many levels as they are drawn in."""
    deepest = max(len(node.domains) for node in nodes)
    return NodesListed(nodes=tuple(nodes), levels=LEVELS.get(deepest, RACK))


def queue(token: str) -> Queue:
    """Parse a queue; `name=` has no GPUs of its own."""
    head, options = words(token)
    name, _, gpus = head.partition("=")
    hours = _number(options, "user_nodes")
    return Queue(
        name=name,
        parent=None if name == ROOT else options.get("in", ROOT),
        weight=int(options.get("weight", "1")),
        nominal=Amount(
            gpus=int(gpus) if gpus else None,
            cpu_milli=_number(options, "cpu", 1000),
            gpu_types=_of_types(options, ""),
            extended=_extended(options),
        ),
        borrowing=Amount(
            gpus=_number(options, "borrow"),
            gpu_types=_of_types(options, ".borrow"),
            extended=_extended(options, ".borrow"),
        ),
        lending=Amount(
            gpus=_number(options, "lend"), gpu_types=_of_types(options, ".lend"), extended=_extended(options, ".lend")
        ),
        user_limits=UserLimits(
            gpus=_number(options, "user_gpus"),
            jobs=_number(options, "user_jobs"),
            priority=_number(options, "user_prio"),
            time_ms=_ms(options, "user_time"),
            node_ms=None if hours is None else hours * HOUR_MS,
            node_time_used=_used(options.get("user_used", "")),
        ),
    )


def _used(text: str) -> NodeTimeUsed | None:
    """Parse `128/30d`: node-hours in a period."""
    hours, _, per = text.partition("/")
    return NodeTimeUsed(limit_ms=int(hours) * HOUR_MS, per_ms=parse_duration_ms(per)) if text else None


def job(token: str) -> Job:
    """Parse a job, whose name is its id."""
    head, options = words(token)
    parts = re.fullmatch(r"(\w+):(\d+)x(\d+)(\w*)", head)
    assert parts, f"{token} is not a job: write C:2x4,words"
    name, nodes, gpus, gpu_type = parts.groups()
    priority = options.get("prio", "0")
    size = {"count": _number(options, "from") or int(nodes), "max_count": _number(options, "to")}
    is_role = "worker" in options
    of_role = Resources(gpu=GpuRequest(count=int(gpus)), extended=_extended(options))
    worker = {"worker": Role(**size, resources=of_role)} if is_role else {}
    spec = JobSpec(
        run="train",
        image=options.get("img"),
        queue=options.get("q", "default"),
        priority=PRIORITIES[priority] if priority in PRIORITIES else int(priority),
        nodes=1 if is_role else size["count"],
        max_nodes=None if is_role else size["max_count"],
        elastic=Elastic(step=int(options.get("unit", "1")), level=options.get("unit_in")) if "to" in options else None,
        resources=Resources(
            gpu=GpuRequest(
                count=int(gpus),
                type=gpu_type or None,
                other_types=_values(options, "else"),
                milli=_number(options, "milli"),
                memory_bytes=_number(options, "gmem", GIB_BYTES),
            ),
            cpu_milli=_number(options, "cpu", 1000),
            memory_bytes=_number(options, "mem", GIB_BYTES) or 0,
            extended=_extended(options),
        ),
        placement=_placement(options),
        roles=worker | {f"role{number}": _role(milli) for number, milli in enumerate(_values(options, "roles"))},
        checkpoint=Checkpoint() if "save" in options else None,
        movable="moves" in options,
        spares=_number(options, "spares"),
        retry=Retry(max=_number(options, "max"), backoff_first_ms=_ms(options, "pause") or 1000, rules=_rules(options)),
        preemptible="stays" not in options,
        limits=Limits(
            time_ms=_ms(options, "time"), time_min_ms=_ms(options, "least"), queue_time_ms=_ms(options, "wait")
        ),
        **_arrayed(options),
    )
    awaits = tuple(_after(text) for text in options.get("after", "").split("+") if text)
    return Job(id=name, user=options.get("user", "ann"), spec=spec, origin=Origin(directory="/"), awaits=awaits)


def _extended(options: Words, suffix: str = "") -> dict[str, int]:
    return {"rdma/hca": int(options["hca" + suffix])} if "hca" + suffix in options else {}


def _role(milli: str) -> Role:
    """Return a role of one process on a share of a GPU."""
    return Role(count=1, resources=Resources(gpu=GpuRequest(milli=int(milli))))


def _of_types(options: Words, suffix: str) -> dict[str, int]:
    return {gpu_type: int(options[gpu_type + suffix]) for gpu_type in ("h100", "a100") if gpu_type + suffix in options}


def _placement(options: Words) -> Placement:
    return Placement(
        topology=options.get("in"),
        mode="required" if "must" in options else "preferred",
        strategy=options.get("how", "pack"),
        slices=tuple(Slice(level=level, nodes=int(size)) for level, size in _pairs(options.get("slice", "")).items()),
        sharing=next((word for word in ("exclusive", "whole") if word in options), "shared"),
        nodes=_values(options, "at"),
        devices=tuple(map(int, _values(options, "dev"))),
        node_selector=_pairs(options.get("on", "")),
        affinity=Affinity(
            required=tuple(map(_term, filter(None, options.get("need", "").split("|")))),
            preferred=tuple(map(_preference, filter(None, options.get("like", "").split("|")))),
        ),
        tolerations=tuple(text.replace(":", "=") for text in _values(options, "bears")),
        network=_values(options, "net"),
    )


def _term(text: str) -> Term:
    return read_term(text.replace("_", " ").replace("&", ","))


def _preference(text: str) -> Preference:
    term, _, weight = text.partition("*")
    return Preference(match=_term(term), weight=int(weight or "1"))


def _values(options: Words, key: str) -> tuple[str, ...]:
    return tuple(filter(None, options.get(key, "").split("+")))


def _arrayed(options: Words) -> dict[str, Any]:
    """Return the fields of an array, `array=3%2`, or of replica groups, `groups=2..3`."""
    if "groups" not in options:
        return {"array": _array(options["array"])} if "array" in options else {}
    least, _, most = options["groups"].partition("..")
    groups = {"replica_groups": int(least), "max_replica_groups": int(most) if most else None}
    return groups | {"array": _array(most or least)}


def _array(text: str) -> Array:
    count, _, limit = text.partition("%")
    return Array(indices=tuple(range(int(count))), limit=int(limit) if limit else None)


def _after(text: str) -> After:
    name, _, condition = text.partition(":")
    return After(job=name, when=condition or "succeeded")


def _rules(options: Words) -> tuple[Rule, ...]:
    pairs = [token.split(":") for token in options.get("rules", "").split("+") if token]
    return tuple(
        Rule(cause=trigger, do=do) if trigger in [*Cause] else Rule(log=trigger, do=do) for trigger, do in pairs
    )


def draw(state: State) -> str:
    """Draw the nodes in topology order with the shares of started gangs that are not cleared yet."""
    return " ".join(_row(state, index) for index in range(len(state.nodes.nodes)))


def _row(state: State, index: int) -> str:
    node, cpu_only = state.nodes.nodes[index], ""
    row = ["@" if device in node.foreign else "." for device in range(node.gpus)]
    held = [gang for gang in state.gangs.values() if gang.attempt.start]
    own = [(gang, share, ".") for gang in held for share in gang.without_lent(gang.attempt.held)]
    own += [
        (gang, share, state.gangs[lender].id[0])
        for gang in held
        for share, lender in zip(gang.attempt.start.shares, gang.attempt.start.lenders, strict=False)
        if share.node in gang.attempt.lent and share.node in gang.attempt.left
    ]
    for gang, share, below in own:
        if share.node == node.name:
            part = gang.shape.parts[share.part]
            for device in share.devices:
                assert row[device] == below or part.has_share, f"device {device} of {node.name} is held twice"
                row[device] = f"{row[device][:-1]}{gang.id[0]})" if row[device] != below else gang.id[0]
                row[device] = f"({row[device]})" if part.has_share and row[device][-1] != ")" else row[device]
            cpu_only += "" if share.devices else gang.id[0].lower()
    return ("".join(row) + cpu_only or "-") + MARKS[state.nodes.states[index]]


def _number(options: Words, key: str, scale: int = 1) -> int | None:
    return scale * int(options[key]) if key in options else None


def _ms(options: Words, key: str) -> int | None:
    return parse_duration_ms(options[key]) if key in options else None
