"""A real Kubernetes on this machine alone, for tests, benches and trying ganger.

`make cluster` and `make cluster-down` are `python -m tools.testcluster up` and `down`. Tests and benches use
`running_kubeconfig()` (the kubeconfig of an existing cluster, or None), `running_cluster()` (it, as a `Cluster`) and
`cluster(...)` (their own, gone at the end). Where a machine cannot have one, `Unavailable` says why in one sentence.

etcd and Kubernetes are built from the modules in `programs/go/`; containerd, runc and the CNI plug-ins are Debian's.
Each real node is a small machine of its own: process, mount and network namespaces, so that whatever it mounts, links
or starts ends with its first process.
"""

from tools.testcluster.cluster import Cluster, cluster, running_cluster, running_kubeconfig
from tools.testcluster.programs.images import BASE_IMAGE
from tools.testcluster.programs.requirements import Unavailable

__all__ = ["BASE_IMAGE", "Cluster", "Unavailable", "cluster", "running_cluster", "running_kubeconfig"]
