"""The route that Prometheus scrapes: what the server counts of its own work, in the text format."""

from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Response

from ganger.engine.service import BOUNDS_S, Measure, Spread
from ganger.rest.responses import Served, streamed

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
router: Final = APIRouter(tags=["server"])


@router.get("/metrics", response_class=Response, responses=streamed(MEDIA_TYPE, "Samples as Prometheus reads them"))
def read_measures(service: Served) -> Response:
    """How long rounds take and what they decide, gangs by state, why those that wait do, and what the world counts of
    its own: in Kubernetes pods that were bound, and how long each watch has been silent."""
    rounds, counted = service.measures()
    return Response(_written(rounds, counted), media_type=MEDIA_TYPE)


def _written(rounds: Spread, counted: tuple[Measure, ...]) -> bytes:
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


def _upto(rounds: Spread) -> Iterator[tuple[str, float]]:
    """For each bound how many took no longer."""
    many = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), rounds.counts, strict=True):
        many += count
        yield bound, many
