"""Operators by module and version, and their programs and definitions in a cache outside of the checkout.

Each is built by a module of its own, which requires that version and nothing else: its own go.mod determines all other
versions, and Go's checksum database the content. An operator is cached by what it is built from. Its definitions
(CustomResourceDefinitions and webhooks) are copied from its module into the cache, never into the repository.
"""

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tools.operators import spark
from tools.testcluster.programs.binaries import build_lock, cache
from tools.testcluster.programs.images import BASE_IMAGE
from tools.testcluster.programs.requirements import require_go


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        package: its main package within the module.
        definitions: globs of files in the module with CustomResourceDefinitions.
        webhooks: file in the module with webhooks that it needs, or empty.
        webhook_groups: API groups of the resources for which they are called; empty: all.
        certificates: folders where it looks for its certificate, beside the usual one.
        arguments: of its command line, with {port} of its webhooks and {config}, the path of its configuration.
        config: configuration file, with "{port}".
        environment: variables of its environment, with the {address} and {api_port} of the API server.
        objects: objects that it expects to exist.
        go: version of Go that its go.mod asks for here, where its own asks for a newer patch release; empty: its own.
        runs_spark: it needs Spark and Java, which are made with it.
    """

    name: str
    module: str
    version: str
    package: str
    definitions: tuple[str, ...]
    webhooks: str = ""
    arguments: tuple[str, ...] = ()
    config: str = ""
    environment: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    webhook_groups: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    go: str = ""
    runs_spark: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the program `operator` and of its definitions, which may not exist yet."""
        built_from = (self.module, self.version, self.package, self.definitions, self.webhooks)
        return (
            cache().with_name("operators") / f"{self.name}-{hashlib.sha256(repr(built_from).encode()).hexdigest()[:12]}"
        )


_QUIET: Final = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
OPERATORS: Final = {
    operator.name: operator
    for operator in (
        Operator(
            "jobset",
            "sigs.k8s.io/jobset",
            "v0.10.1",
            "",
            ("config/components/crd/bases/*.yaml",),
            "config/components/webhook/manifests.yaml",
            ("--config={config}",),
            """{"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}, "webhook": {"port": PORT},
            "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false}}""",
        ),
        Operator(
            "training-operator",
            "github.com/kubeflow/training-operator",
            "v1.8.1",
            "cmd/training-operator.v1",
            ("manifests/base/crds/kubeflow.org_*.yaml",),
            # It waits until it could put its certificate there; what is validated there does not matter here.
            arguments=(
                *_QUIET,
                "--webhook-server-port={port}",
                "--pytorch-init-container-template-file={config}",
                f"--pytorch-init-container-image={BASE_IMAGE}",
                f"--mpi-kubectl-delivery-image={BASE_IMAGE}",
            ),
            # Workers would wait for the name of the master; the test cluster has no name server.
            config="""[{"name": "init-pytorch", "image": "{{.InitContainerImage}}", "command": ["true"],
            "imagePullPolicy": "IfNotPresent"}]""",
            environment=("MY_POD_NAMESPACE=default",),
            objects=(
                """{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "validator.training-operator.kubeflow.org"}, "webhooks": []}""",
                """{"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "training-operator-webhook-cert", "namespace": "default"}}""",
            ),
        ),
        Operator(
            "mpi-operator",
            "github.com/kubeflow/mpi-operator",
            "v0.7.0",
            "cmd/mpi-operator",
            ("manifests/base/kubeflow.org_mpijobs.yaml",),
            arguments=("--kube-api-qps=100", "--kube-api-burst=200", "--lock-namespace=default"),
        ),
        Operator(
            "kuberay",
            "github.com/ray-project/kuberay/ray-operator",
            "v1.5.0",
            "",
            ("config/crd/bases/*.yaml",),
            arguments=("--metrics-addr=0", "--health-probe-bind-address=0", "--enable-leader-election=false"),
            # Both would run Ray's own program.
            environment=("ENABLE_INIT_CONTAINER_INJECTION=false", "ENABLE_PROBES_INJECTION=false"),
        ),
        Operator(
            "lws",
            "sigs.k8s.io/lws",
            "v0.7.0",
            "cmd",
            ("config/crd/bases/*.yaml",),
            # They label the pods, and give workers the name of their leader.
            "config/webhook/manifests.yaml",
            ("--config={config}",),
            """{"apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration",
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}, "webhook": {"port": PORT},
            "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false}}""",
        ),
        Operator(
            "trainer",
            "github.com/kubeflow/trainer/v2",
            "v2.1.0",
            "cmd/trainer-controller-manager",
            ("manifests/base/crds/*.yaml",),
            arguments=("--config={config}",),
            config="""{"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"},
            "webhook": {"port": PORT, "host": "127.0.0.1"},
            "leaderElection": {"leaderElect": false}, "certManagement": {"enable": false}}""",
        ),
        Operator(
            "kueue",
            "sigs.k8s.io/kueue",
            "v0.17.0",
            "cmd/kueue",
            ("config/components/crd/bases/*.yaml",),
            "config/components/webhook/manifests.yaml",
            ("--config={config}",),
            """{"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": "default",
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}, "webhook": {"port": PORT},
            "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
            "featureGates": {"VisibilityOnDemand": false},
            "clientConnection": {"qps": 300, "burst": 500}, "integrations": {"frameworks": ["batch/job"]}}""",
            # Those of other kinds of jobs, and of pods, answer only with their integration.
            webhook_groups=("batch", "kueue.x-k8s.io"),
            certificates=("/etc/kueue/metrics/certs",),
        ),
        # With its provider of nodes that are objects alone, to which KWOK is the kubelet.
        Operator(
            "karpenter",
            "sigs.k8s.io/karpenter",
            "v1.15.0",
            "kwok",
            ("pkg/apis/crds/karpenter.sh_*.yaml", "kwok/apis/crds/*.yaml"),
            arguments=(
                *("--disable-leader-election", "--metrics-port=0", "--health-probe-port=0"),
                *("--batch-idle-duration=1s", "--instance-types-file-path={config}"),
            ),
            config="""[{"name": "large.64x", "architecture": "amd64", "operatingSystems": ["linux"],
            "resources": {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi"},
            "offerings": [{"Price": 1, "Available": true, "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]}]}]}]""",
            # It asks for a patch release of Go that is newer than what machines have, and needs nothing of it.
            go="1.26",
        ),
        # The last one: where a machine lacks what Spark needs, the others are built.
        Operator(
            "spark-operator",
            "github.com/kubeflow/spark-operator/v2",
            "v2.5.0",
            "cmd/operator",
            ("config/crd/bases/*.yaml",),
            arguments=(
                *("controller", "start", "--enable-ui-service=false", "--metrics-bind-address=0"),
                "--health-probe-bind-address=0",
            ),
            environment=(
                *("KUBERNETES_SERVICE_HOST={address}", "KUBERNETES_SERVICE_PORT={api_port}"),
                *(f"SPARK_HOME={spark.spark() / 'python' / 'pyspark'}", f"JAVA_HOME={spark.spark() / 'java'}"),
                # It runs `spark-submit` for each application; few classes of that are worth optimizing.
                "JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            ),
            runs_spark=True,
        ),
    )
}


def is_built(name: str) -> bool:
    """Return whether an operator can be started, with what it runs."""
    operator = OPERATORS[name]
    return (operator.folder / "operator").exists() and (spark.is_made() or not operator.runs_spark)


def build(names: Iterable[str], report: Callable[[str], None]) -> None:
    """Build those of these operators that are not built. Raises Unavailable without Go."""
    for operator in map(OPERATORS.__getitem__, names):
        with build_lock(operator.folder):
            if not is_built(operator.name):
                began = time.monotonic()
                if operator.runs_spark and not spark.is_made():
                    spark.make()
                _build(operator)
                report(f"built {operator.name} {operator.version} in {time.monotonic() - began:.0f} s")


def _build(operator: Operator) -> None:
    """Build one operator; its program is written last, so that it is complete when that exists."""
    operator.folder.mkdir(parents=True, exist_ok=True)
    unfinished = operator.folder / "operator.unfinished"
    package = "/".join(filter(None, (operator.module, operator.package)))
    with TemporaryDirectory() as folder:
        _go(folder, "mod", "init", "ganger.dev/operators")
        _go(folder, "mod", "edit", f"-require={operator.module}@{operator.version}")
        if operator.go:
            _ask_for_go(folder, operator)
        _go(folder, "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(unfinished), package)
        _copy_definitions(operator, _sources(folder, operator))
    unfinished.rename(operator.folder / "operator")


def _copy_definitions(operator: Operator, sources: Path) -> None:
    """Copy the definitions and webhooks of a module into the cache."""
    files = sorted(path for glob in operator.definitions for path in sources.glob(glob))
    files = [path for path in files if path.name != "kustomization.yaml"]
    (operator.folder / "definitions.yaml").write_text("\n---\n".join(path.read_text() for path in files))
    webhooks = (sources / operator.webhooks).read_text() if operator.webhooks else ""
    (operator.folder / "webhooks.yaml").write_text(webhooks)


def _sources(folder: str, operator: Operator) -> Path:
    """Return where the module's files are."""
    module: dict[str, Any] = json.loads(_go(folder, "list", "-m", "-mod=mod", "-json", operator.module))
    return Path((module.get("Replace") or module)["Dir"])


def _ask_for_go(folder: str, operator: Operator) -> None:
    """Have a module be built from a copy whose go.mod asks for the operator's version of Go."""
    copy = Path(folder) / "copy"
    shutil.copytree(_sources(folder, operator), copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # the module cache is read-only
    _go(str(copy), "mod", "edit", f"-go={operator.go}")
    _go(folder, "mod", "edit", f"-replace={operator.module}={copy}")


def _go(folder: str, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    command = [require_go(), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
