"""A generation from its decision to its end: when it runs, when it is over, what it leaves behind."""

from dataclasses import replace

from ganger.core.cycle.cycle import plan
from ganger.core.explain.explain import explain
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.state import State
from ganger.engine.query.listing_rows import node_rows
from ganger.model import event as e
from ganger.model.decision import Start
from ganger.model.evidence import FlawedCheckpoint
from ganger.model.job import GangState
from tests.laws.policies import POLICIES
from tests.pictures import picture
from tests.pictures.film import Film


def test_it_runs_once_it_runs_on_every_node() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play("C:2x2 -> CC CC")
    gang = film.state.gangs["C"]
    assert (gang.state, gang.attempt.generation, gang.first_started_ms) == (GangState.STARTING, 1, None)
    film.play("up C n2 -> CC CC")
    assert gang.state is GangState.STARTING
    film.play("+1s; up C n1 -> CC CC")
    assert (gang.state, gang.first_started_ms) == (GangState.RUNNING, film.now_ms)


def test_a_stop_that_is_to_be_now_ends_the_notice_and_a_plain_one_does_not_lengthen_it() -> None:
    film = Film(POLICIES["priority"], "n1:AA A,save n2:BB B,save", "")
    film.play("stop A -> AA BB | A stopping")
    ends_ms = film.state.gangs["A"].notice_ends_ms
    until_ms = ends_ms(film.now_ms)
    assert until_ms is not None
    film.play("+1s; stop A -> AA BB | A stopping")
    assert ends_ms(film.now_ms) == until_ms
    film.play("stop A now; stop B now -> AA BB | A stopping, B stopping")
    assert ends_ms(film.now_ms) is film.state.gangs["B"].notice_ends_ms(film.now_ms) is None
    assert plan(film.state, film.now_ms, film.policy).decisions == (), "it is stopped once more, and no more"


def test_the_next_one_begins_from_nothing_but_its_checkpoint() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.play(
        """C:2x2                                 -> CC CC
           up C; step C; saves C; fails C; gone C -> CC CC"""
    )
    gang = film.state.gangs["C"]
    assert (gang.attempt.generation, gang.state, gang.attempt.started, gang.attempt.finished) == (
        2,
        GangState.STARTING,
        (),
        (),
    )
    assert (gang.attempt.stepped, gang.attempt.failure, gang.attempt.stop_sent) == (False, None, None)
    assert gang.checkpoints.resumed_step == gang.checkpoints.newest_step == 2
    assert not gang.checkpoints.has_progressed


def resumed(film: Film, step: int | None, *flawed: int) -> str | None:
    """Report where C resumed; return the reason if the event is refused."""
    passed = tuple(FlawedCheckpoint(step=step_of_flaw, flaw="its manifest is broken") for step_of_flaw in flawed)
    gang = film.state.gangs["C"]
    older_step = gang.checkpoints.fallback.older_step
    event = e.Resumed(gang="C", generation=gang.attempt.generation, step=step, skipped=passed, older_step=older_step)
    reason = refusal(film.state, event)
    if reason is None:
        film.apply(event)
    return reason


def test_a_broken_checkpoint_counts_for_nothing() -> None:
    film = Film(POLICIES["priority"], "n1:..", "")
    film.play(
        """C:1x2                         -> CC
           up C; step C; +1m; saves C     -> CC
           +5m; saves C; +1m; fails C; gone C -> CC"""
    )
    gang = film.state.gangs["C"]
    assert resumed(film, 3) == "resumed of C generation 2 is known"
    assert resumed(film, 2, 3) is None
    assert (
        gang.checkpoints.newest_step,
        gang.checkpoints.resumed_step,
        [flawed.step for flawed in gang.checkpoints.flawed],
    ) == (
        2,
        2,
        [3],
    )
    ledger = gang.account.ledger(film.now_ms)
    assert (ledger.productive_ms, ledger.lost_ms, ledger.losses[0].lost_ms) == (60_000, 360_000, 360_000)
    assert resumed(film, 2, 3) == "resumed of C generation 2 is known"
    film.steps = 1
    film.play("up C; step C; saves C -> CC")
    assert (gang.checkpoints.newest_step, gang.checkpoints.has_progressed) == (3, False), (
        "there was one of that step before"
    )
    assert resumed(film, 2) == "resumed of C generation 2 is known", "it has saved since"
    film.play("saves C -> CC")
    assert gang.checkpoints.has_progressed


def test_what_another_job_saved_is_no_progress_of_this_one() -> None:
    film = Film(POLICIES["priority"], "n1:..", "")
    film.play("C:1x2 -> CC")
    gang = film.state.gangs["C"]
    assert resumed(film, 1000) is None
    assert (gang.checkpoints.newest_step, gang.checkpoints.has_progressed) == (1000, False)
    assert gang.account.ledger(film.now_ms).losses == ()


def test_checkpoints_that_vanished_are_none() -> None:
    film = Film(POLICIES["priority"], "n1:..", "")
    film.play(
        """C:1x2                                     -> CC
           up C; step C; +1m; saves C; fails C; gone C -> CC"""
    )
    assert resumed(film, None) is None
    assert film.state.gangs["C"].checkpoints.newest_step is None
    assert film.state.gangs["C"].account.ledger(film.now_ms).productive_ms == 0


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
    ports = [gang.attempt.start.port for gang in film.state.gangs.values() if gang.attempt.start]
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
            fold(state, e.Stamped(state.seq + 1, began_ms, event))
        start = plan(state, began_ms, film.policy).decisions[0]
        assert isinstance(start, Start)
        ports.append(start.port)
    assert ports == [20_000, 20_007]


def test_what_runs_on_a_node_that_is_not_ready_goes_on_and_nothing_new_starts_there() -> None:
    film = Film(POLICIES["priority"], "n1:A.. A", "")
    (node,), levels = film.state.nodes.listing.nodes, film.state.nodes.listing.levels
    film.apply(e.NodesListed(nodes=(replace(node, unready="not ready"),), levels=levels))
    film.play("C:1x1 -> A.. | C no_node")
    assert [row.state for row in node_rows(film.state)] == ["unready"]
    assert film.state.gangs["A"].attempt.failure is None
    assert explain(film.state, "A", film.now_ms, film.policy).domains == ("n1: not ready",)
    film.apply(e.NodesListed(nodes=(node,), levels=levels))
    film.play("+1s -> AC.")
    assert [row.state for row in node_rows(film.state)] == ["ready"]
