"""Events that cannot be folded, and the reasons given. A refused event changes nothing."""

import pytest

from ganger.core.fold.fold import fold, refusal
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.queue import Queue
from tests.laws.policies import POLICIES
from tests.laws.safety import fingerprint
from tests.pictures import picture
from tests.pictures.film import Film


def fact(kind: type, generation: int = 1, nodes: tuple[str, ...] = ("n1",), gang: str = "A") -> e.Event:
    return kind(gang=gang, generation=generation, nodes=nodes)


def failed(node: str = "n1", generation: int = 1) -> e.Failed:
    return e.Failed(gang="A", generation=generation, node=node, cause=Cause.RANK_FAILED, exit_code=1)


REFUSED = {
    "a second job of the same id": (e.Submitted(job=picture.job("A:1x1")), "job A exists already"),
    "a queue that is not there": (
        e.Submitted(job=picture.job("C:1x1,q=x")),
        "there is no queue x; there are default, p, q, r, root",
    ),
    "a stop of nobody": (e.StopRequested(gang="X"), "X is not pending or running"),
    "to delete what runs": (e.Deleted(gang="A"), "A is still running"),
    "a parent of the root": (e.QueueSet(queue=Queue(name="root", parent="q")), "root is above all queues"),
    "a queue above itself": (
        e.QueueSet(queue=Queue(name="p", parent="q")),
        "queue p would be above itself: q is below it",
    ),
    "a queue that is its own parent": (e.QueueSet(queue=Queue(name="p", parent="p")), "queue p would be above itself"),
    "a parent that is not there": (
        e.QueueSet(queue=Queue(name="s", parent="x")),
        "parent x of queue s is not a queue; there are default, p, q, r, root",
    ),
    "a second root": (e.QueueSet(queue=Queue(name="s", parent=None)), "parent None of queue s is not a queue"),
    "to delete the root": (e.QueueDeleted(queue="root"), "queue root is always there"),
    "to delete the default": (e.QueueDeleted(queue="default"), "queue default is always there"),
    "to delete a queue with queues below": (e.QueueDeleted(queue="p"), "queue p has queues below it: q"),
    "to delete a queue with jobs": (e.QueueDeleted(queue="q"), "queue q has a live job: A"),
    "to delete no queue": (e.QueueDeleted(queue="x"), "there is no queue x"),
    "a node that is not there": (e.NodeLost(node="n9"), "there is no node n9"),
    "to return what is not lost": (e.NodeReturned(node="n1"), "node n1 is ready"),
    "to uncordon what is not cordoned": (e.NodeUncordoned(node="n1"), "node n1 is ready"),
    "to cordon twice": (e.NodeCordoned(node="n3"), "node n3 is cordoned"),
    "a fact of a later generation": (fact(e.Started, generation=2), "generation 2 of A is over"),
    "a fact of nobody": (fact(e.Started, gang="X"), "generation 1 of X is over"),
    "a start that is known": (fact(e.Started), "started of A generation 1 is known"),
    "an end on a node it is not on": (fact(e.Cleared, nodes=("n3",)), "cleared of A generation 1 is known"),
    "a failure on a node it is not on": (failed("n3"), "failed of A generation 1 is known"),
}


@pytest.mark.parametrize(("event", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(event: e.Event, says: str) -> None:
    film = Film(POLICIES["priority"], "n1:AA n2:AA n3:.. A,q=q", "p= q=,in=p r=")
    film.do("cordon n3")
    before = fingerprint(film.state)
    reason = refusal(film.state, event)
    assert reason
    assert reason.startswith(says)
    with pytest.raises(ValueError, match=r"^event \d+ \("):
        film.apply(event)
    assert fingerprint(film.state) == before


@pytest.mark.parametrize(
    ("before", "event", "known"),
    [
        ("done A n1", fact(e.Finished), True),
        ("done A n1", fact(e.Cleared), True),
        ("done A n1", failed(), True),
        ("exits A n1", fact(e.Finished), True),
        ("exits A n1", fact(e.Finished, nodes=("n1", "n2")), False),
        ("fails A", failed("n2"), True),
        ("done A; list n1:..", fact(e.Cleared), True),
        ("saves A", e.Checkpointed(gang="A", generation=1, step=1), True),
        ("saves A", e.Checkpointed(gang="A", generation=1, step=2), False),
        ("step A", e.Progressed(gang="A", generation=1, step=1), False),
        ("saves A; fails A; gone A", fact(e.Cleared), True),
        ("saves A; fails A; gone A", fact(e.Started, generation=2), False),
    ],
)
def test_news_is_taken_once(before: str, event: e.Event, known: bool) -> None:
    film = Film(POLICIES["priority"], "n1:AA n2:AA", "")
    for action in before.split(";"):
        film.do(action.strip())
    film.run_cycles()
    assert (refusal(film.state, event) is not None) == known


def test_the_log_has_no_hole_and_time_does_not_go_back() -> None:
    film = Film(POLICIES["priority"], "n1:..", "")
    seq, at_ms = film.state.seq, film.state.at_ms
    for bad in (e.Stamped(seq + 2, at_ms, e.NodeLost(node="n1")), e.Stamped(seq, at_ms, e.NodeLost(node="n1"))):
        with pytest.raises(ValueError, match="the log has a hole"):
            fold(film.state, bad)
    with pytest.raises(ValueError, match="the log has a hole"):
        fold(film.state, e.Stamped(seq + 1, at_ms - 1, e.NodeLost(node="n1")))
    fold(film.state, e.Stamped(seq + 1, at_ms, e.NodeLost(node="n1")))


def test_a_device_is_never_given_twice() -> None:
    film = Film(POLICIES["priority"], "n1:AA..", "")
    film.do("C:1x2")
    shares = film.state.gangs["A"].attempt.start
    assert shares
    with pytest.raises(ValueError, match="device of n1 is not free"):
        film.state.take(film.state.gangs["C"], shares.shares)
