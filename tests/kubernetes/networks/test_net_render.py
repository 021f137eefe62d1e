"""`ganger net render`: a job and what it replaces, with a profile from a file and with those of a cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.in_process import ganger_in_process
from tests.kubernetes.client.served_controller import ServedController, served
from tests.kubernetes.networks.golden_pods import PROFILES
from tests.kubernetes.networks.test_network_profiles import profile
from tests.kubernetes.policy.test_policy_objects import definition

JOB = """
name: train
run: ./train
nodes: 2
resources: {gpu: 8}
placement: {network: roce}
env: {NCCL_IB_TC: 96, NCCL_IB_GID_INDEX: 3, NCCL_IB_ADDR_RANGE: }
roles: {}
"""
ROCE = str(PROFILES / "roce-sriov.yaml")
ELSEWHERE = {"PATH": "/usr/bin:/bin"}
"""A user without a cluster."""


def render(folder: Path, *arguments: str, job: str = JOB) -> Any:
    (folder / "job.yaml").write_text(job)
    return ganger_in_process(("net", "render", *arguments), ELSEWHERE | {"HOME": str(folder)}, folder)


def test_variables_are_those_that_the_ranks_see_and_a_comment_says_what_is_replaced(tmp_path: Path) -> None:
    shown = render(tmp_path, "job.yaml", "--profile", ROCE)
    assert shown.returncode == 0, shown
    comments = [line for line in shown.stdout.splitlines() if line.startswith("# ")]
    assert comments[:6] == [
        "# pods of job.yaml",
        "# network profile roce-sriov: fabric roce, on nodes with fabric=roce",
        "# rail0: net1, resource openshift.io/rail0",
        "# rail1: net2, resource openshift.io/rail1",
        "# NCCL_IB_TC: env sets 96 in place of the profile's 106",
        "# NCCL_IB_ADDR_RANGE: secrets sets a value that is not shown in place of the profile's 10.0.0.0/8",
    ]
    assert comments[6].startswith("# warning: env sets NCCL_IB_GID_INDEX: on macvlan and in containers the index")
    (container,) = YAML(typ="safe").load(shown.stdout)["spec"]["containers"]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert (env["NCCL_IB_TC"], "NCCL_IB_ADDR_RANGE" in env) == ("96", False)
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_json_has_the_same(tmp_path: Path) -> None:
    (record,) = json.loads(render(tmp_path, "job.yaml", "--profile", ROCE, "-o", "json").stdout)
    assert record["rails"] == {"rail0": "openshift.io/rail0", "rail1": "openshift.io/rail1"}
    assert record["replaced"] == [
        {"name": "NCCL_IB_TC", "profile": "106", "job": "96", "key": "env"},
        {"name": "NCCL_IB_ADDR_RANGE", "profile": "10.0.0.0/8", "job": None, "key": "secrets"},
    ]
    assert (record["variables"]["NCCL_IB_TC"], len(record["warnings"])) == ("96", 1)


def test_a_role_with_a_value_of_its_own_is_named_and_others_keep_that_of_the_profile(tmp_path: Path) -> None:
    job = "roles: {chief: {run: a, env: {NCCL_IB_TC: 0}}, ps: {run: b}}\nplacement: {network: roce}\n"
    shown = render(tmp_path, "job.yaml", "--profile", ROCE, job=job)
    assert "# NCCL_IB_TC: roles.chief.env sets 0 in place of the profile's 106" in shown.stdout
    assert "name: NCCL_IB_TC\n      value: '106'" in shown.stdout


def test_what_a_job_writes_stays_in_a_comment(tmp_path: Path) -> None:
    job = 'run: a\nplacement: {network: roce}\nenv: {NCCL_IB_TC: "0\\nboom: ["}\n'
    shown = render(tmp_path, "job.yaml", "--profile", ROCE, job=job).stdout
    assert '# NCCL_IB_TC: env sets "0\\nboom: [" in place of the profile\'s 106' in shown
    assert YAML(typ="safe").load(shown)["spec"]


def test_a_rail_of_sockets_needs_no_device(tmp_path: Path) -> None:
    rail = "{name: rail0, network: fabric/rail0, interface: net1, host_interface: ens1f0, subnet: 10.0.0.0/16}"
    spec = f"spec: {{fabric: tcp, attach: macvlan, rails: [{rail}]}}"
    (tmp_path / "tcp.yaml").write_text(f"kind: NetworkProfile\nmetadata: {{name: tcp}}\n{spec}\n")
    shown = render(tmp_path, "job.yaml", "--profile", "tcp.yaml", job="run: a\nplacement: {network: tcp}\n")
    assert "# rail0: net1\n" in shown.stdout, shown


def test_a_profile_in_braces_is_one_and_a_job_that_writes_one_is_a_job(tmp_path: Path) -> None:
    data = YAML(typ="safe").load(Path(ROCE).read_text())
    (tmp_path / "roce.json").write_text(json.dumps(data))
    assert render(tmp_path, "roce.json").returncode == 0
    job = "run: |\n  cat <<X\n  kind: NetworkProfile\n  X\nplacement: {network: roce}\n"
    assert "# pods of job.yaml" in render(tmp_path, "job.yaml", "--profile", ROCE, job=job).stdout


@pytest.mark.parametrize(
    ("arguments", "job", "says"),
    [
        (("job.yaml",), JOB, ("no context is given", "ganger net render job.yaml --profile FILE")),
        (
            ("job.yaml", "--profile", ROCE),
            "run: a",
            ("job.yaml asks for no network", "write placement: {network: roce}"),
        ),
        (
            ("job.yaml", "--profile", str(PROFILES / "tcp.yaml")),
            JOB,
            ("no network profile in force is of a fabric roce, which job.yaml asks for: tcp (tcp)",),
        ),
        (("job.yaml", "--profile", ROCE), "runs: a", ("job.yaml:1:1: runs is not a valid key",)),
        (("missing.yaml", "--profile", ROCE), JOB, ("missing.yaml cannot be read: No such file",)),
        (("job.yaml", "--profile", "missing.yaml"), JOB, ("missing.yaml cannot be read: No such file",)),
        (("job.yaml", "--profile", ROCE, "--gpus", "4"), JOB, ("--gpus is of a NetworkProfile",)),
        (("job.yaml", "--profile", ROCE, "--networks"), JOB, ("--networks is of a NetworkProfile",)),
        ((str(PROFILES / "tcp.yaml"), "--networks"), JOB, ("attach: cluster has no rails, and no NetworkAttachment",)),
        ((str(PROFILES / "dranet.yaml"), "--networks"), JOB, ("attach: dra has claims for its rails",)),
        ((str(PROFILES / "tcp.yaml"), "--gpu-resource"), JOB, ("requires an argument",)),
        (("x" * 5000, "--profile", ROCE, "--gpus", "1"), JOB, ("is a job",)),
        ((ROCE, "--profile", ROCE), JOB, ("is a NetworkProfile, and --profile is for a job",)),
        (
            ("job.yaml", "--profile", str(PROFILES / "roce-hostdev.yaml"), "--node-gpus", "16"),
            JOB,
            ("a pod of job.yaml has 8 of 16 GPUs", "placement.sharing: exclusive"),
        ),
        ((str(PROFILES / "roce-hostdev.yaml"), "--node-gpus", "16"), JOB, ("the pod has 8 of 16 GPUs",)),
        (("job.yaml", "--profile", ROCE, "--node-gpus", "2"), JOB, ("has 8 GPUs, and no node with 2", "--node-gpus 8")),
        ((ROCE, "--networks", "--gpus", "3"), JOB, ("--networks is of no pod",)),
    ],
)
def test_what_cannot_be_rendered_says_why_and_what_to_type(
    arguments: tuple[str, ...], job: str, says: tuple[str, ...], tmp_path: Path
) -> None:
    shown = render(tmp_path, *arguments, job=job)
    assert shown.returncode == 2, shown
    assert all(text in shown.stderr for text in says), shown.stderr


def test_claim_templates_of_a_job_are_printed_and_gpus_beside_those_of_rails_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text((PROFILES / "dranet.yaml").read_text().replace("  mtu", "  gpu_class: g\n  mtu"))
    shown = render(tmp_path, "job.yaml", "--profile", "p.yaml")
    first, second, pod = YAML(typ="safe").load_all(shown.stdout)
    assert [item["kind"] for item in (first, second)] == ["ResourceClaimTemplate"] * 2
    claims = {claim["name"]: claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]}
    assert claims == {"rail0": first["metadata"]["name"], "rail1": second["metadata"]["name"]}
    assert first["metadata"]["name"].startswith("train-rail0-")
    assert "# warning: network profile dranet gives a pod a GPU of g with each rail, and resources.gpu" in shown.stdout


# -- a cluster ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    """Run a cluster with two profiles, of which the controller has refused the second."""
    message = "missing_network: rail rail0: there is no NetworkAttachmentDefinition fabric/ib0"
    refused = {"type": "Accepted", "status": "False", "reason": "MissingNetwork", "message": message}
    objects = (
        definition("networkprofiles", "NetworkProfile"),
        profile("roce-sriov"),
        profile("infiniband") | {"status": {"conditions": [refused]}},
    )
    with served(tmp_path_factory.mktemp("cluster")) as actual:
        for item in objects:
            actual.does(lambda item=item: actual.api.put(item))
        yield actual


def test_a_job_of_the_cluster_is_shown_with_its_profiles_in_force(system: ServedController, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: told\nrun: sleep 9\nresources: {gpu: 8}\nplacement: {network: roce}\n")
    submitted = system.ganger("submit", "-f", str(tmp_path / "job.yaml"), "--env", "NCCL_IB_TC=96")
    assert submitted.returncode == 0, submitted
    name = submitted.stdout.strip()
    shown = system.ganger("net", "render", name)
    assert shown.returncode == 0, shown
    assert f"# pods of {name}" in shown.stdout
    assert "# network profile roce-sriov: fabric roce, on nodes with fabric=roce" in shown.stdout
    assert "# NCCL_IB_TC: env sets 96 in place of the profile's 106" in shown.stdout
    wrong = system.ganger("net", "render", "nosuch")
    assert (wrong.returncode, "there is no job nosuch" in wrong.stderr) == (3, True), wrong


def test_a_profile_without_its_attachments_is_named_with_the_reason(system: ServedController, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("run: sleep 9\nresources: {gpu: 8}\nplacement: {network: ib}\n")
    shown = system.ganger("net", "render", str(tmp_path / "job.yaml"))
    assert shown.returncode == 2, shown
    assert "infiniband is not in force (MissingNetwork)" in shown.stderr
    assert "there is no NetworkAttachmentDefinition fabric/ib0" in shown.stderr


def test_a_check_of_files_takes_no_cluster(system: ServedController) -> None:
    refused = system.ganger("net", "check", ROCE)
    assert (refused.returncode, "net check takes no --context: it reads files" in refused.stderr) == (2, True), refused
