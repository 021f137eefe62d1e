"""Nodes that a job's claims allow, as terms for node labels, or why a claim cannot be used yet.

A bound claim allows the nodes of its volume. A claim that waits for its first consumer allows those of each available
volume that fits it, and where its class provisions volumes those of the class. Terms are alternatives; those of several
claims, and of the job itself, are combined.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Final

from ganger.backends.kubernetes.foreign.node_affinity import (
    LabelRequirement,
    UnsupportedAffinityError,
    parse_requirement,
    parse_terms,
)
from ganger.backends.kubernetes.volumes.claim_objects import (
    SELECTED_NODE,
    WAITS,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from ganger.errors import RequestError
from ganger.kubeapi.objects import Key, Node
from ganger.kubeapi.quantity import parse_quantity
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.job import JobSpec

Terms = tuple[Term, ...]
"""Alternatives for the labels of a node; none: every node."""
HOSTNAME: Final = "kubernetes.io/hostname"
MAX_TERMS: Final = 64
"""Combined terms; a job with more would need claims of many zones each."""
_NEXT: Final = "this job waits for it: kubectl describe persistentvolumeclaim"


@dataclass(frozen=True, slots=True)
class ClaimWorld:
    """Live views of the claims, volumes, classes and nodes."""

    claims: Mapping[Key, PersistentVolumeClaim]
    volumes: Mapping[Key, PersistentVolume]
    classes: Mapping[Key, StorageClass]
    nodes: Mapping[Key, Node]

    def labels(self, node: str) -> Mapping[str, str]:
        """Return the labels of a node; none if it is gone."""
        known = self.nodes.get(Key("", node))
        return {} if known is None else known.metadata.labels

    def on_nodes(self, nodes: Collection[str]) -> Terms:
        """Return a term for these nodes; () for none."""
        names = sorted({self.labels(node).get(HOSTNAME, node) for node in nodes})
        return (Term((Expression(HOSTNAME, Operator.IN, tuple(names)),)),) if names else ()

    def claim(self, key: Key) -> PersistentVolumeClaim:
        """Return a claim. Raises RequestError (no_such_claim)."""
        claim = self.claims.get(key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            state = "there is no" if claim is None else "it is being deleted: the"
            detail = f"volumes: {state} PersistentVolumeClaim {key.name} in the namespace {key.namespace}"
            raise RequestError("no_such_claim", detail, "create it: this job waits for it")
        return claim

    def volume_of(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume of a claim; None for an unbound one. Raises RequestError (claim_not_bound)."""
        if not claim.spec.volume_name:
            return None
        volume = self.volumes.get(Key("", claim.spec.volume_name))
        if volume is None:
            detail = (
                f"volumes: the PersistentVolume {claim.spec.volume_name} of the claim {claim.metadata.name} is gone"
            )
            raise RequestError("claim_not_bound", detail, f"{_NEXT} {claim.metadata.name}")
        return volume

    def class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        """Return the class of a claim that waits for its first consumer. Raises RequestError for other claims."""
        name, storage_class = claim.metadata.name, self.classes.get(Key("", claim.class_name))
        if claim.class_name and storage_class is None:
            detail = f"volumes: there is no StorageClass {claim.class_name}, which the claim {name} names"
            raise RequestError("no_such_storage_class", detail, "create it: this job waits for it")
        if storage_class is None or storage_class.volume_binding_mode != WAITS:
            detail = f"volumes: the claim {name} is not bound to a volume yet"
            raise RequestError("claim_not_bound", detail, f"{_NEXT} {name}")
        return storage_class

    def selected_node(self, claim: PersistentVolumeClaim) -> str:
        """Return the node for which the volume of an unbound claim is being created; empty for none, or a lost one."""
        node = claim.metadata.annotations.get(SELECTED_NODE, "")
        return node if Key("", node) in self.nodes else ""

    def available(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Return the volumes that an unbound claim could have, the smallest first."""
        fitting = [volume for volume in list(self.volumes.values()) if _fits(volume, claim)]
        return sorted(fitting, key=lambda volume: (_capacity(volume), volume.metadata.name))

    def allowed(self, claim: PersistentVolumeClaim) -> Terms:
        """Return the terms of the nodes on which a claim can be used. Raises RequestError if it cannot be yet."""
        if (volume := self.volume_of(claim)) is not None:
            return terms_of(volume)
        storage_class = self.class_of(claim)
        if node := self.selected_node(claim):
            return self.on_nodes([node])
        volumes = self.available(claim)
        alternatives = [terms_of(volume) for volume in volumes]
        if storage_class is not None and storage_class.provisions and claim.spec.selector is None:
            alternatives.append(provisioned_terms(storage_class))
        if not alternatives:
            modes, size = "+".join(claim.spec.access_modes), claim.spec.resources.requests.get("storage", "0")
            detail = (
                f"volumes: no PersistentVolume of the class {claim.class_name} is available for the claim "
                f"{claim.metadata.name} ({modes}, {size})"
            )
            raise RequestError("claim_not_bound", detail, f"{_NEXT} {claim.metadata.name}")
        return () if () in alternatives else tuple(dict.fromkeys(term for terms in alternatives for term in terms))


def restrict_spec(spec: JobSpec, namespace: str, world: ClaimWorld, used_on: Mapping[Key, Terms]) -> JobSpec:
    """Return a job's spec with the labels that its claims require of nodes. Raises RequestError.

    used_on: terms of the nodes on which claims that may be used on one node only are in use.
    """
    alternatives = [spec.placement.affinity.required]
    for volume in spec.volumes:
        key = Key(namespace, volume.name)
        claim = world.claim(key)
        if claim.is_of_one_node:
            _check_one_node(spec, claim)
            alternatives.append(used_on.get(key, ()))
        alternatives.append(world.allowed(claim))
    required = combine(alternatives)
    if required == spec.placement.affinity.required:
        return spec
    return _replace_required(spec, required)


def combine(alternatives: Sequence[Terms]) -> Terms:
    """Return the terms that hold where one of each of these terms holds. Raises RequestError for too many."""
    restricting = [terms for terms in dict.fromkeys(alternatives) if terms]
    if not restricting:
        return ()
    combined = dict.fromkeys(
        Term(tuple(dict.fromkeys(expression for term in terms for expression in term.expressions)))
        for terms in product(*restricting)
    )
    if len(combined) > MAX_TERMS:
        message = f"volumes: the claims allow {len(combined)} combinations of labels; at most {MAX_TERMS} are tried"
        raise RequestError("claim_not_bound", message, "use claims of fewer zones")
    return tuple(combined)


def terms_of(volume: PersistentVolume) -> Terms:
    """Return the terms of a volume's nodes. Raises RequestError."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ()
    try:
        return parse_terms(affinity.required)
    except UnsupportedAffinityError as error:
        detail = f"volumes: the nodes of the PersistentVolume {volume.metadata.name} cannot be read: {error}"
        raise RequestError(
            "claim_not_bound", detail, f"kubectl describe persistentvolume {volume.metadata.name}"
        ) from None


def provisioned_terms(storage_class: StorageClass) -> Terms:
    """Return the terms of the nodes for which a class creates volumes."""
    return tuple(
        Term(tuple(map(parse_requirement, topology.match_label_expressions)))
        for topology in storage_class.allowed_topologies
        if topology.match_label_expressions
    )


def holds(terms: Terms, labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels is allowed."""
    return not terms or any(term.holds(labels) for term in terms)


def _fits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether an unbound claim could have a volume."""
    about, spec, reference = claim.metadata, claim.spec, volume.spec.claim_ref
    if reference is not None and (reference.namespace, reference.name) != about.key:
        return False
    if reference is not None and reference.uid not in ("", about.uid):
        return False
    return (
        volume.metadata.deletion_timestamp is None
        and volume.spec.storage_class_name == claim.class_name
        and volume.spec.volume_mode == spec.volume_mode
        and set(spec.access_modes) <= set(volume.spec.access_modes)
        and _capacity(volume) >= parse_quantity(spec.resources.requests.get("storage", "0"))
        and all(expression.holds(volume.metadata.labels) for expression in _selected(claim))
    )


def _selected(claim: PersistentVolumeClaim) -> Iterator[Expression]:
    """Yield the conditions for the labels of a claim's volume."""
    if (selector := claim.spec.selector) is not None:
        yield from map(parse_requirement, selector.match_expressions)
        for key, value in selector.match_labels.items():
            yield parse_requirement(LabelRequirement(key=key, values=(value,)))


def _capacity(volume: PersistentVolume) -> Fraction:
    return parse_quantity(volume.spec.capacity.get("storage", "0"))


def _check_one_node(spec: JobSpec, claim: PersistentVolumeClaim) -> None:
    """Raise RequestError if a job may have several nodes and its claim only one."""
    if spec.shape.all_nodes > 1:
        modes = ", ".join(claim.spec.access_modes)
        detail = f"volumes: the claim {claim.metadata.name} is {modes}, for pods of one node; the job may have several"
        raise RequestError("claim_of_one_node", detail, "use a claim that is ReadWriteMany, or nodes: 1")


def _replace_required(spec: JobSpec, required: Terms) -> JobSpec:
    affinity = replace(spec.placement.affinity, required=required)
    return replace(spec, placement=replace(spec.placement, affinity=affinity))
