"""A generation from its decision to its end: when it runs, when it is over, what it leaves behind."""

from ganger.core.plan import plan
from ganger.core.state import State
from ganger.model import event as e
from ganger.model.decision import Start
from ganger.model.job import GangState
from tests.laws.policies import POLICIES
from tests.pictures import picture
from tests.pictures.film import Film


def test_it_runs_once_it_runs_on_every_node() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play("C:2x2 -> CC CC")
    gang = film.state.gangs["C"]
    assert (gang.state, gang.generation, gang.first_started_ms) == (GangState.STARTING, 1, None)
    film.play("up C n2 -> CC CC")
    assert gang.state is GangState.STARTING
    film.play("+1s; up C n1 -> CC CC")
    assert (gang.state, gang.first_started_ms) == (GangState.RUNNING, film.now_ms)


def test_the_next_one_begins_from_nothing_but_its_checkpoint() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play(
        """C:2x2                                 -> CC CC
           up C; step C; saves C; fails C; gone C -> CC CC"""
    )
    gang = film.state.gangs["C"]
    assert (gang.generation, gang.state, gang.started, gang.finished) == (2, GangState.STARTING, [], [])
    assert (gang.stepped, gang.failure, gang.stop_sent) == (False, None, None)
    assert gang.resumed_step == gang.checkpoint_step == 2
    assert not gang.progressed


def test_when_it_started_first_stays() -> None:
    film = Film(POLICIES["priority"], "n1:..", "")
    film.play(
        """C:1x2                       -> CC
           +1s; up C; saves C          -> CC
           fails C; gone C             -> CC
           +1h; up C                   -> CC"""
    )
    assert film.state.gangs["C"].first_started_ms == film.now_ms - 3_600_000


def test_a_start_has_ports_for_all_ranks_that_meet_on_an_address() -> None:
    film = Film(POLICIES["priority"], "n1:.... n2:....", "")
    film.play("C:1x1 D:2x2 -> CDD. DD..")
    film.play("E:1x1 -> CDDE DD..")
    ports = [gang.start.port for gang in film.state.gangs.values() if gang.start]
    addresses = {node.address for node in film.state.nodes.nodes}
    assert len(addresses) == 1
    assert ports == [20_000, 20_002, 20_007]


def test_servers_that_began_at_different_times_use_different_ports() -> None:
    film = Film(POLICIES["priority"], "n1:....", "")
    ports = []
    for began_ms in (0, 7):
        state = State()
        listed = e.NodesListed(nodes=tuple(film.state.nodes.nodes))
        for event in (e.ServerStarted(version="0"), listed, e.Submitted(job=picture.job("C:1x1"))):
            state.apply(e.Stamped(state.seq + 1, began_ms, event))
        start = plan(state, began_ms, film.policy).decisions[0]
        assert isinstance(start, Start)
        ports.append(start.port)
    assert ports == [20_000, 20_007]
