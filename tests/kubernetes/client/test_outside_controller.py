"""`ganger --context` with a controller outside the cluster: no service leads to it, only what it publishes."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kubernetes.client.test_query_permissions import Typed, ganger, record  # noqa: F401  # a fixture
from tools.controlled import OWN, Controlled, controlled
from tools.testcluster import Cluster


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


def test_queries_and_dry_runs_reach_it(system: Controlled, ganger: Typed, tmp_path: Path) -> None:  # noqa: F811
    services = json.loads(system.on.kubectl("get", "services", "--namespace", OWN, "-o", "json"))["items"]
    assert services == [], "the API server's proxy cannot lead to it"
    path = tmp_path / "job.yaml"
    path.write_text("name: small\nrun: ./train\nresources: {cpu: 100m}\n")
    assert any(size["nodes"] == 2 for size in record(ganger("asker", "fit", "-o", "json"))["items"])
    plan = record(ganger("chief", "run", "--dry-run", "-o", "json", "-f", str(path)))
    assert (plan["starts_now"], plan["spec"]["name"]) == (True, "small")
    assert record(ganger("seer", "top", "-o", "json")) | {"at_ms": 0} == system.client.overview() | {"at_ms": 0}
    refused = ganger("asker", "top")
    assert (refused.returncode, "--all-namespaces" in refused.stderr) == (4, True), refused


def test_the_address_is_of_no_use_without_the_right_to_query(system: Controlled, ganger: Typed) -> None:  # noqa: F811
    result = ganger("stranger", "fit")
    assert result.returncode == 4
    assert "--role=ganger-caller" in result.stderr, result.stderr
    link = http.client.HTTPSConnection(system.listens, context=ssl._create_unverified_context())
    with closing(link):
        link.request("GET", "/api/v1/fit")
        assert link.getresponse().status == http.HTTPStatus.UNAUTHORIZED
