"""A fake API server with DRA devices.

The part of kube-controller-manager is played here: it makes claims and frees them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ganger.controller.jobs.claim_restrictions import ClaimRestrictions
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import PolicySet
from tests.kubernetes.binding import JOB, Controlled, controller
from tests.kubernetes.devices.published import class_body, device, slice_body
from tests.kubernetes.jobs.test_gang_jobs import NO_CODE
from tools.fakeapi import FakeApi

API = "resource.k8s.io/v1"


async def play_claim_controller(api: FakeApi) -> None:
    """Make the claims of pods from templates, and free and delete those of pods that have ended."""
    while True:
        await asyncio.sleep(0.02)
        for pod in api.objects("pods"):
            over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            made = pod.get("status", {}).get("resourceClaimStatuses")
            if pod["spec"].get("resourceClaims") and not made and not over:
                make_claims(api, pod)
        alive = {pod["metadata"]["uid"] for pod in api.objects("pods") if pod["status"].get("phase") != "Succeeded"}
        for claim in api.objects("resourceclaims"):
            owner = claim["metadata"].get("ownerReferences", [{}])[0].get("uid")
            users = {user["uid"] for user in claim.get("status", {}).get("reservedFor") or ()}
            if (owner and owner not in alive) or (users and not users & alive):
                with suppress(KeyError):
                    release(api, claim, is_made=bool(owner))


def make_claims(api: FakeApi, pod: dict[str, Any]) -> None:
    statuses = []
    for claim in pod["spec"]["resourceClaims"]:
        name = claim.get("resourceClaimName", "")
        if template := api.get("resourceclaimtemplates", claim.get("resourceClaimTemplateName", "")):
            name = f"{pod['metadata']['name']}-{claim['name']}"
            owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            metadata = {"name": name, "namespace": "default", "ownerReferences": [owner | {"controller": True}]}
            metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": claim["name"]}
            api.put(
                {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": template["spec"]["spec"]}
            )
            statuses.append({"name": claim["name"], "resourceClaimName": name})
        elif not name:
            return
    current = api.get("pods", pod["metadata"]["name"])
    if current is not None and statuses:
        api.put(current | {"status": current.get("status", {}) | {"resourceClaimStatuses": statuses}})


def release(api: FakeApi, claim: dict[str, Any], *, is_made: bool) -> None:
    name = claim["metadata"]["name"]
    metadata = {key: value for key, value in claim["metadata"].items() if key != "finalizers"}
    api.put({**claim, "metadata": metadata, "status": {"allocation": None, "reservedFor": []}})
    if is_made:
        api.delete("resourceclaims", name)


def put_devices(api: FakeApi, *nodes: str, each: int = 2) -> None:
    """Have nodes publish devices."""
    api.put(class_body())
    for node in nodes:
        api.put(slice_body(node, *(device(f"gpu-{index}", index) for index in range(each))))


def template(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": spec}}


def claim(name: str, spec: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec, "status": status}


def job(name: str, of: str, **spec: Any) -> dict[str, Any]:
    """Return a GangJob with a claim of a template for each pod."""
    claims = [{"name": "gpus", "resourceClaimTemplateName": of}]
    own = {"run": "true", "nproc_per_node": 1, "pod": {"spec": {"resourceClaims": claims}}} | spec
    return JOB | {"metadata": {"name": name, "namespace": "default"}, "spec": own}


def held(api: FakeApi) -> dict[str, list[str]]:
    """Return the devices of allocated claims, as NODE/DEVICE."""
    results = {}
    for each in api.objects("resourceclaims"):
        if allocation := each.get("status", {}).get("allocation"):
            devices = [f"{one['pool']}/{one['device']}" for one in allocation["devices"]["results"]]
            results[each["metadata"]["name"]] = sorted(devices)
    return results


@asynccontextmanager
async def claiming_controller(
    access: Credentials, folder: Path, references: tuple[str, ...] = ("ResourceClaim*",)
) -> AsyncIterator[Controlled]:
    """Run a controller that reconciles GangJobs and follows their claims."""
    async with controller(access, folder) as system:
        builder = JobBuilder(system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster)
        with system.loop.view() as state:
            known = list(state.gangs.values())
            pods = replace(state.document.pods, references=references)
            permitted = PolicySet(document=replace(state.document, pods=pods), version=state.policy_version + 1)
        await asyncio.wrap_future(system.loop.post(permitted))
        jobs = GangJobReconciler(builder, system.backend.status_writer.update, known, NO_CODE, system.observed)
        restrictions = ClaimRestrictions(system.loop, system.backend, jobs.retry_rejected)
        system.backend.watch_jobs(jobs.changed, fabrics_changed=jobs.retry_refused)
        task = asyncio.create_task(restrictions.run())
        try:
            yield system
        finally:
            task.cancel()
