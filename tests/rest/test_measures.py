"""Metrics of the server, read by Prometheus' own parser."""

from collections import Counter
from typing import Any

from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from ganger.engine.service import JobFilter
from tests.rest.asgi import call
from tests.service.world import Embedded
from tests.waiting import wait_until


def scrape(app: FastAPI) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the value of each sample, by its name and the values of its labels."""
    answer = call(app, "GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return values


def test_gangs_and_pending_reasons(world: Embedded, app: FastAPI) -> None:
    for _ in range(3):
        world.submit(nodes=2, placement={"sharing": "exclusive"})
    wait_until(
        lambda: all(job.row.state == "running" or job.reason for job in jobs(world)),
        "one runs, the others wait",
    )
    values = scrape(app)
    assert values["ganger_gangs"] == {
        (state,): count for state, count in Counter(job.row.state for job in jobs(world)).items()
    }
    codes = Counter(job.reason.code for job in jobs(world) if job.reason)
    assert codes, "a job is pending"
    assert values["ganger_pending_gangs"] == {(code,): count for code, count in codes.items()}
    assert codes["no_capacity"] == len([job for job in jobs(world) if job.reason])
    assert values["ganger_unmet_nodes"] == {("cpu",): 2 * codes["no_capacity"]}


def test_largest_gangs(world: Embedded, app: FastAPI) -> None:
    values, rows = scrape(app), world.service.overview().fragmentation
    forms = [(f"{row.gpu_type or 'gpu'}:{row.gpus} {row.level}".strip(),) for row in rows]
    assert forms, "the nodes have GPUs"
    assert values["ganger_largest_gang_nodes"] == dict(zip(forms, (row.nodes for row in rows), strict=True))
    assert values["ganger_largest_gang_nodes_defragmented"] == dict(
        zip(forms, (row.nodes_defragmented for row in rows), strict=True)
    )


def jobs(world: Embedded) -> list[Any]:
    listed = world.service.jobs(JobFilter(), everything=True, limit=9, cursor=None).items
    return [world.service.job(job["id"]) for job in listed]


def test_cycles_and_their_decisions(world: Embedded, app: FastAPI) -> None:
    job = world.submit(["true"])
    wait_until(lambda: world.service.job(job).row.state == "succeeded", "it ends")
    values = scrape(app)
    buckets = values["ganger_cycle_seconds_bucket"]
    counts = [buckets[bound] for bound in sorted(buckets, key=lambda bound: float(bound[0]))]
    assert counts == sorted(counts)
    assert values["ganger_cycle_seconds_count"][()] == counts[-1] >= 1
    assert values["ganger_cycle_seconds_sum"][()] > 0
    assert values["ganger_decisions_total"][("start",)] == 1
