"""Explanations with far more waiting classes than a cycle visits: explanations are always current."""

from ganger.core.cycle.publish_reasons import MAX_REASONS
from ganger.core.explain.explain import all_reasons, current_reason, explain
from ganger.core.state.gang import class_text
from ganger.model.job import GangState
from ganger.policies import dynamic, priority
from tests.pictures.film import Film

MANY = 2 * MAX_REASONS + 50


def crowded() -> Film:
    """Return a scenario after one cycle on a node that A leaves to the first of many gangs, each of its own class."""
    film = Film(priority, "n1:AAAA n2:BBBB", "")
    film.do(" ".join(f"J{number}:1x4,time={number + 1}h" for number in range(MANY)))
    film.run_cycles()
    film.do("done A")
    film.run_cycles()
    return film


def test_an_explanation_is_current_though_a_cycle_reported_other_classes() -> None:
    film = crowded()
    waits = film.state.pending.reasons
    gangs = [film.state.gangs[f"J{number}"] for number in range(1, MANY)]
    stale = [gang for gang in gangs if waits.get(class_text(gang.class_key)) is None or _names_a(film, gang.id)]
    assert stale, f"a cycle reported all of {MANY} classes: there is nothing to see here"
    for gang in (stale[0], stale[-1]):
        explanation = explain(film.state, gang.id, film.now_ms, film.policy)
        assert explanation.reason
        assert explanation.reason.holders[0] == "J0", "J0 has the node now, and ends before B"


def test_the_others_get_reasons_in_rotation_though_newer_gangs_keep_coming() -> None:
    film = crowded()
    before = set(film.state.gangs)
    for number in range(MANY):
        film.do(f"K{number}:1x4,time={number + 1}m")
        film.run_cycles()
    gangs, waits = film.state.gangs, film.state.pending.reasons
    waiting = [name for name in before if name in gangs and gangs[name].state is GangState.PENDING]
    without_reason = [
        name for name in waiting if class_text(gangs[name].class_key) not in waits or _names_a(film, name)
    ]
    # The position where the rotation continues is pseudo-random: one or two may have to wait for longer.
    assert len(without_reason) <= len(waiting) // 20, (
        f"{len(without_reason)} of {len(waiting)} got no reason in {MANY} cycles"
    )


def _names_a(film: Film, gang: str) -> bool:
    return "A" in film.state.pending.reasons[class_text(film.state.gangs[gang].class_key)].holders


def test_all_reasons_at_once_are_those_of_each() -> None:
    for policy in (priority, dynamic):
        film = crowded()
        film.policy = policy
        film.now_ms += 60 * 60_000
        reasons = all_reasons(film.state, film.now_ms, policy)
        assert len(reasons) == MANY - 1
        for gang in [film.state.gangs[f"J{number}"] for number in range(1, MANY, 20)]:
            assert reasons[gang.class_key] == current_reason(film.state, gang, film.now_ms, policy)


def test_the_place_in_a_queue_is_counted_without_sorting_all_who_wait() -> None:
    film = Film(dynamic, "n1:AAAA", "q= p=")
    film.do(
        "C:1x4,q=q D:1x4,q=p,prio=high E:1x4,q=q,user=bob,prio=high F:1x4,q=q,user=bob G:1x4,q=q,prio=low H:1x4,q=p"
    )
    film.run_cycles()
    waiting = [gang for members in film.state.pending.classes.values() for gang in members]
    for gang in waiting:
        key = film.policy.key(gang, film.state, film.now_ms)
        of_queue = [
            film.policy.key(member, film.state, film.now_ms) for member in waiting if member.queue == gang.queue
        ]
        explanation = explain(film.state, gang.id, film.now_ms, film.policy)
        assert (explanation.position, explanation.pending) == (1 + sorted(of_queue).index(key), len(of_queue))
