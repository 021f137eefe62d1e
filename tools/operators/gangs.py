"""Gangs of four pods as users of each kind write them, for tests that create them on a real cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tools.operators.spark import spark
from tools.testcluster import BASE_IMAGE

SIZE: Final = 4
KILLED: Final = "/tmp/killed"
"""File with which the process of a pod ends as one that was killed."""
Object = dict[str, Any]


@dataclass(frozen=True)
class OwnedKind:
    """One kind of owner.

    Attributes:
        operators: that create its pods; none for what Kubernetes does itself.
        resource: for kubectl.
        label: of its pods, with its name.
        suspend: path of the field by which it is suspended; empty if it has none.
        write: returns its spec, from the spec of its pods.
        is_failed_by_deletion: its operator fails the whole job when a pod is deleted, which a killed process does not.
        before: objects that it needs, from its name and the spec of its pods.
        initial: number of pods that exist before any of them runs.
        result: of what they compute together, in the output of one of them; empty: they only run.
    """

    operators: tuple[str, ...]
    version: str
    kind: str
    resource: str
    label: str
    suspend: str
    write: Callable[[str, Object], Object]
    before: Callable[[str, Object], list[Object]] = lambda name, pod: []
    is_failed_by_deletion: bool = False
    initial: int = SIZE
    result: str = ""

    def manifests(self, name: str, **pod: Any) -> list[Object]:
        """Return the objects of a gang."""
        spec = pod_spec(**pod)
        owner = {"apiVersion": self.version, "kind": self.kind, "metadata": {"name": name}}
        return [*self.before(name, spec), {**owner, "spec": self.write(name, spec)}]


def pod_spec(**more: Any) -> Object:
    """Return the spec of pods of which two fit on a node, and two gangs do not fit into the cluster."""
    container = {
        "name": "main",
        "image": BASE_IMAGE,
        "command": ["sh", "-c", f"until test -e {KILLED}; do sleep 1; done; exit 137"],
        "resources": {"requests": {"cpu": "700m"}},
    }
    spec = {"schedulerName": "ganger", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {**spec, **more}


def _named(pod: Object, container: str, **more: Any) -> Object:
    """Return a pod template whose container has the name that its operator asks for."""
    (main,) = pod["containers"]
    return {"spec": {**pod, "containers": [{**main, "name": container}], **more}}


def _job(_: str, pod: Object, *, pods: int = SIZE) -> Object:
    template = {"spec": {**pod, "restartPolicy": "Never"}}
    return {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "template": template}


def _job_set(name: str, pod: Object) -> Object:
    role = {"name": "workers", "replicas": 2, "template": {"spec": _job(name, pod, pods=2)}}
    return {"replicatedJobs": [role], "failurePolicy": {"maxRestarts": 3}}


def _replicas(field: str, container: str, restart: str = "OnFailure", **roles: int) -> Callable[[str, Object], Object]:
    """Return the writer of a kind of Kubeflow's with a map of roles; `restart` is for when a pod was killed."""

    def write(_: str, pod: Object) -> Object:
        template = _named(pod, container)
        specs = {
            role: {"replicas": count, "restartPolicy": restart, "template": template} for role, count in roles.items()
        }
        return {field: specs, "runPolicy": {"cleanPodPolicy": "Running"}}

    return write


def _ray_cluster(_: str, pod: Object) -> Object:
    def template(container: str) -> Object:
        return {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}, **_named(pod, container)}

    workers = {"groupName": "small", "replicas": 3, "minReplicas": 3, "maxReplicas": 3, "rayStartParams": {}}
    head = {"rayStartParams": {}, "template": template("ray-head")}
    return {"headGroupSpec": head, "workerGroupSpecs": [{**workers, "template": template("ray-worker")}]}


def _ray_job(name: str, pod: Object) -> Object:
    """Return a RayJob that goes on: the pod that would submit it to Ray only waits, and is none of the gang."""
    waits = {"name": "submitter", "image": BASE_IMAGE, "command": ["sleep", "600"]}
    submitter = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [waits]}
    return {
        "entrypoint": "true",
        "shutdownAfterJobFinishes": True,
        "submitterPodTemplate": {"spec": submitter},
        "rayClusterSpec": _ray_cluster(name, pod),
    }


def _leader_worker_set(_: str, pod: Object) -> Object:
    return {"replicas": 1, "leaderWorkerTemplate": {"size": SIZE, "workerTemplate": {"spec": pod}}}


def _runtime(name: str, pod: Object) -> list[Object]:
    job = {"template": _named(pod, "node", restartPolicy="Never")}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    role = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": job}}
    policy: Object = {"torch": {"numProcPerNode": "auto"}}
    spec = {"mlPolicy": {"numNodes": SIZE, **policy}, "template": {"spec": {"replicatedJobs": [role]}}}
    metadata = {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    return [
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": metadata, "spec": spec}
    ]


def _train_job(name: str, _: Object) -> Object:
    return {"runtimeRef": {"name": name, "kind": "TrainingRuntime"}, "trainer": {"numNodes": SIZE}}


def _spark_pods(pod: Object, container: str) -> Object:
    """Return the pod template of the driver or of executors: what an image of Spark has comes from this machine."""
    (main,) = pod["containers"]
    mounted = {"name": "spark", "mountPath": str(spark()), "readOnly": True}
    container_spec = {"name": container, "command": [f"{spark()}/entry.sh"], "volumeMounts": [mounted]}
    volumes = [{"name": "spark", "hostPath": {"path": str(spark()), "type": "Directory"}}]
    template = {"spec": {**pod, "containers": [container_spec], "volumes": volumes}}
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    request = main["resources"]["requests"]["cpu"]
    return {"coreRequest": request, "memory": "512m", "javaOptions": options, "template": template}


def _spark_application(_: str, pod: Object) -> Object:
    return {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.0.0",
        "image": BASE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "mainApplicationFile": f"local://{spark()}/application.py",
        "restartPolicy": {"type": "Always", "onFailureRetryInterval": 1, "onSubmissionFailureRetryInterval": 1},
        "driver": _spark_pods(pod, "spark-kubernetes-driver"),
        "executor": {**_spark_pods(pod, "spark-kubernetes-executor"), "instances": 3},
    }


def _spark_rights(name: str, _: Object) -> list[Object]:
    """Return the right of the driver to create its executors."""
    rule = {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": ["*"],
    }
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "spark"}
    version, metadata = "rbac.authorization.k8s.io/v1", {"name": "spark"}
    return [
        {"apiVersion": version, "kind": "Role", "metadata": {**metadata}, "rules": [rule]},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": {**metadata},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


_V1: Final = ("training-operator",)
_ON_KILL: Final = "ExitCode"
"""Restart policy with which these kinds create a pod again that was killed; with another one the job has failed."""
_KUBEFLOW_LABEL: Final = "training.kubeflow.org/job-name"


def _kubeflow(kind: str, write: Callable[[str, Object], Object], version: str = "v1") -> OwnedKind:
    operators = _V1 if version == "v1" else ("mpi-operator",)
    resource, suspend = f"{kind.lower()}s.kubeflow.org", "runPolicy.suspend"
    fails = kind == "TFJob"
    return OwnedKind(
        operators,
        f"kubeflow.org/{version}",
        kind,
        resource,
        _KUBEFLOW_LABEL,
        suspend,
        write,
        is_failed_by_deletion=fails,
    )


OWNED: Final[Mapping[str, OwnedKind]] = {
    "Job": OwnedKind((), "batch/v1", "Job", "jobs", "batch.kubernetes.io/job-name", "suspend", _job),
    "JobSet": OwnedKind(
        ("jobset",),
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "jobsets",
        "jobset.sigs.k8s.io/jobset-name",
        "suspend",
        _job_set,
    ),
    "TrainJob": OwnedKind(
        ("jobset", "trainer"),
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "trainjobs",
        "jobset.sigs.k8s.io/jobset-name",
        "suspend",
        _train_job,
        _runtime,
    ),
    "PyTorchJob": _kubeflow("PyTorchJob", _replicas("pytorchReplicaSpecs", "pytorch", Master=1, Worker=3)),
    "TFJob": _kubeflow("TFJob", _replicas("tfReplicaSpecs", "tensorflow", _ON_KILL, PS=1, Worker=3)),
    "XGBoostJob": _kubeflow("XGBoostJob", _replicas("xgbReplicaSpecs", "xgboost", _ON_KILL, Master=1, Worker=3)),
    "MPIJob v1": _kubeflow("MPIJob", _replicas("mpiReplicaSpecs", "mpi", _ON_KILL, Launcher=1, Worker=3)),
    "MPIJob v2beta1": _kubeflow("MPIJob", _replicas("mpiReplicaSpecs", "mpi", Launcher=1, Worker=3), "v2beta1"),
    "RayCluster": OwnedKind(
        ("kuberay",), "ray.io/v1", "RayCluster", "rayclusters", "ray.io/cluster", "suspend", _ray_cluster
    ),
    "RayJob": OwnedKind(("kuberay",), "ray.io/v1", "RayJob", "rayjobs", "ray.io/cluster", "suspend", _ray_job),
    "LeaderWorkerSet": OwnedKind(
        ("lws",),
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "leaderworkersets",
        "leaderworkerset.sigs.k8s.io/name",
        "",
        _leader_worker_set,
    ),
    "SparkApplication": OwnedKind(
        ("spark-operator",),
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
        "sparkapplications",
        "sparkoperator.k8s.io/app-name",
        "suspend",
        _spark_application,
        _spark_rights,
        initial=1,
        result="sum of squares: 332833500",
    ),
}
