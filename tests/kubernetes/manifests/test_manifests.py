"""Output of `ganger install`: valid for each supported Kubernetes, complete, and with few permissions."""

import ast
import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from ganger.agent.__main__ import _parser
from ganger.agent.controller_link import CERTIFICATE_FILE, URL_FILE
from ganger.cli import ganger
from ganger.cli.admin.install import FILES
from ganger.controller.jobs import git_pods
from ganger.controller.standby import HEALTH, LEADS
from ganger.gang_jobs import object_names
from ganger.gang_jobs.controller_tokens import (
    ADDRESS,
    ADDRESS_CERTIFICATE,
    ADDRESS_URL,
    AGENT_ACCOUNT,
    CONTROLLER_AUDIENCE,
)
from ganger.gang_jobs.node_request_template import PLACEHOLDER
from ganger.gang_jobs.pod_template import PRIORITY_CLASS
from ganger.model.job import PRIORITIES
from tests.docs.pages import ROOT
from tests.kubernetes.manifests.test_resources import MANIFESTS, schema_of

OWN = "ganger-system"
MINORS = ("1.35", "1.36", "1.37")
Object = dict[str, Any]


@cache
def printed(*options: str) -> list[Object]:
    """Return what is printed with these options; callers leave it as it is. Not read before a test asks for it."""
    result = CliRunner().invoke(ganger, ["install", "--dry-run", *options], catch_exceptions=False)
    assert result.exit_code == 0
    return [_read_object(text) for text in result.stdout.split("\n---\n")]


@cache
def _read_object(text: str) -> Object:
    """Read the text of one object once: with other options most are the same, and all take 0.4 s of CPU time."""
    manifest: Object = YAML(typ="safe").load(text)
    return manifest


def with_agent() -> list[Object]:
    """Return everything that a site may install."""
    return printed("--agent")


def by_name() -> dict[str, Object]:
    """Return everything that a site may install, by kind and name."""
    return {f"{manifest['kind']} {manifest['metadata']['name']}": manifest for manifest in with_agent()}


def only(kind: str) -> Object:
    (actual,) = (manifest for manifest in with_agent() if manifest["kind"] == kind)
    return actual


@cache
def controller_roles() -> list[Object]:
    """Return the controller's roles from their file: other tests ask for them, and need nothing else of all this."""
    manifests = YAML(typ="safe").load_all((MANIFESTS / "controller-roles.yaml").read_text())
    return [manifest for manifest in manifests if _is_controller_role(manifest)]


def _is_controller_role(manifest: Object) -> bool:
    return manifest["kind"] in ("Role", "ClusterRole") and manifest["metadata"]["name"] == "ganger-controller"


def roles() -> Iterator[tuple[str, Object]]:
    """Return each rule of the controller's roles, with the kind of role."""
    for manifest in controller_roles():
        yield from ((manifest["kind"], rule) for rule in manifest["rules"])


def granted() -> set[tuple[str, str, str]]:
    """Return the controller's rights as (verb, group, resource)."""
    return {
        (verb, group, resource)
        for _, rule in roles()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_file_is_printed() -> None:
    assert sorted(f"{name}.yaml" for name in FILES) == sorted(path.name for path in MANIFESTS.iterdir())
    assert len(by_name()) == len(with_agent())


def test_the_controller_has_no_rights_but_those_of_its_roles() -> None:
    assert [manifest for manifest in with_agent() if _is_controller_role(manifest)] == controller_roles()


def test_for_a_controller_outside_only_what_runs_inside_is_left_out() -> None:
    outside = printed("--outside", "--agent")
    left_out = [manifest["kind"] for manifest in with_agent() if manifest not in outside]
    assert sorted(left_out) == ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"]


def test_the_agent_is_added_on_request() -> None:
    without = printed()
    added = [manifest for manifest in with_agent() if manifest not in without]
    assert {item["metadata"]["name"] for item in added} == {"ganger-agent", "agent-taints.ganger.dev", OWN}
    (changed,) = (item for item in added if item["metadata"]["name"] == OWN)
    assert changed["kind"] == "Namespace", "with the agent, pods that see the host are admitted"
    assert changed["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}


def test_the_agent_reads_the_host_and_writes_its_history_alone() -> None:
    pod = only("DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {*mounts} == {volume["name"] for volume in pod["volumes"]}
    assert [name for name, mount in mounts.items() if not mount.get("readOnly")] == ["state"]
    given = vars(_parser().parse_args(container["args"]))
    assert {name for name, value in given.items() if value is None} == {"kubeconfig", "nvml_library", "dcgm_exporter"}
    places = [mount["mountPath"] for mount in mounts.values()]
    for name in ("proc", "sys", "mounts", "files", "kernel_log", "pod_resources", "state", "controller", "token"):
        assert any(given[name].is_relative_to(place) for place in places), name
    (token,) = next(volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "token")
    assert token["serviceAccountToken"]["audience"] == CONTROLLER_AUDIENCE
    address = next(volume["configMap"] for volume in pod["volumes"] if volume["name"] == "controller")
    assert address == {"name": ADDRESS, "optional": True}, "it is not there before a controller leads"
    assert (ADDRESS_URL, ADDRESS_CERTIFICATE) == (URL_FILE, CERTIFICATE_FILE)
    (role,) = (
        item for item in with_agent() if item["kind"] == "ClusterRole" and item["metadata"]["name"] == AGENT_ACCOUNT
    )
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]


@pytest.mark.parametrize("minor", MINORS)
def test_each_object_is_legal(minor: str) -> None:
    faults = {}
    for name, manifest in by_name().items():
        try:
            kubernetes_validate.validate(manifest, minor, strict=True)
        except kubernetes_validate.ValidationError as error:
            faults[name] = str(error)
    assert faults == {}


def test_what_is_not_legal_is_found() -> None:
    wrong = only("Deployment") | {"spce": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def test_a_site_chooses_namespace_and_image() -> None:
    printed_objects = printed("--agent", "--namespace", "ml", "--image", "registry.example/ganger:2")
    texts = list(_texts(printed_objects))
    assert "ganger-system" not in texts
    assert texts.count("ml") == list(_texts(with_agent())).count("ganger-system")
    (deployment,) = (manifest for manifest in printed_objects if manifest["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/ganger:2"
    assert "--git-image=registry.example/ganger:2" in container["args"], "its image has git"
    assert "--pod=$(POD_NAME)" in container["args"]


@pytest.mark.parametrize(
    ("store", "argument"),
    [("s3://bucket/folder", "--store=s3://bucket/folder"), ("claim:history", "--store=/var/lib/ganger-store/ganger")],
)
def test_a_site_chooses_a_durable_store(store: str, argument: str) -> None:
    (deployment,) = (manifest for manifest in printed("--store", store) if manifest["kind"] == "Deployment")
    kubernetes_validate.validate(deployment, MINORS[-1], strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert argument in container["args"]
    (plain,) = only("Deployment")["spec"]["template"]["spec"]["containers"]
    assert {*plain["args"]} < {*container["args"]}
    claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert ({"claimName": "history"} in claims) == store.startswith("claim:")
    assert container["envFrom"] == [{"secretRef": {"name": "ganger-store", "optional": True}}]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


REFUSED = {
    (): "--dry-run | kubectl apply -f -",
    ("--dry-run", "--namespace", "Not_A_Label"): "'Not_A_Label' is not a valid namespace",
    ("--dry-run", "--image", "a b"): "'a b' is not a valid image",
    ("--dry-run", "--store", "ftp://x"): "'ftp://x' is not a store",
    ("--dry-run", "--store", "s3://key:secret@x"): "is not a store",
    ("--dry-run", "--outside", "--store", "claim:x"): "ganger controller --store",
}


@pytest.mark.parametrize(("arguments", "says"), REFUSED.items(), ids=str)
def test_what_cannot_be_printed_is_refused(arguments: tuple[str, ...], says: str) -> None:
    program = str(Path(sys.executable).with_name("ganger"))
    run = subprocess.run([program, "install", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert run.stdout == ""
    assert says in run.stderr


def test_the_controller_has_few_rights() -> None:
    verbs = {
        (group, resource): set(rule["verbs"])
        for kind, rule in roles()
        if kind == "ClusterRole"
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert not any("*" in (*key, *output) for key, output in verbs.items())
    assert verbs["", "secrets"] == {"create", "patch"}, "nobody's secrets are read"
    assert verbs["", "configmaps"] == {"create", "patch", "delete"}
    assert verbs["", "nodes"] == {"get", "list", "watch", "patch"}, "annotations and cordons: a policy"
    assert verbs["ganger.dev", "gangjobs"] == {"list", "watch", "create", "patch", "administer"}, "a policy"
    leases = [rule for kind, rule in roles() if "leases" in rule["resources"]]
    assert [rule.get("resourceNames") for rule in leases if "patch" in rule["verbs"]] == [["ganger-controller"]]
    assert ("ClusterRole", leases[0]) not in list(roles())
    jobs = {kind: set(rule["verbs"]) for kind, rule in roles() if rule["resources"] == ["jobs"]}
    assert jobs == {"ClusterRole": {"get", "list", "patch"}, "Role": {"list", "watch", "create", "delete"}}


def test_the_controllers_container_may_nothing() -> None:
    pod = only("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"] for port in container["ports"]}
    probes = [container[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert probes == 3 * [{"path": HEALTH, "port": "rest", "scheme": "HTTPS"}], "a standby listens there alone"
    assert {port["targetPort"] for port in only("Service")["spec"]["ports"]} == ports


def test_one_replica_may_leave_at_a_time_and_clients_come_to_the_leader() -> None:
    deployment, budget, service = only("Deployment")["spec"], only("PodDisruptionBudget")["spec"], only("Service")
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert budget["maxUnavailable"] == 1
    labels = deployment["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"] == labels | {LEADS: "true"}


def test_no_scheduler_takes_one_pod_of_a_gang_and_the_pods_take_none() -> None:
    classes = {item["metadata"]["name"]: item for item in with_agent() if item["kind"] == "PriorityClass"}
    assert set(classes) == {PRIORITY_CLASS, PLACEHOLDER}
    assert -10 <= classes[PLACEHOLDER]["value"] < 0, "cluster autoscalers ignore pods below -10"
    priority_class = classes[PRIORITY_CLASS]
    assert priority_class["value"] == 1_000_000_000, "the highest that is not reserved for the system"
    assert priority_class["preemptionPolicy"] == "Never"
    assert not priority_class["globalDefault"], "pods of others, adopted ones too, keep what they have"
    kinds = [manifest["kind"] for manifest in with_agent()]
    assert kinds.index("PriorityClass") < kinds.index("Deployment"), "no pod is refused for lack of it"


def test_no_directory_of_the_controller_fills_its_node() -> None:
    volumes = only("Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [set(volume) - {"name"} for volume in volumes if "emptyDir" not in volume] == [{"configMap"}], "read only"
    assert all(volume["emptyDir"]["sizeLimit"] for volume in volumes if "emptyDir" in volume)


def network_policy(name: str) -> Object:
    spec: Object = by_name()[f"NetworkPolicy {name}"]["spec"]
    return spec


def test_pods_that_fetch_code_reach_git_servers_and_no_server_of_credentials() -> None:
    spec = network_policy("ganger-git")
    assert spec["podSelector"] == {"matchExpressions": [{"key": git_pods.LABEL, "operator": "Exists"}]}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in spec, "nothing connects to them"
    names, servers = spec["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert {port["port"] for port in servers["ports"]} == {443, 9418}
    blocks = [item["ipBlock"] for item in servers["to"]]
    metadata_server = ipaddress.ip_address("169.254.169.254")
    for block in blocks:
        if ipaddress.ip_network(block["cidr"]).version == metadata_server.version:
            assert any(metadata_server in ipaddress.ip_network(item) for item in block["except"])


def test_only_launchers_reach_the_launchers_port() -> None:
    spec = network_policy("ganger-controller")
    pod = only("Deployment")["spec"]["template"]
    assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    by_port = {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}
    (container,) = pod["spec"]["containers"]
    assert by_port.keys() == {port["name"] for port in container["ports"]}
    (launchers,) = by_port["launchers"] or ()
    assert launchers == {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": object_names.JOB, "operator": "Exists"}]},
    }
    assert by_port["rest"] is None, "people come through the API server, which is no pod"


def test_the_policy_lets_change_what_there_is() -> None:
    policy = by_name()["ValidatingAdmissionPolicy gangjobs.ganger.dev"]
    variables = {item["name"]: item["expression"] for item in policy["spec"]["variables"]}
    changeable = YAML(typ="safe").load(variables["changeable"])
    assert set(changeable) < set(schema_of("gangjobs")["properties"]["spec"]["properties"])


def test_the_image_runs_what_the_deployment_asks_for() -> None:
    (container,) = only("Deployment")["spec"]["template"]["spec"]["containers"]
    assert all(word.startswith("--") for word in container["args"]), "the program is the image's, its options are given"
    lines = (ROOT / "Containerfile").read_text().splitlines()
    assert lines[-1].startswith("ENTRYPOINT")
    assert '"ganger.controller"' in lines[-1]
    user = only("Deployment")["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in lines


def containerfile() -> list[str]:
    return (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()


def test_the_base_of_the_image_is_named_by_a_digest_that_the_builder_gives() -> None:
    lines = containerfile()
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} == {"${PYTHON_IMAGE}"}
    assert lines.index("ARG PYTHON_IMAGE") < lines.index("FROM ${PYTHON_IMAGE} AS build"), "without a default"
    assert not any(line.startswith("ARG") and "=" in line for line in lines)


@pytest.mark.parametrize(
    ("image", "is_pinned"), [("python@sha256:" + 64 * "0", True), ("python:3.13-slim", False), ("", False)]
)
def test_an_image_without_a_digest_is_refused_by_the_build(image: str, is_pinned: bool) -> None:
    (check,) = (line.removeprefix("RUN ") for line in containerfile() if line.startswith("RUN case "))
    run = subprocess.run(["/bin/sh", "-c", check], env={"PYTHON_IMAGE": image}, capture_output=True, check=False)
    assert (run.returncode == 0) == is_pinned
    assert (b"has no digest" in run.stderr) != is_pinned


def test_the_image_has_git_for_the_pods_that_fetch_code() -> None:
    lines = containerfile()
    last_stage = lines[lines.index("FROM ${PYTHON_IMAGE}") :]
    (packages,) = (line for line in last_stage if "apt-get install" in line)
    assert "git" in packages.split()


def test_the_names_of_priorities_are_those_of_the_admission_policy() -> None:
    (policy,) = (
        item
        for item in with_agent()
        if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"] == "priorities.ganger.dev"
    )
    (names,) = (item["expression"] for item in policy["spec"]["variables"] if item["name"] == "names")
    assert ast.literal_eval(names) == PRIORITIES
