"""Preemption by the rules of the policy document: for guarantees, and for priorities."""

from dataclasses import replace

import pytest

from ganger.core.cycle.cycle import plan
from ganger.core.cycle.preemption import MAX_TRIES
from ganger.core.reservations import queue_rotation
from ganger.model import event as e
from ganger.model.decision import Start
from ganger.model.job import GangState
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.units import MINUTE_MS
from tests.laws.policies import POLICIES
from tests.pictures import picture
from tests.pictures.film import Film
from tests.pictures.play import scenarios

TWO = "n1:AAAA n2:AAAA A,q=b,time=9h,save=1m"
GUARANTEES = "a=4 b=4"

test_guarantee = scenarios(
    {
        "an owner takes its guarantee back from a borrower, which saves its work and goes on later": (
            TWO,
            GUARANTEES,
            """policy preemption.reclaim=guarantee  -> AAAA AAAA
               C:1x4,q=a,time=1h                    -> AAAA AAAA | A requeueing, C stopping_others
               gone A                               -> CCCC ....  | A no_capacity
               D:1x4,q=b,time=1h                    -> CCCC DDDD  | A no_capacity
               +1h; done C; done D                  -> AAAA AAAA | C succeeded, D succeeded""",
        ),
        "two jobs of an owner do not take the same guarantee": (
            "n1:AAAA n2:BBBB A,q=b,time=9h B,q=b,time=9h",
            "a=4 b=",
            """policy preemption.reclaim=guarantee -> AAAA BBBB
               C:1x4,q=a,time=1h D:1x4,q=a,time=2h -> AAAA BBBB | A requeueing, C stopping_others, D no_capacity
               +1m                                 -> AAAA BBBB | A requeueing, C stopping_others, D no_capacity
               gone A                              -> CCCC BBBB | A no_capacity, D no_capacity""",
        ),
        "without the rule the owner waits": (
            TWO,
            GUARANTEES,
            """policy preemption.reclaim=none -> AAAA AAAA
               C:1x4,q=a,time=1h             -> AAAA AAAA | C no_capacity""",
        ),
        "a borrower does not start to be preempted at once": (
            "n1:AA.. A,q=b,time=9h",
            "a=4 b=",
            """C:1x2,q=b,time=9h D:1x4,q=a,time=1h -> AA.. | A requeueing, C reserved, D stopping_others
               gone A                              -> DDDD | A no_capacity, C no_capacity""",
        ),
        "nor does one that leaves room for others": (
            "n1:.... n2:AA.. A,q=a,time=9h",
            "a=6 b=",
            """C:2x2,q=b,time=9h D:1x4,q=a,time=1h E:1x2,q=b,time=1h -> DDDD AAEE | C no_capacity""",
        ),
        "capacity that a starving job holds goes to an owner": (
            "n1:AAAA A,q=b",
            "a=4 b= c=",
            """S:1x4,q=c                    -> AAAA | S no_capacity
               +31m; C:1x4,q=a,time=1h      -> AAAA | A requeueing, S no_capacity, C stopping_others
               gone A                       -> CCCC | A no_capacity, S no_capacity""",
        ),
        "a job that accepts several types reclaims the one that its queue is guaranteed": (
            "n1:AAAA,h100 n2:BBBB,a100 A,q=b,time=9h B,q=b,time=9h",
            "a=,a100=4 b=",
            """C:1x4h100,else=a100,q=a,time=1h -> AAAA BBBB | B requeueing, C stopping_others
               gone B                          -> AAAA CCCC | B no_capacity""",
        ),
        "no job is stopped on a node that goes into maintenance": (
            "n1:AAAA n2:BBBB A,q=b B,q=b,time=9h",
            "a=4 b=",
            """step A; step B; +1h; saves A; maintain n1 30m 2h -> AAAA BBBB
               C:1x4,q=a,time=1h                            -> AAAA BBBB | B requeueing, C stopping_others
               gone B                                       -> AAAA CCCC | B no_capacity""",
        ),
        "a job beyond its guarantee waits": (
            TWO,
            GUARANTEES,
            """policy preemption.reclaim=guarantee -> AAAA AAAA
               C:2x4,q=a,time=1h                   -> AAAA AAAA | C no_capacity""",
        ),
        "jobs within a guarantee stay, also for a higher priority of another queue": (
            "n1:AAAA n2:BBBB A,q=a,time=9h B,q=b,time=9h",
            GUARANTEES,
            """policy preemption.reclaim=guarantee,preemption.priority=all -> AAAA BBBB
               D:1x4,q=b,time=1h          -> AAAA BBBB | D no_capacity
               C:1x4,q=a,time=1h,prio=100 -> AAAA BBBB | A requeueing, D no_capacity, C stopping_others""",
        ),
        "of the jobs of a borrower the one with the least unsaved work": (
            "n1:AAAA n2:BBBB n3:CCCC A,q=b,time=9h B,q=b,time=9h C,q=b,time=9h",
            "a=4 b=4",
            """step A; step B; step C; +1h; saves C; +1m -> AAAA BBBB CCCC
               policy preemption.reclaim=guarantee        -> AAAA BBBB CCCC
               D:1x4,q=a,time=1h                          -> AAAA BBBB CCCC | C requeueing, D stopping_others""",
        ),
        "a guarantee of one type of GPU protects no job on another": (
            "n1:AAAA,h100 n2:BBBB,a100 A,q=b,time=9h B,q=b,time=9h",
            "a=,h100=4 b=,a100=4",
            """policy preemption.reclaim=guarantee -> AAAA BBBB
               C:1x4h100,q=a,time=1h               -> AAAA BBBB | A requeueing, C stopping_others
               gone A                              -> CCCC BBBB | A no_capacity""",
        ),
        "nor does it allow a job to preempt others on another": (
            "n1:AAAA,h100 n2:....,a100 A,q=b,time=9h",
            "a=,a100=4 b=",
            """policy preemption.reclaim=guarantee -> AAAA ....
               C:1x4h100,q=a,time=1h               -> AAAA .... | C no_capacity""",
        ),
    },
    policy="dynamic",
)

test_priority = scenarios(
    {
        "a job of a higher priority stops one of its queue that is lower by the gap": (
            "n1:AAAA A,prio=0,time=9h",
            "",
            """policy preemption.priority=queue,preemption.priority_gap=10 -> AAAA
               B:1x4,prio=9,time=1h  -> AAAA | B no_capacity
               C:1x4,prio=10,time=1h -> AAAA | A requeueing, B no_capacity, C stopping_others
               gone A                -> CCCC | A no_capacity, B no_capacity""",
        ),
        "of two that wait with a reservation the one of higher priority is helped first": (
            "n1:AAAA n2:BBBB A,prio=-50,time=9h B,prio=100,time=9h",
            "",
            """policy preemption.priority=queue,reservations.per_queue=2 -> AAAA BBBB
               C:1x4,prio=50,time=1h; D:1x4,prio=95 -> AAAA BBBB | A requeueing, C no_capacity, D stopping_others""",
        ),
        "a job is not preempted before min_run": (
            "n1:AAAA A,prio=0,time=9h",
            "",
            """policy preemption.priority=all,preemption.min_run=10m -> AAAA
               C:1x4,prio=100,time=1h                                 -> AAAA | C no_capacity
               +10m                                                   -> AAAA | A requeueing, C stopping_others""",
        ),
        "no job is preempted for one that would not fit all the same": (
            "n1:AAAA n2:BBBB A,prio=0,time=9h B,prio=100,time=9h",
            "",
            """policy preemption.priority=all -> AAAA BBBB
               C:2x4,prio=50,time=1h          -> AAAA BBBB | C no_capacity""",
        ),
    },
    policy="dynamic",
)

test_limits = scenarios(
    {
        "a job that is not preemptible stays": (
            "n1:AAAA n2:.... A,q=b,time=9h",
            "a=4 b=",
            """B:1x4,q=b,time=9h,stays -> AAAA BBBB
               C:1x4,q=a,time=1h       -> AAAA BBBB | A requeueing, C stopping_others
               gone A                  -> CCCC BBBB | A no_capacity
               D:1x4,q=b,time=1h,prio=high -> CCCC BBBB | A no_capacity, D no_capacity""",
        ),
        "a job that was preempted is not preempted again for the cooldown": (
            "n1:AAAA A,prio=0,time=9h",
            "",
            """policy preemption.cooldown=20m -> AAAA
               B:1x4,prio=100,time=1h         -> AAAA | A requeueing, B stopping_others
               gone A                         -> BBBB | A no_capacity
               +1h; done B                    -> AAAA | B succeeded
               +19m; C:1x4,prio=100,time=1h   -> AAAA | C no_capacity
               +1m                            -> AAAA | A requeueing, C stopping_others""",
        ),
        "no job of a queue is preempted, if the policy allows none within an hour": (
            "n1:AABB A,q=b,time=9h B,q=b,time=9h",
            "a=4 b=",
            """policy preemption.max_per_hour=0 -> AABB
               C:1x2,q=a,time=3h                -> AABB | C no_capacity""",
        ),
        "one that is preempted again within the hour, and ended since, counts twice": (
            "n1:AA A,q=b,time=9h",
            "a=2 b=",
            """policy preemption.max_per_hour=2 -> AA
               policy preemption.cooldown=0     -> AA
               C:1x2,q=a,time=3h                -> AA | A requeueing, C stopping_others
               gone A                           -> CC | A no_capacity
               done C                           -> AA | C succeeded
               D:1x2,q=a,time=3h                -> AA | A requeueing, D stopping_others
               gone A                           -> DD | A no_capacity
               stop A; done D                   -> .. | D succeeded, A stopped
               B:1x2,q=b,time=9h                -> BB
               E:1x2,q=a,time=3h                -> BB | E no_capacity""",
        ),
        "only so many jobs of a queue are preempted within an hour": (
            "n1:AABB A,q=b,time=9h B,q=b,time=9h",
            "a=4 b=",
            """policy preemption.max_per_hour=1 -> AABB
               C:1x2,q=a,time=3h                -> AABB | A requeueing, C stopping_others
               gone A; +59m                     -> CCBB | A no_capacity
               D:1x2,q=a,time=1h                -> CCBB | A no_capacity, D no_capacity
               +1m                              -> CCBB | A no_capacity, B requeueing, D stopping_others""",
        ),
    },
    policy="dynamic",
)

test_fair_share = scenarios(
    {
        "a queue below its fair share takes from one above, until they are equal, and not back": (
            "n1:AAAA n2:BBBB A,q=b,time=9h B,q=b,time=9h",
            "a= b=",
            """C:1x4,q=a,time=9h                   -> AAAA BBBB | C no_capacity
               policy preemption.reclaim=fair_share -> AAAA BBBB | A requeueing, C stopping_others
               gone A; D:1x4,q=a,time=9h            -> CCCC BBBB | A no_capacity, D no_capacity
               +1h                                  -> CCCC BBBB | A no_capacity, D no_capacity""",
        ),
        "by their weights": (
            "n1:AAAA n2:BBBB A,q=b,time=9h B,q=b,time=9h",
            "a=,weight=3 b=",
            """policy preemption.reclaim=fair_share,preemption.min_run=0 -> AAAA BBBB
               C:1x4,q=a,time=9h                    -> AAAA BBBB | A requeueing, C stopping_others
               gone A; D:1x4,q=a,time=9h            -> CCCC BBBB | A no_capacity, D no_capacity""",
        ),
        "not from a queue within its guarantee": (
            "n1:AAAA n2:BBBB A,q=b,time=9h B,q=b,time=9h",
            "a= b=8",
            """policy preemption.reclaim=fair_share -> AAAA BBBB
               C:1x4,q=a,time=9h                    -> AAAA BBBB | C no_capacity""",
        ),
        "where the paths of two queues part": (
            "n1:AAAA n2:BBBB n3:DDDD A,q=b,time=9h B,q=b,time=9h D,q=e,time=9h",
            "p= a=,in=p b=,in=p e=",
            """policy preemption.reclaim=fair_share -> AAAA BBBB DDDD
               C:1x4,q=a,time=9h                    -> AAAA BBBB DDDD | A requeueing, C stopping_others
               gone A                               -> CCCC BBBB DDDD | A no_capacity""",
        ),
        "below the top no department loses more than it gains": (
            "n1:AAAA n2:AAAA n3:BBBB n4:BBBB A,q=b,time=9h B,q=b,time=9h",
            "p= a=,in=p b=,in=p e=",
            """policy preemption.reclaim=fair_share -> AAAA AAAA BBBB BBBB
               C:1x4,q=a,time=9h                    -> AAAA AAAA BBBB BBBB | C no_capacity
               E:1x4,q=e,time=9h -> AAAA AAAA BBBB BBBB | A requeueing, C stopping_others, E stopping_others""",
        ),
    },
    policy="dynamic",
)

PRIORITY = "policy preemption.priority=all,preemption.priority_gap=10"

test_ownership = scenarios(
    {
        "the nodes of a stopped job go to the higher priority, and no other job is preempted": (
            "n1:AAAA n2:DDDD A,time=9h D,time=9h",
            "",
            f"""{PRIORITY}               -> AAAA DDDD
                B:1x4,time=1h; stop A  -> AAAA DDDD | A stopping, B no_capacity
                C:1x4,prio=100,time=1h -> AAAA DDDD | A stopping, B no_capacity, C stopping_others
                gone A                 -> CCCC DDDD | B no_capacity, A stopped""",
        ),
        "capacity that is being freed for one job does not count as free for the next, which stops another one": (
            "n1:AAAA n2:BBBB A,time=9h B,time=9h",
            "",
            f"""{PRIORITY}               -> AAAA BBBB
                C:1x4,prio=100,time=1h -> AAAA BBBB | A requeueing, C stopping_others
                D:1x4,prio=100,time=1h -> AAAA BBBB | A requeueing, B requeueing, C stopping_others, D stopping_others
                gone A                 -> CCCC BBBB | A no_capacity, B requeueing, D stopping_others
                gone B                 -> CCCC DDDD | A no_capacity, B no_capacity""",
        ),
        "a victim that does not leave belongs to its preemptor no longer than ten minutes after that was due": (
            "n1:AAAA A,time=9h",
            "",
            f"""{PRIORITY}                    -> AAAA
                C:1x4,prio=50,time=1h       -> AAAA | A requeueing, C stopping_others
                +1m; D:1x4,prio=100,time=1h -> AAAA | A requeueing, C stopping_others, D no_capacity
                +11m                        -> AAAA | A requeueing, C no_capacity, D no_capacity
                gone A                      -> DDDD | A no_capacity, C no_capacity""",
        ),
    },
    policy="dynamic",
)


def _film(cluster: str, queues: str = "") -> Film:
    return Film(POLICIES["dynamic"], cluster, queues)


def test_a_job_that_starts_is_preempted_for_a_higher_priority_without_another_event() -> None:
    film = _film("n1:AAAA A,time=9h")
    film.play(
        f"""{PRIORITY},preemption.min_run=10m -> AAAA
            +10m; C:1x4,prio=20,time=1h     -> AAAA | A requeueing, C stopping_others
            D:1x4,prio=40,time=1h           -> AAAA | A requeueing, C stopping_others, D no_capacity"""
    )
    film.do("gone A")
    planned = plan(film.state, film.now_ms, film.policy)
    assert [decision.gang for decision in planned.decisions if isinstance(decision, Start)] == ["C"]
    assert planned.next_wake_ms == film.now_ms + 10 * MINUTE_MS


def test_a_reservation_that_is_postponed_for_a_lost_node_can_be_moved_by_others() -> None:
    rack = "s1/r1/n1:AAAA s1/r1/n2:BBBB s1/r2/n3:DDDD s1/r2/n4:.... A,q=b,time=9h B,q=b,time=9h D,q=b,time=9h"
    film = _film(rack, "a=8 b=8")
    film.play(
        """policy preemption.reclaim=guarantee -> AAAA BBBB DDDD ....
           C:2x4,q=a,time=1h,in=rack,must      -> AAAA BBBB DDDD .... | D requeueing, C stopping_others"""
    )
    assert film.state.reservations["C"].owned
    film.play("lose n4 -> AAAA BBBB DDDD ....x | D requeueing, C no_capacity")
    assert not film.state.reservations["C"].owned


def test_a_standing_reservation_is_not_recorded_again() -> None:
    film = _film("n1:AAAA A,time=9h")
    film.play(
        f"""{PRIORITY}              -> AAAA
            C:1x4,prio=50,time=1h -> AAAA | A requeueing, C stopping_others"""
    )
    assert not plan(film.state, film.now_ms, film.policy).decisions


def test_a_preemptor_waits_for_a_notice_that_is_longer_than_the_margin() -> None:
    film = _film("n1:....")
    film.play(f"{PRIORITY} -> ....")
    victim = picture.job("A:1x4,time=9h")
    spec = replace(victim.spec, checkpoint=Checkpoint(dir="ckpt", grace_ms=30 * MINUTE_MS))
    film.apply(e.Submitted(job=replace(victim, spec=spec)))
    film.play(
        """; +1s               -> AAAA
           C:1x4,prio=50,time=1h -> AAAA | A requeueing, C stopping_others
           +1m                 -> AAAA | A requeueing, C stopping_others
           gone A              -> CCCC | A no_capacity"""
    )


def test_explain_says_how_long_a_victim_still_has() -> None:
    """Check what was wrong: a victim with a notice "ends in at most 0ms"."""
    film = Film(POLICIES["dynamic"], "n1:AAAA A,q=b,time=9h,save=1m", "a=4 b=")
    film.play("""policy preemption.reclaim=guarantee -> AAAA
                 C:1x4,q=a,time=1h -> AAAA | A requeueing, C stopping_others""")
    (line,) = film.explanation("C").domains
    assert "A (is being stopped, " in line
    film.play("+9h -> AAAA | A requeueing, C stopping_others")
    (line,) = film.explanation("C").domains
    assert line.endswith("A (is being stopped)")


def test_more_preemptors_than_a_cycle_of_a_large_cluster_tries_are_all_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
    names = "ABCDEFGHIJKL"
    assert len(names) > MAX_TRIES
    nodes, running = (f"n{name}:{name}" for name in names), (f"{name},q={name.lower()},time=9h" for name in names)
    film = _film(" ".join((*nodes, *running)), " ".join(f"{name.lower()}=" for name in names))
    film.play(f"{PRIORITY} -> {' '.join(names)}")
    for name in names:
        film.do(f"{name}2:1x1,prio=50,q={name.lower()},time=1h")
    for _ in names:
        film.run_cycles()
        for gang in [gang for gang in film.state.gangs.values() if gang.state is GangState.REQUEUEING]:
            film.do(f"gone {gang.id}")
    film.run_cycles()
    assert {film.state.gangs[f"{name}2"].state for name in names} == {GangState.STARTING}


def test_on_a_large_cluster_no_cycle_repeats_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """More gangs than a cycle tries wait for one that leaves: each cycle reserved the same for the first of them."""
    monkeypatch.setattr(queue_rotation, "LARGE_CLUSTER_NODES", 0)
    film = Film(POLICIES["dynamic"], "n1:AA A,q=z,time=9h", "a=2 b=2 c=2 z")
    film.play("stop A -> AA | A stopping")
    for name in (f"{queue}{number}" for queue in "abc" for number in range(4)):
        film.do(f"{name.upper()}:1x2,q={name[0]},time=1h")
    plans = [film.run_cycle() for _ in range(5)]
    assert plans[-1].decisions == ()
    assert plans[-1].next_wake_ms != film.now_ms
