"""`ganger --context policy apply`: a document is put in force as a whole, or nothing changes."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.client.served_controller import ServedController, served
from tools.fakeapi import Fault
from tools.testcluster.waiting import until

BEFORE = "order: fifo\nqueues:\n  research: {weight: 3}\n  vision: {parent: research}\n  old: {weight: 2}\n"
AFTER = "order: priority\nqueues:\n  research: {weight: 5}\n  vision: {parent: research}\n  young: {weight: 2}\n"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(tmp_path_factory.mktemp("cluster")) as actual:
        yield actual


@pytest.fixture
def before(system: ServedController) -> dict[str, Any]:
    """Return the specs of the objects once that document is in force."""
    result = system.ganger("policy", "apply", "-", stdin=BEFORE)
    assert result.returncode == 0, result
    return specs(system)


def specs(system: ServedController) -> dict[str, Any]:
    """Return the specs of all objects but root's, which the controller creates when a job has run for a while."""

    def read() -> dict[str, Any]:
        every = [*system.api.objects("queues"), *system.api.objects("schedulingpolicies")]
        named = {item["metadata"]["name"] + item["kind"]: item["spec"] for item in every}
        return {name: spec for name, spec in named.items() if name != "rootQueue"}

    return system.does(read)


def inject(system: ServedController, **rule: Any) -> Fault:
    return system.does(lambda: system.api.inject(Fault(**rule)))


def test_it_is_written_whole(system: ServedController, before: dict[str, Any]) -> None:
    # The program itself reads the document from a pipe.
    result = json.loads(system.ganger_process("policy", "apply", "-", "-o", "json", stdin=AFTER).stdout)
    assert sorted(result["written"]) == ["queues/research", "queues/young", "schedulingpolicies/default"]
    assert result["deleted"] == ["queues/old"]
    assert specs(system) != before
    until(lambda: system.controlled.loop.policy.NAME == "priority", "the order to be in force")


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({"verb": "patch", "resource": "schedulingpolicies", "stored_only": True, "status": 403}, 4),
        ({"verb": "create", "resource": "queues", "stored_only": True, "status": 403}, 4),
        ({"verb": "delete", "resource": "queues", "stored_only": True, "status": 403}, 4),
        ({"verb": "patch", "resource": "schedulingpolicies", "stored_only": True, "status": 503, "times": 1000}, 5),
    ],
    ids=["policy", "young", "old", "away"],
)
def test_what_was_written_is_put_back_when_a_write_fails(
    system: ServedController, before: dict[str, Any], rule: dict[str, Any], code: int
) -> None:
    fault = inject(system, **rule)
    result = system.ganger("policy", "apply", "-", stdin=AFTER)
    system.does(lambda: system.api.server.faults.remove(fault))
    assert result.returncode == code, result
    assert "nothing has changed" in result.stderr
    assert specs(system) == before


def test_what_the_controller_does_not_take_is_put_back(system: ServedController, before: dict[str, Any]) -> None:
    """The document is valid, but a job could not continue under it."""
    name = system.ganger("submit", "--queue", "research", "--gpu", "1", "--", "x").stdout.strip()
    system.wait(name, "Starting")
    result = system.ganger(
        "policy", "apply", "-", stdin=AFTER.replace("weight: 5", "weight: 5, nominal: {gpus: 0}, borrowing: {gpus: 0}")
    )
    assert result.returncode == 4, result
    assert "queues/research: " in result.stderr
    assert "nothing has changed" in result.stderr
    assert specs(system) == before
    until(lambda: system.controlled.loop.policy.NAME == "fifo", "the order before to be in force")
    assert system.ganger("stop", name).returncode == 0


@pytest.mark.parametrize(
    "wrong", ["{nominal: {gpu_types: {b200: 8}}}", "{parent: nope}"], ids=["type that no node has", "no parent"]
)
def test_an_invalid_document_is_not_written(system: ServedController, before: dict[str, Any], wrong: str) -> None:
    result = system.ganger("policy", "apply", "-", stdin=f"{AFTER}  wrong: {wrong}\n")
    assert (result.returncode, "stdin:6:" in result.stderr) == (2, True), result
    assert specs(system) == before


def test_what_cannot_be_put_back_is_named(system: ServedController, before: dict[str, Any]) -> None:
    rules = [
        inject(system, verb="patch", resource="schedulingpolicies", stored_only=True, status=403),
        inject(system, verb="patch", resource="queues", name="research", stored_only=True, skip=1, status=403),
    ]
    result = system.ganger("policy", "apply", "-", stdin=AFTER)
    assert result.returncode == 4, result
    assert "queues/research is not as it was before: " in result.stderr
    assert "nothing has changed" not in result.stderr
    assert [rule.struck for rule in rules] == [1, 1]
    current_specs = specs(system)
    assert current_specs.pop("researchQueue") == {"weight": 5}
    assert current_specs == {name: spec for name, spec in before.items() if name != "researchQueue"}


def test_a_lost_answer_is_looked_up(system: ServedController, before: dict[str, Any]) -> None:
    inject(system, verb="patch", resource="queues", name="research", stored_only=True, lost=True)
    result = system.ganger("policy", "apply", "-", stdin=AFTER)
    assert result.returncode == 0, result
    assert specs(system)["researchQueue"] == {"weight": 5}


def test_status_writes_of_the_controller_do_not_disturb_an_apply(
    system: ServedController, before: dict[str, Any]
) -> None:
    """The status of a queue is written while a document is applied."""

    def figures() -> None:
        actual: Any = system.api.get("queues", "research", "")
        system.api.put(actual | {"status": actual["status"] | {"waiting": actual["status"].get("waiting", 0) + 1}})

    rule = inject(system, verb="patch", resource="queues", name="research", stored_only=True, delay_s=1.0)
    watched: list[int] = []

    def wait_and_write() -> bool:
        if system.does(lambda: rule.struck) and not watched:
            system.does(figures)
            watched.append(1)
        return bool(watched)

    writer = threading.Thread(target=until, args=(wait_and_write, "the write to be under way"))
    writer.start()
    result = system.ganger("policy", "apply", "-", stdin=AFTER)
    writer.join()
    assert result.returncode == 0, result
    assert specs(system)["researchQueue"] == {"weight": 5}


def test_nothing_to_change(system: ServedController, before: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(BEFORE)
    assert system.ganger("policy", "apply", str(path)).stdout.startswith("no changes")
