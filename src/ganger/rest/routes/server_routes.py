"""Routes of /server and /metrics: the server itself, how to end it, and its figures for Prometheus."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict

from ganger.engine.service import BOUNDS_S, Histogram, Metric, RequestError
from ganger.model.views.service_views import ServerView
from ganger.rest.responses import CHANGES, Served, answer, documented, shown, streamed
from ganger.rest.token_gate import Local

router: Final = APIRouter(tags=["server"])

Leave = Callable[[str | None], None]
"""Ends the server once the answers under way are sent; with an interpreter, it runs itself anew under that one."""


MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Restart:
    """With which interpreter: the absolute path of a Python that has ganger."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    python: str


@router.get("/server", responses=shown(ServerView))
def get_server(service: Served) -> Response:
    """The server: version, health, how far its log is, how much runs."""
    return answer(service.server())


@router.post(
    "/server/stop",
    status_code=202,
    response_class=Response,
    responses=documented({}, 202, "It will end"),
    dependencies=[Local],
)
async def stop_server(request: Request) -> Response:
    """End the server. Jobs run on, and the next server finds them."""
    request.app.state.leave(None)
    return Response(status_code=202)


@router.post(
    "/server/restart",
    status_code=202,
    responses=documented({}, 202, "It will run itself anew", *CHANGES),
    dependencies=[Local],
)
def restart_server(request: Request, body: Restart) -> Response:
    """Let the server run itself anew, in the same process, under the caller's interpreter. Jobs run on."""
    python = Path(body.python)
    if not python.is_absolute() or not python.is_file():
        raise RequestError(
            "no_interpreter", f"{body.python} is not the absolute path of an interpreter", "ganger doctor"
        )
    request.app.state.leave(body.python)
    return Response(status_code=202)


@router.get("/metrics", response_class=Response, responses=streamed(MEDIA_TYPE, "Samples as Prometheus reads them"))
def read_measures(service: Served) -> Response:
    """How long rounds take and what they decide, gangs by state, why those that wait do, and what the world counts of
    its own: in Kubernetes pods that were bound, and how long each watch has been silent."""
    rounds, counted = service.measures()
    return Response(_written(rounds, counted), media_type=MEDIA_TYPE)


def _written(rounds: Histogram, counted: tuple[Metric, ...]) -> bytes:
    from prometheus_client import generate_latest  # takes longer than many a command
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector

    class Counted(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
            spread = HistogramMetricFamily("ganger_round_seconds", "How long scheduling rounds take.")
            spread.add_metric([], list(_upto(rounds)), rounds.total_s)
            yield spread
            for measure in counted:
                kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
                family = kind(measure.name, measure.says, labels=[measure.label])
                for label, value in sorted(measure.values.items()):
                    family.add_metric([label], value)
                yield family

    return generate_latest(Counted())


def _upto(rounds: Histogram) -> Iterator[tuple[str, float]]:
    """For each bound how many took no longer."""
    many = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), rounds.counts, strict=True):
        many += count
        yield bound, many
