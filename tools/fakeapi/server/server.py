"""From a request to its response: authentication, authorization, faults, and the operation."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from tools.fakeapi import refusals
from tools.fakeapi.faults import Call, Fault
from tools.fakeapi.refusals import Refusal, bad_request
from tools.fakeapi.server import discovery
from tools.fakeapi.server.wire import Connection, Request
from tools.fakeapi.store.lists import listed
from tools.fakeapi.store.resources import CRDS, PODS, Resource, defined_by
from tools.fakeapi.store.selectors import Selection
from tools.fakeapi.store.store import Change, Object, Stored, Table, encode
from tools.fakeapi.store.watches import Watch
from tools.fakeapi.writes import apply, pods
from tools.fakeapi.writes.patches import merged, operated, strategic
from tools.fakeapi.writes.writes import Deletion, Writes

HEALTH = ("/healthz", "/livez", "/readyz")
Answer = tuple[int, bytes]
Authorizer = Callable[[Call], bool]
Beside = Callable[[Request, str], Awaitable[Answer]]
"""Return the response to a user's request. Raises Refusal."""


class NoSuchPath(Exception):
    """A path of no served group: answered without a Status."""


class Target(NamedTuple):
    """Target of a path: a collection, an object or a subresource of one."""

    table: Table
    namespace: str
    name: str
    sub: str


class Server:
    """The server. tokens: token -> user. allowed: the authorizer of every call; None allows everything."""

    def __init__(self, writes: Writes, tokens: dict[str, str], rng: random.Random) -> None:
        self.writes, self.tokens, self.rng = writes, tokens, rng
        self.allowed: Authorizer | None = None
        self.faults: list[Fault] = []
        self.used: Counter[Call] = Counter()
        self.connections: set[Connection] = set()
        self.deserted = asyncio.Event()
        self.away = True
        self.watches: dict[Connection, Watch] = {}
        self.beside: dict[tuple[str, str], Beside] = {}
        """Handlers outside of objects by (method, path pattern), as the API server's proxy has."""
        self._asked: set[asyncio.Task[None]] = set()
        self._by_table: dict[Table, list[Watch]] = {table: [] for table in writes.store.tables.values()}

    # -- called by the store and the wire ------------------------------------------------------------------------------

    def on_change(self, table: Table, change: Change) -> None:
        """Handle a change; called by the store."""
        if table.resource == CRDS:
            self._define(change)
        for watch in self._by_table[table]:
            watch.tell(change)

    def connected(self) -> Connection:
        """Handle a connection; over TLS this happens after the handshake, and perhaps never."""
        return Connection(self.handle, self.come, self.gone)

    def come(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.deserted.clear()
        if self.away:
            connection.abort()  # it was accepted before the server went down

    def gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.deserted.set()
        self._forget(connection)

    def handle(self, request: Request) -> None:
        """Handle one request: answer now, or later for a watch or a fault."""
        try:
            user = self._authenticate(request)
            if self._plain(request) or self._beside(request, user):
                return
            target = self._target(request.path)
            call = self._call(user, request, target)
        except NoSuchPath:
            request.connection.answer(404, b"404 page not found\n", content_type="text/plain; charset=utf-8")
            return
        except Refusal as refusal:
            request.connection.answer(*refused(refusal))
            return
        self.used[call] += 1
        fault = next((fault for fault in self.faults if fault.strikes(call, self.rng)), None)
        if fault is None:
            self._do(request, target, call)
        else:
            fault.before(request.connection, lambda: self._do(request, target, call, fault))

    # -- who, and what -------------------------------------------------------------------------------------------------

    def _authenticate(self, request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = self.tokens.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise Refusal(401, "Unauthorized")
        return request.headers.get("impersonate-user", user)

    def _plain(self, request: Request) -> bool:
        """Answer paths without objects: health and discovery."""
        path = request.path.rstrip("/")
        if path in HEALTH:
            request.connection.answer(200, b"ok", content_type="text/plain")
            return True
        resources = [table.resource for table in self.writes.store.tables.values()]
        document = discovery.document(path, resources) if path.count("/") <= 3 else None
        if document is not None:
            request.connection.answer(200, encode(document))
        return document is not None

    def _beside(self, request: Request, user: str) -> bool:
        """Let another handler answer."""
        handler = next(
            (
                candidate
                for (method, path), candidate in self.beside.items()
                if method == request.method and re.fullmatch(path, request.path)
            ),
            None,
        )
        if handler is None:
            return False

        async def answer() -> None:
            try:
                request.connection.answer(*await handler(request, user))
            except Refusal as refusal:
                request.connection.answer(*refused(refusal))

        task = asyncio.get_running_loop().create_task(answer())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return True

    def _target(self, path: str) -> Target:
        group, version, namespace, rest = taken_apart(path)
        if not any(group == table_group for table_group, _, _ in self.writes.store.tables):
            raise NoSuchPath
        table = self.writes.store.tables.get((group, version, rest[0]))
        if table is None or len(rest) > 3 or bool(namespace) > table.resource.namespaced:
            raise refusals.no_such_resource()
        plural, name, sub = [*rest, "", ""][:3]
        if sub == "status" and not table.resource.status:
            raise refusals.no_such_resource()
        if sub not in ("", "status") and not (plural == "pods" and sub in ("binding", "eviction")):
            raise refusals.no_such_resource()
        return Target(table, namespace, name, sub)

    def _call(self, user: str, request: Request, target: Target) -> Call:
        resource = target.table.resource
        named = f"{resource.plural}/{target.sub}" if target.sub else resource.plural
        return Call(
            user, verb_of(request, target.name, target.sub), resource.group, named, target.namespace, target.name
        )

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _do(self, request: Request, target: Target, call: Call, fault: Fault | None = None) -> None:
        connection = request.connection
        try:
            if fault and fault.status:
                raise struck(fault)
            self._authorize(call)
            if call.verb == "watch" and not (fault and fault.lost):
                self._watch(request, target)
                return
            code, body = (200, b"") if call.verb == "watch" else self._answer(request, target, call)
            headers = ""
        except Refusal as refusal:
            code, body, headers = refused(refusal)
        if fault:
            fault.after(connection, lambda: connection.answer(code, body, headers))
        else:
            connection.answer(code, body, headers)

    def _authorize(self, call: Call) -> None:
        if self.allowed is None or self.allowed(call):
            return
        place = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
        plural = call.resource.partition("/")[0]
        name = f' "{call.name}"' if call.name else ""
        message = (
            f'{refusals.qualified(plural, call.group)}{name} is forbidden: User "{call.user}" cannot {call.verb} '
            f'resource "{call.resource}" in API group "{call.group}" {place}'
        )
        raise Refusal(403, message, details=refusals.about(plural, call.group, call.name))

    def _watch(self, request: Request, target: Target) -> None:
        query, connection = request.query, request.connection
        fields = ",".join(filter(None, (query.get("fieldSelector"), target.name and f"metadata.name={target.name}")))
        selection = Selection(target.table.resource, target.namespace, query.get("labelSelector", ""), fields)
        watch = Watch(self.writes.store, target.table, selection, connection, lambda: self._forget(connection))
        watch.check(query)
        connection.start_stream()
        connection.resume = watch.flush
        self.watches[connection] = watch
        self._by_table[target.table].append(watch)
        watch.start(query, self.rng)

    def _forget(self, connection: Connection) -> None:
        """Stop the watch of this connection, if it has one."""
        if watch := self.watches.pop(connection, None):
            watch.stop()
            if watch in self._by_table.get(watch.table, ()):
                self._by_table[watch.table].remove(watch)

    def _answer(self, request: Request, target: Target, call: Call) -> Answer:
        table, namespace, name, _ = target
        dry = request.query.get("dryRun") == "All"
        match call.verb:
            case "list":
                return 200, listed(self.writes.store, table, namespace, request.query)
            case "get":
                return 200, self.writes.find(table, namespace, name).raw
            case "create":
                return self._create(request, target, dry=dry)
            case "update":
                old = self.writes.find(table, namespace, name)
                return self._replace(request, target, old, _read(request))
            case "patch":
                return self._patch(request, target, dry=dry)
            case "delete":
                old = self.writes.find(table, namespace, name)
                return 200, self._delete(table, old, _deletion(request), dry=dry)
        asked = _deletion(request)
        body = listed(self.writes.store, table, namespace, request.query)
        selection = Selection(
            table.resource, namespace, *(request.query.get(f"{kind}Selector", "") for kind in ("label", "field"))
        )
        for stored in [stored for stored in table.objects.values() if selection.has(stored)]:
            self.writes.delete(table, stored, asked, dry=dry)
        return 200, body

    def _create(self, request: Request, target: Target, *, dry: bool) -> Answer:
        table, namespace, name, sub = target
        obj = _read(request)
        if sub == "binding":
            pods.bind(self.writes, namespace, name, obj, dry=dry)
            return 201, _success(code=201)
        if sub == "eviction":
            pod = pods.evict(self.writes, namespace, name, dry=dry)
            self._delete(table, pod, _deletion_of(obj.get("deleteOptions") or {}), dry=dry)
            return 201, _success(code=201)
        apply.noted(None, obj, table.resource, _manager(request), self.writes.now())
        return 201, self.writes.create(table, namespace, obj, dry=dry).raw

    def _replace(self, request: Request, target: Target, old: Stored, obj: Object) -> Answer:
        table, manager = target.table, _manager(request, target.sub)
        apply.noted(old, obj, table.resource, manager, self.writes.now())
        dry = request.query.get("dryRun") == "All"
        return 200, self.writes.replace(table, old, obj, status=target.sub == "status", dry=dry).raw

    def _patch(self, request: Request, target: Target, *, dry: bool) -> Answer:
        table, namespace, name, _ = target
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind in ("application/apply-patch+yaml", "application/apply-patch"):
            return apply.applied(self.writes, target, request.body, request.query, dry=dry)
        patch, old = _read(request, of=Any), self.writes.find(table, namespace, name)
        match kind:
            case "application/merge-patch+json":
                obj = merged(old.read(), patch)
            case "application/json-patch+json":
                obj = operated(old.read(), patch)
            case "application/strategic-merge-patch+json" if not table.resource.custom:
                obj = strategic(old.read(), patch)
            case _:
                message = f"the body of the request was in an unknown format - unknown media type: {kind}"
                raise Refusal(415, message)
        return self._replace(request, target, old, obj)

    def _delete(self, table: Table, old: Stored, asked: Deletion, *, dry: bool) -> bytes:
        left = self.writes.delete(table, old, asked, dry=dry)
        if left is not None or table.resource == PODS:
            return (left or old).raw
        resource = table.resource
        return _success({**refusals.about(resource.plural, resource.group, old.key[1]), "uid": old.meta.uid})

    # -- custom resources ----------------------------------------------------------------------------------------------

    def _define(self, change: Change) -> None:
        """Handle a changed CustomResourceDefinition: its resources change with it."""
        store = self.writes.store
        defined = {} if change.type == "DELETED" else _made_by(change.new)
        for key in (_made_by(change.old) if change.old else {}).keys() - defined.keys():
            for watch in self._by_table.pop(store.tables.pop(key)):
                watch.end()
        for key, resource in defined.items():
            if key in store.tables:
                store.tables[key].resource = resource
            else:
                self._by_table[store.add(resource)] = []


def taken_apart(path: str) -> tuple[str, str, str, list[str]]:
    """Return group, version, namespace and the rest of a path. Raises NoSuchPath."""
    first, *steps = path.strip("/").split("/")
    if first == "api":
        steps.insert(0, "")
    if first not in ("api", "apis") or len(steps) < 3:
        raise NoSuchPath
    group, version, *rest = steps
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        return group, version, rest[1], rest[2:]
    return group, version, "", rest


def verb_of(request: Request, name: str, sub: str) -> str:
    """Return the verb on a collection, or on an object if there is a name."""
    verbs = (
        {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        if name
        else {
            "GET": "watch" if request.query.get("watch") in ("true", "1") else "list",
            "POST": "create",
            "DELETE": "deletecollection",
        }
    )
    if sub in ("binding", "eviction"):
        verbs = {"POST": "create"}
    if request.method not in verbs:
        raise Refusal(405, "the server does not allow this method on the requested resource", details={})
    return verbs[request.method]


def _made_by(crd: Stored) -> dict[tuple[str, str, str], Resource]:
    return {(resource.group, resource.version, resource.plural): resource for resource in defined_by(crd.read())}


def _read(request: Request, of: Any = Object) -> Any:
    if "protobuf" in (kind := request.headers.get("content-type", "")):
        raise Refusal(415, f"the body of the request was in an unknown format - unknown media type: {kind}")
    try:
        return msgspec.json.decode(request.body, type=of)
    except msgspec.MsgspecError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None


def _manager(request: Request, sub: str = "") -> apply.Manager:
    """Return the field manager of a write that is not an apply: the client's, or its user agent."""
    agent = request.headers.get("user-agent", "unknown").partition("/")[0]
    return apply.Manager(request.query.get("fieldManager") or agent, "Update", sub)


def _deletion(request: Request) -> Deletion:
    options = _read(request) if request.body else {}
    query = request.query
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    return _deletion_of(options)


def _deletion_of(options: Object) -> Deletion:
    preconditions = options.get("preconditions") or {}
    return Deletion(
        uid=preconditions.get("uid", ""),
        version=preconditions.get("resourceVersion", ""),
        grace_s=options.get("gracePeriodSeconds"),
        propagation=options.get("propagationPolicy", "Background"),
    )


def _success(details: dict[str, Any] | None = None, code: int | None = None) -> bytes:
    more = {**({"details": details} if details else {}), **({"code": code} if code else {})}
    return encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **more})


def struck(fault: Fault) -> Refusal:
    """Return the error of a fault with a status."""
    return Refusal(fault.status or 0, fault.message, reason=fault.reason, retry_after_s=fault.retry_after_s)


def refused(refusal: Refusal) -> tuple[int, bytes, str]:
    """Return the code, body and headers of an error."""
    headers = f"Retry-After: {refusal.retry_after_s}\r\n" if refusal.retry_after_s is not None else ""
    return refusal.code, encode(refusal.status()), headers
