"""Laws of suspect nodes: of small gangs each user has a share of them, and large gangs as few as suffice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.units import HOUR_MS
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

USERS = ("u", "v")
GPUS = 2


@settings(max_examples=settings().max_examples // 4)
@given(
    faults=st.lists(st.sampled_from((0, 0, 1, 2)), min_size=6, max_size=10),
    large=st.sampled_from((True, True, False)),
    users=st.lists(st.sampled_from(USERS), min_size=3, max_size=6),
)
def test_each_user_has_a_share(faults: list[int], large: bool, users: list[str]) -> None:
    """Jobs of one node come one after the other, on nodes that a job fills, beside a large one or none."""
    film = _film(faults)
    suspects = {f"n{index}" for index, count in enumerate(faults) if count}
    if large:
        film.do(f"L:2x{GPUS},user=x")
        film.run_cycles()
    owner = dict.fromkeys(_nodes(film, "L"), "x") if large else {}
    for number, user in enumerate(users):
        film.do(f"J{number}:1x{GPUS},user={user}")
        film.run_cycles()
        taken = _nodes(film, f"J{number}")
        free = [name for name in film.state.nodes.attributes.names if name not in owner]
        assert len(taken) == min(1, len(free))
        clean, mine = {*free} - suspects, [node for node in owner if owner[node] == user]
        share = -(-len(suspects) * (len(mine) + 1) // (len(owner) + 1))
        has_share = len({*mine} & suspects) >= share
        for node in taken:
            assert not (has_share and node in suspects and clean), f"{user} has {share} of the suspect nodes already"
            takes = large and not has_share and {*free} & suspects
            assert not takes or node in suspects, "a large job might have used that node"
            owner[node] = user


@settings(max_examples=settings().max_examples // 4)
@given(faults=st.lists(st.integers(0, 3), min_size=2, max_size=9), data=st.data())
def test_a_large_gang_has_the_least_suspect_nodes(faults: list[int], data: st.DataObject) -> None:
    film, size = _film(faults), data.draw(st.integers(2, len(faults)))
    film.do(f"L:{size}x{GPUS}")
    film.run_cycles()
    counts = [faults[int(node.removeprefix("n"))] for node in _nodes(film, "L")]
    assert sorted(counts) == sorted(faults)[:size]


def _film(faults: list[int]) -> Film:
    """Return a cluster of nodes with as many faults each, one node after the other, as they are no common event."""
    film = Film(POLICIES["priority"], " ".join(f"n{index}:{'.' * GPUS}" for index in range(len(faults))), "")
    for index, count in enumerate(faults):
        film.now_ms += HOUR_MS
        for number in range(count):
            _fault(film, f"n{index}", f"xid_{31 + number}")
    return film


def _fault(film: Film, node: str, code: str) -> None:
    severity, at_ms = Severity.RESTART_JOB, film.now_ms
    film.apply(
        NodeFaulty(fault=Fault(node=node, check="xid", code=code, severity=severity, at_ms=at_ms, sentence=code))
    )


def _nodes(film: Film, gang: str) -> list[str]:
    return [share.node for share in film.state.allocations.get(gang, ())]
