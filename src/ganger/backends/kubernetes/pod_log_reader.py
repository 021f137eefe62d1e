"""Logs of pods for readers on other threads, from the kubelets, and from copies of those that have ended."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from ganger.gang_jobs import pod_logs
from ganger.gang_jobs.pod_template import CONTAINER
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import PODS
from ganger.ports import LogLine, LogQuery

FETCH_TIMEOUT_S: Final = 30.0
WithCopies = Callable[[str, Mapping[Key, Pod], pod_logs.Fetch], tuple[Mapping[Key, Pod], pod_logs.Fetch]]


class PodLogReader:
    """Reads logs of `pods`, a live view.

    Attributes:
        with_copies: adds pods whose logs were copied to those that a reader of a job's logs gets.
    """

    def __init__(self, api: ApiClient, pods: Mapping[Key, Pod]) -> None:
        self._api, self._pods, self._loop = api, pods, asyncio.get_running_loop()
        self.with_copies: WithCopies = lambda job, pods, fetch: (pods, fetch)  # noqa: ARG005

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """Yield the lines of a job's logs; see `ports.Backend`."""
        pods, fetch = self.with_copies(query.job, self._pods, self.fetch)
        return pod_logs.lines(pods, query, fetch)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        """Yield the lines as they come; see `ports.Backend`."""
        pods, fetch = self.with_copies(query.job, self._pods, self.fetch)
        return pod_logs.follow(pods, query, fetch, ended)

    def fetch(self, pod: Key, since: str) -> str:
        """Fetch a pod's log."""
        query = {"container": CONTAINER, "timestamps": "true"} | ({"sinceTime": since} if since else {})
        fetch = self._api.text(ObjectRef(PODS, pod.namespace, pod.name, "log"), query)
        try:
            return asyncio.run_coroutine_threadsafe(fetch, self._loop).result(FETCH_TIMEOUT_S)
        except ApiError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                return ""  # its container has not started yet, or is gone
            raise pod_logs.LogUnavailableError(str(error)) from None
        except TimeoutError:
            raise pod_logs.LogUnavailableError(f"no log of {pod.name} within {FETCH_TIMEOUT_S:.0f} s") from None
