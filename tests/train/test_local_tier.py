"""Checkpoints on a node, and their copies: killed at every change of the disk, a half copy is never taken for one."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ganger import train
from ganger.train import complete_checkpoints, fence, sharded_save
from ganger.train.tiers import copy_checkpoints, local_tier
from tests.train.conftest import Rank, latest_step, save

CHANGES = ("mkdir", "rename", "replace", "fsync", "utime", "unlink", "rmdir", "link", "symlink")


class Nodes:
    """Ranks on nodes with disks of their own and a shared directory."""

    def __init__(self, rank: Rank, path: Path) -> None:
        self.shared = rank.checkpoints
        self._rank, self._path = rank, path

    def be(self, node: int, *, nodes: int = 1, attempt: int = 2) -> None:
        """Become the only rank of a node of a gang."""
        self._rank.set(
            GANGER_CHECKPOINT_LOCAL=str(self.local(node)),
            GANGER_NODE_RANK=str(node),
            GANGER_NODES=str(nodes),
            GANGER_RANK=str(node),
            WORLD_SIZE=str(nodes),
            LOCAL_RANK="0",
            GANGER_LOCAL_WORLD_SIZE="1",
            GANGER_ATTEMPT=str(attempt),
        )

    def local(self, node: int) -> Path:
        return self._path / "nvme" / f"n{node}"

    def names(self) -> list[str]:
        """Return what is in the shared directory except the markers of attempts."""
        paths = self.shared.iterdir() if self.shared.exists() else ()
        return sorted(path.name for path in paths if not path.name.startswith(fence.PREFIX))


@pytest.fixture
def nodes(rank: Rank, tmp_path: Path) -> Nodes:
    return Nodes(rank, tmp_path)


def copy(node: int) -> int:
    sharded_save._saves.clear()  # each copy is a process of its own
    sharded_save._left_drafts.clear()
    return copy_checkpoints.main([f"n{node}"])


def save_part(step: int, text: str) -> None:
    sharded_save._saves.clear()
    sharded_save._left_drafts.clear()
    with train.checkpoint(step, sharded=True) as directory:
        (directory / f"rank-{os.environ['GANGER_RANK']}.pt").write_text(text)


def killed_at(change: int, action: Callable[[], object]) -> bool:
    """Run an action in a child that is killed just before its change number `change` of a disk; False if it ended."""
    child = os.fork()
    if child == 0:
        changes = count(1)

        def before(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                if next(changes) == change:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **keywords)

            return call

        for name in CHANGES:
            setattr(os, name, before(getattr(os, name)))
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def is_whole(directory: Path, step: int) -> bool:
    """Return True for a complete checkpoint, False for none; fail for anything else."""
    if not directory.exists():
        return False
    assert complete_checkpoints.examine(str(directory), step)[1] == ""
    return True


@pytest.fixture(autouse=True)
def no_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_save, "_saves", {})
    monkeypatch.setattr(sharded_save, "_left_drafts", [])
    monkeypatch.setattr(copy_checkpoints, "NICENESS", 0)


def test_a_save_killed_anywhere_leaves_none_or_all_of_it_on_the_node(nodes: Nodes) -> None:
    nodes.be(0)
    save(4)
    for change in count(1):
        was_killed = killed_at(change, lambda: save(5))
        assert latest_step() == (5 if is_whole(nodes.local(0) / "step-000000005", 5) else 4)
        if not was_killed:
            assert change > 5
            return
        shutil.rmtree(nodes.local(0) / "step-000000005", ignore_errors=True)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_copy_killed_anywhere_is_none_and_the_next_one_completes_it(nodes: Nodes, parts: int) -> None:
    for change in count(1):
        for node in range(parts):
            nodes.be(node, nodes=parts)
            save_part(5, f"weights of {node}" * 9)
            if node < parts - 1:
                assert copy(node) == 0
        was_killed = killed_at(change, lambda: copy(parts - 1))
        is_whole(nodes.shared / "step-000000005", 5)
        assert copy(parts - 1) == 0
        assert is_whole(nodes.shared / "step-000000005", 5)
        texts = [(nodes.shared / "step-000000005" / f"rank-{node}.pt").read_text() for node in range(parts)]
        assert texts == [f"weights of {node}" * 9 for node in range(parts)]
        if not was_killed:
            assert change > 10
            return
        shutil.rmtree(nodes.shared)
        shutil.rmtree(nodes.local(0).parent)


def test_a_copy_leaves_nothing_but_the_checkpoint(nodes: Nodes) -> None:
    nodes.be(0)
    save(5)
    assert copy(0) == 0
    assert nodes.names() == ["step-000000005"]
    manifests = [json.loads((path / "ganger-checkpoint.json").read_text())["files"] for path in nodes.shared.glob("s*")]
    assert manifests == [json.loads((nodes.local(0) / "step-000000005/ganger-checkpoint.json").read_text())["files"]]


def test_the_newest_two_stay_on_the_node_and_the_shared_directory_keeps_what_the_job_says(
    nodes: Nodes, rank: Rank
) -> None:
    rank.set(GANGER_CHECKPOINT_KEEP="3")
    nodes.be(0)
    for step in range(1, 6):
        save(step)
        assert copy(0) == 0
    assert sorted(path.name for path in nodes.local(0).glob("step-*")) == ["step-000000004", "step-000000005"]
    assert nodes.names() == ["step-000000003", "step-000000004", "step-000000005"]


def test_a_part_of_an_earlier_attempt_is_never_combined_with_one_of_this(nodes: Nodes) -> None:
    nodes.be(0, nodes=2)
    save_part(5, "old")
    nodes.be(1, nodes=2, attempt=3)
    save_part(5, "new")
    assert copy(1) == 0
    nodes.be(0, nodes=2, attempt=3)
    assert copy(0) == 0
    assert latest_step() is None
    save_part(5, "new")
    assert copy(0) == 0
    assert latest_step() == 5
    assert {path.read_text() for path in (nodes.shared / "step-000000005").glob("rank-*")} == {"new"}


def test_an_older_attempt_can_no_longer_copy(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.be(0)
    save(5)
    fence.Fence(str(nodes.shared), "bert-7f3", "bert-7f3", 3)
    nodes.shared.mkdir()
    fence.Fence(str(nodes.shared), "bert-7f3", "bert-7f3", 3).claim()
    assert copy(0) == copy_checkpoints.FAILED
    assert "attempt 3 of bert-7f3 owns it" in capsys.readouterr().err
    assert not (nodes.shared / "step-000000005").exists()


@pytest.mark.parametrize("damage", ["contents", "size", "gone"])
def test_what_is_broken_on_the_node_is_not_copied_and_the_copy_of_an_intact_one_is_taken(
    nodes: Nodes, damage: str
) -> None:
    nodes.be(0)
    save(4)
    assert copy(0) == 0
    save(5)
    broken = nodes.local(0) / "step-000000005" / "model.pt"
    {"contents": lambda: broken.write_text("WEIGHTS"), "size": lambda: broken.write_text("w"), "gone": broken.unlink}[
        damage
    ]()
    assert copy(0) == 0
    assert not (nodes.shared / "step-000000005").exists()
    assert latest_step() == 4


def test_a_broken_copy_on_the_node_gives_way_to_the_one_in_the_shared_directory(nodes: Nodes, rank: Rank) -> None:
    nodes.be(0)
    save(5)
    assert copy(0) == 0
    (nodes.local(0) / "step-000000005" / "model.pt").write_text("WEIGHTS")
    newest = train.latest()
    assert newest is not None
    assert newest.directory == nodes.shared / "step-000000005"
    record = json.loads((rank.task / "rank-0.report").read_text().splitlines()[-1])
    assert (record["resumed"], record["skipped"]) == (5, [])


def test_a_full_node_is_an_error_that_names_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.be(0)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"step 5 in {nodes.local(0)}: No space left on device"):
        save(5)


def test_several_nodes_take_only_what_all_of_them_see(nodes: Nodes) -> None:
    nodes.be(0, nodes=2)
    save(5)
    assert latest_step() is None
    assert copy(0) == 0
    newest = train.latest()
    assert newest is not None
    assert newest.directory == nodes.local(0) / "step-000000005"
    nodes.be(1, nodes=2)
    newest = train.latest()
    assert newest is not None
    assert newest.directory == nodes.shared / "step-000000005"


def test_a_part_is_completed_by_links_to_the_files_of_other_nodes(nodes: Nodes) -> None:
    for node in range(2):
        nodes.be(node, nodes=2)
        save_part(5, f"weights of {node}")
        assert copy(node) == 0
    linked = Path(local_tier.link_part(str(nodes.shared), str(nodes.local(1)), 5))
    newest = train.latest()
    assert newest is not None
    assert newest.directory == linked == nodes.local(1) / "step-000000005"
    assert [(linked / f"rank-{node}.pt").read_text() for node in range(2)] == ["weights of 0", "weights of 1"]
    assert [(linked / f"rank-{node}.pt").is_symlink() for node in range(2)] == [True, False]
    assert local_tier.link_part(str(nodes.shared), str(nodes.local(7)), 5) == ""


def test_nodes_that_are_a_save_apart_copy_what_both_have(nodes: Nodes) -> None:
    for node, steps in ((0, (1, 2, 3)), (1, (1, 2))):
        nodes.be(node, nodes=2)
        for step in steps:
            save_part(step, f"{step} of {node}")
    for node in (0, 1):
        nodes.be(node, nodes=2)
        assert copy(node) == 0
    assert latest_step() == 2
    save_part(3, "3 of 1")
    assert copy(1) == 0
    assert latest_step() == 3
    assert nodes.names() == ["step-000000002", "step-000000003"]
