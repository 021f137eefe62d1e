"""etcd, API server, controller manager and scheduler: their command lines and configuration files."""

import json

from tools.testcluster.control_plane.certificates import Authority
from tools.testcluster.programs.binaries import program
from tools.testcluster.shape import Shape

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
GANGS = "--feature-gates=GenericWorkload=true,GangScheduling=true"
"""Kubernetes' own gang scheduling with PodGroups, which is off by default."""


def prepare(shape: Shape) -> None:
    """Create certificates, and the kubeconfig of the admin and of each part."""
    authority = Authority(shape.pki)
    authority.create()
    server_addresses = sorted({shape.address, "127.0.0.1", _first_service(shape)})
    authority.issue_files("apiserver", "kube-apiserver", addresses=server_addresses)
    authority.issue_files("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    for part in ("kube-controller-manager", "kube-scheduler"):
        authority.write_kubeconfig(shape.pki / f"{part}.kubeconfig", shape.url, f"system:{part}")
    authority.issue_files("admin", "admin", "system:masters")
    authority.write_kubeconfig(shape.kubeconfig, shape.url, "admin", "system:masters")
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        # ganger is compared with it: its client must not be the bottleneck.
        "clientConnection": {
            "kubeconfig": str(shape.pki / "kube-scheduler.kubeconfig"),
            "qps": 5000,
            "burst": 10000,
        },
    }
    (shape.folder / "kube-scheduler.json").write_text(json.dumps(scheduler))


def command(shape: Shape, part: str) -> list[str]:
    """Return the command line of a part."""
    return {
        "etcd": _etcd,
        "kube-apiserver": _api_server,
        "kube-controller-manager": _controller_manager,
        "kube-scheduler": _scheduler,
    }[part](shape)


def _etcd(shape: Shape) -> list[str]:
    clients, peers = (f"http://127.0.0.1:{port}" for port in (shape.etcd_port, shape.etcd_peer_port))
    return [
        program("etcd"),
        f"--data-dir={shape.folder / 'etcd'}",
        "--name=testcluster",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=testcluster={peers}",
        # Its data are lost with the machine anyway.
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def _api_server(shape: Shape) -> list[str]:
    pki = shape.pki
    return [
        program("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{shape.etcd_port}",
        f"--bind-address={shape.address}",
        f"--advertise-address={shape.address}",
        f"--secure-port={shape.api_port}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki / 'ca.pem'}",
        f"--tls-cert-file={pki / 'apiserver.pem'}",
        f"--tls-private-key-file={pki / 'apiserver-key.pem'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account-key.pem'}",
        f"--service-account-signing-key-file={pki / 'service-account-key.pem'}",
        f"--service-cluster-ip-range={shape.services}",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki / 'ca.pem'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.pem'}",
        f"--kubelet-client-key={pki / 'kubelet-client-key.pem'}",
        GANGS,
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    ]


def _controller_manager(shape: Shape) -> list[str]:
    return [
        program("kube-controller-manager"),
        f"--kubeconfig={shape.pki / 'kube-controller-manager.kubeconfig'}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        f"--root-ca-file={shape.pki / 'ca.pem'}",
        f"--service-account-private-key-file={shape.pki / 'service-account-key.pem'}",
        "--use-service-account-credentials=true",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--leader-elect=false",
        # Three heartbeats of a kubelet instead of 50 s: an outage needs less time to make nodes not ready.
        "--node-monitor-grace-period=30s",
        GANGS,
    ]


def _scheduler(shape: Shape) -> list[str]:
    config = shape.folder / "kube-scheduler.json"
    return [program("kube-scheduler"), f"--config={config}", "--secure-port=0", GANGS]


def _first_service(shape: Shape) -> str:
    """Return the address of the API server's own service: the first of the range."""
    network, _, last = shape.services.partition("/")[0].rpartition(".")
    return f"{network}.{int(last) + 1}"
