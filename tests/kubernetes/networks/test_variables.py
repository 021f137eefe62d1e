"""Variables of a network profile: by fabric, and what a job replaces of them."""

from dataclasses import replace
from typing import Any

import pytest

from ganger.networks.profile_checks import check
from ganger.networks.variables import gid_index_variables, replaced, variables
from ganger.spec import spec_from_dict
from tests.kubernetes.networks.golden_pods import NAMES, profile_of

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(("rail_isolated", "value"), [(True, "0"), (False, "1"), (None, None)])
def test_rings_cross_rails_where_the_profile_says_that_they_may(rail_isolated: bool | None, value: str | None) -> None:
    profile = replace(profile_of("roce-sriov"), rail_isolated=rail_isolated)
    assert variables(profile, GPU, 8).get("NCCL_CROSS_NIC") == value


@pytest.mark.parametrize("name", NAMES)
def test_what_no_profile_asks_for_is_left_to_nccl(name: str) -> None:
    quiet = replace(profile_of(name), queue_pairs=None, gdr_level=None, port_failover=False, rail_isolated=None, env={})
    names = variables(quiet, GPU, 8).keys()
    assert not names & {
        "NCCL_CROSS_NIC",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_IB_RESILIENCY_PORT_FAILOVER",
        "NCCL_IB_RESILIENCY_PORT_RECOVERY",
    }
    assert {"NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "UCX_TLS", "GLOO_SOCKET_IFNAME"} <= names


def test_variables_of_the_profile_itself_take_precedence_over_those_that_follow_from_it() -> None:
    profile = replace(profile_of("roce-sriov"), env={"NCCL_IB_TC": "96", "NCCL_DEBUG": "INFO"})
    found = variables(profile, GPU, 8)
    assert (found["NCCL_IB_TC"], found["NCCL_DEBUG"]) == ("96", "INFO")


@pytest.mark.parametrize("name", ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"])
def test_a_profile_that_fixes_the_index_of_a_gid_is_a_finding(name: str) -> None:
    (finding,) = check(replace(profile_of("roce-sriov"), env={name: "3"}))
    assert (finding.code, finding.what) == ("fixed_gid_index", f"env of the profile sets {name}")
    assert "NCCL_IB_ADDR_RANGE" in finding.fix
    assert gid_index_variables({"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "3"}).count(" and ") == 1


@pytest.mark.parametrize(
    ("job", "texts"),
    [
        ({"run": "true"}, []),
        ({"run": "true", "env": {"NCCL_IB_TC": "106", "OTHER": "1"}}, []),
        ({"run": "true", "env": {"NCCL_IB_TC": "96"}}, ["NCCL_IB_TC: env sets 96 in place of the profile's 106"]),
        (
            {"run": "true", "env": {"NCCL_IB_TC": ""}},
            ["NCCL_IB_TC: env sets an empty value in place of the profile's 106"],
        ),
        (
            {"run": "true", "secrets": ["NCCL_IB_TC"]},
            ["NCCL_IB_TC: secrets sets a value that is not shown in place of the profile's 106"],
        ),
        (
            {"roles": {"chief": {"run": "true", "env": {"NCCL_IB_TC": "0"}}, "worker": {"run": "true"}}},
            ["NCCL_IB_TC: roles.chief.env sets 0 in place of the profile's 106"],
        ),
        (
            {"run": "true", "pod": {"container": {"env": [{"name": "NCCL_IB_TC", "value": "0"}]}}},
            ["NCCL_IB_TC: pod.container.env sets 0 in place of the profile's 106"],
        ),
        (
            {
                "run": "true",
                "env": {"NCCL_IB_TC": "1"},
                "pod": {"container": {"env": [{"name": "NCCL_IB_TC", "value": "0"}]}},
            },
            ["NCCL_IB_TC: env sets 1 in place of the profile's 106"],
        ),
    ],
)
def test_what_a_job_replaces_is_said_with_both_values_and_the_key(job: dict[str, Any], texts: list[str]) -> None:
    spec = spec_from_dict(job, "a test")
    assert [each.text for each in replaced({"NCCL_IB_TC": "106"}, spec)] == texts
