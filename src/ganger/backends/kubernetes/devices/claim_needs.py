"""Claims of pods in the allocator's terms, and the kinds of pods whose claims are alike."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ganger.backends.kubernetes.devices.allocator import (
    ClaimNeeds,
    DeviceChoice,
    DeviceId,
    NodeDevices,
    SameOrDistinct,
)
from ganger.backends.kubernetes.devices.published_devices import DeviceRequestError, PublishedDevices
from ganger.backends.kubernetes.devices.selectors import SelectorError
from ganger.gang_jobs.object_names import DEVICES_DOMAIN
from ganger.kubeapi.device_objects import ClaimDevices, ClaimSpec, DeviceRequest, ExactRequest

ALL: Final = "All"
EXACT_COUNT: Final = "ExactCount"
INDEX: Final = "index"
"""Attribute by which drivers number the devices of a node."""
_MAX_WORDS: Final = 50
"""Characters; the name of a resource has at most 63."""


class PodDevices(NamedTuple):
    """The claims of a pod, by which pods are alike.

    name: extended resource under which the core counts such pods.
    claims: specs of its claims, sorted.
    indices: the only devices that it may have, by their attribute `index`; none: any.
    """

    name: str
    claims: tuple[ClaimSpec, ...]
    indices: tuple[int, ...] = ()


def kind_of(claims: Sequence[ClaimSpec], indices: tuple[int, ...] = ()) -> PodDevices:
    """Return the kind of pods with these claims: named by their classes, and by a hash of everything else."""
    texts = sorted((msgspec.json.encode(spec), index) for index, spec in enumerate(claims))
    whole = [*(text for text, _ in texts), msgspec.json.encode(indices)]
    digest = hashlib.sha256(b"\n".join(whole)).hexdigest()[:8]
    counts = Counter[str]()
    for spec in claims:
        for request in spec.devices.requests:
            for exact in choices_of(request)[:1]:
                counts[exact.device_class_name] += exact.count if exact.allocation_mode != ALL else 0
    words = "-".join(f"{count or 'all'}x{name}" for name, count in sorted(counts.items()))
    return PodDevices(
        f"{DEVICES_DOMAIN}/{words[:_MAX_WORDS]}-{digest}", tuple(claims[index] for _, index in texts), indices
    )


class KindDemand(NamedTuple):
    """Amounts of kinds that some claims need together: one of their own kind, and some of single devices."""

    kind: PodDevices
    devices: tuple[tuple[PodDevices, int], ...] = ()

    @property
    def kinds(self) -> list[PodDevices]:
        """All of them."""
        return [self.kind, *(single for single, _ in self.devices)]

    @property
    def amounts(self) -> dict[str, int]:
        """The amount of each kind by its name."""
        return {self.kind.name: 1, **{single.name: count for single, count in self.devices}}


def demands_of(kinds: Sequence[PodDevices]) -> list[KindDemand]:
    """Return the demand of each of these kinds, several of which may be on one node.

    What fits of each alone may not fit together, so the single devices of classes that several of them ask for are
    counted too.
    """
    different = {kind.name: kind for kind in kinds}.values()
    classes = Counter(name for kind in different for name in set(_classes_of(kind)))
    return [KindDemand(kind, tuple(_single_devices(kind, classes))) for kind in kinds]


def _classes_of(kind: PodDevices) -> Iterator[str]:
    for spec in kind.claims:
        yield from (exact.device_class_name for request in spec.devices.requests for exact in choices_of(request))


def _single_devices(kind: PodDevices, classes: Mapping[str, int]) -> Iterator[tuple[PodDevices, int]]:
    """Yield the kinds of one device of classes that are in several kinds, and how many of each a kind has."""
    singles, counts = dict[str, PodDevices](), Counter[str]()
    for spec in kind.claims:
        for exact in (request.exactly for request in spec.devices.requests):
            if (
                exact is None
                or exact.allocation_mode == ALL
                or exact.admin_access
                or classes[exact.device_class_name] < 2
            ):
                continue
            request = DeviceRequest("device", msgspec.structs.replace(exact, count=1))
            single = kind_of([ClaimSpec(ClaimDevices((request,)))], kind.indices)
            singles[single.name] = single
            counts[single.name] += exact.count
    yield from ((singles[name], count) for name, count in counts.items() if name != kind.name)


def choices_of(request: DeviceRequest) -> tuple[ExactRequest, ...]:
    """Return the ways to satisfy a request; none if it is of a kind that is not known."""
    return (request.exactly,) if request.exactly is not None else request.first_available


def allocated_name(request: DeviceRequest, exact: ExactRequest) -> str:
    """Return the name of a request, or of one of its alternatives, in allocations."""
    return request.name if request.exactly is not None else f"{request.name}/{exact.name}"


def check_claim(spec: ClaimSpec, published: PublishedDevices) -> None:
    """Raise DeviceRequestError for a class that does not exist, a wrong selector, and what is not supported."""
    for request in spec.devices.requests:
        choices = choices_of(request)
        if not choices:
            raise DeviceRequestError(f"request {request.name} is of a kind that ganger does not know")
        for exact in choices:
            _check_exact(allocated_name(request, exact), exact, published)


def needs_of(node: str, spec: ClaimSpec, indices: tuple[int, ...], published: PublishedDevices) -> ClaimNeeds:
    """Return what a claim needs on a node, of devices with these indices if any are given.

    Raises DeviceRequestError.
    """
    check_claim(spec, published)
    allowed = _of_indices(published.of_node(node), indices)
    among = f" with an index of {', '.join(map(str, indices))}" if indices else ""
    requests = tuple(
        tuple(
            DeviceChoice(
                request=allocated_name(request, exact),
                what=f"{exact.device_class_name}{among}",
                count=None if exact.allocation_mode == ALL else exact.count,
                selected=published.select(node, exact) if allowed is None else published.select(node, exact) & allowed,
                admin_access=exact.admin_access,
                tolerations=exact.tolerations,
            )
            for exact in choices_of(request)
        )
        for request in spec.devices.requests
    )
    constraints = tuple(
        SameOrDistinct(
            frozenset(each.requests), each.match_attribute or each.distinct_attribute, bool(each.distinct_attribute)
        )
        for each in spec.devices.constraints
    )
    return ClaimNeeds(requests, constraints)


def configuration_of(spec: ClaimSpec, granted: set[str], published: PublishedDevices) -> list[dict[str, object]]:
    """Return the configuration of an allocation, for drivers: that of the classes, then that of the claim.

    `granted` are the names of the requests, and of the alternatives, that were satisfied.
    """
    of_classes = [
        {**config, "source": "FromClass", "requests": [name]}
        for request in spec.devices.requests
        for exact in choices_of(request)
        if (name := allocated_name(request, exact)) in granted and exact.device_class_name in published.classes
        for config in published.classes[exact.device_class_name].spec.config
    ]
    return [*of_classes, *({**config, "source": "FromClaim"} for config in spec.devices.config)]


def _of_indices(node: NodeDevices, indices: tuple[int, ...]) -> frozenset[DeviceId] | None:
    """Return the devices with these indices; None if all are allowed."""
    if not indices:
        return None
    numbered = ((device.id, device.attributes.get(f"{device.id.driver}/{INDEX}")) for device in node.devices)
    return frozenset(id for id, index in numbered if index in indices)  # noqa: A001


def _check_exact(name: str, exact: ExactRequest, published: PublishedDevices) -> None:
    if exact.device_class_name not in published.classes:
        known = ", ".join(sorted(published.classes)) or "none"
        reason = f"request {name}: there is no DeviceClass {exact.device_class_name}"
        raise DeviceRequestError(f"{reason}; create it, or name one of these: {known}")
    if exact.capacity is not None:
        raise DeviceRequestError(f"request {name}: ganger does not share the capacity of a device; leave capacity out")
    if exact.allocation_mode not in (ALL, EXACT_COUNT):
        raise DeviceRequestError(f"request {name}: ganger does not know the mode {exact.allocation_mode}")
    for selector in (*published.classes[exact.device_class_name].spec.selectors, *exact.selectors):
        if selector.cel is None:
            raise DeviceRequestError(f"request {name}: ganger evaluates CEL selectors alone; write cel: {{expression}}")
        try:
            published.selectors.compile(selector.cel.expression)
        except SelectorError as error:
            raise DeviceRequestError(f"request {name}: {error}") from None
