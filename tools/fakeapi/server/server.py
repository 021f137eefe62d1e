"""From a request to its response: authentication, authorization, faults, and the operation."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from tools.fakeapi import errors
from tools.fakeapi.errors import StatusError, bad_request_error
from tools.fakeapi.faults import Call, Fault
from tools.fakeapi.server import discovery
from tools.fakeapi.server.http import Connection, Request
from tools.fakeapi.store.lists import list_page
from tools.fakeapi.store.resources import CRDS, PODS, Resource, resources_of
from tools.fakeapi.store.selectors import Selection
from tools.fakeapi.store.store import Change, Object, StoredObject, Table, encode
from tools.fakeapi.store.watches import Watch
from tools.fakeapi.writes import apply, pods
from tools.fakeapi.writes.patches import apply_json_patch, apply_merge_patch, apply_strategic_patch
from tools.fakeapi.writes.writes import DeleteOptions, Writes

HEALTH = ("/healthz", "/livez", "/readyz")
Response = tuple[int, bytes]
Authorizer = Callable[[Call], bool]
Handler = Callable[[Request, str], Awaitable[Response | None]]
"""Function from a request and its user to the response, None if it has sent one itself. Raises StatusError."""


class NoSuchPath(Exception):
    """A path of no served group: answered without a Status."""


class Target(NamedTuple):
    """Target of a path: a collection, an object or a subresource of one."""

    table: Table
    namespace: str
    name: str
    sub: str


class Server:
    """The server. tokens: token -> user. authorizer: asked of every call; None allows everything."""

    def __init__(self, writes: Writes, tokens: dict[str, str], rng: random.Random) -> None:
        self.writes, self.tokens, self.rng = writes, tokens, rng
        self.authorizer: Authorizer | None = None
        self.faults: list[Fault] = []
        self.calls: Counter[Call] = Counter()
        self.connections: set[Connection] = set()
        self.no_connections = asyncio.Event()
        self.is_down = True
        self.watches: dict[Connection, Watch] = {}
        self.handlers: dict[tuple[str, str], Handler] = {}
        """Handlers outside of objects by (method, path pattern), as the API server's proxy has."""
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._by_table: dict[Table, list[Watch]] = {table: [] for table in writes.store.tables.values()}

    # -- called by the store and by connections ------------------------------------------------------------------------

    def on_change(self, table: Table, change: Change) -> None:
        """Handle a change; called by the store."""
        if table.resource == CRDS:
            self._define(change)
        for watch in self._by_table[table]:
            watch.add_event(change)

    def make_connection(self) -> Connection:
        """Return the protocol of a new connection; over TLS this happens after the handshake, and perhaps never."""
        return Connection(self.handle, self.add_connection, self.remove_connection)

    def add_connection(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.no_connections.clear()
        if self.is_down:
            connection.abort()  # it was accepted before the server went down

    def remove_connection(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.no_connections.set()
        self._stop_watch(connection)

    def handle(self, request: Request) -> None:
        """Handle one request: answer now, or later for a watch or a fault."""
        try:
            user = self._authenticate(request)
            if self._answer_discovery(request) or self._answer_by_handler(request, user):
                return
            target = self._target(request.path)
            call = self._call(user, request, target)
        except NoSuchPath:
            request.connection.answer(404, b"404 page not found\n", content_type="text/plain; charset=utf-8")
            return
        except StatusError as error:
            request.connection.answer(*error_response(error))
            return
        self.calls[call] += 1
        fault = next((fault for fault in self.faults if fault.strikes(call, self.rng)), None)
        if fault is None:
            self._execute(request, target, call)
        else:
            fault.run_before_call(request.connection, lambda: self._execute(request, target, call, fault))

    # -- authentication and routing ------------------------------------------------------------------------------------

    def _authenticate(self, request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = self.tokens.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise StatusError(401, "Unauthorized")
        return request.headers.get("impersonate-user", user)

    def _answer_discovery(self, request: Request) -> bool:
        """Answer the paths without objects: health and discovery."""
        path = request.path.rstrip("/")
        if path in HEALTH:
            request.connection.answer(200, b"ok", content_type="text/plain")
            return True
        resources = [table.resource for table in self.writes.store.tables.values()]
        document = discovery.document(path, resources) if path.count("/") <= 3 else None
        if document is not None:
            request.connection.answer(200, encode(document))
        return document is not None

    def _answer_by_handler(self, request: Request, user: str) -> bool:
        """Let a handler of `handlers` answer; return whether there is one."""
        handler = next(
            (
                candidate
                for (method, path), candidate in self.handlers.items()
                if method == request.method and re.fullmatch(path, request.path)
            ),
            None,
        )
        if handler is None:
            return False

        async def answer() -> None:
            try:
                if response := await handler(request, user):
                    request.connection.answer(*response)
            except StatusError as error:
                request.connection.answer(*error_response(error))

        task = asyncio.get_running_loop().create_task(answer())
        self._handler_tasks.add(task)
        task.add_done_callback(self._handler_tasks.discard)
        return True

    def _target(self, path: str) -> Target:
        group, version, namespace, rest = parse_path(path)
        if not any(group == table_group for table_group, _, _ in self.writes.store.tables):
            raise NoSuchPath
        table = self.writes.store.tables.get((group, version, rest[0]))
        if table is None or len(rest) > 3 or bool(namespace) > table.resource.namespaced:
            raise errors.no_such_resource_error()
        plural, name, sub = [*rest, "", ""][:3]
        if sub == "status" and not table.resource.status:
            raise errors.no_such_resource_error()
        if sub not in ("", "status") and not (plural == "pods" and sub in ("binding", "eviction")):
            raise errors.no_such_resource_error()
        return Target(table, namespace, name, sub)

    def _call(self, user: str, request: Request, target: Target) -> Call:
        resource = target.table.resource
        named = f"{resource.plural}/{target.sub}" if target.sub else resource.plural
        verb, is_dry_run = verb_of(request, target.name, target.sub), "dryRun" in request.query
        return Call(user, verb, resource.group, named, target.namespace, target.name, is_dry_run)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _execute(self, request: Request, target: Target, call: Call, fault: Fault | None = None) -> None:
        connection = request.connection
        try:
            if fault and fault.status:
                raise fault_error(fault)
            self._authorize(call)
            if call.verb == "watch" and not (fault and fault.lost):
                self._watch(request, target)
                return
            code, body = (200, b"") if call.verb == "watch" else self._answer(request, target, call)
            headers = ""
        except StatusError as error:
            code, body, headers = error_response(error)
        if fault:
            fault.run_before_response(connection, lambda: connection.answer(code, body, headers))
        else:
            connection.answer(code, body, headers)

    def _authorize(self, call: Call) -> None:
        if self.authorizer is None or self.authorizer(call):
            return
        scope = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
        plural = call.resource.partition("/")[0]
        name = f' "{call.name}"' if call.name else ""
        message = (
            f'{errors.qualified_name(plural, call.group)}{name} is forbidden: User "{call.user}" cannot {call.verb} '
            f'resource "{call.resource}" in API group "{call.group}" {scope}'
        )
        raise StatusError(403, message, details=errors.object_details(plural, call.group, call.name))

    def _watch(self, request: Request, target: Target) -> None:
        query, connection = request.query, request.connection
        fields = ",".join(filter(None, (query.get("fieldSelector"), target.name and f"metadata.name={target.name}")))
        selection = Selection(target.table.resource, target.namespace, query.get("labelSelector", ""), fields)
        watch = Watch(self.writes.store, target.table, selection, connection, lambda: self._stop_watch(connection))
        watch.check(query)
        connection.start_stream()
        connection.resume = watch.flush
        self.watches[connection] = watch
        self._by_table[target.table].append(watch)
        watch.start(query, self.rng)

    def _stop_watch(self, connection: Connection) -> None:
        """Stop the watch of this connection, if it has one."""
        if watch := self.watches.pop(connection, None):
            watch.stop()
            if watch in self._by_table.get(watch.table, ()):
                self._by_table[watch.table].remove(watch)

    def _answer(self, request: Request, target: Target, call: Call) -> Response:
        table, namespace, name, _ = target
        dry = request.query.get("dryRun") == "All"
        match call.verb:
            case "list":
                return 200, list_page(self.writes.store, table, namespace, request.query)
            case "get":
                return 200, self.writes.find(table, namespace, name).raw
            case "create":
                return self._create(request, target, dry=dry)
            case "update":
                old = self.writes.find(table, namespace, name)
                return self._replace(request, target, old, _parse_body(request))
            case "patch":
                return self._patch(request, target, dry=dry)
            case "delete":
                old = self.writes.find(table, namespace, name)
                return 200, self._delete(table, old, _parse_delete_options(request), dry=dry)
        options = _parse_delete_options(request)
        body = list_page(self.writes.store, table, namespace, request.query)
        selection = Selection(
            table.resource, namespace, *(request.query.get(f"{kind}Selector", "") for kind in ("label", "field"))
        )
        for stored in [stored for stored in table.objects.values() if selection.selects(stored)]:
            self.writes.delete(table, stored, options, dry=dry)
        return 200, body

    def _create(self, request: Request, target: Target, *, dry: bool) -> Response:
        table, namespace, name, sub = target
        obj = _parse_body(request)
        if sub == "binding":
            pods.bind(self.writes, namespace, name, obj, dry=dry)
            return 201, _success(code=201)
        if sub == "eviction":
            pod = pods.evict(self.writes, namespace, name, dry=dry)
            self._delete(table, pod, _delete_options(obj.get("deleteOptions") or {}), dry=dry)
            return 201, _success(code=201)
        apply.record_owner(None, obj, table.resource, _manager(request), self.writes.now())
        return 201, self.writes.create(table, namespace, obj, dry=dry).raw

    def _replace(self, request: Request, target: Target, old: StoredObject, obj: Object) -> Response:
        table, manager = target.table, _manager(request, target.sub)
        apply.record_owner(old, obj, table.resource, manager, self.writes.now())
        dry = request.query.get("dryRun") == "All"
        return 200, self.writes.replace(table, old, obj, status=target.sub == "status", dry=dry).raw

    def _patch(self, request: Request, target: Target, *, dry: bool) -> Response:
        table, namespace, name, _ = target
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind in ("application/apply-patch+yaml", "application/apply-patch"):
            return apply.apply_patch(self.writes, target, request.body, request.query, dry=dry)
        patch, old = _parse_body(request, of=Any), self.writes.find(table, namespace, name)
        match kind:
            case "application/merge-patch+json":
                obj = apply_merge_patch(old.read(), patch)
            case "application/json-patch+json":
                obj = apply_json_patch(old.read(), patch)
            case "application/strategic-merge-patch+json" if not table.resource.custom:
                obj = apply_strategic_patch(old.read(), patch)
            case _:
                message = f"the body of the request was in an unknown format - unknown media type: {kind}"
                raise StatusError(415, message)
        return self._replace(request, target, old, obj)

    def _delete(self, table: Table, old: StoredObject, options: DeleteOptions, *, dry: bool) -> bytes:
        left = self.writes.delete(table, old, options, dry=dry)
        if left is not None or table.resource == PODS:
            return (left or old).raw
        resource = table.resource
        return _success({**errors.object_details(resource.plural, resource.group, old.key[1]), "uid": old.meta.uid})

    # -- custom resources ----------------------------------------------------------------------------------------------

    def _define(self, change: Change) -> None:
        """Handle a changed CustomResourceDefinition: its resources change with it."""
        store = self.writes.store
        defined = {} if change.type == "DELETED" else _resources_by_key(change.new)
        for key in (_resources_by_key(change.old) if change.old else {}).keys() - defined.keys():
            for watch in self._by_table.pop(store.tables.pop(key)):
                watch.end()
        for key, resource in defined.items():
            if key in store.tables:
                store.tables[key].resource = resource
            else:
                self._by_table[store.add(resource)] = []


def parse_path(path: str) -> tuple[str, str, str, list[str]]:
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
        raise StatusError(405, "the server does not allow this method on the requested resource", details={})
    return verbs[request.method]


def _resources_by_key(crd: StoredObject) -> dict[tuple[str, str, str], Resource]:
    return {(resource.group, resource.version, resource.plural): resource for resource in resources_of(crd.read())}


def _parse_body(request: Request, of: Any = Object) -> Any:
    if "protobuf" in (kind := request.headers.get("content-type", "")):
        raise StatusError(415, f"the body of the request was in an unknown format - unknown media type: {kind}")
    try:
        return msgspec.json.decode(request.body, type=of)
    except msgspec.MsgspecError as error:
        raise bad_request_error(f"the object provided is unrecognized: {error}") from None


def _manager(request: Request, sub: str = "") -> apply.Manager:
    """Return the field manager of a write that is not an apply: the client's, or its user agent."""
    agent = request.headers.get("user-agent", "unknown").partition("/")[0]
    return apply.Manager(request.query.get("fieldManager") or agent, "Update", sub)


def _parse_delete_options(request: Request) -> DeleteOptions:
    options = _parse_body(request) if request.body else {}
    query = request.query
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    return _delete_options(options)


def _delete_options(options: Object) -> DeleteOptions:
    preconditions = options.get("preconditions") or {}
    return DeleteOptions(
        uid=preconditions.get("uid", ""),
        version=preconditions.get("resourceVersion", ""),
        grace_s=options.get("gracePeriodSeconds"),
        propagation=options.get("propagationPolicy", "Background"),
    )


def _success(details: dict[str, Any] | None = None, code: int | None = None) -> bytes:
    more = {**({"details": details} if details else {}), **({"code": code} if code else {})}
    return encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **more})


def fault_error(fault: Fault) -> StatusError:
    """Return the error of a fault with a status."""
    return StatusError(fault.status or 0, fault.message, reason=fault.reason, retry_after_s=fault.retry_after_s)


def error_response(error: StatusError) -> tuple[int, bytes, str]:
    """Return the code, body and headers of an error."""
    headers = f"Retry-After: {error.retry_after_s}\r\n" if error.retry_after_s is not None else ""
    return error.code, encode(error.status()), headers
