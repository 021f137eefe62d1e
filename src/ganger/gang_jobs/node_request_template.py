"""Objects by which nodes are requested of a cluster's autoscaler for a gang that waits for them.

Either a ProvisioningRequest with a PodTemplate for each part of the gang, or placeholder pods: the default scheduler
finds no node for them, so the autoscaler adds one for each, and they are deleted before the gang is bound there. All
that an autoscaler can know of a gang is in the pods: its resources and the labels, taints and GPU types of its nodes,
and that each has a node of its own. Source of the API: "ProvisioningRequest" of the Kubernetes cluster autoscaler.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ganger.gang_jobs.custom_resources import GROUP
from ganger.gang_jobs.object_names import NODE_REQUEST
from ganger.gang_jobs.pod_template import container_security_context, pod_security_context, tolerations_of
from ganger.kubeapi.objects import DEFAULT_SCHEDULER, CustomObject, Object, PartialObjectMetadata, Pod
from ganger.kubeapi.resources import Resource
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.cluster import Node, gpu_type
from ganger.model.policy import RESTRICTED
from ganger.model.shape import Shape
from ganger.registry import gpu_resources

PROVISIONING_REQUESTS: Final = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests", CustomObject)
POD_TEMPLATES: Final = Resource("", "v1", "podtemplates", PartialObjectMetadata)
PLACEHOLDER: Final = f"{GROUP.partition('.')[0]}-placeholder"
"""Name of the only container of placeholder pods, by which they are known, and of their PriorityClass."""
PAUSE_IMAGE: Final = "registry.k8s.io/pause:3.10"
HOST_LABEL: Final = "kubernetes.io/hostname"
_DEFAULT_GPU: Final = "nvidia.com/gpu"
"""Resource of GPUs where no node has any yet."""


class UnknownGpuTypeError(Exception):
    """A GPU type that no node has had, so that no label is known by which pods could ask for it."""


class GpuForm(NamedTuple):
    """The resource by which pods ask for GPUs of a type, and the values of labels that nodes with it have, by key."""

    resource: str
    labels: Mapping[str, frozenset[str]]


class PodSet(NamedTuple):
    """Equal pods of a gang, one for each of its nodes."""

    pods: int
    spec: Object


class RequestNames(NamedTuple):
    """Name, namespace, job and owner of the objects of one request."""

    name: str
    namespace: str
    job: str
    owner: Object

    def metadata(self, suffix: str = "") -> Object:
        """Return the metadata of one of the objects."""
        return {
            "name": self.name + suffix,
            "namespace": self.namespace,
            "labels": {NODE_REQUEST: self.name},
            "ownerReferences": [self.owner],
        }


def is_placeholder(pod: Pod) -> bool:
    """Return whether a pod is a placeholder: by its container, which cannot be changed."""
    containers = pod.spec.containers
    return len(containers) == 1 and containers[0].name == PLACEHOLDER


def gpu_forms(nodes: Iterable[Node], resources: Mapping[str, str]) -> dict[str, GpuForm]:
    """Return the form of each GPU type that nodes have; "" for any. `resources`: of each node with GPUs, by name."""
    counts, labels = dict[str, Counter[str]](), dict[str, dict[str, set[str]]]()
    for node in nodes:
        if (resource := resources.get(node.name)) is None:
            continue
        for kind in (node.gpu_type, ""):
            counts.setdefault(kind, Counter())[resource] += 1
        for key in gpu_resources()[resource].product_labels:
            value = node.labels.get(key, "")
            if value and gpu_type(value.replace("_", " ")) == node.gpu_type:
                labels.setdefault(node.gpu_type, {}).setdefault(key, set()).add(value)
    return {
        kind: GpuForm(
            count.most_common(1)[0][0], {key: frozenset(values) for key, values in labels.get(kind, {}).items()}
        )
        for kind, count in counts.items()
    }


def pod_sets(shape: Shape, name: str, forms: Mapping[str, GpuForm], image: str) -> list[PodSet]:
    """Return the pods of a gang's parts. `name`: of the request. Raises UnknownGpuTypeError."""
    return [PodSet(part.nodes, _pod_spec(part, name, _gpu_form(part, forms), image)) for part in shape.parts]


def placeholders(request: RequestNames, sets: Iterable[PodSet]) -> list[Object]:
    """Return the placeholder pods of a request."""
    specs = [each.spec for each in sets for _ in range(each.pods)]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": request.metadata(f"-{index}"),
            "spec": {**spec, "schedulerName": DEFAULT_SCHEDULER, "priorityClassName": PLACEHOLDER},
        }
        for index, spec in enumerate(specs)
    ]


def provisioning_request(request: RequestNames, sets: Iterable[PodSet], provisioning_class: str) -> Object:
    """Return the ProvisioningRequest; its templates are those of `pod_templates`."""
    counts = [{"count": pods.pods, "podTemplateRef": {"name": name}} for name, pods in _by_template(request, sets)]
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": request.metadata(),
        "spec": {"provisioningClassName": provisioning_class, "podSets": counts},
    }


def pod_templates(request: RequestNames, sets: Iterable[PodSet]) -> list[Object]:
    """Return the PodTemplates of a ProvisioningRequest."""
    return [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": request.metadata(name.removeprefix(request.name)),
            "template": {"metadata": {"labels": {NODE_REQUEST: request.name}}, "spec": pods.spec},
        }
        for name, pods in _by_template(request, sets)
    ]


def _by_template(request: RequestNames, sets: Iterable[PodSet]) -> Iterator[tuple[str, PodSet]]:
    return ((f"{request.name}-{index}", pods) for index, pods in enumerate(sets))


def _gpu_form(part: Shape, forms: Mapping[str, GpuForm]) -> GpuForm:
    """Return how pods of a part ask for GPUs: of the first of its types that is known, and others of that resource."""
    kinds = [kind for kind in part.gpu_types if kind]
    known = [forms[kind] for kind in kinds if kind in forms]
    if not part.has_gpus or not kinds or None in part.gpu_types:
        return forms[""]._replace(labels={}) if "" in forms else GpuForm(_DEFAULT_GPU, {})
    if not known:
        if not part.selector.labels and not part.selector.required:
            raise UnknownGpuTypeError(
                f"no node with {' or '.join(kinds)} GPUs has been here, so it is not known by which label to ask for "
                "them: name one in placement.node_selector"
            )
        return GpuForm(_DEFAULT_GPU, {})
    labels: dict[str, frozenset[str]] = {}
    for form in known:
        if form.resource == known[0].resource:
            labels |= {key: labels.get(key, frozenset()) | values for key, values in form.labels.items()}
    return GpuForm(known[0].resource, labels)


def _pod_spec(part: Shape, name: str, gpu: GpuForm, image: str) -> Object:
    amounts = {"cpu": f"{part.cpu_milli}m", "memory": str(part.memory_bytes), gpu.resource: str(part.devices)}
    is_wanted = {"cpu": part.cpu_milli, "memory": part.memory_bytes, gpu.resource: part.devices}
    requests = {key: amount for key, amount in amounts.items() if is_wanted[key]}
    requests |= {key: str(amount) for key, amount in part.extended}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod_security_context(RESTRICTED),
        "nodeSelector": dict(part.selector.labels),
        "tolerations": list(tolerations_of(part.selector.tolerations)),
        "affinity": _affinity(part, name, gpu),
        "containers": [
            {
                "name": PLACEHOLDER,
                "image": image,
                "securityContext": container_security_context(RESTRICTED),
                "resources": {"requests": requests, "limits": {key: requests[key] for key in requests if key != "cpu"}},
            }
        ],
    }


def _affinity(part: Shape, name: str, gpu: GpuForm) -> Object:
    """Return the node affinity of a part, and that no two of its pods share a node unless the gang's may."""
    # A node has its type in one of the labels.
    types = [Term((Expression(key, Operator.IN, tuple(sorted(values))),)) for key, values in gpu.labels.items()]
    terms = [
        Term((*term.expressions, *of_type.expressions))
        for term in part.selector.required or (Term(()),)
        for of_type in types or (Term(()),)
    ]
    affinity: Object = {}
    if any(term.expressions for term in terms):
        required = {"nodeSelectorTerms": [_node_selector_term(term) for term in terms]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    if not part.stacked:
        apart = {"labelSelector": {"matchLabels": {NODE_REQUEST: name}}, "topologyKey": HOST_LABEL}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    return affinity


def _node_selector_term(term: Term) -> Object:
    return {
        "matchExpressions": [
            {"key": each.key, "operator": str(each.operator)} | ({"values": list(each.values)} if each.values else {})
            for each in term.expressions
        ]
    }
