"""Client of conformance cases: plain requests and streams, decoded as JSON, without retries."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ganger.kubeapi.credentials import Credentials

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
Object = dict[str, Any]


@dataclass
class Answer:
    """Code and body of a response; `reason` of an error."""

    code: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return self.body.get("reason", "")

    @property
    def version(self) -> str:
        return self.body["metadata"]["resourceVersion"]

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


class ApiSession:
    """Requests of one user. namespace: a fresh one of the case's own."""

    def __init__(self, access: Credentials, session: aiohttp.ClientSession, namespace: str) -> None:
        self._access, self._session, self.namespace = access, session, namespace

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        """Return a path in the case's namespace. plural: `pods`, or `widgets.conformance.ganger.dev`."""
        named, _, group = plural.partition(".")
        root = f"/apis/{group}/{'v1alpha1' if group.endswith('ganger.dev') else 'v1'}" if group else "/api/v1"
        return "/".join(filter(None, (root, "namespaces", self.namespace, named, name, sub)))

    async def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", *, user: str = "", **query: str
    ) -> Answer:
        """Send a request. user: another identity."""
        headers = {**await self._access.headers(), "Content-Type": kind}
        headers |= {"Impersonate-User": user} if user else {}
        data = None if body is None else json.dumps(body)
        url = self._access.url + path
        async with self._session.request(
            method, url, params=query, data=data, headers=headers, ssl=self._access.ssl or True
        ) as answer:
            text = await answer.text()
            decoded = json.loads(text) if "json" in answer.content_type else text
            return Answer(answer.status, decoded, {name.lower(): value for name, value in answer.headers.items()})

    async def get(self, path: str, **query: str) -> Answer:
        return await self.ask("GET", path, **query)

    async def created(self, path: str, body: Object) -> Object:
        """Create an object; return it."""
        answer = await self.ask("POST", path, body)
        assert answer.code == 201, answer.body
        actual: Object = answer.body
        return actual

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[Object]]:
        """Yield the events of a watch until the server ends the stream."""
        headers = await self._access.headers()
        url, params = self._access.url + path, {"watch": "true", **query}
        async with self._session.get(url, params=params, headers=headers, ssl=self._access.ssl or True) as answer:
            assert answer.status == 200, await answer.text()
            try:
                yield (json.loads(line) async for line in answer.content)
            finally:
                # Over TLS a graceful close would wait for the server's, which is still sending.
                if answer.connection and answer.connection.transport:
                    answer.connection.transport.abort()


async def take(events: AsyncIterator[Object], count: int) -> list[tuple[str, str]]:
    """Return (type, name) of the next events."""
    taken = list[tuple[str, str]]()
    while len(taken) < count:
        event = await anext(events)
        name = event["object"]["metadata"]["name"]
        if name != "kube-root-ca.crt":  # a real cluster adds it to each namespace, at its leisure
            taken.append((event["type"], name))
    return taken


def pod(name: str, **more: Any) -> Object:
    """Return a pod that only ganger schedules. more: fields of its metadata, or `spec`."""
    spec = {
        "schedulerName": "conformance",
        "containers": [{"name": "main", "image": "nothing"}],
        **more.pop("spec", {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **more}, "spec": spec}


def config_map(name: str, data: dict[str, str] | None = None, **more: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **more}, "data": data or {}}


def binding(name: str, node: str = "nowhere", **more: Any) -> Object:
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **more}, "target": target}
