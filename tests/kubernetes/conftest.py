"""Real cluster that tests share: `make cluster`'s, or the one that `make test` starts."""

import pytest

from tools.testcluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def real_cluster() -> Cluster:
    """Return a cluster of two real nodes. Tests use namespaces of their own."""
    cluster = running_cluster()
    if cluster is None:
        pytest.skip("no test cluster runs: `make cluster` starts one")
    return cluster
