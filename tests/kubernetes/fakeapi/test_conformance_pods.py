"""Pods on the real API server and the fake one: defaults, gates, binding, eviction, deletion."""

from typing import Any

from tests.kubernetes.fakeapi.api_session import MERGE, STRATEGIC, ApiSession, binding, pod
from tests.kubernetes.fakeapi.worlds import case


@case
async def test_binding_gives_a_pod_its_node_once(api: ApiSession) -> None:
    created = await api.created(api.path("pods"), pod("a", annotations={"kept": "yes"}))
    path = api.path("pods", "a", "binding")
    bound = await api.ask("POST", path, binding("a", uid=created["metadata"]["uid"], annotations={"devices": "0,1"}))
    assert bound.code == 201
    assert (bound.body["kind"], bound.body["status"]) == ("Status", "Success")
    actual = (await api.get(api.path("pods", "a"))).body
    assert actual["spec"]["nodeName"] == "nowhere"
    assert {"kept": "yes", "devices": "0,1"}.items() <= actual["metadata"]["annotations"].items()
    scheduled = next(row for row in actual["status"]["conditions"] if row["type"] == "PodScheduled")
    assert scheduled["status"] == "True"
    again = await api.ask("POST", path, binding("a"))
    assert (again.code, again.reason) == (409, "Conflict")
    assert again.body["message"] == (
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "nowhere"'
    )
    assert again.body["details"] == {"name": "a", "kind": "pods/binding"}


@case
async def test_binding_has_preconditions(api: ApiSession) -> None:
    created = await api.created(api.path("pods"), pod("a"))
    path = api.path("pods", "a", "binding")
    for wrong in ({"uid": "another"}, {"resourceVersion": "1"}):
        refused = await api.ask("POST", path, binding("a", **wrong))
        assert (refused.code, refused.reason) == (409, "Conflict")
        assert "Precondition failed" in refused.body["message"]
    meta = created["metadata"]
    right = {name: meta[name] for name in ("uid", "resourceVersion")}
    assert (await api.ask("POST", path, binding("a", **right))).code == 201


@case
async def test_what_cannot_be_bound_is_refused(api: ApiSession) -> None:
    await api.created(api.path("pods"), pod("gated", spec={"schedulingGates": [{"name": "ganger.dev/wait"}]}))
    await api.created(api.path("pods"), pod("deleted", finalizers=["ganger.dev/held"]))
    await api.ask("DELETE", api.path("pods", "deleted"))
    whys = {
        "gated": (409, "pod gated has non-empty .spec.schedulingGates"),
        "deleted": (409, "pod deleted is being deleted, cannot be assigned to a host"),
        "missing": (404, 'pods "missing" not found'),
    }
    for name, (code, why) in whys.items():
        refused = await api.ask("POST", api.path("pods", name, "binding"), binding(name))
        assert refused.code == code
        assert refused.body["message"].endswith(why)
    await api.ask("PATCH", api.path("pods", "deleted"), {"metadata": {"finalizers": None}}, MERGE)


@case
async def test_a_binding_must_make_sense(api: ApiSession) -> None:
    await api.created(api.path("pods"), pod("a"))
    path = api.path("pods", "a", "binding")
    nameless = await api.ask("POST", path, {**binding("a"), "target": {}})
    assert (nameless.code, nameless.body["message"]) == (500, "target.name: Required value")
    other = await api.ask("POST", path, binding("b"))
    assert (other.code, other.body["message"]) == (400, "name in URL does not match name in Binding object")


@case
async def test_a_dry_bind_binds_nothing(api: ApiSession) -> None:
    await api.created(api.path("pods"), pod("a"))
    assert (await api.ask("POST", api.path("pods", "a", "binding"), binding("a"), dryRun="All")).code == 201
    assert "nodeName" not in (await api.get(api.path("pods", "a"))).body["spec"]


# -- a pod's life ------------------------------------------------------------------------------------------------------


@case
async def test_a_new_pod_has_defaults(api: ApiSession) -> None:
    needs = {"limits": {"cpu": "1", "memory": "1Gi"}}
    body = pod("a", spec={"containers": [{"name": "main", "image": "nothing", "resources": needs}]})
    created = await api.created(api.path("pods"), {**body, "status": {"phase": "Running"}})
    assert created["metadata"]["generation"] == 1
    assert {
        "schedulerName": "conformance",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "priority": 0,
        "enableServiceLinks": True,
    }.items() <= created["spec"].items()
    assert created["spec"]["containers"][0]["resources"] == {**needs, "requests": needs["limits"]}
    assert created["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}


@case
async def test_a_gate_is_taken_away_and_never_put_back(api: ApiSession) -> None:
    created = await api.created(api.path("pods"), pod("a", spec={"schedulingGates": [{"name": "ganger.dev/wait"}]}))
    (condition,) = created["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    path = api.path("pods", "a")
    other = {"spec": {"schedulingGates": [{"name": "ganger.dev/other"}]}}
    refused = await api.ask("PATCH", path, other, MERGE)
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert refused.body["details"]["causes"][0]["field"] == "spec.schedulingGates[0].name"
    open_ = await api.ask("PATCH", path, {"spec": {"schedulingGates": None}}, MERGE)
    assert open_.code == 200
    assert open_.body["metadata"]["generation"] == 2
    assert (await api.ask("POST", api.path("pods", "a", "binding"), binding("a"))).code == 201


@case
async def test_what_a_pod_runs_cannot_be_changed(api: ApiSession) -> None:
    await api.created(api.path("pods"), pod("a"))
    for spec in ({"restartPolicy": "Never"}, {"schedulerName": "another"}, {"nodeName": "nowhere"}):
        refused = await api.ask("PATCH", api.path("pods", "a"), {"spec": spec}, MERGE)
        assert (refused.code, refused.reason) == (422, "Invalid"), spec
        assert "pod updates may not change fields other than" in refused.body["message"]
    changed = await api.ask("PATCH", api.path("pods", "a"), {"metadata": {"annotations": {"x": "1"}}}, MERGE)
    assert changed.body["metadata"]["annotations"] == {"x": "1"}


@case
async def test_status_is_written_apart_from_spec(api: ApiSession) -> None:
    await api.created(api.path("pods"), pod("a"))
    assert (await api.ask("PATCH", api.path("pods", "a"), {"status": {"phase": "Failed"}}, MERGE)).body["status"][
        "phase"
    ] == "Pending"
    for type_ in ("Ready", "DisruptionTarget"):
        conditions = [{"type": type_, "status": "True"}]
        patch = {"spec": {"priority": 7}, "status": {"phase": "Running", "conditions": conditions}}
        response = await api.ask("PATCH", api.path("pods", "a", "status"), patch, STRATEGIC)
        assert response.code == 200
    assert (response.body["spec"]["priority"], response.body["status"]["phase"]) == (0, "Running")
    assert {row["type"] for row in response.body["status"]["conditions"]} >= {"Ready", "DisruptionTarget"}
    assert response.body["metadata"]["generation"] == 1


async def _running(api: ApiSession, name: str) -> dict[str, Any]:
    """Return a pod that its node reports as running."""
    await api.created(api.path("pods"), pod(name, labels={"app": "a"}))
    await api.ask("POST", api.path("pods", name, "binding"), binding(name))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    response = await api.ask("PATCH", api.path("pods", name, "status"), {"status": status}, STRATEGIC)
    actual: dict[str, Any] = response.body
    return actual


@case
async def test_an_evicted_pod_says_so(api: ApiSession) -> None:
    uid = (await _running(api, "a"))["metadata"]["uid"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    wrong = {**body, "deleteOptions": {"preconditions": {"uid": "another"}}}
    assert (await api.ask("POST", api.path("pods", "a", "eviction"), wrong)).code == 409
    right = {**body, "deleteOptions": {"preconditions": {"uid": uid}}}
    evicted = await api.ask("POST", api.path("pods", "a", "eviction"), right)
    assert (evicted.code, evicted.body["status"]) == (201, "Success")
    remaining = (await api.get(api.path("pods", "a"))).body
    assert remaining["metadata"]["deletionTimestamp"]
    target = next(row for row in remaining["status"]["conditions"] if row["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    await api.ask("DELETE", api.path("pods", "a"), gracePeriodSeconds="0")


@case
async def test_a_disruption_budget_refuses_an_eviction(api: ApiSession) -> None:
    await _running(api, "a")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }
    await api.created(api.path("poddisruptionbudgets.policy"), budget)
    status = {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1}
    status |= {"expectedPods": 1}
    await api.ask("PATCH", api.path("poddisruptionbudgets.policy", "b", "status"), {"status": status}, MERGE)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    refused = await api.ask("POST", api.path("pods", "a", "eviction"), body)
    assert (refused.code, refused.reason) == (429, "TooManyRequests")
    assert refused.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    await api.ask("DELETE", api.path("pods", "a"), gracePeriodSeconds="0")


@case
async def test_a_pod_without_a_node_goes_at_once_and_one_with_a_node_is_given_time(api: ApiSession) -> None:
    for name in ("waiting", "bound"):
        await api.created(api.path("pods"), pod(name))
    await api.ask("POST", api.path("pods", "bound", "binding"), binding("bound"))
    assert (await api.ask("DELETE", api.path("pods", "waiting"))).body["kind"] == "Pod"
    assert (await api.get(api.path("pods", "waiting"))).code == 404
    await api.ask("DELETE", api.path("pods", "bound"))
    remaining = (await api.get(api.path("pods", "bound"))).body["metadata"]
    assert remaining["deletionGracePeriodSeconds"] == 30
    assert remaining["deletionTimestamp"] > remaining["creationTimestamp"]
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    await api.ask("DELETE", api.path("pods", "bound"), options)
    assert (await api.get(api.path("pods", "bound"))).code == 404


@case
async def test_a_pod_that_is_over_goes_at_once(api: ApiSession) -> None:
    await _running(api, "a")
    await api.ask("PATCH", api.path("pods", "a", "status"), {"status": {"phase": "Succeeded"}}, MERGE)
    await api.ask("DELETE", api.path("pods", "a"))
    assert (await api.get(api.path("pods", "a"))).code == 404
