"""The policy from Python: text, a file, a mapping or a version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ganger import AsyncClient, BadRequest, Client, ClientError, NotFound


def test_a_policy_is_compared_tried_applied_and_taken_back(client: Client, folder: Path) -> None:
    before = client.policy()
    (folder / "policy.yaml").write_text("half_life: 3d\n")
    for given in ("half_life: 3d\n", folder / "policy.yaml", {"half_life": "3d"}):
        difference = client.diff_policy(given)
        assert [(each.path, each.before, each.after) for each in difference.changes] == [("half_life", "7d", "3d")]
    assert client.try_policy({"half_life": "3d"}).starts == ()
    assert client.try_policy({"half_life": "3d"}).idle is None
    idle = client.try_policy({"queues": {"default": {"idle": {"window": "20m"}}}}).idle
    assert idle is not None
    assert [(queue.queue, queue.window_ms, queue.action) for queue in idle.queues] == [
        ("default", 1_200_000, "suspend")
    ]
    found = client.apply_policy({"half_life": "3d"}, note="why", if_version=before.version)
    assert (found.version, found.note) == (before.version + 1, "why")
    assert client.policy_versions()[0].version == found.version
    assert client.apply_policy(before.version).document == before.document
    assert client.policy(found.version).document["half_life"] == "3d"


def test_a_guarantee_beyond_the_cluster_gives_a_warning(client: Client) -> None:
    before, given = client.policy().version, {"queues": {"a": {"nominal": {"gpus": 9999}}}}
    for answer in (client.diff_policy(given), client.try_policy(given), client.apply_policy(given), client.policy()):
        (warning,) = answer.warnings
        assert (warning.queue, warning.resource, warning.guaranteed) == ("a", "gpus", 9999)
        assert warning.capacity < 9999
    assert client.apply_policy(before).warnings == ()


def test_what_is_no_policy_is_refused(client: Client, folder: Path) -> None:
    wrong: Any
    for wrong in (folder / "nothing.yaml", True, None, {"half_life": float("nan")}):
        with pytest.raises(BadRequest):
            client.diff_policy(wrong)
    with pytest.raises(ClientError, match="half_life"):
        client.apply_policy("half_life: 0s")
    with pytest.raises(NotFound):
        client.policy(9999)


async def ask(home: Path) -> tuple[Any, ...]:
    client = AsyncClient(home)
    trial = await client.try_policy({"half_life": "9d"})
    return (
        await client.policy(),
        await client.policy_versions(),
        await client.diff_policy({"half_life": "9d"}),
        trial,
        await client.apply_policy({"half_life": "9d"}),
    )


def test_the_same_can_be_awaited(client: Client, home: Path) -> None:
    policy, versions, difference, trial, applied = asyncio.run(ask(home))
    assert difference.changes == trial.changes
    assert len(versions) <= policy.version
    assert applied.document["half_life"] == "9d"
