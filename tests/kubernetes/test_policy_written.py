"""`ganger --context policy apply`: a document is put in force as a whole, or nothing changes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.served import Served, served
from tools.fakeapi import Fault
from tools.testcluster.waiting import until

BEFORE = "order: fifo\nqueues:\n  research: {weight: 3}\n  vision: {parent: research}\n  old: {weight: 2}\n"
AFTER = "order: priority\nqueues:\n  research: {weight: 5}\n  vision: {parent: research}\n  young: {weight: 2}\n"


@pytest.fixture(scope="module")
def its(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def before(its: Served) -> dict[str, Any]:
    """Return the specs of the objects once that document is in force."""
    ran = its.ganger("policy", "apply", "-", given=BEFORE)
    assert ran.returncode == 0, ran
    return specs(its)


def specs(its: Served) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        every = [*its.api.objects("queues"), *its.api.objects("schedulingpolicies")]
        return {each["metadata"]["name"] + each["kind"]: each["spec"] for each in every}

    return its.does(read)


def inject(its: Served, **rule: Any) -> Fault:
    return its.does(lambda: its.api.inject(Fault(**rule)))


def test_it_is_written_whole(its: Served, before: dict[str, Any]) -> None:
    done = json.loads(its.ganger("policy", "apply", "-", "-o", "json", given=AFTER).stdout)
    assert sorted(done["written"]) == ["queues/research", "queues/young", "schedulingpolicies/default"]
    assert done["deleted"] == ["queues/old"]
    assert specs(its) != before
    until(lambda: its.its.loop.policy.NAME == "priority", "the order to be in force")


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        # The first write of each kind is the dry run.
        ({"verb": "patch", "resource": "schedulingpolicies", "skip": 1, "status": 403}, 4),
        ({"verb": "create", "resource": "queues", "skip": 1, "status": 403}, 4),
        ({"verb": "delete", "resource": "queues", "skip": 1, "status": 403}, 4),
        ({"verb": "patch", "resource": "schedulingpolicies", "skip": 1, "status": 503, "times": 1000}, 5),
    ],
    ids=["policy", "young", "old", "away"],
)
def test_what_was_written_is_put_back_when_a_write_fails(
    its: Served, before: dict[str, Any], rule: dict[str, Any], code: int
) -> None:
    fault = inject(its, **rule)
    ran = its.ganger("policy", "apply", "-", given=AFTER)
    its.does(lambda: its.api.server.faults.remove(fault))
    assert ran.returncode == code, ran
    assert "nothing has changed" in ran.stderr
    assert specs(its) == before


def test_what_the_controller_does_not_take_is_put_back(its: Served, before: dict[str, Any]) -> None:
    wrong = AFTER + "  wrong: {nominal: {gpu_types: {b200: 8}}}\n"
    ran = its.ganger("policy", "apply", "-", given=wrong)
    assert ran.returncode == 4, ran
    assert "queues/wrong: " in ran.stderr
    assert "nothing has changed" in ran.stderr
    assert specs(its) == before
    until(lambda: its.its.loop.policy.NAME == "fifo", "the order before to be in force")


def test_what_cannot_be_put_back_is_named(its: Served, before: dict[str, Any]) -> None:
    rules = [
        inject(its, verb="patch", resource="schedulingpolicies", skip=1, status=403),
        inject(its, verb="patch", resource="queues", name="research", skip=2, status=403),
    ]
    ran = its.ganger("policy", "apply", "-", given=AFTER)
    assert ran.returncode == 4, ran
    assert "queues/research is not as it was before: " in ran.stderr
    assert "nothing has changed" not in ran.stderr
    assert [rule.struck for rule in rules] == [1, 1]
    now = specs(its)
    assert now.pop("researchQueue") == {"weight": 5}
    assert now == {name: spec for name, spec in before.items() if name != "researchQueue"}


def test_a_lost_answer_is_looked_up(its: Served, before: dict[str, Any]) -> None:
    inject(its, verb="patch", resource="queues", name="research", skip=1, lost=True)
    ran = its.ganger("policy", "apply", "-", given=AFTER)
    assert ran.returncode == 0, ran
    assert specs(its)["researchQueue"] == {"weight": 5}


def test_what_the_controller_says_on_an_object_is_in_nobodys_way(its: Served, before: dict[str, Any]) -> None:
    """The status of a queue is written while a document is applied."""

    def figures() -> None:
        found: Any = its.api.get("queues", "research", "")
        its.api.put(found | {"status": found["status"] | {"waiting": found["status"].get("waiting", 0) + 1}})

    rule = inject(its, verb="patch", resource="queues", name="research", skip=1, delay_s=1.0)
    watched: list[int] = []

    def wait_and_write() -> bool:
        if its.does(lambda: rule.struck) and not watched:
            its.does(figures)
            watched.append(1)
        return bool(watched)

    writer = threading.Thread(target=until, args=(wait_and_write, "the write to be under way"))
    writer.start()
    ran = its.ganger("policy", "apply", "-", given=AFTER)
    writer.join()
    assert ran.returncode == 0, ran
    assert specs(its)["researchQueue"] == {"weight": 5}


def test_nothing_to_change(its: Served, before: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(BEFORE)
    assert its.ganger("policy", "apply", str(path)).stdout.startswith("nothing to change")
