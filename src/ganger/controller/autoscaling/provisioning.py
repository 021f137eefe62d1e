"""ProvisioningRequests of gangs, kept in line with the demand, and the answers of the autoscaler to them."""

from datetime import datetime
from typing import Any, Final

import msgspec

from ganger.controller.autoscaling.node_demand import NodeDemand
from ganger.gang_jobs.node_request_template import (
    POD_TEMPLATES,
    PROVISIONING_REQUESTS,
    pod_templates,
    provisioning_request,
)
from ganger.gang_jobs.object_names import NODE_REQUEST
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import CustomObject, Key
from ganger.kubeapi.resources import ListOptions

AGAIN_AFTER_MS: Final = 600_000
"""Time after which nodes are requested again that the autoscaler did not add, or took away again."""
ENDED: Final = ("Failed", "CapacityRevoked", "BookingExpired")
"""Conditions of a request for which the autoscaler does nothing more, the strongest first."""
STATES: Final = (*ENDED, "Provisioned", "Accepted")
OWN: Final = ListOptions(labels=NODE_REQUEST)


class ProvisioningRequests:
    """The requests, listed with each pass: there are few, and others may edit or delete them."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def is_served(self) -> bool:
        """Return whether the cluster has ProvisioningRequests in the version that is known here. Raises ApiError."""
        resource = PROVISIONING_REQUESTS
        return resource.plural in await self._api.list_resources(resource.group, resource.version)

    async def reconcile(
        self, demand: dict[Key, NodeDemand], provisioning_class: str, now_ms: int
    ) -> tuple[dict[Key, str], bool]:
        """Create and delete requests. Return what to say of each demand, and whether any request is left.

        Raises ApiError when the requests cannot be listed.
        """
        existing = {item.metadata.key: item for item in await self._api.list(PROVISIONING_REQUESTS, OWN)}
        kept = dict[Key, str]()
        for key, item in existing.items():
            body = provisioning_request(*demand[key], provisioning_class) if key in demand else None
            if body is not None and _is_current(item, body, now_ms):
                kept[key] = _text(item)
            else:  # not wanted any more, edited by others, or to be asked for again
                await self._api.delete(PROVISIONING_REQUESTS, item.metadata)
        if existing.keys() - kept.keys():
            for template in await self._api.list(POD_TEMPLATES, OWN):
                name = template.metadata.labels[NODE_REQUEST]
                if Key(template.metadata.namespace, name) not in kept:
                    await self._api.delete(POD_TEMPLATES, template.metadata)
        notes = dict(kept)
        for key in demand.keys() - kept.keys():
            notes[key] = await self._create(demand[key], provisioning_class)
        return notes, bool(notes)

    async def _create(self, demand: NodeDemand, provisioning_class: str) -> str:
        try:
            for template in pod_templates(*demand):
                try:
                    await self._api.create(POD_TEMPLATES, template)
                except ApiError as error:
                    if not error.conflict:  # else one of an earlier controller
                        raise
            await self._api.create(PROVISIONING_REQUESTS, provisioning_request(*demand, provisioning_class))
        except ApiError as error:
            if error.conflict:
                return f"nodes are not requested: there is another ProvisioningRequest {demand.names.name}"
            return f"nodes cannot be requested: {error}"
        return "nodes are requested: the autoscaler has not answered yet"


class _Status(msgspec.Struct):
    """Status of a request; of what another program wrote there, nothing is certain."""

    conditions: list[dict[str, Any]] | None = None


def _condition(item: CustomObject) -> dict[str, Any]:
    """Return the condition that says most of a request; empty without any."""
    try:
        conditions = msgspec.json.decode(item.status or b"{}", type=_Status).conditions or []
    except msgspec.DecodeError:
        return {}
    by_type = {item.get("type"): item for item in conditions if item.get("status") == "True"}
    return next((by_type[state] for state in STATES if state in by_type), {})


def _is_current(item: CustomObject, body: dict[str, Any], now_ms: int) -> bool:
    """Return whether a request still asks for what is wanted, and is not to be made again."""
    spec = msgspec.json.decode(item.spec)
    if any(spec.get(key) != value for key, value in body["spec"].items()):
        return False
    condition = _condition(item)
    since_ms = _time_ms(condition.get("lastTransitionTime"))
    return condition.get("type") not in ENDED or since_ms is None or now_ms - since_ms < AGAIN_AFTER_MS


def _text(item: CustomObject) -> str:
    condition = _condition(item)
    answer = "the autoscaler has not answered yet"
    if condition:
        message = str(condition.get("message") or condition.get("reason") or "").strip()
        answer = f"the autoscaler says {condition['type']}" + (f" ({message[:300]})" if message else "")
    return f"nodes are requested since {item.metadata.creation_timestamp}: {answer}"


def _time_ms(text: Any) -> int | None:
    try:
        return round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
