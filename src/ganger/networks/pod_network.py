"""A pod's network as a part of its object."""

import importlib.resources
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from ganger.networks.dranet import template
from ganger.networks.render import PodNetwork
from ganger.registry import no_gpus

CHECK: Final = "network-check"
"""Name of the init container."""
CHECK_RESOURCES: Final = {"cpu": "10m", "memory": "64Mi"}

Object = dict[str, Any]


def pod_documents(network: PodNetwork) -> list[Object]:
    """Return the manifests of a pod's network: the claim templates that ganger writes, then what the pod needs."""
    templates = [template(name, spec, {}) for name, spec in network.templates.items()]
    return [*templates, pod_fragment(network)]


def pod_fragment(network: PodNetwork) -> Object:
    """Return what a manifest of a pod needs, to be merged into one by hand."""
    pod: Object = {
        "metadata": {"annotations": {}},
        "spec": {"containers": [{"name": "ranks", "env": [], "resources": {}, "volumeMounts": []}], "volumes": []},
    }
    joined: Object = _without_empty(join_network(pod, network, may_lock_memory=True))
    return joined


def join_network(pod: Object, network: PodNetwork, *, may_lock_memory: bool) -> Object:
    """Return the pod with its network, in its first container. Variables that it has already stay as they are.

    Without `may_lock_memory` the container gets no capability: its pod complies with `restricted`, and the container
    runtime of the node has to allow locked memory.
    """
    container, *others = pod["spec"]["containers"]
    claims = [{"name": claim} for claim in network.claims]
    needs = {name: str(count) for name, count in network.resources.items()}
    names = {variable["name"] for variable in container["env"]}
    mounts = [{"name": volume["name"], "mountPath": path, "readOnly": True} for volume, path in network.volumes]
    container = {
        **container,
        "env": [*container["env"], *_variables(network.env, names)],
        "resources": _with_needs(container["resources"], needs, claims),
        "volumeMounts": [*container["volumeMounts"], *mounts],
    }
    if network.capabilities and may_lock_memory:
        context = container.get("securityContext", {})
        capabilities = context.get("capabilities", {})
        added = list(dict.fromkeys([*capabilities.get("add", ()), *network.capabilities]))
        container["securityContext"] = {**context, "capabilities": {**capabilities, "add": added}}
    spec = {**pod["spec"], "containers": [container, *others]}
    spec["volumes"] = [*pod["spec"]["volumes"], *(volume for volume, _ in network.volumes)]
    if claims:
        spec["resourceClaims"] = [
            *pod["spec"].get("resourceClaims", ()),
            *({"name": name, "resourceClaimTemplateName": template} for name, template in network.claims.items()),
        ]
    if network.expected and "image" in container:
        spec["initContainers"] = [_check(container, network.expected), *pod["spec"].get("initContainers", ())]
    metadata = {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **network.annotations}}
    return {**pod, "metadata": metadata, "spec": spec}


def _variables(env: Mapping[str, str], names: set[str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in env.items() if name not in names]


def _with_needs(resources: Object, needs: Mapping[str, str], claims: list[Object]) -> Object:
    """Return resources with extended ones, whose requests and limits are equal, and with claims."""
    added = {key: {**resources.get(key, {}), **needs} for key in ("requests", "limits")} if needs else {}
    return {**resources, **added, **({"claims": [*resources.get("claims", ()), *claims]} if claims else {})}


def _check(container: Object, expected: Object) -> Object:
    """Return the init container: with the container's image, user and rights, since limits depend on them."""
    return {
        "name": CHECK,
        "image": container["image"],
        "env": no_gpus(),
        "command": ["python3", "-I", "-S", "-c", _source(), json.dumps(expected)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container.get("securityContext", {}),
        "resources": {"requests": dict(CHECK_RESOURCES), "limits": {"memory": CHECK_RESOURCES["memory"]}},
    }


@cache
def _source() -> str:
    return (importlib.resources.files("ganger.networks") / "init_check.py").read_text()


def _without_empty(value: Any) -> Any:
    """Return a value without empty mappings and lists in it."""
    if isinstance(value, dict):
        return {key: item for key, each in value.items() if (item := _without_empty(each)) not in ({}, [])}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value
