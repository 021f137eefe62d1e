"""Topology levels that the policy reads from node labels: their effect on placement and on running gangs."""

from dataclasses import replace

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.nodes.node_table import NodeTable
from ganger.core.state.state import State
from ganger.engine.policy_doc.trial_run import find_stranded, run_trial
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Plan
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.policy import Level, PolicyDocument
from ganger.model.terms import REQUIRED
from ganger.model.units import GIB_BYTES
from ganger.registry import order

HALL, SWITCH, OLD = "example.com/hall", "example.com/switch", "example.com/port"
SITE = (Level(name="hall", labels=(HALL,)), Level(name="leaf", labels=(SWITCH, OLD)))


def node(name: str, rack: str, **labels: str) -> Node:
    keys = {"hall": HALL, "switch": SWITCH, "port": OLD}
    node_labels = {keys[key]: value for key, value in labels.items()}
    return Node(name=name, domains=(rack,), gpus=2, cpu_milli=8_000, memory_bytes=GIB_BYTES, labels=node_labels)


NODES = (
    node("n1", "r1", hall="h2", switch="s2"),
    node("n2", "r1", hall="h1", switch="s1"),
    node("n3", "r2", hall="h1", port="s1"),
    node("n4", "r2", hall="h1"),
)


def happens(state: State, event: e.Event) -> None:
    fold(state, e.Stamped(state.seq + 1, 1_000 * (state.seq + 1), event))
    state.validate()


def listed() -> State:
    state = State()
    happens(state, e.NodesListed(nodes=NODES))
    return state


def under(state: State, *topology: Level) -> PolicyDocument:
    return replace(state.document, topology=topology)


def set_to(state: State, *topology: Level) -> None:
    happens(state, e.PolicySet(document=under(state, *topology), version=state.policy_version + 1))


def submit(state: State, name: str, nodes: int, level: str = "") -> None:
    placement = Placement(topology=level, mode=REQUIRED) if level else Placement()
    spec = JobSpec(name=name, nodes=nodes, run="x", resources=Resources(gpu=GpuRequest(count=2)), placement=placement)
    happens(state, e.Submitted(job=Job(id=name, user="ada", spec=spec, origin=Origin(directory="/"))))


def go(state: State) -> dict[str, tuple[str, ...]]:
    """Run a cycle; return the nodes of each gang."""
    planned: Plan = plan(state, state.at_ms, order(state.document.order))
    happens(state, e.Decided(plan=planned, policy=state.document.order, version="0"))
    return {gang.id: gang.nodes for gang in state.gangs.values() if gang.attempt.start}


def places(table: NodeTable) -> list[tuple[str, tuple[str, ...]]]:
    return [(node.name, node.domains) for node in table.nodes]


def test_labels_say_where_nodes_are_and_the_first_that_a_node_has_counts() -> None:
    state = listed()
    assert state.nodes.topology.levels == ("rack",)
    set_to(state, *SITE)
    assert state.nodes.topology.levels == ("hall", "leaf")
    assert places(state.nodes) == [("n4", ("h1", "")), ("n2", ("h1", "s1")), ("n3", ("h1", "s1")), ("n1", ("h2", "s2"))]


def test_without_the_list_nodes_are_where_their_labels_were_before() -> None:
    state = listed()
    before = places(state.nodes)
    set_to(state, *SITE)
    set_to(state)
    assert (state.nodes.topology.levels, places(state.nodes)) == (("rack",), before)


def test_gangs_keep_their_nodes_and_the_next_is_placed_by_the_new_levels() -> None:
    state = listed()
    submit(state, "a", 2, "rack")
    assert go(state) == {"a": ("n1", "n2")}
    set_to(state, *SITE)
    assert state.gangs["a"].nodes == ("n1", "n2")
    happens(state, e.StopRequested(gang="a"))
    go(state)
    happens(state, e.Cleared(gang="a", generation=1, nodes=("n1", "n2")))
    submit(state, "b", 2, "leaf")
    assert go(state)["b"] == ("n2", "n3")


def test_relisted_nodes_are_compared_with_the_last_listing() -> None:
    state = listed()
    set_to(state, *SITE)
    table = state.nodes
    happens(state, e.NodesListed(nodes=NODES))
    assert state.nodes is table, "nothing is new"
    happens(state, e.NodesListed(nodes=(replace(NODES[0], labels={HALL: "h1", SWITCH: "s1"}), *NODES[1:])))
    assert [node.name for node in state.nodes.nodes if node.domains == ("h1", "s1")] == ["n1", "n2", "n3"]


def test_a_snapshot_keeps_levels_and_listed_nodes() -> None:
    state = listed()
    set_to(state, *SITE)
    again = State(state.image())
    assert places(again.nodes) == places(state.nodes)
    set_to(again)
    assert again.nodes.topology.levels == ("rack",)


def test_a_list_strands_only_gangs_that_could_not_start_again_under_it() -> None:
    state = listed()
    submit(state, "racked", 2, "rack")
    submit(state, "anywhere", 1)
    submit(state, "late", 3, "rack")  # it never could
    go(state)
    (lost,) = find_stranded(state, under(state, *SITE))
    assert (lost.job, lost.reason.partition(";")[0]) == ("racked", "the network has no level rack")
    narrow = Level(name="rack", labels=(SWITCH,))
    (lost,) = find_stranded(state, under(state, narrow))
    assert (lost.job, lost.reason) == (
        "racked",
        "the job needs 2 nodes in one rack, and the largest rack has room for 1",
    )
    assert find_stranded(state, under(state, Level(name="rack", labels=(HALL,)))) == ()


def test_a_trial_says_what_the_list_would_change() -> None:
    state = listed()
    submit(state, "b", 3, "rack")
    assert go(state) == {}
    result = run_trial(state, under(state, Level(name="rack", labels=(HALL,))), order, state.at_ms)
    assert result.starts == ("b",)
