"""Routes of /server and /metrics: the server itself, how to stop it, and its metrics for Prometheus."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from ganger.engine.service import BOUNDS_S, Histogram, Metric, RequestError
from ganger.model.views.service_views import ServerView
from ganger.rest.responses import (
    CHANGE_STATUSES,
    ServiceParam,
    json_response,
    response_docs,
    text_responses,
    view_responses,
)
from ganger.rest.token_gate import LocalOnly

router: Final = APIRouter(tags=["server"])

StopServer = Callable[[str | None], None]
"""Stops the server once the answers under way are sent; with an interpreter, it then restarts under that one."""


MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The interpreter to restart under: the absolute path of a Python that has ganger."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    python: str


@router.get("/server", responses=view_responses(ServerView))
def get_server(service: ServiceParam) -> Response:
    """Return the server: version, health, newest event, number of jobs."""
    return json_response(service.server())


@router.post(
    "/server/stop",
    status_code=202,
    response_class=Response,
    responses=response_docs({}, 202, "It is stopping"),
    dependencies=[LocalOnly],
)
async def stop_server(request: Request) -> Response:
    """Stop the server. Jobs run on, and the next server finds them."""
    request.app.state.stop(None)
    return Response(status_code=202)


@router.post(
    "/server/restart",
    status_code=202,
    responses=response_docs({}, 202, "It is restarting", *CHANGE_STATUSES),
    dependencies=[LocalOnly],
)
def restart_server(request: Request, body: Restart) -> Response:
    """Restart the server, in the same process, under the caller's interpreter. Jobs run on."""
    python = Path(body.python)
    if not python.is_absolute() or not python.is_file():
        raise RequestError(
            "no_interpreter", f"{body.python} is not the absolute path of an interpreter", "ganger doctor"
        )
    request.app.state.stop(body.python)
    return Response(status_code=202)


@router.get(
    "/metrics", response_class=Response, responses=text_responses(MEDIA_TYPE, "Samples as Prometheus reads them")
)
def read_server_metrics(service: ServiceParam) -> Response:
    """Return durations and decisions of cycles, gangs by state, pending gangs by reason, and the backend's metrics.

    In Kubernetes these are pods that were bound, and how long each watch has been silent.
    """
    cycles, metrics = service.server_metrics()
    return Response(_prometheus_text(cycles, metrics), media_type=MEDIA_TYPE)


def _prometheus_text(cycles: Histogram, metrics: tuple[Metric, ...]) -> bytes:
    from prometheus_client import generate_latest  # takes longer than many a command
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector

    class CollectedMetrics(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
            durations = HistogramMetricFamily("ganger_cycle_seconds", "Durations of scheduling cycles.")
            durations.add_metric([], list(_cumulative(cycles)), cycles.total_s)
            yield durations
            for metric in metrics:
                family_class = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = family_class(metric.name, metric.help, labels=metric.labels)
                for labels, value in sorted(metric.values.items()):
                    family.add_metric(labels, value)
                yield family

    return generate_latest(CollectedMetrics())


def _cumulative(cycles: Histogram) -> Iterator[tuple[str, float]]:
    """Yield for each bound how many took no longer."""
    total = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), cycles.counts, strict=True):
        total += count
        yield bound, total
