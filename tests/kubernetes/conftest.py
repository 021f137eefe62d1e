"""Real clusters: the shared one, `make cluster`'s or that which `make test-cluster` starts, and own ones of modules."""

import os
from collections.abc import Iterator

import pytest

from tools.testcluster import Cluster, Unavailable, cluster, running_cluster
from tools.testcluster.cluster import require_built


@pytest.fixture(scope="session")
def real_cluster() -> Cluster:
    """Return a cluster of two real nodes. Tests use namespaces of their own."""
    cluster = running_cluster()
    if cluster is None:
        pytest.skip("no test cluster runs: `make cluster` starts one")
    return cluster


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """Yield a cluster of two real nodes that is the module's own: parts of it may be killed.

    It also saves time: of modules on the shared one only one at a time has its controller.
    """
    try:
        require_built()
    except Unavailable as error:
        pytest.skip(str(error))
    with cluster(f"own-{os.getpid()}", nodes=2) as own:
        yield own
