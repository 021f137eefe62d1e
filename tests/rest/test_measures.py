"""What the server says of itself to whoever scrapes it, read by Prometheus' own parser."""

from collections import Counter
from typing import Any

from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from ganger.engine.service import JobFilter
from tests.rest.asgi import call
from tests.service.world import Embedded, wait_until


def scraped(app: FastAPI) -> dict[str, dict[tuple[str, ...], float]]:
    """The value of each sample, by its name and the values of its labels."""
    answer = call(app, "GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_gangs_and_why_they_wait(world: Embedded, app: FastAPI) -> None:
    for _ in range(3):
        world.submit(nodes=2, placement={"sharing": "exclusive"})
    wait_until(lambda: all(job.row.state != "pending" or job.reason for job in jobs(world)), "everybody has an answer")
    found = scraped(app)
    assert found["ganger_gangs"] == {
        (state,): many for state, many in Counter(job.row.state for job in jobs(world)).items()
    }
    codes = Counter(job.reason.code for job in jobs(world) if job.reason)
    assert codes, "somebody waits"
    assert found["ganger_waiting_gangs"] == {(code,): many for code, many in codes.items()}


def jobs(world: Embedded) -> list[Any]:
    listed = world.service.jobs(JobFilter(), everything=True, limit=9, cursor=None).items
    return [world.service.job(job["id"]) for job in listed]


def test_rounds_and_what_they_decide(world: Embedded, app: FastAPI) -> None:
    job = world.submit(["true"])
    wait_until(lambda: world.service.job(job).row.state == "succeeded", "it ends")
    found = scraped(app)
    rounds = found["ganger_round_seconds_bucket"]
    counts = [rounds[bound] for bound in sorted(rounds, key=lambda bound: float(bound[0]))]
    assert counts == sorted(counts)
    assert found["ganger_round_seconds_count"][()] == counts[-1] >= 1
    assert found["ganger_round_seconds_sum"][()] > 0
    assert found["ganger_decisions_total"][("start",)] == 1
