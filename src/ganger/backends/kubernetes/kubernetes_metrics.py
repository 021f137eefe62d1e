"""Metrics of the Kubernetes backend."""

from collections.abc import Mapping
from typing import Final

from ganger.kubeapi.api_client import ApiClient
from ganger.ports import Metric

MAX_SILENCE_S: Final = 86_400.0
"""Reported instead of infinity for a watch without any message."""


def kubernetes_metrics(
    api: ApiClient, binds: Mapping[str, float], last_event_s: Mapping[str, float], now_s: float
) -> tuple[Metric, ...]:
    """Return the metrics. last_event_s: when each watch was last heard, by its resource."""
    silence_s = {name: min(now_s - time_s, MAX_SILENCE_S) for name, time_s in last_event_s.items()}
    requests = {str(permission): float(count) for permission, count in api.requests.items()}
    return (
        Metric.by_label("ganger_api_requests", "Requests to the API server.", "counter", "request", requests),
        Metric.by_label("ganger_pod_binds", "Pod bindings by outcome.", "counter", "outcome", binds),
        Metric.by_label("ganger_watch_silence_seconds", "Since a watch was heard.", "gauge", "resource", silence_s),
    )
