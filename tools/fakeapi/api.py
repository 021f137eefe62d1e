"""FakeApi: the server for tests and benches, with its raw state, its faults and its other clients.

async with FakeApi(kubelet=True) as api:
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, ...})
    api.inject(Fault(resource="pods/binding", status=500))
    ... a client on api.url with api.token ...
    assert api.objects("pods")
"""

import asyncio
import copy
import json
import random
import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.fakeapi.faults import Fault
from tools.fakeapi.garbage_collector import GarbageCollector
from tools.fakeapi.kubelet import Kubelet
from tools.fakeapi.server import server_certificate
from tools.fakeapi.server.server import Authorizer, Server
from tools.fakeapi.store.resources import BUILT_IN, NAMESPACES
from tools.fakeapi.store.store import Object, Store, Table
from tools.fakeapi.writes.writes import SERVER_FIELDS, DeleteOptions, Writes, desired_state

FIRST_NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")


class FakeApi:
    """A Kubernetes API server in this process, on loopback.

    Args:
        tls: serve https, with a new certificate (`ca`).
        kubelet: pods run, nodes become Ready.
        seed: seed of all randomness, UIDs included.
        history: changes of a resource that can be watched before the oldest half is compacted.
    """

    def __init__(self, *, tls: bool = False, kubelet: bool = False, seed: int = 0, history: int = 100_000) -> None:
        self.token = "admin-token"
        self.ca = ""
        self.store = Store(history)
        for resource in BUILT_IN:
            self.store.add(resource)
        self.rng = random.Random(seed)
        self.writes = Writes(self.store, self._now_s, self.rng)
        self.server = Server(self.writes, {self.token: "admin"}, random.Random(seed))
        self.kubelet = Kubelet(self.writes)
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls, self.ca = server_certificate.make_certificate()
        self.store.listeners += [self.server.on_change, GarbageCollector(self.writes).on_change]
        if kubelet:
            self.store.listeners.append(self.kubelet.on_change)
        self._listening: asyncio.Server | None = None
        self._port = 0
        self._started_s = 0.0

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._started_s = time.time() - asyncio.get_running_loop().time()
        if not self.store.table(NAMESPACES).objects:
            for name in FIRST_NAMESPACES:
                self.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the previous port if there was one."""
        self.server.is_down = False
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self.server.make_connection, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break every connection and stop listening; the state stays. Connections in progress are refused."""
        self.server.is_down = True
        if self._listening:
            loop = asyncio.get_running_loop()
            for listening_socket in self._listening.sockets:
                loop.remove_reader(listening_socket.fileno())
            for _ in range(2):  # connections that asyncio has accepted cannot be refused after closing
                await asyncio.sleep(0)
            self._listening.close()
            self._listening = None
        for connection in list(self.server.connections):
            connection.abort()
        if self.server.connections:
            await self.server.no_connections.wait()

    async def restart(self, down_s: float = 0.0) -> None:
        """Stop for `down_s`, then continue on the same port with the same state."""
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, user: str = "admin") -> Path:
        """Write a kubeconfig of that user; return its path."""
        token = next(token for token, user_name in self.server.tokens.items() if user_name == user)
        cluster = {"server": self.url}
        if self.ca:
            authority = path.with_suffix(".ca.pem")
            authority.write_text(self.ca)
            cluster["certificate-authority"] = str(authority)
        names = {"cluster": "fakeapi", "user": user}
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fakeapi",
            "contexts": [{"name": "fakeapi", "context": {**names, "namespace": "default"}}],
            "clusters": [{"name": "fakeapi", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
        }
        path.write_text(json.dumps(text))
        path.chmod(0o600)
        return path

    def _now_s(self) -> float:
        return self._started_s + asyncio.get_running_loop().time()

    # -- raw state: no rights, no faults, no checks --------------------------------------------------------------------

    def put(self, obj: Object) -> Object:
        """Create or replace the object as given, status included; return it."""
        table = self._table_of(obj)
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        if table.resource.namespaced:
            meta.setdefault("namespace", "default")
        old = table.objects.get((meta.get("namespace", ""), meta["name"]))
        if old is None:
            previous = copy.deepcopy(obj)
            self.writes.complete(table, meta.get("namespace", ""), previous)
        else:
            previous = old.read()
        server_fields = {name: previous["metadata"][name] for name in SERVER_FIELDS if name in previous["metadata"]}
        status = {**previous.get("status", {}), **obj.get("status", {})}
        whole = {
            **previous,
            **(obj if old else {}),
            "metadata": {**server_fields, **meta},
            **({"status": status} if status else {}),
        }
        if old and "generation" in server_fields and desired_state(whole) != desired_state(previous):
            whole["metadata"]["generation"] = server_fields["generation"] + 1
        return self.store.write(table, whole, old).read()

    def _table_of(self, obj: Object) -> Table:
        group, _, version = obj["apiVersion"].rpartition("/")
        for table in self.store.tables.values():
            resource = table.resource
            if (resource.group, resource.version, resource.kind) == (group, version, obj["kind"]):
                return table
        raise KeyError(f"no {obj['kind']} in {obj['apiVersion']}: put its CustomResourceDefinition first")

    def get(self, plural: str, name: str, namespace: str = "default") -> Object | None:
        """Return one object; None if it does not exist."""
        table = self.table(plural)
        stored = table.objects.get((namespace if table.resource.namespaced else "", name))
        return stored.read() if stored else None

    def objects(self, plural: str, namespace: str | None = None) -> list[Object]:
        """Return all objects of a resource, or of one namespace, sorted by namespace and name."""
        objects = self.table(plural).objects
        return [objects[key].read() for key in sorted(objects) if namespace in (None, key[0])]

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Delete at once an object without finalizers."""
        table = self.table(plural)
        stored = self.writes.find(table, namespace if table.resource.namespaced else "", name)
        self.writes.delete(table, stored, DeleteOptions(grace_s=0))

    def table(self, plural: str) -> Table:
        """Return a table by `pods`, or by `events.events.k8s.io` where the plural alone is ambiguous."""
        name, _, group = plural.partition(".")
        tables = [
            table
            for (table_group, _, table_plural), table in self.store.tables.items()
            if table_plural == name and group in ("", table_group)
        ]
        if not tables:
            raise KeyError(f"the server has no resource {plural}: put its CustomResourceDefinition first")
        return tables[0]

    # -- users ---------------------------------------------------------------------------------------------------------

    def add_user(self, name: str) -> str:
        """Add a user; return the token."""
        token = f"{name}-token"
        self.server.tokens[token] = name
        return token

    def used_permissions(self, user: str = "admin") -> set[tuple[str, str, str]]:
        """Return what a user has requested so far, as roles name it: (verb, API group, resource with subresource)."""
        return {(call.verb, call.group, call.resource) for call in self.server.calls if call.user == user}

    def expire(self, token: str) -> None:
        """Reject that token from now on, and end its watches."""
        del self.server.tokens[token]
        self.cut_watches()

    def allow(self, authorizer: Authorizer | None) -> None:
        """Set the authorizer that is asked for every call, as RBAC is; None allows everything."""
        self.server.authorizer = authorizer

    # -- faults --------------------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> Fault:
        """Add a fault; of several that match a call the first one strikes."""
        self.server.faults.append(fault)
        return fault

    def cut_watches(self, plural: str = "", *, mid_line: bool = False) -> int:
        """Break the connections of watches, all or those of a resource; return how many."""
        watches = self._watches(plural)
        for watch in watches:
            watch.cut(mid_line=mid_line)
        return len(watches)

    def freeze_watches(self, plural: str = "") -> int:
        """Make watches half-open: nothing more is sent, though the connection stays; return how many."""
        watches = self._watches(plural)
        for watch in watches:
            watch.freeze()
        return len(watches)

    def double_events(self, plural: str = "", *, doubled: bool = True) -> None:
        """Send every event twice to open watches from now on."""
        for watch in self._watches(plural):
            watch.doubled = doubled

    def compact(self) -> None:
        """Forget all history: older versions are gone (410)."""
        self.store.compact()

    def _watches(self, plural: str) -> list[Any]:
        return [watch for watch in self.server.watches.values() if plural in ("", watch.table.resource.plural)]
