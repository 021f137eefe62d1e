"""The section `pod` of a job: merged onto its pods, refused where it would break them or exceeds the policy."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.engine.submit.build import check
from ganger.errors import RequestError
from ganger.gang_jobs.pod_section import SAFE_SOURCES
from ganger.gang_jobs.pod_template import CONTAINER, container_security_context, pod_security_context
from ganger.model.decision import NodeShare
from ganger.model.network_profile import NETWORKS_ANNOTATION
from ganger.model.policy import POD_SECURITY
from ganger.networks.pod_network import CHECK, join_network
from ganger.networks.render import TOPOLOGY_VOLUME, PodNetwork
from ganger.spec import parse_spec, spec_from_dict, spec_to_dict
from ganger.spec.kubernetes.pod_fields import OWN_CONTAINERS, OWN_DIRECTORIES, OWN_PREFIX, OWN_VOLUMES
from tests.kubernetes.jobs.test_gang_jobs import cluster, phase_and_message, put, reconciling_controller
from tests.kubernetes.jobs.test_pod_policy import refusal
from tests.kubernetes.pods.test_pod_template import pods_of
from tests.waiting import until

GPU_CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
EVERYTHING: dict[str, Any] = {
    "metadata": {"labels": {"team": "nlp"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rail-0"}},
    "shm": "128Gi",
    "spec": {
        "imagePullSecrets": [{"name": "registry"}],
        "hostNetwork": True,
        "serviceAccountName": "trainer",
        "automountServiceAccountToken": True,
        "priorityClassName": "research",
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "slow", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
        "dnsConfig": {"searches": ["example.org"]},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["files"]}],
        "securityContext": {"runAsUser": 1000, "supplementalGroups": [2000]},
        "volumes": [
            {"name": "config", "configMap": {"name": "settings"}},
            {"name": "files", "nfs": {"server": "files.example.org", "path": "/data/images", "readOnly": True}},
            {"name": "keys", "csi": {"driver": "secrets.example.org", "readOnly": True}},
            {"name": "disk", "hostPath": {"path": "/nvme"}},
            {
                "name": "scratch",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "storageClassName": "fast",
                            "resources": {"requests": {"storage": "1Ti"}},
                        }
                    }
                },
            },
        ],
        "initContainers": [
            {
                "name": "fetch",
                "image": "busybox",
                "command": ["cp", "-r", "/files", "/ganger/work"],
                "volumeMounts": [
                    {"name": "files", "mountPath": "/files"},
                    {"name": "work", "mountPath": "/ganger/work"},
                    {"name": "data", "mountPath": "/data"},
                ],
            }
        ],
    },
    "container": {
        "imagePullPolicy": "Always",
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "env": [
            {"name": "HOME", "value": "/nvme"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumeMounts": [
            {"mountPath": "/data", "subPath": "train", "readOnly": True},
            {"name": "disk", "mountPath": "/nvme"},
        ],
    },
}
JOB: dict[str, Any] = {
    "run": "x",
    "image": "team/train:1",
    "resources": {"gpu": 2, "cpu": 4, "memory": "8Gi"},
    "volumes": [{"name": "data", "path": "/data"}],
    "labels": {"team": "vision"},
}
PERMITTED: dict[str, Any] = {
    "security": "privileged",
    "references": [
        *(
            "Annotation/k8s.v1.cni.cncf.io/*",
            "Secret/registry",
            "ConfigMap/settings",
            "ServiceAccount/trainer",
            "PriorityClass/research",
        ),
        *("RuntimeClass/nvidia", "StorageClass/fast", "csi/secrets.example.org", "nfs/files.example.org/data/*"),
        "hostPath/nvme",
    ],
}


def named(items: Any, key: str = "name") -> dict[str, Any]:
    return {item[key]: item for item in items}


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_kubernetes_takes_a_pod_with_everything(version: str) -> None:
    (pod,) = pods_of({**JOB, "pod": EVERYTHING}, NodeShare("n1", (0, 1), (0, 1)))
    kubernetes_validate.validate(pod, version, strict=True)


def test_a_pod_has_its_claims_for_its_container_and_the_kind_that_they_are_counted_as() -> None:
    kind = "devices.ganger.dev/1xgpu-0a1b2c3d"
    asked = {"gpu": 2, "extended": {kind: 1, "rdma/hca": 1}}
    job = {**JOB, "resources": asked, "pod": {"spec": {"resourceClaims": [GPU_CLAIM]}}}
    (pod,) = pods_of(job, NodeShare("n1", (0, 1), (0, 1)))
    kubernetes_validate.validate(pod, "1.36", strict=True)
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["ganger.dev/device-kind"] == kind
    assert pod["spec"]["resourceClaims"] == [GPU_CLAIM]
    assert container["resources"]["claims"] == [{"name": "gpu"}]
    assert kind not in container["resources"]["requests"] | container["resources"]["limits"]
    network = PodNetwork(claims={"rail0": "rails"})
    joined = join_network(pod, network, may_lock_memory=True)
    assert [claim["name"] for claim in joined["spec"]["resourceClaims"]] == ["gpu", "rail0"]
    assert joined["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}, {"name": "rail0"}]


def test_it_is_merged_by_key_and_by_name() -> None:
    (plain,) = pods_of(JOB, NodeShare("n1", (0, 1), (0, 1)))
    (pod,) = pods_of({**JOB, "pod": EVERYTHING}, NodeShare("n1", (0, 1), (0, 1)))
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    before = plain["spec"]["containers"][0]
    assert {key: container[key] for key in ("name", "image", "command", "workingDir", "resources")} == {
        key: before[key] for key in ("name", "image", "command", "workingDir", "resources")
    }
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | {"team": "vision"}, "the job's own label stays"
    assert pod["metadata"]["annotations"].items() > plain["metadata"]["annotations"].items()
    assert spec["securityContext"] == plain["spec"]["securityContext"] | {
        "runAsUser": 1000,
        "supplementalGroups": [2000],
    }
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert (spec["priorityClassName"], spec["dnsPolicy"]) == ("research", "ClusterFirstWithHostNet")
    volumes, mounts = named(spec["volumes"]), named(container["volumeMounts"], "mountPath")
    assert list(volumes)[: len(plain["spec"]["volumes"])] == list(named(plain["spec"]["volumes"]))
    assert volumes["shared-memory"]["emptyDir"]["sizeLimit"] == str(128 << 30)
    assert volumes["scratch"]["ephemeral"]["volumeClaimTemplate"]["metadata"]["annotations"] == {
        "volume.kubernetes.io/selected-node": "n1"
    }
    assert mounts["/data"] == {"name": "volume-data", "mountPath": "/data", "subPath": "train", "readOnly": True}
    assert mounts["/nvme"]["name"] == "disk"
    assert named(container["env"])["HOME"]["value"] == "/nvme"
    (init,) = spec["initContainers"]
    assert init["resources"]["limits"] == {"memory": str(8 << 30)}, "no GPU, and no more than the ranks have"
    assert init["securityContext"] == before["securityContext"], "the capability is for the ranks alone"
    assert named(init["volumeMounts"])["volume-data"]["mountPath"] == "/data"


def test_a_pod_with_the_shared_memory_of_its_node_has_none_of_its_own() -> None:
    (pod,) = pods_of({"pod": {"spec": {"hostIPC": True}}}, NodeShare("n1", (0,)))
    assert "shared-memory" not in named(pod["spec"]["volumes"])
    assert "/dev/shm" not in named(pod["spec"]["containers"][0]["volumeMounts"], "mountPath")


def test_the_names_of_ganger_are_those_of_its_pods() -> None:
    everything = {"secrets": ["KEY"], "volumes": [{"name": "data", "path": "/data"}]}
    (pod,) = pods_of(everything, NodeShare("n1", (0,)))
    assert {*named(pod["spec"]["volumes"]), "code", TOPOLOGY_VOLUME} == {*OWN_VOLUMES, f"{OWN_PREFIX}data"}
    assert {CONTAINER, CHECK} == {*OWN_CONTAINERS}
    mounts = named(pod["spec"]["containers"][0]["volumeMounts"], "mountPath").keys() - {"/data"}
    assert all(mount.startswith(OWN_DIRECTORIES) for mount in mounts)


def test_a_spec_with_it_is_written_and_read_again() -> None:
    spec = spec_from_dict({**JOB, "pod": EVERYTHING}, "a test")
    assert spec_from_dict(spec_to_dict(spec), "a test") == spec


def volume(**source: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "x", **source}]}}


def rights(**context: Any) -> dict[str, Any]:
    return {"container": {"securityContext": context}}


def mount(name: str, path: str) -> dict[str, Any]:
    return {"container": {"volumeMounts": [{"name": name, "mountPath": path}]}}


def init(**fields: Any) -> dict[str, Any]:
    return {"spec": {"initContainers": [{"name": "a", "image": "b", **fields}]}}


BREAKING = [
    ({"spec": {"nodeName": "n1"}}, "pod.spec.nodeName cannot be set", "placement:"),
    ({"spec": {"affinity": {}}}, "pod.spec.affinity cannot be set", "placement:"),
    ({"spec": {"topologySpreadConstraints": []}}, "topologySpreadConstraints cannot be set", "placement:"),
    ({"spec": {"schedulerName": "x"}}, "pod.spec.schedulerName cannot be set", "leave it out"),
    ({"spec": {"restartPolicy": "Always"}}, "pod.spec.restartPolicy cannot be set", "retry:"),
    ({"spec": {"terminationGracePeriodSeconds": 1}}, "terminationGracePeriodSeconds", "checkpoint: {grace: 30s}"),
    ({"spec": {"containers": []}}, "pod.spec.containers cannot be set", "pod.container"),
    ({"spec": {"imagePullSecret": []}}, "imagePullSecret cannot be set", "did you mean 'imagePullSecrets'?"),
    ({"spec": {"volumes": [{"name": "network-topology", "emptyDir": {}}]}}, "network-topology is taken", "choose"),
    ({"spec": {"initContainers": [{"name": "network-check", "image": "i"}]}}, "that no other container has", "image"),
    ({"spec": {"hostNetwork": "yes"}}, "'yes' is not valid", "true or false"),
    ({"spec": {"tolerations": {"key": "x"}}}, "pod.spec.tolerations", "a list of mappings"),
    ({"spec": {"dnsConfig": {"searches": None}}}, "pod.spec.dnsConfig.searches", "leave it out"),
    ({"spec": {"securityContext": {"runAsUser": 10**400}}}, "runAsUser", "leave it out"),
    ({"spec": {"dnsConfig": {"searches": b"x"}}}, "pod.spec.dnsConfig.searches", "leave it out"),
    ({"spec": {"securityContext": {"runAsUser": -1}}}, "runAsUser: -1 is not valid", "an integer from 0"),
    ({"spec": {"securityContext": {"runAsUser": "0"}}}, "runAsUser: '0' is not valid", "an integer from 0"),
    ({"spec": {"securityContext": {"windowsOptions": {}}}}, "windowsOptions cannot be set", "it is not one of"),
    ({"spec": {"volumes": [{"name": "identity", "emptyDir": {}}]}}, "the name identity is taken", "choose another"),
    ({"spec": {"volumes": [{"name": "volume-x", "emptyDir": {}}]}}, "volume-x is taken", "choose another"),
    ({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}, "the name data is taken", "choose another"),
    ({"spec": {"volumes": [{"name": "x"}]}}, "a name and one source", "emptyDir"),
    (volume(nfs=3), "nfs is not a mapping", "write one"),
    (volume(hostPath={"path": "/data/../etc"}), "hostPath.path", "without '..'"),
    (volume(nfs={"server": "files:/etc", "path": "/data"}), "nfs.server: HOST", "nfs.path"),
    (volume(persistentVolumeClaim={"claimName": "y"}), "placement", "volumes:"),
    (
        {"spec": {"volumes": [{"name": "x", "ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {}}}}}]}},
        "dataSource cannot be set",
        "a new volume",
    ),
    ({"spec": {"initContainers": [{"name": "a", "image": "b", "restartPolicy": "Always"}]}}, "beside", "leave"),
    ({"spec": {"initContainers": [{"name": "ranks", "image": "b"}]}}, "a name that no other", "write"),
    (
        {"spec": {"initContainers": [{"name": "a", "image": "b", "resources": {}}]}},
        "resources cannot be set",
        "resources:",
    ),
    (
        {
            "spec": {
                "initContainers": [
                    {"name": "a", "image": "b", "volumeMounts": [{"name": "identity", "mountPath": "/i"}]}
                ]
            }
        },
        "there is no volume 'identity'",
        "work",
    ),
    ({"container": {"command": ["sh"]}}, "pod.container.command cannot be set", "run:"),
    ({"container": {"resources": {"limits": {"rdma/hca": 1}}}}, "pod.container.resources cannot be set", "resources:"),
    ({"container": {"securityContext": {"capabilities": ["IPC_LOCK"]}}}, "capabilities", "a mapping"),
    ({"container": {"securityContext": {"capabilities": {"add": [1]}}}}, "capabilities.add", "a list of words"),
    (
        {"container": {"volumeMounts": [{"name": "work", "mountPath": "/ganger/identity"}]}},
        "/ganger/identity",
        "another",
    ),
    ({"container": {"volumeMounts": [{"name": "work", "mountPath": "/x/.."}]}}, "mountPath", "without '..'"),
    ({"container": {"volumeMounts": [{"name": "work", "mountPath": "//"}]}}, "system's own", "choose another"),
    ({"container": {"volumeMounts": [{"name": "work", "mountPath": "//ganger/launcher"}]}}, "own", "choose another"),
    ({"container": {"volumeMounts": [{"name": "nothing", "mountPath": "/x"}]}}, "no volume 'nothing'", "data or work"),
    ({"container": {"volumeMounts": [{"name": "work", "mountPath": "/x"}] * 2}}, "/x is given twice", "remove one"),
    ({"container": {"env": [{"name": "GANGER_TOKEN_FILE", "value": "x"}]}}, "GANGER_", "reserved"),
    ({"container": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}}, "that others hold", "resources.gpu"),
    ({"container": {"env": [{"name": "KEY", "value": "x"}]}}, "KEY is given twice", "remove one"),
    ({"container": {"env": [{"name": "A", "value": 1}]}}, "value: 'TEXT' in quotes", "valueFrom"),
    ({"metadata": {"annotations": {"ganger.dev/node": "x"}}}, "ganger.dev/node is ganger's own", "leave it out"),
    ({"metadata": {"name": "x"}}, "pod.metadata.name is not a valid key", "labels, annotations"),
    ({"spec": {"dnsConfig": {"x": "y" * 40_000}}}, "pod: it has", "write at most 32768"),
    ({"shm": "1Gi", "spec": {"hostIPC": True}}, "pod.shm", "leave it out"),
    ({"spec": []}, "pod.spec: [] is not a mapping", "write keys of"),
    ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, "resourceClaims[0]", "resourceClaimTemplateName: NAME"),
    ({"spec": {"resourceClaims": [GPU_CLAIM, GPU_CLAIM]}}, "resourceClaims[1]", "no other claim has"),
    ({"spec": {"resourceClaims": [GPU_CLAIM | {"resourceClaimName": "x"}]}}, "resourceClaims[0]", "NAME"),
    ({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": 1}]}}, "resourceClaims[0]", "NAME"),
]


@pytest.mark.parametrize(("section", "what", "remedy"), BREAKING, ids=[str(section)[:70] for section, *_ in BREAKING])
def test_what_would_break_the_pod_is_refused(section: dict[str, Any], what: str, remedy: str) -> None:
    job = {"run": "x", "volumes": [{"name": "data", "path": "/data"}], "secrets": ["KEY"], "pod": section}
    with pytest.raises(RequestError) as refused:
        spec_from_dict(job, "a test")
    assert refused.value.code == "bad_spec"
    assert what in refused.value.detail
    assert remedy in refused.value.detail


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"spec": {"hostNetwork": True}}, "pod.spec.hostNetwork: placement.network attaches rails"),
        (
            {"metadata": {"annotations": {NETWORKS_ANNOTATION: "mine"}}},
            "attaches networks by this annotation",
        ),
    ],
)
def test_what_would_take_its_rails_from_a_pod_is_refused(section: dict[str, Any], what: str) -> None:
    spec_from_dict({"run": "x", "pod": section}, "a test")
    with pytest.raises(RequestError, match=what):
        spec_from_dict({"run": "x", "placement": {"network": "roce"}, "pod": section}, "a test")


@given(st.data())
def test_any_change_of_one_value_is_refused_or_makes_a_pod_that_the_policy_judges(data: st.DataObject) -> None:
    section = copy.deepcopy(EVERYTHING)
    at: Any = section
    while True:
        key = data.draw(st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(
        st.sampled_from([None, 0, "", "x", [], {}, [{}], [1], {"name": "x"}, {"x": None}, 1e400, 1 << 64, True])
    )
    try:
        spec_from_dict({**JOB, "pod": section}, "a test")
    except RequestError:
        return
    refusal({**JOB, "pod": section}, **PERMITTED)
    (pod,) = pods_of({**JOB, "pod": section}, NodeShare("n1", (0, 1), (0, 1)))
    assert pod["spec"]["containers"][0]["name"] == "ranks"


def test_an_error_has_the_line_of_the_field() -> None:
    with pytest.raises(RequestError, match=r"job\.yaml:4:5: pod\.spec\.nodeName") as refused:
        parse_spec("run: x\npod:\n  spec:\n    nodeName: a\n", "job.yaml")
    assert len(refused.value.detail.splitlines()) == 1


def test_a_server_of_machines_refuses_it(tmp_path: Any) -> None:
    with pytest.raises(RequestError, match="pods of Kubernetes") as refused:
        check(spec_from_dict({"run": "x", "pod": {"shm": "1Gi"}}, "a test"), *[None] * 3)  # type: ignore[arg-type]
    assert refused.value.code == "bad_spec"


def test_a_policy_permits_everything_by_name() -> None:
    assert refusal({**JOB, "pod": EVERYTHING}, **PERMITTED) == ""
    for reference in PERMITTED["references"]:
        fewer = [other for other in PERMITTED["references"] if other != reference]
        assert f"{reference.rstrip('*')}" in refusal({**JOB, "pod": EVERYTHING}, **PERMITTED | {"references": fewer})


LEVELS = [
    # what is asked for, and the lowest standard that has a place for it
    ({"shm": "1Gi"}, "restricted"),
    ({"spec": {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}}}, "restricted"),
    (rights(capabilities={"add": ["NET_BIND_SERVICE"]}), "restricted"),
    (rights(readOnlyRootFilesystem=True), "restricted"),
    (volume(emptyDir={}), "restricted"),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "baseline"),
    (rights(runAsUser=0), "baseline"),
    (rights(runAsNonRoot=False), "baseline"),
    (rights(allowPrivilegeEscalation=True), "baseline"),
    (rights(capabilities={"drop": []}), "baseline"),
    (rights(capabilities={"add": ["CHOWN"]}), "baseline"),
    (volume(nfs={"server": "s", "path": "/p"}), "baseline"),
    (volume(iscsi={"targetPortal": "p", "iqn": "i", "lun": 0}), "baseline"),
    (init(securityContext={"runAsUser": 0}), "baseline"),
    ({"spec": {"hostNetwork": True}}, "privileged"),
    ({"spec": {"hostIPC": True}}, "privileged"),
    ({"spec": {"hostPID": True}}, "privileged"),
    (rights(privileged=True), "privileged"),
    (rights(capabilities={"add": ["IPC_LOCK"]}), "privileged"),
    (rights(capabilities={"add": ["CAP_CHOWN"]}), "privileged"),
    (rights(procMount="Unmasked"), "privileged"),
    (rights(seccompProfile={"type": "Unconfined"}), "privileged"),
    (rights(appArmorProfile={"type": "Unconfined"}), "privileged"),
    (rights(seLinuxOptions={"type": "spc_t"}), "privileged"),
    ({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}, "privileged"),
    (volume(hostPath={"path": "/etc"}), "privileged"),
    (
        init(securityContext={"privileged": True}),
        "privileged",
    ),
]


@pytest.mark.parametrize(("section", "needs"), LEVELS, ids=[f"{needs} {section}"[:80] for section, needs in LEVELS])
def test_the_standard_of_the_policy_decides_what_a_pod_may_do(section: dict[str, Any], needs: str) -> None:
    names = {"references": ["nfs/*", "hostPath/*", "iscsi/*"]}
    for security in POD_SECURITY:
        why = refusal({"pod": section}, security=security, **names)
        if POD_SECURITY.index(security) < POD_SECURITY.index(needs):
            assert f"it is beyond {security} (pods.security)" in why
            assert f"pods.security: {needs}" in why
        else:
            assert why == ""


NAMED = [
    ({"spec": {"resourceClaims": [GPU_CLAIM]}}, "ResourceClaimTemplate/gpu"),
    ({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}}, "ResourceClaim/mine"),
    ({"spec": {"imagePullSecrets": [{"name": "registry"}]}}, "Secret/registry"),
    ({"container": {"envFrom": [{"secretRef": {"name": "theirs"}}]}}, "Secret/theirs"),
    (
        {"container": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "k"}}}]}},
        "Secret/theirs",
    ),
    (volume(secret={"secretName": "theirs"}), "Secret/theirs"),
    (volume(projected={"sources": [{"secret": {"name": "theirs"}}]}), "Secret/theirs"),
    (volume(projected={"sources": [{"secret": {"name": "theirs", "secretName": "csi"}}]}), "Secret/theirs"),
    ({"container": {"envFrom": [{"secretRef": {"name": "theirs", "secretName": "csi"}}]}}, "Secret/theirs"),
    (volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "theirs"}}), "Secret/theirs"),
    (volume(csi={"driver": "d", "secretName": "theirs", "volumeAttributes": {"imagePullSecrets": 5}}), "Secret/theirs"),
    (volume(projected={"sources": [{"podCertificate": {"signerName": "x"}}]}), "ServiceAccount/default"),
    (volume(configMap={"name": "settings"}), "ConfigMap/settings"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}), "ServiceAccount/default"),
    ({"spec": {"automountServiceAccountToken": True}}, "ServiceAccount/default"),
    ({"spec": {"serviceAccountName": "admin"}}, "ServiceAccount/admin"),
    (
        init(envFrom=[{"secretRef": {"name": "t"}}]),
        "Secret/t",
    ),
    (volume(nfs={"server": "s", "path": "/p"}), "nfs/s/p"),
    (volume(hostPath={"path": "/etc"}), "hostPath/etc"),
    (volume(cephfs={"monitors": ["m"]}), "cephfs/"),
    *(
        ({"metadata": {"annotations": {key: "x"}}}, f"Annotation/{key}")
        for key in ("k8s.v1.cni.cncf.io/networks", "io.katacontainers.config.hypervisor.path")
    ),
]


@pytest.mark.parametrize(("section", "reference"), NAMED, ids=[f"{name} {section}"[:80] for section, name in NAMED])
def test_what_a_pod_names_must_be_permitted_by_name(section: dict[str, Any], reference: str) -> None:
    why = refusal({"pod": section}, security="privileged", references=["csi/*", "Secret/csi"])
    assert f"to {reference}: it permits csi/*, Secret/csi (pods.references)" in why
    assert refusal({"pod": section}, security="privileged", references=["csi/*", "Secret/csi", f"{reference}*"]) == ""


def test_the_claims_of_a_role_must_be_permitted_by_name_too() -> None:
    job = {"roles": {"ps": {"pod": {"spec": {"resourceClaims": [GPU_CLAIM]}}}}}
    assert "roles.ps.pod.spec.resourceClaims[0]" in refusal(job)
    assert refusal(job, references=["ResourceClaimTemplate/gpu"]) == ""


@pytest.mark.parametrize("name", ["other-ganger", "ganger-secrets"])
def test_no_pattern_permits_the_secrets_of_ganger(name: str) -> None:
    """Those are the tokens of other jobs, and values that `secrets:` permits one by one."""
    section = {"container": {"envFrom": [{"secretRef": {"name": name}}]}}
    assert "ganger's own" in refusal({"pod": section}, security="privileged", references=["**"])


def test_labels_annotations_and_tolerations_follow_the_policy_of_the_job_s_own() -> None:
    assert "annotation cni.k8s.io/x" in refusal({"pod": {"metadata": {"annotations": {"cni.k8s.io/x": "y"}}}})
    assert "label app.kubernetes.io/x" in refusal({"pod": {"metadata": {"labels": {"app.kubernetes.io/x": "y"}}}})
    assert "taint *" in refusal({"pod": {"spec": {"tolerations": [{"operator": "Exists"}]}}})


def test_one_capability_is_permitted_by_name() -> None:
    section = rights(capabilities={"add": ["IPC_LOCK"]})
    assert "or to add Capability/IPC_LOCK to pods.references" in refusal({"pod": section})
    assert refusal({"pod": section}, references=["Capability/IPC_LOCK"]) == ""


@pytest.mark.parametrize("security", POD_SECURITY)
def test_what_ganger_makes_is_within_every_standard(security: str) -> None:
    assert set(pod_security_context(security)) <= {"fsGroup", "fsGroupChangePolicy", "seccompProfile"} | (
        {"runAsNonRoot", "runAsUser", "runAsGroup"} if security == "restricted" else set()
    )
    assert bool(container_security_context(security)) == (security == "restricted")
    assert "hostPath" not in SAFE_SOURCES


def test_the_section_of_a_gang_job_reaches_its_pods_or_is_refused_on_the_object(tmp_path: Path) -> None:
    section = {
        "metadata": {"annotations": {"example.org/rail": "0"}},
        "spec": {"initContainers": [{"name": "a", "image": "b", "command": ["true"]}], "volumes": []},
        "container": {"securityContext": {"readOnlyRootFilesystem": True}},
    }

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api, pod={"spec": {"hostNetwork": True}})
            await until(lambda: phase_and_message(api, "big")[0] == "Rejected")
            assert "pod.spec.hostNetwork: it is beyond restricted" in phase_and_message(api, "big")[1]
            put(api, pod={"spec": {"restartPolicy": "Always"}})
            await until(lambda: "restartPolicy" in phase_and_message(api, "big")[1])
            put(api, pod=section)
            await until(lambda: len(api.objects("pods")) == 2)
            for pod in api.objects("pods"):
                assert pod["metadata"]["annotations"]["example.org/rail"] == "0"
                assert [item["name"] for item in pod["spec"]["initContainers"]] == ["a"]
                assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]

    asyncio.run(play())
