"""The flags of Arena, and what each becomes: commands are parsed by this table, and the documentation is written.

A flag is written `SHORT:NAME`; one that takes no value ends with `!`. NAME may end with `*`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags by what becomes of them, each with a text that says so.

    Attributes:
        taken: They become part of the job, or of the command.
        noted: They change nothing here, and are named.
        refused: They are errors, which name what to write instead.
    """

    taken: Texts = field(default_factory=dict)
    noted: Texts = field(default_factory=dict)
    refused: Texts = field(default_factory=dict)

    def __or__(self, other: "Flags") -> "Flags":
        return Flags({**self.taken, **other.taken}, {**self.noted, **other.noted}, {**self.refused, **other.refused})


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job of Arena.

    Attributes:
        names: Its names, the first the longest.
        framework: The framework of ganger that has its place.
        flags: Beside those of all jobs.
    """

    names: tuple[str, ...]
    framework: str
    flags: Flags


def _same(text: str, *flags: str) -> dict[str, str]:
    return dict.fromkeys(flags, text)


def _resources_of(prefix: str) -> dict[str, str]:
    return {f":{prefix}-{key}": f"`resources.{name}`" for key, name in _RESOURCES.items()}


_RESOURCES: Final = {"cpu": "cpu", "memory": "memory", "gpus": "gpu"}
"""Fields of `resources`, by the ends of the flags that become them."""
HOST_NAMESPACES: Final = ("hostNetwork", "hostIPC", "hostPID")
_SHARED_MEMORY: Final = "`pod.shm`"
_SCHEDULER: Final = "ganger's scheduler places it"
_PORTS: Final = "ganger chooses ports"
_NO_LAUNCHER: Final = "there is no launcher pod: the command runs beside the workers"
COMMON: Final = Flags(
    taken={
        ":name": "`name`",
        ":image": "`image`",
        ":gpus": "`resources.gpu` of each worker",
        ":device": "`resources.gpu`: the resource of a GPU vendor, such as `amd.com/gpu=2`",
        ":workers": "`nodes`",
        ":retry": "`retry.max`",
        "e:env": "`env`",
        "d:data": "`volumes`, of PVC:/PATH",
        ":data-dir": "`volumes`, of a directory that has the same path inside",
        "l:label": "`labels`",
        ":rdma!": "`placement.network: [ib, roce]`",
        ":queue": "`queue`",
        "p:priority": "`priority`: low, normal, high, or -1000 to 1000",
        ":toleration": "`placement.tolerations`",
        ":selector": "`placement.node_selector`",
        ":shell": "the shell that `run` is a line of",
        ":sync-mode": "`code`, of git",
        ":sync-source": "`code.git`",
        "a:annotation": "`pod.metadata.annotations`",
        ":image-pull-policy": "`pod.container.imagePullPolicy`",
        ":image-pull-secret": "`pod.spec.imagePullSecrets`",
        **{f":{name}!": f"`pod.spec.{name}`" for name in HOST_NAMESPACES},
    },
    noted={
        **_same("every job is placed as a gang", ":gang!"),
        **_same(_SCHEDULER, ":scheduler"),
        **_same("the command runs in the directory of the code", ":working-dir"),
        **_same("there is no registry of models", ":model-name", ":model-source"),
        **_same("ganger exec JOB -- tensorboard --logdir DIR", ":tensorboard!", ":tensorboard-image", ":logdir"),
        **_same("the image of the job has git", ":sync-image"),
    },
    refused={":config-file": "write `code: .`: files of that directory come with the job"},
)
_CPU_MEMORY: Final = {":cpu": "`resources.cpu` of each worker", ":memory": "`resources.memory` of each worker"}
_CLEAN: Final = _same("no process of an attempt outlives it", ":clean-task-policy")
_TTL: Final = _same("`ganger prune --older-than 7d` removes ended jobs", ":ttl-after-finished")
_TIME: Final = {":running-timeout": "`limits.time`"}
_ROLES: Final = ("ps", "worker", "chief", "evaluator")
_PYTORCH: Final = Flags(
    taken={
        **_CPU_MEMORY,
        ":nproc-per-node": "`nproc_per_node`; without it one process on each node",
        ":share-memory": _SHARED_MEMORY,
        **_TIME,
    },
    noted={**_CLEAN, **_TTL},
)
_TENSORFLOW: Final = Flags(
    taken={
        ":ps": "`roles.ps.count`",
        ":chief!": "`roles.chief`",
        ":evaluator!": "`roles.evaluator`",
        **{f":{role}-{key}": f"`roles.{role}.resources.{name}`" for role in _ROLES for key, name in _RESOURCES.items()},
        ":worker-image": "`image`",
        ":role-sequence": "`start_order`",
        ":success-policy": "`stop_when`",
        ":worker-affinity-policy": "`placement.strategy`",
        ":starting-timeout": "`limits.queue_time`",
        **_TIME,
    },
    noted={
        **_same("requests count", *(f":{role}-{key}-limit" for role in _ROLES for key in ("cpu", "memory"))),
        **_same(_PORTS, *(f":{role}-port" for role in _ROLES)),
        **_same(
            "the policy of the workers counts", *(f":{role}-affinity-policy" for role in _ROLES if role != "worker")
        ),
        **_same("it is a preference: `placement.mode`", *(f":{role}-affinity-constraint" for role in _ROLES)),
        **_CLEAN,
        **_TTL,
    },
    refused={
        **_same("a job has one image: --image", ":ps-image", ":chief-image", ":evaluator-image"),
        **_same("a job has one selector: --selector", *(f":{role}-selector" for role in _ROLES)),
    },
)
_MPI: Final = Flags(
    taken={**_CPU_MEMORY, **_TIME},
    noted={
        **_same("placement goes by topology", ":gputopology!"),
        **_same(_NO_LAUNCHER, ":mounts-on-launcher!"),
        **_same("processes start without ssh", ":ssh-port"),
        **_CLEAN,
        **_TTL,
    },
)
_DEEPSPEED: Final = Flags(
    taken={
        **_CPU_MEMORY,
        ":job-backoff-limit": "`retry.max`",
        ":share-memory": _SHARED_MEMORY,
        ":worker-annotation": "`pod.metadata.annotations`",
        **_TIME,
    },
    noted={
        **_same(_NO_LAUNCHER, ":launcher-selector", ":launcher-annotation"),
        **_same("`retry` decides", ":job-restart-policy"),
        **_same("processes start without ssh", ":ssh-secret"),
        **_CLEAN,
        **_TTL,
    },
)
_ELASTIC: Final = _DEEPSPEED | Flags(
    taken={
        ":min-workers": "`nodes: MIN..MAX`",
        ":max-workers": "`nodes: MIN..MAX`; without it --workers",
        ":max-wait-time": "`limits.queue_time`, in seconds",
    },
    noted={
        **_same("tolerate the taint of such nodes: --toleration", ":spot-instance!"),
        **_same("`retry` decides", ":worker-restart-policy"),
    },
)
_RAY: Final = Flags(
    taken={
        ":worker-replicas": "`nodes`, with one more for the head",
        ":worker-min-replicas": "`nodes: MIN..MAX`, with `--enable-autoscaling`",
        ":worker-max-replicas": "`nodes: MIN..MAX`, with `--enable-autoscaling`",
        **_resources_of("worker"),
        ":enable-autoscaling!": "an elastic job",
        ":active-deadline-seconds": "`limits.time`",
    },
    noted={
        **_same("the head has what a worker has", ":head-*"),
        **_same("ganger resizes the job itself", ":autoscaler-*"),
        **_same("the cluster ends with the job", ":shutdown-after-finished!", ":ttl-seconds-after-finished"),
        **_same("the version is that of the image", ":ray-version"),
        **_same("a worker has one host", ":worker-num-of-hosts"),
    },
    refused={":suspend!": "submit it, and then: ganger suspend JOB"},
)
_VOLCANO: Final = Flags(
    taken={
        ":min-available": "`nodes: MIN..REPLICAS`",
        ":task-images": "`image`",
        ":task-replicas": "`nodes`",
        **_resources_of("task"),
    },
    noted={
        **_same(_SCHEDULER, ":scheduler-name"),
        **_same("a job has one task: `roles` in a job file has several", ":task-name"),
        **_same(_PORTS, ":task-port"),
    },
)
JOB_TYPES: Final = (
    JobType(("pytorchjob", "pytorch"), "torch", _PYTORCH),
    JobType(("tfjob", "tf"), "tensorflow", _TENSORFLOW),
    JobType(("mpijob", "mpi", "mj"), "mpi", _MPI),
    JobType(("horovodjob", "hj"), "horovod", _MPI),
    JobType(("deepspeedjob", "dp"), "deepspeed", _DEEPSPEED),
    JobType(("etjob", "et"), "horovod", _ELASTIC),
    JobType(("rayjob", "rj"), "ray", _RAY),
    JobType(("volcanojob", "vj"), "plain", _VOLCANO),
)
_INSTANCE: Final = "`--rank`, from the number at its end"
_TYPE: Final = _same("a job has one name, whatever its type", "T:type")
_CONTAINER: Final = _same("a pod has one container", "c:container")
VERBS: Final[Mapping[str, tuple[str, Flags]]] = {
    "list": (
        "ganger ls --all",
        Flags({"o:output": "`-o json`"}, {**_TYPE, **_same("of the namespace of the context", "A:all-namespaces!")}),
    ),
    "get": (
        "ganger get JOB",
        Flags(
            {"o:output": "`-o json`", "e:events!": "ganger events JOB"},
            {**_TYPE, **_same("it is shown", "g:gpus!", "g:gpu!")},
        ),
    ),
    "logs": (
        "ganger logs JOB",
        Flags(
            {
                "f:follow!": "`--follow`",
                "i:instance": _INSTANCE,
                "t:tail": "`--tail`",
                ":since": "`--since`",
                ":since-time": "`--since`",
                ":timestamps!": "`--timestamps`",
            },
            {**_TYPE, **_CONTAINER},
        ),
    ),
    "attach": ("ganger exec JOB -i -t -- COMMAND", Flags({"i:instance": _INSTANCE}, {**_TYPE, **_CONTAINER})),
    "delete": ("ganger stop JOB, or of an ended one ganger delete JOB", Flags({}, _TYPE)),
    "prune": (
        "ganger prune",
        Flags({"s:since": "`--older-than`"}, _same("of the namespace of the context", "A:all-namespaces!")),
    ),
    "top": (
        "ganger top nodes, ganger top jobs",
        Flags(
            {"r:refresh!": "without it: `--once`"},
            {
                **_TYPE,
                **_same("all is shown", "d:details!", "m:gpu-mode", ":metric!", "i:instance"),
                **_same("all of the namespace", "A:all-namespaces!"),
            },
        ),
    ),
    **{
        verb: (
            f"ganger scale JOB {sign}N",
            Flags(
                {":name": "the job", ":count": "how many workers"},
                {
                    **_same("a resize is done when nodes are idle", ":timeout", ":retry"),
                    **_same("the processes start again from the newest checkpoint", ":script", "e:env"),
                },
            ),
        )
        for verb, sign in (("scaleout", "+"), ("scalein", "-"))
    },
    "whoami": ("ganger whoami", Flags()),
    "version": ("ganger --version", Flags()),
    "completion": ("ganger completion SHELL", Flags()),
}
"""Subcommands beside submit: what is run, and their flags."""
UNSUPPORTED: Final[Texts] = {
    **_same("ganger runs training jobs, and serves no models", "serve", "model", "evaluate"),
    "cron": "run `ganger submit` from cron",
    "data": "volumes are PersistentVolumeClaims: kubectl get pvc",
    "logviewer": "the logs: ganger logs JOB",
    "sparkjob": "Spark places its own executors: submit it with spark-submit",
    "spark": "Spark places its own executors: submit it with spark-submit",
}
"""Subcommands and types of jobs that ganger does not have, and what to do instead."""
GLOBAL_NOTED: Final[Texts] = {
    **_same("there is no installation of Arena", ":arena-namespace", ":helm-binary", ":config"),
    **_same("the log is that of the server: ganger server logs", ":loglevel", ":trace!", ":pprof!"),
}


def job_type(name: str) -> JobType | None:
    """Return a type of jobs by one of its names."""
    return next((kind for kind in JOB_TYPES if name in kind.names), None)
