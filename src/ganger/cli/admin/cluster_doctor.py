"""Checks of a cluster for `ganger doctor --context`: what ganger needs there, and what is missing.

What has to be installed is read from the manifests, so that nothing is listed twice: an object that lacks a part of
its manifest is of an older version, or was changed.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ganger.cli.admin.install import installed_objects
from ganger.client import ClientError
from ganger.gang_jobs.object_names import JOB
from ganger.kubeapi.resources import EVERYTHING, LEASES, NODES, ListOptions, Resource
from ganger.registry import gpu_resources

Check = dict[str, Any]
Object = dict[str, Any]

MAX_SKEW_S: Final = 5.0
SHOWN: Final = 5
_UNCHECKED: Final = ("Deployment", "Namespace", "PodDisruptionBudget")
"""Kinds of which a site may choose the contents: only that they exist is checked."""
_OF_CLUSTER: Final = ("NetworkPolicy", "Service", "Deployment", "PodDisruptionBudget")
"""Kinds that a controller outside the cluster does not need."""
_PULL_REASONS: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_USER_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", dict)
_ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", dict)
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", dict)
_EVENTS: Final = Resource("", "v1", "events", dict)
_NO_STORE: Final = (
    "the controller has a standby, and no durable store: a leader that takes over has no events, no logs of ended "
    "ranks whose pods are gone, and no history of the policy from before"
)
_PODS: Final = Resource("", "v1", "pods", dict)


class ClusterReader(Protocol):
    """A link to a cluster that reads objects with the caller's rights; its methods raise ClientError.

    Attributes:
        caller: who reads, with the namespaces of jobs and of the controller.
    """

    caller: Any

    def read(self, kind: Resource[Any], name: str, namespace: str = "") -> Any:
        """Return an object, None if there is none."""

    def read_all(self, kind: Resource[Any], options: ListOptions = EVERYTHING) -> list[Any]:
        """Return the objects of a resource."""

    def review(self, kind: Resource[Any], spec: dict[str, Any]) -> Any:
        """Return the API server's review of a question."""


def examine(link: ClusterReader, context: str) -> Iterator[Check]:
    """Yield every check, in the order in which faults should be repaired."""
    examination = _Examination(link, context)
    try:
        yield examination.server()
    except ClientError as error:
        yield _fault("server", error.detail, error.next)
        return
    for name, check in (
        ("objects", examination.objects),
        ("control", examination.controller),
        ("store", examination.store),
        ("gpus", examination.gpus),
        ("images", examination.images),
        ("user", examination.permissions),
    ):
        try:
            yield from check()
        except ClientError as error:
            yield _fault(name, error.detail, error.next)


class _Examination:
    """The checks of one cluster."""

    def __init__(self, link: ClusterReader, context: str) -> None:
        self._link, self._context = link, context
        self._namespace = link.caller.controller
        own = "" if self._namespace == "ganger-system" else f" --namespace {self._namespace}"
        self._install = (
            f"ganger install --dry-run{own} --image REGISTRY/ganger | {link.caller.kubectl('apply', '-f', '-')}"
        )
        self._is_outside = False

    def server(self) -> Check:
        """Check that the API server answers, and that its clock is ours."""
        before = datetime.now(UTC)
        review = self._link.review(_USER_REVIEWS, {})
        after = datetime.now(UTC)
        user = review["status"]["userInfo"]["username"]
        detail = f"the API server of context {self._context} answers {user}"
        stamp = review.get("metadata", {}).get("creationTimestamp")
        if not stamp:
            return _ok("server", detail)
        there = datetime.fromisoformat(stamp)
        skew_s = max((before - there).total_seconds() - 1, (there - after).total_seconds(), 0.0)  # it has whole seconds
        if skew_s <= MAX_SKEW_S:
            return _ok("server", f"{detail}; its clock is within {MAX_SKEW_S:g} s of this machine's")
        repair = "synchronize both clocks: timedatectl set-ntp true"
        return _fault("server", f"{detail}; its clock is {skew_s:.0f} s away from this machine's", repair)

    def objects(self) -> Iterator[Check]:
        """Check that what ganger installs is there, as this version has it."""
        missing, older, unreadable = [], [], []
        everything = installed_objects(self._namespace)
        for manifest in everything:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            try:
                there = self._link.read(_kind(manifest), manifest["metadata"]["name"], _namespace_of(manifest))
            except ClientError as error:
                if error.code != "forbidden":
                    raise
                unreadable.append(name)
                continue
            if there is None:
                missing.append((manifest["kind"], name))
            elif manifest["kind"] not in _UNCHECKED and not _has(there, manifest):
                older.append(name)
        self._is_outside = "Deployment" in {kind for kind, _ in missing} and len(missing) < len(everything) / 2
        needed = [name for kind, name in missing if not (self._is_outside and kind in _OF_CLUSTER)]
        if needed:
            yield _fault("objects", f"not installed: {_listed(needed)}", self._install)
        if older:
            yield _fault("objects", f"of an older version, or changed: {_listed(older)}", self._install)
        if not needed and not older:
            detail = (
                f"{len(everything) - len(unreadable) - len(missing)} objects are installed as this version has them"
            )
            yield _ok("objects", detail + (f"; you may not read {_listed(unreadable)}" if unreadable else ""))

    def controller(self) -> Iterator[Check]:
        """Check that a controller leads, and what keeps its pods from running."""
        lease = self._link.read(LEASES, "ganger-controller", self._namespace)
        holder = lease.spec.holder_identity if lease is not None else None
        if lease is None or not holder:
            repair = f"{self._kubectl('get', 'pods')}   or, outside the cluster: ganger controller --context ..."
            yield _fault("control", "no controller leads: its lease has no holder", repair)
            return
        age_s = (datetime.now(UTC) - datetime.fromisoformat(str(lease.spec.renew_time))).total_seconds()
        if age_s > float(lease.spec.lease_duration_seconds or 15) + MAX_SKEW_S:
            detail = f"no controller leads: {holder} last renewed its lease {age_s:.0f} s ago"
            yield _fault("control", detail, self._kubectl("logs", "deployment/ganger-controller"))
        else:
            yield _ok("control", f"{holder} leads")

    def store(self) -> Iterator[Check]:
        """Check that a controller in the cluster has a durable store, if it has a standby, and can use it."""
        try:
            deployment = self._link.read(_DEPLOYMENTS, "ganger-controller", self._namespace)
        except ClientError as error:
            if error.code != "forbidden":
                raise
            deployment = None
        if deployment is None:
            return
        spec = deployment["spec"]
        if not any(str(word).startswith("--store") for word in _controller_arguments(spec)):
            if spec.get("replicas", 1) > 1:
                yield _fault("store", _NO_STORE, self._install.replace(" --image", " --store URL --image"))
            return
        failed, recovered = (
            self._link.read(_EVENTS, f"ganger-controller.{reason}", self._namespace)
            for reason in ("storeunavailable", "storeavailable")
        )
        if failed is not None and str(failed["lastTimestamp"]) > str((recovered or {}).get("lastTimestamp", "")):
            detail = f"the controller's durable store cannot be used: {failed['message']}"
            yield _fault("store", detail, self._kubectl("logs", "deployment/ganger-controller"))
        else:
            yield _ok("store", "the controller has a durable store, and has not said that it cannot use it")

    def gpus(self) -> Iterator[Check]:
        """Check that nodes offer GPUs."""
        nodes = self._link.read_all(NODES)
        offers = {
            resource: sum(node.status.allocatable.get(resource, "0") not in ("", "0") for node in nodes)
            for resource in gpu_resources()
        }
        found = [f"{resource} on {count}" for resource, count in offers.items() if count]
        if found:
            yield _ok("gpus", f"{len(nodes)} nodes: {', '.join(found)}")
            return
        detail = f"none of {len(nodes)} nodes offers GPUs: jobs that ask for some are refused"
        yield _fault("gpus", detail, "install the vendor's device plugin, such as NVIDIA's GPU operator")

    def images(self) -> Iterator[Check]:
        """Check that nodes can pull the images of the controller and of jobs."""
        pods = [
            *self._link.read_all(_PODS, ListOptions(self._namespace)),
            *self._link.read_all(_PODS, ListOptions(labels=JOB)),
        ]
        stuck = {
            f"{status['image']}: {waiting['reason']} in {pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in pods
            for status in _container_statuses(pod)
            if (waiting := status.get("state", {}).get("waiting", {})).get("reason") in _PULL_REASONS
        }
        if not stuck:
            yield _ok("images", f"no pod of {len(pods)} waits for an image")
            return
        repair = (
            "push it where the nodes pull from, or give them the registry's Secret (image.pullSecrets of the chart)"
        )
        yield _fault("images", f"cannot be pulled: {_listed(sorted(stuck))}", repair)

    def permissions(self) -> Iterator[Check]:
        """Check that the caller may create jobs, and who scrapes the controller."""
        caller = self._link.caller
        attributes = {"verb": "create", "group": "ganger.dev", "resource": "gangjobs", "namespace": caller.namespace}
        review = self._link.review(_ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}})
        if review["status"]["allowed"]:
            yield _ok("user", f"you may create jobs in the namespace {caller.namespace}")
        else:
            grant = (
                "create",
                "rolebinding",
                "NAME",
                "--clusterrole=ganger-user",
                "--user=NAME",
                "-n",
                caller.namespace,
            )
            yield _fault("user", f"you may not create jobs in the namespace {caller.namespace}", caller.kubectl(*grant))

    def _kubectl(self, *words: str) -> str:
        return str(self._link.caller.kubectl(*words, "-n", self._namespace))


def _has(actual: Any, expected: Any) -> bool:
    """Return whether an object has all of its manifest; the API server adds defaults and leaves out what is false."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            _has(actual[key], value) if key in actual else not value for key, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(_has, actual, expected))
    if isinstance(expected, str):
        return isinstance(actual, str) and actual.split() == expected.split()
    return bool(actual == expected)


def _kind(manifest: Object) -> Resource[Object]:
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = manifest["kind"].lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"
    return Resource(group, version, plural, dict)


def _namespace_of(manifest: Object) -> str:
    return str(manifest["metadata"].get("namespace", ""))


def _controller_arguments(spec: Object) -> list[str]:
    return [word for container in spec["template"]["spec"]["containers"] for word in container.get("args") or ()]


def _container_statuses(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _ok(name: str, detail: str) -> Check:
    return {"name": name, "ok": True, "detail": detail, "next": ""}


def _fault(name: str, detail: str, repair: str) -> Check:
    return {"name": name, "ok": False, "detail": detail, "next": repair}
