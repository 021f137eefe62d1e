"""Where an attempt begins: from its own checkpoints, else from those of the job that it names, and from no others."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.ranks.process import StartError
from ganger.launcher.ranks.resume import Resumption
from ganger.launcher.task_plan import Plan


class Attempt:
    """One attempt of the job `new`, whose checkpoint directory is beside that of the job `old`."""

    is_remote = False

    def __init__(self, path: Path) -> None:
        self.old, self.own = path / "ckpt" / "old", path / "ckpt" / "new"
        self.sent: list[tuple[str, int | None, str]] = []

    def send_fact(self, kind: str, step: int | None, source: str, **fields: Any) -> None:
        self.sent.append((kind, step, source))

    def source(self, **fields: Any) -> dict[str, Any]:
        return {"job": "old", "directory": str(self.old), "pattern": None, "step": None, "by_index": False} | fields

    def begin(self, *sources: dict[str, Any], generation: int = 1, **variables: str) -> str:
        """Return GANGER_RESUME_FROM of an attempt, "" without it."""
        environment = {"GANGER_CHECKPOINT_DIR": str(self.own), "GANGER_JOB_ID": "new", "GANGER_JOB_UID": "new"}
        environment |= {"GANGER_RESUME_SOURCES": json.dumps(sources)} if sources else {}
        plan = {
            "gang": "new",
            "node": "n1",
            "generation": generation,
            "directory": "/",
            "argv": ["true"],
            "environment": environment | variables,
            "ranks": [{"rank": 0, "environment": {}}],
        }
        return Resumption(Plan(plan), self).find().get("GANGER_RESUME_FROM", "")  # type: ignore[arg-type]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def save(root: Path, *steps: int, size: int = 3) -> None:
    for step in steps:
        directory = root / f"step-{step:09}"
        directory.mkdir(parents=True)
        (directory / "model.pt").write_text("abc")
        manifest = {"step": step, "files": {"model.pt": {"bytes": size, "crc32": zlib.crc32(b"abc")}}}
        (directory / "ganger-checkpoint.json").write_text(json.dumps(manifest))


def test_checkpoints_of_other_jobs_are_out_of_reach(attempt: Attempt) -> None:
    save(attempt.old, 19)
    assert attempt.begin() == ""
    assert attempt.sent == []


def test_it_begins_from_the_newest_complete_one_of_the_job_it_names(attempt: Attempt) -> None:
    save(attempt.old, 12, 19)
    save(attempt.old, 23, size=4)
    assert attempt.begin(attempt.source()) == str(attempt.old / "step-000000019")
    assert attempt.sent == [("resumed", 19, "old")]


def test_its_own_count_as_soon_as_there_are_any(attempt: Attempt) -> None:
    save(attempt.old, 19)
    save(attempt.own, 4)
    assert attempt.begin(attempt.source(), generation=2) == str(attempt.own / "step-000000004")
    assert attempt.sent == [("resumed", 4, "")]


def test_a_step_that_is_named_is_taken_or_nothing(attempt: Attempt) -> None:
    save(attempt.old, 12, 19)
    assert attempt.begin(attempt.source(step=12)) == str(attempt.old / "step-000000012")
    with pytest.raises(StartError, match=r"begin from: the checkpoint of step 15 of old in /.*/ckpt/old \(resume_from"):
        attempt.begin(attempt.source(step=15))


def test_a_job_never_begins_anew_that_was_to_begin_from_another(attempt: Attempt) -> None:
    save(attempt.old, 19, size=4)
    with pytest.raises(StartError, match="no complete checkpoint to begin from: the newest checkpoint of old"):
        attempt.begin(attempt.source())


def test_an_element_whose_counterpart_saved_nothing_takes_what_that_would_have_taken(attempt: Attempt) -> None:
    counterpart = attempt.source(job="sweep[3]", directory=str(attempt.old / "3"), by_index=True)
    assert attempt.begin(counterpart) == ""
    base = attempt.old / "base"
    save(base, 7)
    assert attempt.begin(counterpart, attempt.source(job="base", directory=str(base))) == str(base / "step-000000007")
    assert attempt.sent == [("resumed", 7, "base")]


def test_after_a_rollback_newer_ones_of_the_other_job_do_not_count(attempt: Attempt) -> None:
    save(attempt.old, 12, 19)
    back = {"GANGER_ROLLBACK_STEP": "15", "GANGER_ROLLBACK_ATTEMPT": "2"}
    assert attempt.begin(attempt.source(), generation=2, **back) == str(attempt.old / "step-000000012")


@pytest.mark.parametrize(
    ("pattern", "names", "newest", "step"),
    [
        ("checkpoint-*", ["checkpoint-500", "checkpoint-1000"], "checkpoint-1000", 1000),
        ("model.pt", ["model.pt"], "model.pt", None),
    ],
)
def test_what_the_other_script_named_by_itself_is_begun_from(
    attempt: Attempt, pattern: str, names: list[str], newest: str, step: int | None
) -> None:
    attempt.old.mkdir(parents=True)
    for name in names:
        (attempt.old / name).write_text("weights")
    assert attempt.begin(attempt.source(pattern=pattern)) == str(attempt.old / newest)
    assert attempt.sent == [("resumed", step, "old")]


@pytest.mark.parametrize(
    ("tracker", "text", "folder"),
    [("latest_checkpointed_iteration.txt", "100", "iter_0000100"), ("latest", "global_step100", "global_step100")],
)
def test_a_library_finds_the_other_jobs_checkpoint_where_it_saves(
    attempt: Attempt, tracker: str, text: str, folder: str
) -> None:
    (attempt.old / folder).mkdir(parents=True)
    (attempt.old / folder / "model.pt").write_text("weights")
    (attempt.old / tracker).write_text(text)
    for generation in (1, 2):
        assert Path(attempt.begin(attempt.source(), generation=generation)).name == folder
        assert (attempt.own / tracker).read_text() == text
        assert (attempt.own / folder / "model.pt").read_text() == "weights"
    assert attempt.sent[0] == ("resumed", 100, "old")


def test_in_place_it_begins_only_where_nothing_of_others_is(attempt: Attempt) -> None:
    in_place = {"GANGER_CHECKPOINT_IN_PLACE": "1"}
    assert attempt.begin(**in_place) == ""
    save(attempt.own, 3)
    assert attempt.begin(generation=2, **in_place) == str(attempt.own / "step-000000003"), "it is its own"
    with pytest.raises(StartError, match="has step-000000003, which another job has saved, and this one is to save"):
        attempt.begin(**in_place, GANGER_JOB_ID="other", GANGER_JOB_UID="other")
    itself = attempt.source(job="new", directory=str(attempt.own))
    found = attempt.begin(itself, **in_place, GANGER_JOB_ID="other", GANGER_JOB_UID="other")
    assert found == str(attempt.own / "step-000000003"), "it was told to"


@pytest.mark.parametrize(("name", "text"), [("checkpoint-500", "weights"), ("latest", "global_step100")])
def test_in_place_what_scripts_save_by_themselves_is_seen(attempt: Attempt, name: str, text: str) -> None:
    (attempt.own / "global_step100").mkdir(parents=True)
    (attempt.own / name).write_text(text)
    with pytest.raises(StartError, match=r"has (checkpoint-500|global_step100), which another job has saved"):
        attempt.begin(GANGER_CHECKPOINT_IN_PLACE="1", GANGER_CHECKPOINT_PATTERN="checkpoint-*")
