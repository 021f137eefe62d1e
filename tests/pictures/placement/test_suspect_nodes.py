"""Suspect nodes and nodes on probation in placement: large jobs avoid them, small ones take them for these."""

from dataclasses import replace

import pytest

from ganger.model.event import NodeCordoned, NodeLost, NodeReturned, NodeUncordoned, PolicySet
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty, NodeMeasurement, NodesMeasured, RepairEnded
from ganger.model.node_health.health_rules import Correlation, NodeHealthRules, RepairHooks
from tests.laws.policies import POLICIES
from tests.pictures import picture
from tests.pictures.film import Film

CASES = {
    "one node alone suffices": ("n1:..! n2:..", "C:1x2", ".. CC"),
    "a large job goes where no node is suspect": ("n1:..! n2:.. n3:..", "C:2x2", ".. CC CC"),
    "it takes a suspect node rather than none": ("n1:..! n2:..", "C:2x2", "CC CC"),
    "and the least suspect ones": ("n1:..!! n2:..! n3:..", "C:2x2", ".. CC CC"),
    "no more of them than it needs": ("n1:..!!! n2:..! n3:..!! n4:..", "C:3x2", ".. CC CC CC"),
    "a small job takes one while a large one runs": ("n1:AA n2:AA n3:.. n4:..!", "C:1x2", "AA AA .. CC"),
    "the most suspect one": ("n1:AA n2:AA n3:..! n4:..!!", "C:1x2", "AA AA .. CC"),
    "but packing goes first": ("n1:AA n2:AA n3:B. n4:..!", "C:1x1", "AA AA BC .."),
    "each user as many as is the user's share of the GPUs": (
        "n1:AA n2:AA n3:..! n4:..! n5:.. n6:..",
        "C:1x2,user=u D:1x2,user=u E:1x2,user=v",
        "AA AA CC EE DD ..",
    ),
    "or more rather than wait": (
        "n1:AA n2:AA n3:..! n4:..! n5:..",
        "C:1x2,user=u D:1x2,user=u E:1x2,user=u",
        "AA AA CC EE DD",
    ),
}


@pytest.mark.parametrize(("cluster", "job", "expected"), CASES.values(), ids=[*CASES])
def test_suspect_nodes(cluster: str, job: str, expected: str) -> None:
    film = Film(POLICIES["priority"], cluster.replace("!", ""), "")
    for token in cluster.split():
        for number in range(token.count("!")):
            _fault(film, token.partition(":")[0], Severity.RESTART_JOB, f"xid_{31 + number}")
    film.do(job)
    film.run_cycles()
    assert picture.draw(film.state) == expected


SLOW_CASES = {
    "a slow node is the last one that a small job takes": ("n1:..~ n2:..", "C:1x2", ".. CC"),
    "a large job goes where no node is slow": ("n1:..~ n2:.. n3:..", "C:2x2", ".. CC CC"),
    "it takes a slow node rather than none": ("n1:..~ n2:..", "C:2x2", "CC CC"),
    "and the least slow one": ("n1:..~~ n2:..~ n3:..", "C:2x2", ".. CC CC"),
    "a slow node rather than one with faults": ("n1:..! n2:..~ n3:..", "C:2x2", ".. CC CC"),
    "a whole rack rather than one with a slow node": ("a/n1:..~ a/n2:.. b/n3:.. b/n4:..", "C:2x2", ".. .. CC CC"),
}


@pytest.mark.parametrize(("cluster", "job", "expected"), SLOW_CASES.values(), ids=[*SLOW_CASES])
def test_slow_nodes(cluster: str, job: str, expected: str) -> None:
    film = Film(POLICIES["priority"], cluster.replace("!", "").replace("~", ""), "")
    marks = {token.partition(":")[0].rpartition("/")[2]: token for token in cluster.split()}
    for name in (name for name, token in marks.items() if "!" in token):
        _fault(film, name, Severity.RESTART_JOB, "xid_31")
    _measure(film, {name: 1000 - 200 * token.count("~") for name, token in marks.items()})
    film.do(job)
    film.run_cycles()
    assert picture.draw(film.state) == expected
    film.state.validate()


def test_a_measurement_holds_for_a_week_and_chance_is_none() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:.. n3:..", "")
    _measure(film, {"n1": 960, "n2": 1000, "n3": 910})
    assert film.state.health.slowness_milli == {"n3": 50}
    film.do("C:3x2")
    film.run_cycles()
    assert picture.draw(film.state) == "CC CC CC"


def test_a_test_forgets_what_was_measured_before_and_a_node_that_is_gone_is_left_out() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    _measure(film, {"n1": 500, "n2": 1000, "n9": 100})
    assert film.state.health.slowness_milli == {"n1": 500}
    assert film.state.nodes.attributes.penalty.tolist() == [500, 0]
    film.state.recount()
    assert film.state.nodes.attributes.penalty.tolist() == [500, 0]
    _measure(film, {"n1": 1000})
    assert film.state.health.slowness_milli == {}
    assert film.state.nodes.attributes.penalty.tolist() == [0, 0]


def test_a_node_on_probation_takes_small_jobs_only() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    rules = NodeHealthRules(correlation=Correlation(settle_ms=0), hooks=RepairHooks(reboot=("x",)))
    document = replace(film.state.document, node_health=rules)
    film.apply(PolicySet(document=document, version=film.state.policy_version + 1))
    _fault(film, "n1", Severity.REBOOT, "xid_79")
    film.run_cycles()
    assert film.state.nodes.is_cordoned("n1")
    film.apply(RepairEnded(node="n1", repair=1, has_succeeded=True))
    film.run_cycles()
    film.do("C:2x2")
    film.run_cycles()
    assert picture.draw(film.state) == ".. ..", "two nodes are more than a node on probation takes"
    assert "exclude" not in film.reason("C").sentence
    film.do("D:1x2 E:1x2")
    film.run_cycles()
    assert picture.draw(film.state) == "EE DD"
    film.do("+4h")
    film.run_cycles()
    assert film.state.health.on_probation == {}


def _measure(film: Film, performances_milli: dict[str, int]) -> None:
    measurements = tuple(
        NodeMeasurement(node=node, performance_milli=performance) for node, performance in performances_milli.items()
    )
    film.apply(NodesMeasured(gang="test", measurements=measurements))


def test_a_person_who_uncordons_a_node_vouches_for_it() -> None:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    _fault(film, "n1", Severity.RESTART_JOB, "xid_31")
    film.apply(NodeCordoned(node="n1"))
    film.apply(NodeLost(node="n1"))
    film.apply(NodeReturned(node="n1"))
    assert film.state.health.suspicions == {"n1": 1}, "a cordoned node may be switched off"
    film.apply(NodeUncordoned(node="n1"))
    assert film.state.health.suspicions == {}
    film.run_cycles()
    film.do("+60d")
    film.run_cycles()


def _fault(film: Film, node: str, severity: Severity, code: str) -> None:
    fault = Fault(node=node, check="xid", code=code, severity=severity, at_ms=film.now_ms, sentence=f"{code} on {node}")
    film.apply(NodeFaulty(fault=fault))
